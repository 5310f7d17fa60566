"""Export to the Marian layout of Hugging Face, so that `MarianMTModel.from_pretrained` loads what was trained here."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from regard.checkpoints.huggingface import export_model
from regard.checkpoints.models import bare, write_json
from regard.models.transformer import TransformerConfig


def export_marian(
    model: nn.Module,
    folder: Path,
    *,
    start: int,
    end: int,
    decoding: Mapping[str, Any] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> None:
    """Write a Transformer as a Marian folder; `start`, `end`: its target tokens; `decoding`: values of its generation
    config; `extras` adds tokenizer files."""
    config = bare(model).config
    assert isinstance(config, TransformerConfig)
    tokens = {"decoder_start_token_id": start, "eos_token_id": end, "forced_eos_token_id": end}
    longest = min(512, config.max_length)  # their position table ends there
    generation = {
        **tokens, "pad_token_id": config.pad, "bad_words_ids": [[config.pad]], "max_length": longest, "num_beams": 4,
        **(decoding or {}),
    }  # fmt: skip

    def write(folder: Path) -> None:
        write_json(folder / "generation_config.json", generation)
        if extras is not None:
            extras(folder)

    export_model("transformer", model, folder, values={**tokens, "bos_token_id": None}, extras=write)

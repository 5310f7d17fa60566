"""Export to the Marian layout of Hugging Face, so that `MarianMTModel.from_pretrained` loads what was trained here."""

from collections.abc import Callable
from pathlib import Path

from torch import nn

from regard.checkpoints.folder import write_folder
from regard.checkpoints.models import CONFIG, bare, write_json
from regard.checkpoints.tables import read_table
from regard.checkpoints.weights import WEIGHTS, write_tensors
from regard.config import Config


def export_marian(
    model: nn.Module, folder: Path, *, start: int, end: int, extras: Callable[[Path], None] | None = None
) -> None:
    """Write a Transformer as a Marian folder; `start`, `end`: its target tokens; `extras` adds tokenizer files."""
    module, table = bare(model), read_table("marian")
    config = module.config
    assert isinstance(config, Config)
    tokens = {"decoder_start_token_id": start, "eos_token_id": end, "forced_eos_token_id": end}
    values = {**table.config.to_theirs(config.model_dump()), **tokens, "bos_token_id": None}
    pad = values["pad_token_id"]
    longest = min(512, values["max_position_embeddings"])  # their position table ends there
    generation = {**tokens, "pad_token_id": pad, "bad_words_ids": [[pad]], "max_length": longest, "num_beams": 4}

    def write(temporary: Path) -> None:
        write_json(temporary / CONFIG, values)
        write_json(temporary / "generation_config.json", generation)
        write_tensors(temporary / WEIGHTS, table.to_theirs(module.state_dict(), config))
        if extras is not None:
            extras(temporary)

    write_folder(folder, write)

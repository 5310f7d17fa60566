"""Export to the Marian layout of Hugging Face, which `MarianMTModel.from_pretrained` loads.

Marian's position vectors hold all sines first and then all cosines; Regard's alternate, unless
`positions = "sinusoidal_halves"`. A Transformer does not depend on the order of its features, so the export permutes
every tensor along the width into Marian's order.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.checkpoints.huggingface import export_tensors
from regard.checkpoints.models import bare, own_tensors, write_json
from regard.data.tokenizers.pair import PairTokenizer, SubwordTokenizer
from regard.errors import CheckpointError, UsageError
from regard.families.conversion import Conversion
from regard.families.translation.transformer import TransformerConfig
from regard.search.settings import read_decoding, their_settings

MARIAN_MODEL = "transformer"  # the catalog model with Marian's architecture
READING = re.compile(r"(.*_embedding\.weight|output_weight|.*\.(query|key|value|up)\.weight)")  # [..., width]
WRITING = re.compile(r".*\.(output|down|norm)\.(weight|bias)")  # [width, ...]
LONGEST = 512  # tokens of an answer if the model itself has no limit


def convert_to_marian(conversion: Conversion, target: Path) -> None:
    """Write a translator as a Marian folder, with a tokenizer that AutoTokenizer reads."""
    from regard.data.tokenizers.huggingface_export import write_fast_tokenizer

    tokenizer = conversion.tokenizer
    if not isinstance(tokenizer, PairTokenizer):
        raise UsageError("a Marian folder has a tokenizer of sentence pairs, and this model has none")

    def extras(folder: Path) -> None:
        conversion.write_extras(folder)
        if isinstance(tokenizer.source, SubwordTokenizer):
            write_fast_tokenizer(tokenizer, folder)

    side, loaded = tokenizer.target, conversion.loaded
    decoding = their_settings(read_decoding(loaded.folder).settings)
    export_marian(loaded.model, target, start=side.start, end=side.end, decoding=decoding, extras=extras)


def export_marian(
    model: nn.Module,
    folder: Path,
    *,
    start: int,
    end: int,
    decoding: Mapping[str, Any] | None = None,
    extras: Callable[[Path], None] | None = None,
) -> None:
    """Write a Transformer as a Marian folder. `start` and `end` are target tokens, `decoding` holds values of the
    generation config, and `extras` adds tokenizer files."""
    config = bare(model).config
    assert isinstance(config, TransformerConfig)
    _check(config)
    tensors = own_tensors(model)
    if config.positions == "sinusoidal":
        config, tensors = config.replace(positions="sinusoidal_halves"), sines_first(tensors, config.width)
    tokens = {"decoder_start_token_id": start, "eos_token_id": end, "forced_eos_token_id": end}
    generation = {
        **tokens,
        "pad_token_id": config.pad,
        "bad_words_ids": [[token] for token in sorted({config.pad, start} - {end})],  # Regard never writes them
        "max_length": min(LONGEST, config.max_length),  # the size of Marian's position table
        "num_beams": 4,
        **(decoding or {}),
    }

    def write(folder: Path) -> None:
        write_json(folder / "generation_config.json", generation)
        if extras is not None:
            extras(folder)

    values = {**tokens, "bos_token_id": None}
    export_tensors(MARIAN_MODEL, config, tensors, folder, values=values, extras=write)


def sines_first(tensors: Mapping[str, Tensor], width: int) -> dict[str, Tensor]:
    """The tensors of a Transformer with alternating sines and cosines, permuted along the width so that sines come
    first.

    The heads and the inner width of the feed-forward layers stay as they are.
    """
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])

    def put_in_order(name: str, tensor: Tensor) -> Tensor:
        axis = -1 if READING.fullmatch(name) else 0 if WRITING.fullmatch(name) else None
        return tensor if axis is None else tensor.index_select(axis, order.to(tensor.device))

    return {name: put_in_order(name, tensor) for name, tensor in tensors.items()}


def _check(config: TransformerConfig) -> None:
    """Refuse configurations for which MarianMTModel has no layer."""
    c = config
    odd = [f"encoder = {c.encoder!r}"] if c.encoder != "attention" else []
    odd += [f"positions = {c.positions!r}"] if not c.positions.startswith("sinusoidal") else []
    odd += [f"join_positions = {c.join_positions!r}"] if c.join_positions != "add" else []
    odd += [f"norm = {c.norm!r}"] if c.norm != "post" else []
    if odd:
        raise CheckpointError(
            f"transformers has no class for a translator with {' and '.join(odd)}: MarianMTModel has attention, norms "
            "after each sum, and sinusoidal positions that are added; use --to onnx, or --to ctranslate2 where it can"
        )

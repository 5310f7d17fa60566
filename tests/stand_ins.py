"""Stand-ins for the built-in translators: the same languages and files, small, with random weights."""

from pathlib import Path

import torch

from regard.checkpoints import save_model
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.families.translation.transformer import Transformer, TransformerConfig

OTHERS = ("es", "pt", "fr", "de", "it")
PAIRS = [
    Pair("where is the station?", "¿dónde está la estación? onde fica a estação? où est la gare ? wo ist der Bahnhof?"),
    Pair("we are eating bread.", "estamos comiendo pan. nous mangeons du pain. wir essen Brot. mangiamo il pane."),
]
SIZES = {"width": 16, "heads": 2, "encoder_depth": 1, "decoder_depth": 1, "ffn_width": 16}


def write_stand_ins(folder: Path, **sizes: int) -> Path:
    """Write both models into a folder."""
    torch.manual_seed(5)
    config = TokenizerConfig.parse({"size": 300, "min_frequency": 1})
    for name, sources, targets in (("en-many", ("en",), OTHERS), ("many-en", OTHERS, ("en",))):
        tokenizer = train_pair_tokenizer(PAIRS, config, sources, targets)
        vocabulary = {"source_vocab": tokenizer.source.size, "target_vocab": tokenizer.target.size}
        model = Transformer(TransformerConfig.parse({**vocabulary, "tie": "all", **SIZES, **sizes}))
        save_model(folder / name, "transformer", model, tokenizer.save, storage="int8")
    return folder

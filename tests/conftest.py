"""Small trained translators that several tests share; each is made once, in a few seconds."""

from pathlib import Path

import pytest

from regard.training.loop import train
from regard.training.recipe import load_recipe

TINY = (
    "data.phrasebook.count=400", "data.phrasebook.valid_count=20", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=6", "model.width=64", "model.heads=2", "model.ffn_width=128",
    "model.encoder_depth=1", "model.decoder_depth=2", "model.dropout=0.0",
    "tokenizer.kind=bpe", "tokenizer.size=600", "tokenizer.min_frequency=2", "training.label_smoothing=0.1",
    "decoding.beam=4", "training.steps=100", "training.warmup=20", "training.lr=5e-3", "training.batch_tokens=1024",
    "training.validate_every=0", "training.checkpoint_every=0", "training.device=cpu",
)  # fmt: skip


def trained(folder: Path, *changes: str, recipe: str = "phrasebook") -> Path:
    """The folder of a tiny translator."""
    return train(load_recipe(recipe, [*TINY, *changes]), folder)


@pytest.fixture(scope="session")
def translator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """English to Spanish and Portuguese, a Transformer that also has a Marian form."""
    return trained(tmp_path_factory.mktemp("transformer") / "run", "model.positions=sinusoidal_halves")

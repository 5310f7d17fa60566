"""Models exported to ONNX: onnxruntime computes the same logits from the graphs alone."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.checkpoints import load_model, save_model
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import CheckpointError, UsageError
from regard.families.language.bert import Bert, BertConfig
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.translation.onnx import export_onnx
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.optional import needed

pytest.importorskip("onnxscript")

SCRIPT = """
import sys
from pathlib import Path
from regard.checkpoints import load_model
from regard.families.translation.onnx import export_onnx
from regard.cli.main import run

translator, converted, *folders = map(Path, sys.argv[1:])
assert run(["convert", str(translator), str(converted), "--to", "onnx"]) == 0
for folder in folders:
    export_onnx(load_model(folder).model, folder / "onnx")
"""
TEXT = {"vocab": 29, "width": 16, "depth": 1, "ffn_width": 24, "max_length": 24, "heads": 4}
MODELS: dict[str, tuple[str, torch.nn.Module]] = {
    "rotary": (
        "transformer",
        Transformer(
            TransformerConfig(
                source_vocab=23, target_vocab=31, width=16, heads=4, ffn_width=24, encoder_depth=1, decoder_depth=1,
                positions="rotary", norm="pre",
            )
        ),
    ),
    "bert": ("bert", Bert(BertConfig.parse({**TEXT, "head": "masked"}))),
    "gpt": ("gpt", Gpt(GptConfig.parse(TEXT))),
    "llama": ("gpt", Gpt(GptConfig.parse({**TEXT, **LLAMA, "kv_heads": 2}))),
}  # fmt: skip


@pytest.fixture(scope="module")
def exported(translator_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders of all models with their graphs, exported in a separate process: the shape checks of the test run do
    not support symbolic sizes. It is one process, since the exporter takes seconds to start."""
    place = tmp_path_factory.mktemp("onnx")
    for name, (kind, model) in MODELS.items():
        for parameter in model.parameters():  # large enough to reveal a mistake
            torch.nn.init.normal_(parameter, std=0.2)
        save_model(place / name, kind, model.eval())
    given = [translator_folder, place / "converted", *(place / name for name in MODELS)]
    command = [sys.executable, "-W", "error", "-c", SCRIPT, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"written to {place / 'converted'}\n")
    return place


def graph(file: Path):
    onnxruntime = pytest.importorskip("onnxruntime")  # not above: it starts threads, which a forked worker would lack
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def padded(texts: int, length: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.arange(length) < torch.linspace(length, (length + 1) // 2, texts).long()[:, None]
    return torch.randint(1, vocab, mask.shape).masked_fill(~mask, 0), mask


def assert_translates_alike(model: Transformer, folder: Path) -> None:
    """Step by step from an empty cache, for several sizes, against the parallel pass."""
    encoder, decoder = graph(folder / "encoder.onnx"), graph(folder / "decoder.onnx")
    for sentences, length, steps in ((1, 1, 2), (3, 9, 7), (2, 40, 20)):
        source, mask = padded(sentences, length, model.config.source_vocab)
        inputs = torch.randint(1, model.config.target_vocab, (sentences, steps))
        with torch.inference_mode():
            expected = model(source, mask, inputs)
        (memory,) = encoder.run(None, {"source": source.numpy(), "mask": mask.numpy()})
        past = memory[:, :, :, :, :0]
        for step in range(steps):
            given = {"tokens": inputs[:, step : step + 1].numpy(), "mask": mask.numpy(), "memory": memory, "past": past}
            logits, past = decoder.run(None, given)
            np.testing.assert_allclose(logits, expected[:, step], atol=1e-4)


def test_a_trained_translator_has_the_same_logits_at_every_step(translator_folder: Path, exported: Path) -> None:
    model = load_model(translator_folder).model
    assert isinstance(model, Transformer)
    assert_translates_alike(model, exported / "converted")
    PairTokenizer.load(exported / "converted")


def test_a_translator_with_rotary_positions_and_pre_norm(exported: Path) -> None:
    model = MODELS["rotary"][1]
    assert isinstance(model, Transformer)
    assert_translates_alike(model, exported / "rotary" / "onnx")


def test_bert_yields_all_that_it_has(exported: Path) -> None:
    session, model = graph(exported / "bert" / "onnx" / "model.onnx"), MODELS["bert"][1]
    for texts, length in ((1, 1), (3, 24)):
        tokens, mask = padded(texts, length, 29)
        segments = torch.randint(2, tokens.shape)
        with torch.inference_mode():
            expected = {k: v for k, v in model(tokens, mask, segments)._asdict().items() if v is not None}
        names = [output.name for output in session.get_outputs()]
        given = {"tokens": tokens.numpy(), "mask": mask.numpy(), "segments": segments.numpy()}
        found = dict(zip(names, session.run(None, given), strict=True))
        assert found.keys() == expected.keys()
        for part, value in expected.items():
            np.testing.assert_allclose(found[part], value, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_gpt_and_llama(name: str, exported: Path) -> None:
    session, model = graph(exported / name / "onnx" / "model.onnx"), MODELS[name][1]
    for texts, length in ((1, 1), (3, 24)):
        tokens, mask = padded(texts, length, 29)
        with torch.inference_mode():
            expected = model(tokens, mask)
        (logits,) = session.run(None, {"tokens": tokens.numpy(), "mask": mask.numpy()})
        np.testing.assert_allclose(logits[mask.numpy()], expected[mask], atol=1e-4)


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Lstm has no ONNX form"):
        export_onnx(Lstm(LstmConfig(vocab=9, embedding=4, width=4)), tmp_path / "out")


def test_a_missing_package_is_named_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"needs the package nowhere_to_be_found.*regard\[export\]"):
        needed("nowhere_to_be_found.inside", extra="export")

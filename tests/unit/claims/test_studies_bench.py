"""The benchmark: all engines get the same work, and the roofline is counted correctly."""

import json
import math
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.bench import engines
from regard.bench.engines import ENGINES, Task
from regard.bench.joey import Joey, renamed
from regard.bench.run import agreement, measure, random_subject, write_forms
from regard.checkpoints import load_model
from regard.cli.main import run
from regard.data.batch import collate
from regard.errors import UsageError
from regard.families.language import text_reader
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.plan import decoding as roofline
from regard.plan.machine import bandwidth, multiply_rate

JOEYNMT = os.environ.get("JOEYNMT_PYTHON", "")  # a Python that has JoeyNMT, to test it too


def task_of(job: str, folder: Path, batch: int = 3) -> tuple[Task, dict[str, str]]:
    subject = random_subject(job, "tiny", batch)
    refused = write_forms(subject, folder)
    return Task(folder, subject.rows, 1, 12, True, subject.vocabulary, JOEYNMT), refused


def engines_here(job: str) -> list[str]:
    return [name for name in ENGINES[job] if JOEYNMT or not name.startswith("joeynmt")]


@pytest.mark.parametrize("job", ENGINES)
def test_every_engine_computes_the_same(job: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    task, refused = task_of(job, tmp_path)
    assert not refused or find_spec("ctranslate2") is None
    ours = ENGINES[job]["regard"](task).answer()
    reduced = {name for name in ENGINES[job] if name.endswith(("16", "int8"))}  # their answers may differ
    for name in set(engines_here(job)) - {"regard", *reduced, *refused}:
        engine = ENGINES[job][name](task)
        theirs = engine.answer()
        if isinstance(ours[0], list):
            assert theirs == ours, name
        else:
            assert theirs == pytest.approx(ours, abs=1e-4), name
        engine.run()


@pytest.mark.usefixtures("bf16")
def test_a_training_step_teaches_in_every_engine(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(engines, "multiplies_bf16", lambda device: True)  # so that the bf16 engines are tested too
    task, _ = task_of("train", tmp_path)
    for name in engines_here("train"):
        if name.startswith("joeynmt"):  # reports its loss only once
            continue
        engine = ENGINES["train"][name](task)
        before = engine.answer()
        for _ in range(3):
            engine.run()
        assert engine.answer() < before, name


def test_without_bf16_arithmetic_nobody_waits_for_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(engines, "multiplies_bf16", lambda device: False)
    task, _ = task_of("train", tmp_path)
    with pytest.raises(UsageError, match="no bf16 arithmetic"):
        ENGINES["train"]["regard bf16"](task)


def test_joeynmt_gets_every_weight_under_a_name_of_its_own() -> None:
    model = random_subject("train", "tiny", 2).model
    assert isinstance(model, Transformer)
    names = [name for name, _ in renamed(model)]
    assert len(set(names)) == len(names) == len(model.state_dict()) - 3 + 3 + 2  # three embeddings; two tables
    weights = dict(renamed(model))
    assert torch.equal(weights["decoder.layers.1.src_trg_att.k_layer.bias"], model.decoder[1].cross.key.bias)
    assert torch.equal(
        weights["encoder.layers.0.feed_forward.pwff_layer.3.weight"], model.encoder[0].feed_forward.down.weight
    )


@pytest.mark.parametrize(
    ("python", "complaint"),
    [("", "--joeynmt-python"), ("/no/such/python", "cannot start"), (sys.executable, "No module named 'joeynmt'")],
)
def test_where_there_is_no_joeynmt_it_says_so(python: str, complaint: str, tmp_path: Path) -> None:
    if find_spec("joeynmt"):
        pytest.skip("it is here")
    subject, batch = random_subject("train", "tiny", 1), collate([[2, 0]], [[3, 0]], pad=499, start=499)
    assert isinstance(subject.model, Transformer)
    with pytest.raises(UsageError, match=complaint):
        Joey(python, subject.model, batch, tmp_path, 1e-4, same_dropout=True)


def test_the_verb_measures_each_engine_in_a_process_of_its_own(tmp_path: Path, capsys) -> None:
    file = tmp_path / "speed.json"
    options = ["--shape", "tiny", "--batch", "2", "--beam", "1", "--seconds", "0", "--threads", "1"]
    assert run(["bench", "translate", *options, "--engines", "ctranslate2", "--json", str(file)]) == 0
    said, kept = capsys.readouterr().out, json.loads(file.read_text())
    assert "random weights" in said and "at the very least" in said
    (result,) = kept["results"]
    ours, theirs = result["rows"]
    assert (ours["engine"], ours["speed"], len(ours["rounds"])) == ("regard", 1.0, 5)
    assert theirs["problem"] or theirs["agreement"] == "2/2 answers the same"
    assert result["floor"]["seconds"] > 0


def test_a_trained_model_answers_as_long_as_it_likes(translator_folder: Path) -> None:
    (result,) = measure(
        "translate", model=str(translator_folder), batches=[4], beams=[2], engines=["regard"], seconds=0, threads=1
    )
    assert [row.engine for row in result.rows] == ["regard"] and result.batch == 4 and result.length > 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["juggle"], "choose one of translate"),
        (["translate", "--engines", "abacus"], "no engine 'abacus'"),
        (["translate", "--shape", "huge"], "has no shape 'huge'"),
        (["train", "-m", "anything"], "leave -m out"),
        (["translate", "--batch", "many"], "whole numbers"),
        (["translate", "-i", "nowhere.txt"], "no file"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(arguments: list[str], complaint: str, capsys) -> None:
    assert run(["bench", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_agreement_counts_answers_or_measures_numbers() -> None:
    assert agreement([[1, 2], [3]], [[1, 2], [4]]) == "1/2 answers the same"
    assert agreement([1.0, 2.0], [1.0, 2.5]) == "differs by 5e-01"


def test_an_engine_that_is_refused_says_why(tmp_path: Path) -> None:
    subject = random_subject("translate", "tiny", 1)
    config = subject.config.replace(positions="rotary")
    changed = type(subject)("transformer", Transformer(config), subject.rows, subject.vocabulary, trained=False)
    refused = write_forms(changed, tmp_path)
    assert refused.keys() == {"transformers", "ctranslate2", "ctranslate2 int8"}
    assert "positions" in refused["transformers"] and "rotary" in refused["ctranslate2"]


@pytest.mark.parametrize(("job", "beam"), [("translate", 1), ("translate", 4), ("generate", 1), ("encode", 1)])
def test_the_floor_counts_what_torch_counts(job: str, beam: int, tmp_path: Path) -> None:
    """Torch's own counter sees all products except those inside fused attention on a CPU."""
    subject = random_subject(job, "tiny", 1)
    write_forms(subject, tmp_path)
    task = Task(tmp_path, subject.rows, beam, 16, True, subject.vocabulary)
    loaded = load_model(tmp_path / "regard").model.requires_grad_(False)  # the counter fails in inference mode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_ours", lambda _: loaded)
        patch.setattr(engines, "decoding_model", lambda model, *_: model)  # torch cannot count compiled code
        patch.setattr(text_reader, "fast_model", lambda model: model)
        engine = ENGINES[job]["regard"](task)
    with FlopCounterMode(display=False) as counter:
        engine.answer()
    if job == "encode":
        floor = roofline.encoding(subject.name, subject.config, 1, 20)
    else:
        floor = roofline.decoding(subject.name, subject.config, 1, beam, 20, 16)
    assert 0.99 * counter.get_total_flops() < floor.flops < 1.04 * counter.get_total_flops()


def test_the_weights_of_a_step_are_those_of_the_decoder() -> None:
    config = TransformerConfig(source_vocab=50, target_vocab=70, width=16, heads=2, ffn_width=24, tie="none")
    model = Transformer(config)
    remembered = sum(
        weight.numel() for name, weight in model.named_parameters() if ".cross.key." in name or ".cross.value." in name
    )
    read = sum(weight.numel() for weight in [*model.decoder.parameters(), model.output_weight]) - remembered
    assert roofline.decoding("transformer", config, 1, 1, 9, 5).step_bytes == 4 * read


def test_rates_are_measured_however_little_time_there_is() -> None:
    assert 0 < multiply_rate(0.0) < math.inf
    assert 0 < bandwidth(2**20, 0.0) < math.inf

"""The smaller commands from end to end: files are written, numbers equal the library's, JSON parses."""

import json
import shutil
from pathlib import Path

import pytest
import sacrebleu
import torch
from transformers import MarianMTModel

import regard
from regard.cli.main import run
from regard.data.synthetic.phrasebook import phrases
from regard.look.word_alignment import to_pharaoh

SENTENCE = "we are eating bread"
SMALL = (
    "data.phrasebook.count=20", "data.phrasebook.max_words=4", "data.phrasebook.valid_count=2",
    "data.phrasebook.test_count=1", "training.steps=2", "training.validate_every=0", "training.device=cpu",
    "tokenizer.size=100", "model.width=8", "model.heads=1",
)  # fmt: skip


@pytest.mark.parametrize("suffix", ["html", "svg", "png", "json"])
def test_look_draws_every_format(
    suffix: str, translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"look.{suffix}"
    assert run(["look", SENTENCE, "-m", str(translator_folder), "--to", "es", "-o", str(file)]) == 0
    assert file.stat().st_size > 1000
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(file) in captured.err


def test_look_selects_layers_and_heads_and_follows_a_given_target(translator_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "look.json"
    command = ["look", SENTENCE, "-m", str(translator_folder), "--to", "es", "-o", str(file)]
    assert run([*command, "--layers", "decoder.*.cross", "--head", "1", "--target", "comemos pan"]) == 0
    seen = json.loads(file.read_text("utf-8"))
    assert [panel["heads"] for panel in seen["panels"]] == [1, 1]
    assert seen["target"] == ["comemos", "pan"]
    assert run([*command, "--layers", "middle.*"]) == 2
    assert run([*command, "--head", "7"]) == 2


@pytest.mark.parametrize("suffix", ["html", "svg", "png", "json"])
def test_look_draws_models_of_any_kind(suffix: str, make_encoder, make_writer, tmp_path: Path, capsys) -> None:
    encoder, file = str(make_encoder("masked")), tmp_path / f"look.{suffix}"
    assert run(["look", "we are [MASK]", "she is big", "-m", encoder, "--top", "3", "-o", str(file)]) == 0
    if suffix == "json":
        seen = json.loads(file.read_text("utf-8"))
        assert len(seen["predictions"][0]["choices"]) == 3 and seen["panels"][0]["keys"].count("[SEP]") == 2
    writing = ["--max-tokens", "6", "--temperature", "0.8", "--top-p", "0.9", "--seed", "2"]
    for kind in ("gpt", "t5"):
        writer = make_writer(kind)
        assert run(["look", "the fox saw", "-m", str(writer), *writing, "-o", str(file)]) == 0
        assert file.stat().st_size > 1000
        if suffix == "json":
            answer = regard.load(writer).generate("the fox saw", max_tokens=6, temperature=0.8, top_p=0.9, seed=2)
            seen = json.loads(file.read_text("utf-8"))
            assert seen["meta"].get("answer", "") == answer.text
            assert sum(each["written"] for each in seen["predictions"]) >= len(answer.ids)
    capsys.readouterr()
    assert run(["look", "the fox", "the owl", "-m", str(make_writer("gpt")), "-o", str(file)]) == 2
    assert "takes no second text" in capsys.readouterr().err


def test_evaluate_prints_scores_and_writes_the_translations(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.txt"
    command = ["evaluate", "phrasebook", "-m", str(translator_folder), "--count", "5", "--max-words", "6"]
    assert run([*command, "--beam", "1", "-o", str(file), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["sentences"] == len(file.read_text("utf-8").splitlines()) == 10
    assert 0 <= scores["bleu"] <= 100
    assert 0 <= scores["alignment_error_rate"] <= 1
    assert run(command) == 0
    assert "signature" in capsys.readouterr().out


def test_quality_is_measured_and_calibrated(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(translator_folder, folder)
    command = [
        "evaluate",
        "phrasebook",
        "-m",
        str(folder),
        "--count",
        "12",
        "--max-words",
        "6",
        "--beam",
        "1",
        "--json",
    ]
    assert run([*command, "--quality"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["chrf_by_quality"] == before["chrf_by_probability"]  # not calibrated
    assert run([*command, "--calibrate"]) == 0
    after = json.loads(capsys.readouterr().out)
    kept = json.loads((folder / "quality.json").read_text("utf-8"))
    named = {name: value["spearman"] for name, value in before.items() if name.startswith("chrf_by_")}
    fitted = {f"chrf_by_{name}": curve["spearman"] for name, curve in kept["estimators"].items()}
    assert fitted == pytest.approx({name: value for name, value in named.items() if name != "chrf_by_quality"})
    assert named[f"chrf_by_{after['quality_by']}"] == max(named.values()) and kept["sentences"] == 24
    assert after["quality_error"] < before["quality_error"]
    assert regard.load(folder).quality.calibration.sentences == 24
    assert run(["evaluate", "--gold", "x.tsv", "-m", str(folder), "--calibrate"]) == 2
    assert "held-out pairs" in capsys.readouterr().err
    assert run([*command, "--passes", "2"]) == 2
    assert "give --quality or --calibrate" in capsys.readouterr().err


def test_evaluate_against_gold_with_every_layer(
    translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gold = tmp_path / "gold.tsv"
    pairs = list(phrases("es", part="test", count=4, seed=1, max_words=6))
    gold.write_text("".join(f"{p.source}\t{p.target}\t{to_pharaoh(p.links or ())}\n" for p in pairs), "utf-8")
    single = str(translator_folder)
    assert run(["evaluate", "--gold", str(gold), "--gold-first", "0", "-m", single, "--to", "es", "--layers"]) == 0
    out = capsys.readouterr().out
    assert "alignment_error_rate" in out
    assert "decoder.1.cross head 1 shifted" in out


def test_two_models_are_compared_on_the_same_pairs(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{p.source}\t{p.target}\n" for p in phrases("es", part="test", count=6, seed=1)), "utf-8")
    command = ["compare", "models", str(pairs), "--to", "es", "--show", "2"]
    models = ["-m", f"before={folders[1]}", "-m", f"after={folders[0]}"]
    assert run([*command, *models, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["models"] == ["before", "after"] and found["sentences"] == 6 >= found["better"] + found["worse"]
    for side, folder in (("old", folders[1]), ("new", folders[0])):
        assert run(["evaluate", str(pairs), "--to", "es", "-m", str(folder), "--json"]) == 0
        assert found[side] == json.loads(capsys.readouterr().out)
    first, second = found["differences"]
    assert abs(first["new_chrf"] - first["old_chrf"]) >= abs(second["new_chrf"] - second["old_chrf"])
    chrf = sacrebleu.sentence_chrf(first["new"], [first["reference"]]).score
    assert first["old"] != first["new"] and first["new_chrf"] == pytest.approx(chrf)
    assert run([*command, *models]) == 0
    printed = capsys.readouterr().out
    assert "after is better in" in printed and f"(p = {found['p_values']['bleu']:.3f})" in printed
    assert run([*command, "-m", str(folders[0])]) == 2
    assert "the old and the new model" in capsys.readouterr().err


def test_compare_both_ways(translator_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = tmp_path / "length.svg"
    length = ["compare", "length", "-m", f"tiny={translator_folder}", "--count", "2", "--bins", "2-3,4-6"]
    assert run([*length, "-o", str(chart), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bins"] == ["2-3", "4-6"]
    assert "tiny" in chart.read_text("utf-8")
    assert run(["claims", "three-ways", "--sizes", "4,8", "--width", "8", "-o", str(tmp_path / "ways.png")]) == 0
    assert capsys.readouterr().out.count("self-attention") == 4  # fused and written out, of two lengths


def test_converted_to_marian_and_back_it_says_the_same(translator_folder: Path, tmp_path: Path) -> None:
    marian, back = tmp_path / "marian", tmp_path / "back"
    assert run(["convert", str(translator_folder), str(marian), "--to", "marian"]) == 0
    assert run(["convert", str(marian), str(back)]) == 0
    assert run(["convert", str(marian), str(back)]) == 2  # an existing folder is never overwritten
    ours, again = regard.load(translator_folder), regard.load(back)
    assert again.settings == ours.settings
    assert again.alignment == ours.alignment
    assert again.translate(SENTENCE, to="es") == ours.translate(SENTENCE, to="es")
    theirs = MarianMTModel.from_pretrained(marian)
    source = torch.tensor(ours.tokenizer.source_ids([SENTENCE], "es"))
    inputs = torch.tensor([[ours.tokenizer.target.start, 7, 9]])
    with torch.inference_mode():
        expected = theirs(input_ids=source, decoder_input_ids=inputs).logits
        got = ours.models[0](source, torch.ones_like(source, dtype=torch.bool), inputs)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


def test_models_doctor_and_plan_need_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "--json"]) == 0
    assert "phrasebook" in json.loads(capsys.readouterr().out)["recipes"]
    assert run(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("healthy\n")
    assert run(["plan", "transformer:tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > 0


@pytest.mark.filterwarnings("ignore:most of the training data is unknown")  # a tiny vocabulary
def test_train_prints_the_folder_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = [part for each in SMALL for part in ("--set", each)]
    assert run(["train", "phrasebook", "-o", str(tmp_path / "run"), *sets]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{tmp_path / 'run'}\n"
    assert (tmp_path / "run" / "model.safetensors").is_file()

"""Heads switched off on the command line: what changes, the answer of the whole model beside it, and mistakes."""

import json

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli.main import run
from regard.families.navigation.synthetic import built_in_house
from regard.families.speech.manifest import utterances
from tiny_speech import save_recognizer, tiny_recognizer, write_wav


def said(capsys, *arguments):
    assert run(list(arguments)) == 0
    return capsys.readouterr().out.strip()


@pytest.mark.filterwarnings("ignore:line 1. the translation reached the length limit")  # it babbles without heads
def test_a_translation_without_heads_stands_beside_that_of_the_whole_model(translator_folder, tmp_path, capsys):
    text = "we are eating bread"
    common = ("-m", str(translator_folder), "--to", "es")
    options = (*common, "--without", "decoder.*.cross:*")
    whole = said(capsys, "translate", text, *common)
    changed = said(capsys, "translate", text, *options)
    assert changed != whole
    assert said(capsys, "translate", text, *options, "--stream") == changed
    said(capsys, "look", text, *options, "-o", str(tmp_path / "look.json"))
    meta = json.loads((tmp_path / "look.json").read_text())["meta"]
    assert (meta["translation"], meta["original"], meta["without"]) == (changed, whole, "decoder.*.cross:*")
    assert said(capsys, "translate", text, *common) == whole


def test_a_text_is_continued_without_heads(gpt_folder, tmp_path, capsys):
    options = ("-m", str(gpt_folder), "--temperature", "0", "--max-tokens", "12")
    whole = said(capsys, "generate", "one two", *options)
    every = ("--without", "decoder.*.attention:*")
    changed = said(capsys, "generate", "one two", *options, *every)
    assert changed == said(capsys, "generate", "one two", *options, *every, "--stream")
    said(capsys, "look", "one two", *options, "--without", "decoder.0.attention:0", "-o", str(tmp_path / "look.json"))
    meta = json.loads((tmp_path / "look.json").read_text())["meta"]
    assert meta["original"] == (whole if meta["answer"].strip() != whole else "the same")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("decoder.1.cross", "'decoder.1.cross' names no head; write LAYER:HEAD, such as encoder.0.attention:0"),
        ("decoder.1.cross:9", "decoder.1.cross has heads 0 to 1; head 9 was asked for"),
        ("decoder.7.cross:0", "no attention layer matches 'decoder.7.cross'; this model has: encoder.0.attention"),
    ],
)
def test_a_head_that_does_not_exist_is_one_line_and_nothing_is_written(head, says, translator_folder, tmp_path, capsys):
    output = tmp_path / "out.txt"
    common = ["-m", str(translator_folder), "--to", "es", "--without", head, "-o", str(output)]
    assert run(["translate", "we are eating bread", *common]) == 2
    assert says in capsys.readouterr().err and not output.exists()
    assert run(["look", "we are eating bread", *common[:-1], str(tmp_path / "look.html")]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not (tmp_path / "look.html").exists()


def looked(capsys, folder, tmp_path, text, *options):
    """What `regard look` finds, as JSON."""
    said(capsys, "look", text, "-m", str(folder), *options, "-o", str(tmp_path / "look.json"))
    return json.loads((tmp_path / "look.json").read_text())


def predicted(report):
    return [[choice["token"] for choice in each["choices"]] for each in report["predictions"]]


def test_the_last_stream_of_another_text_brings_its_predictions(gpt_folder, tmp_path, capsys):
    text, other = "one two three", "two one three"
    clean, wanted = (looked(capsys, gpt_folder, tmp_path, each) for each in (text, other))
    assert predicted(clean) != predicted(wanted)
    patched = looked(capsys, gpt_folder, tmp_path, text, "--change", "decoder.1.residual=patch", "--from", other)
    assert predicted(patched) == predicted(wanted)
    assert patched["meta"]["without"] == "decoder.1.residual=patch" and patched["meta"]["original"]
    first = looked(capsys, gpt_folder, tmp_path, text, "--change", "decoder.1.residual@0=patch", "--from", other)
    assert predicted(first)[0] == predicted(wanted)[0] and predicted(first)[1:] == predicted(clean)[1:]
    longer = looked(
        capsys, gpt_folder, tmp_path, text, "--change", "decoder.1.residual@0,1=patch", "--from", f"{other} four"
    )
    assert predicted(longer)[:2] == predicted(wanted)[:2] and predicted(longer)[2:] == predicted(clean)[2:]


def test_weights_and_directions_are_changed_by_name(gpt_folder, tmp_path, capsys):
    text = "one two three"
    clean = looked(capsys, gpt_folder, tmp_path, text)
    direction = np.zeros(regard.load(gpt_folder).model.config.width, dtype=np.float32)
    direction[3] = 1.0
    np.save(tmp_path / "direction.npy", direction)
    for change, *other in (
        ("decoder.*.attention:*=uniform",),
        ("decoder.0.attention:1=row 2: 1 0 0",),
        ("decoder.0.attention:1=weights", "--from", "two one three"),
        (f"decoder.0.residual@1=add {tmp_path / 'direction.npy'} -9",),
    ):
        found = looked(capsys, gpt_folder, tmp_path, text, "--change", change, *other)
        assert found["predictions"] != clean["predictions"], change
    same = looked(capsys, gpt_folder, tmp_path, text, "--change", "decoder.0.attention:1=weights", "--from", text)
    assert predicted(same) == predicted(clean)
    options = ("-m", str(gpt_folder), "--temperature", "0", "--max-tokens", "8")
    pushed = ("--change", f"decoder.1.residual=add {tmp_path / 'direction.npy'} 90")
    assert said(capsys, "generate", text, *options, *pushed) != said(capsys, "generate", text, *options)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["decoder.0.attention:1"], "names no change; write LAYER:HEAD=WHAT or PLACE=WHAT"),
        (["decoder.0.attention:1=blind"], "'blind' is no change; expected off, uniform"),
        (["decoder.0.attention:1=row 2: 1 .."], "are no weights; write numbers"),
        (["decoder.0.attention:1@2=off"], "a head is changed at all tokens"),
        (["decoder.0.residual=patch"], "needs another input; `regard look` takes one with --from"),
        (["decoder.0.residual=patch", "--from", "one"], "expected as many tokens, chosen tokens alone, or one vector"),
        (["decoder.0.residual@5=patch", "--from", "o"], "positions on the other input; [5] were asked for"),
        (["decoder.0.attention:1=row 99: 1 0"], "decoder.0.attention had no query 99, so its row was not used"),
        (["decoder.0.attention:1=uniform", "--from", "one"], "no change takes from it"),
        (["decoder.9.residual=patch", "--from", "one"], "there is no place 'decoder.9.residual'"),
        (["decoder.0.residual=add nowhere.npy"], "nowhere.npy is no vector that can be read"),
    ],
)
def test_changes_that_cannot_be_made_are_one_line(change, says, gpt_folder, tmp_path, capsys):
    options = ["-m", str(gpt_folder), "-o", str(tmp_path / "look.json")]
    assert run(["look", "one two three", "--change", *change, *options]) in (1, 2)
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not (tmp_path / "look.json").exists()


def test_the_logit_lens_is_printed_and_written(gpt_folder, make_classifier, tmp_path, capsys):
    printed = said(capsys, "look", "one two", "-m", str(gpt_folder), "--logit-lens", "-o", str(tmp_path / "look.json"))
    head, *rows = [line.split("\t") for line in printed.splitlines()]
    report = json.loads((tmp_path / "look.json").read_text())
    assert head == ["layer", *report["logit_lens"]["places"]]
    assert [row[0] for row in rows] == ["decoder.0", "decoder.1"]
    token, share = report["logit_lens"]["layers"][1]["top"][-1][0]
    assert rows[1][-1] == f"{token} {share:.0%}" and token == predicted(report)[-1][0]
    Image.new("RGB", (16, 16), (200, 30, 30)).save(tmp_path / "red.png")
    page = str(tmp_path / "look.html")
    assert run(["look", str(tmp_path / "red.png"), "-m", str(make_classifier("vit")), "--logit-lens", "-o", page]) == 0
    assert capsys.readouterr().out.startswith("layer\tclass\nencoder.0\t")
    swin = ["look", str(tmp_path / "red.png"), "-m", str(make_classifier("swin")), "--logit-lens", "-o", page]
    assert run(swin) == 2 and "has no logit lens" in capsys.readouterr().err


def test_files_and_texts_are_answered_without_heads_too(
    make_encoder, make_classifier, make_navigator, make_forecaster, make_folder_of_structures, tmp_path, capsys
):
    """Every command that answers with attention takes --without; afterwards its answers are the first ones again."""
    (digits,) = utterances(part="test", count=1, seed=1, digits=(2, 2), rate=8000)
    write_wav(tmp_path / "digits.wav", digits.samples, 8000)
    recognizer = save_recognizer(tmp_path / "speech", tiny_recognizer(decoder_depth=1))
    house = built_in_house(1, 0)
    walk = ("Turn left.", "--scan", "builtin:houses#0", "--start", house.viewpoints[0], "--json")
    for command, folder, every in (
        (("fill", "one [MASK] three", "--top", "3"), make_encoder("masked"), "encoder.*"),
        (("embed", "one two"), make_encoder("masked"), "encoder.*"),
        (("transcribe", str(tmp_path / "digits.wav")), recognizer, "decoder.*"),
        (("navigate", *walk), make_navigator("vlnbert"), "links.*"),
        (("forecast", "builtin:walkers#0", "--samples", "1"), make_forecaster(), "encoder.*"),
        (("fold", "MSTAVLENPGLGRK", "--json"), make_folder_of_structures(), "structure.*"),
    ):
        common = [*command, "-m", str(folder)]
        whole = said(capsys, *common)
        assert said(capsys, *common, "--without", f"{every}:*") != whole, command
        assert said(capsys, *common) == whole
        assert run([*common, "--without", "nowhere:0"]) == 2
        assert "no attention layer matches 'nowhere'" in capsys.readouterr().err

"""Heads switched off on the command line: what changes, the answer of the whole model beside it, and mistakes."""

import json

import pytest

from regard.cli.main import run
from regard.data.audio.reading import write_wav
from regard.data.synthetic.houses import built_in_house
from regard.data.synthetic.speech import utterances
from tiny_speech import save_recognizer, tiny_recognizer


def said(capsys, *arguments):
    assert run(list(arguments)) == 0
    return capsys.readouterr().out.strip()


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

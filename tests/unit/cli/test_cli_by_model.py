"""Verbs that do what a model was trained for: it chooses the options and the answer; earlier names still work."""

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli.main import run
from regard.families.catalog import VERBS

WAYS = [name for name in VERBS if "/" in name and not name.startswith("embed/")]


@pytest.fixture
def image(tmp_path):
    pixels = np.random.default_rng(1).integers(0, 256, (24, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return str(tmp_path / "a.png")


@pytest.mark.parametrize("verb", ["read", "see"])
def test_help_lists_every_kind_of_model_with_its_options(verb, capsys):
    assert run([verb, "-h"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name in (name for name in WAYS if name.startswith(f"{verb}/")):
        assert f"Models that {VERBS[name].verb.does}:" in said
    assert said.count("--device") == said.count("-m, --model") == 1  # what all have is said once
    assert {"read": "--pairs", "see": "--score"}[verb] in said


def test_with_a_model_help_has_the_options_of_that_model(make_captioner, make_encoder, capsys):
    assert run(["see", "-h", "-m", str(make_captioner("soft"))]) == 0
    said = capsys.readouterr().out
    assert " see [OPTIONS]" in said and "--n-best" in said and "--score" not in said
    assert run(["read", f"--model={make_encoder('masked')}", "--help"]) == 0
    assert "--top" in (said := capsys.readouterr().out) and "--pairs" not in said


def test_the_model_decides_what_is_done(make_captioner, make_classifier, make_encoder, image, capsys):
    classifier, captioner = make_classifier("vit"), make_captioner("soft")
    assert run(["see", image, "-m", str(classifier)]) == 0
    assert capsys.readouterr().out.split("\t")[0] == regard.load(classifier).classify(image)[0].label
    assert run(["see", f"-m{captioner}", image]) == 0
    assert capsys.readouterr().out.strip() == regard.load(captioner).caption([image])[0].text
    masked = make_encoder("masked")
    assert run(["read", "we are [MASK] bread", "--model", str(masked)]) == 0
    assert capsys.readouterr().out.strip() == regard.load(masked).fill_all("we are [MASK] bread")


def test_an_option_of_another_kind_of_model_is_refused_by_name(make_classifier, image, capsys):
    assert run(["see", image, "-m", str(make_classifier("vit")), "--score", "0.3"]) == 2
    said = capsys.readouterr().err
    assert "--score is for models that detect objects" in said and "trained to label images; leave it out" in said
    assert run(["see", image, "-m", str(make_classifier("vit")), "--bogus"]) == 2
    assert "--bogus" in (said := capsys.readouterr().err) and "is for models" not in said


def test_a_model_of_another_kind_is_refused_with_the_verb_it_has(make_writer, make_classifier, image, capsys):
    assert run(["read", "the fox", "-m", str(make_writer("gpt"))]) == 2
    assert "is a GPT, which does not label texts, tag words" in (said := capsys.readouterr().err)
    assert said.endswith("; try generate\n")
    assert run(["read", image, "-m", str(make_classifier("vit"))]) == 2
    assert capsys.readouterr().err.endswith("; try see\n")


@pytest.mark.parametrize("name", sorted({way.partition("/")[2] for way in WAYS}))
def test_earlier_names_have_their_help(name, capsys):
    assert run([name, "-h"]) == 0
    assert "Example: regard" in capsys.readouterr().out or name == "classify"


def test_earlier_names_work_and_say_the_name_of_today(make_classifier, make_encoder, image, capsys):
    classifier = str(make_classifier("vit"))
    assert run(["see", image, "-m", classifier]) == 0
    today = capsys.readouterr()
    assert run(["classify", image, "-m", classifier]) == 0
    earlier = capsys.readouterr()
    assert earlier.out == today.out and earlier.err == "regard: `classify` is `read` or `see` now\n"
    assert run(["fill", "we are [MASK]", "-m", str(make_encoder("masked"))]) == 0
    assert capsys.readouterr().err == "regard: `fill` is `read` now\n"
    assert run(["detect", image, "-m", classifier]) == 2  # an earlier name does what it did, and nothing else
    assert "which does not detect objects; try see" in capsys.readouterr().err

"""regard see, look and evaluate on a captioner."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli.main import run
from regard.data.synthetic.shapes import scenes
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.families.captions.pipeline import ImageCaptioner
from regard.families.captions.task import Looks, mass_inside, named_things
from regard.look.report import from_json


@pytest.fixture
def files(tmp_path):
    """Two images, and a file that is none."""
    paths = [tmp_path / f"{number}.png" for number in range(2)]
    for path, scene in zip(paths, scenes(part="test", count=2, seed=1, size=40), strict=True):
        Image.fromarray(scene.pixels.transpose(1, 2, 0)).save(path)
    (tmp_path / "text.jpg").write_text("hello")
    return [str(paths[0]), str(tmp_path / "text.jpg"), str(paths[1])]


def test_one_line_out_for_each_image(make_captioner, files, capsys):
    model = str(make_captioner("soft"))
    assert run(["see", *files, "-m", model]) == 1
    said = capsys.readouterr()
    expected = [each.text for each in regard.load(model).caption([files[0], files[2]])]
    assert said.out.splitlines() == [expected[0], "", expected[1]]
    assert "file 2 is refused" in said.err and "text.jpg" in said.err
    assert run(["see", files[0], "-m", model, "--n-best", "3", "--beam", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3 and [float(score) for score, _ in lines] == sorted(
        (float(s) for s, _ in lines), reverse=True
    )
    assert run(["see", files[0], "-m", model, "--json", "--n-best", "2"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told.keys() == {"image", "text", "score", "finished", "alternatives"} and len(told["alternatives"]) == 1


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [("hard", "png"), ("soft", "svg"), ("heads", "html"), ("soft", "json"), ("hard", "json"), ("heads", "json")],
)
def test_attention_is_drawn_as_a_strip(make_captioner, files, tmp_path, capsys, kind, suffix):
    model, out = str(make_captioner(kind)), tmp_path / f"look.{suffix}"
    assert run(["see", files[0], "-m", model, "--attention", str(out)]) == 0
    caption = capsys.readouterr().out.strip()
    assert out.stat().st_size > 1000
    looked = tmp_path / f"again.{suffix}"
    assert run(["look", files[0], "-m", model, "-o", str(looked)]) == 0
    assert looked.read_bytes() == out.read_bytes()
    if suffix == "svg":
        assert all(word in out.read_text() for word in caption.split())
    if suffix == "json":
        report = from_json(json.loads(out.read_text()))
        assert report.view == "strip" and report.target == caption.split()
        assert len(report.panels) == {"soft": 1, "hard": 2, "heads": 2}[kind]
        assert len(report.details["gates"]) == (0 if kind == "heads" else len(caption.split()))
        assert report.details["drawn"] == ([False, True] if kind == "hard" else [False] * len(report.panels))


def test_what_cannot_be_drawn_is_refused(make_captioner, files, tmp_path, capsys):
    out = str(tmp_path / "look.png")
    assert run(["see", files[0], files[2], "-m", str(make_captioner("soft")), "--attention", out]) == 2
    assert "give one image" in capsys.readouterr().err
    assert run(["see", files[0], "-m", str(make_captioner("blind")), "--attention", out]) == 2
    assert "no attention layers to draw" in capsys.readouterr().err
    assert run(["look", files[0], "-m", str(make_captioner("soft")), "--at", "0.5,0.5", "-o", out]) == 2
    assert "leave out --at" in capsys.readouterr().err


def test_an_empty_caption_is_an_answer_that_looks_nowhere(make_captioner, files, tmp_path, capsys, monkeypatch):
    model, out = str(make_captioner("soft")), tmp_path / "look.png"
    nothing = replace(regard.load(model).caption([files[0]])[0], text="", ids=[])
    monkeypatch.setattr(ImageCaptioner, "caption", lambda self, images, settings: [nothing for _ in images])
    assert run(["see", files[0], "-m", model, "--attention", str(out)]) == 0
    said = capsys.readouterr()
    assert said.out == "\n" and "the caption is empty" in said.err and not out.exists()


@pytest.mark.parametrize("kind", ["hard", "blind"])
def test_scenes_are_measured_with_where_it_looked(make_captioner, capsys, kind):
    assert run(["evaluate", "scenes", "-m", str(make_captioner(kind)), "--count", "6", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 6
    assert {"bleu1", "bleu4", "cider", "rouge", "exact", "constant cider", "exchanged bleu4"} <= told.keys()


def test_files_are_measured_and_bad_ones_named(make_captioner, files, tmp_path, capsys):
    (tmp_path / "images").mkdir()
    for number, path in enumerate((files[0], files[2])):
        (tmp_path / "images" / f"{number}.png").write_bytes(Path(path).read_bytes())
    captions = tmp_path / "captions.tsv"
    captions.write_text("0.png\t0\tA red circle\n1.png\t0\tA ring .\n2.png\t0\tNot there\n")
    assert run(["evaluate", str(captions), "-m", str(make_captioner("soft")), "--beam", "2", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["images"] == 2 and "2.png" in said.err and "exact" in said.out


@pytest.mark.parametrize("kind", ["word", "bpe"])
def test_attention_is_measured_at_the_tokens_of_the_named_words(kind):
    (scene,) = scenes(part="test", count=1, seed=1, size=32)
    vocabulary = VocabularyConfig.parse({"kind": kind, "size": 270, "min_frequency": 1})
    tokenizer = train_vocabulary([scene.caption], vocabulary, "terminated")
    ids = tokenizer.encode([scene.caption])[0].ids[:-1]
    numbers, words = tokenizer.word_numbers(ids), [""] * len(scene.caption.split())
    for token, number in zip(ids, numbers, strict=True):
        words[number] += tokenizer.decode([token])
    assert [each.strip() for each in words] == scene.caption.split()
    looks, (thing, named) = Looks(tokenizer), next(named_things(scene, scene.caption.split()))
    named = [place for place, number in enumerate(numbers) if number in named]
    weights = np.zeros((1, len(ids), scene.owners.size))
    weights[:, named] = (scene.owners == thing + 1).ravel() / (scene.owners == thing + 1).sum()  # all on its pixels
    looks.add([scene], [(scene.caption, ids)], [({"cross": weights}, [])])
    assert looks.masses["cross"][0] == pytest.approx(1)


def test_the_mass_inside_a_shape_by_hand():
    inside = np.zeros((4, 4), dtype=bool)
    inside[0, :3] = True  # half of the first cell of 2 x 2, a quarter of the second
    assert mass_inside(np.array([0.6, 0.2, 0.1, 0.1]), inside) == pytest.approx(0.6 * 0.5 + 0.2 * 0.25)
    assert mass_inside(np.full(9, 1 / 9), np.ones((32, 32), dtype=bool)) == pytest.approx(1)


def test_words_name_the_objects_of_a_scene():
    scene = next(each for each in scenes(part="test", count=30, seed=1, size=16) if len(each.things) == 3)
    words = scene.caption.split()
    found = list(named_things(scene, words))
    assert [number for number, _ in found] == [0, 1, 2]
    for number, places in found:
        assert " ".join(words[place] for place in places) == scene.things[number].words
    assert list(named_things(scene, ["a", "tiny", "pink", "ring"])) == []

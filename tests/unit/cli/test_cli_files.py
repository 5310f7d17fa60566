"""Files of commands: folders, names and content on standard input, bad ones, and several of one name."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.checkpoints import save_model
from regard.cli.main import run
from regard.data.images.reading import Preprocessing, read_image
from regard.families.catalog import MODELS
from regard.families.speech.manifest import utterances
from tiny_speech import save_recognizer, tiny_recognizer, write_wav


@pytest.fixture
def given(monkeypatch):
    """Puts bytes onto standard input."""
    return lambda content: monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.fixture
def images(tmp_path):
    """A folder with two images of one name in two of its folders, a third image, and a file of another kind."""
    rng, root = np.random.default_rng(0), tmp_path / "images"
    for name in ("one/a.png", "two/a.png", "b.jpg"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(root / name)
    (root / "notes.txt").write_text("no image")
    return root


@pytest.fixture
def detector(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["detector"]
    model = entry.model(entry.config.parse({**entry.presets["tiny"], "classes": 2, "class_names": ("cat", "dog")}))
    model.regions.label.bias.data[1] = 2.0  # so that something is found
    preprocessing = Preprocessing(size=(64, 64), resize=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "detector", "detector", model, preprocessing.save)
    return str(tmp_path / "detector")


def said(capsys, *arguments):
    assert run([*map(str, arguments)]) == 0
    return capsys.readouterr()


def test_a_folder_stands_for_its_images_in_order(make_captioner, detector, images, capsys):
    model, files = make_captioner("soft"), [images / name for name in ("b.jpg", "one/a.png", "two/a.png")]
    assert said(capsys, "caption", images, "-m", model).out == said(capsys, "caption", *files, "-m", model).out
    lines = said(capsys, "detect", images, "-m", detector, "--json").out.splitlines()
    assert [json.loads(line)["image"] for line in lines] == [str(file) for file in files]
    (images / "empty").mkdir()
    assert run(["see", str(images / "empty"), "-m", str(model)]) == 1
    assert "without a file to read; expected .png" in capsys.readouterr().err


def test_standard_input_has_an_image_or_names(make_captioner, detector, images, tmp_path, capsys, given):
    model, file = make_captioner("soft"), images / "b.jpg"
    wanted = said(capsys, "caption", file, "-m", model).out
    given(file.read_bytes())
    assert said(capsys, "caption", "-", "-m", model).out == wanted
    given(f"{file}\n".encode())
    assert said(capsys, "caption", "-m", model).out == wanted
    given(file.read_bytes())
    drawn = tmp_path / "strip.json"
    assert said(capsys, "caption", "-", "-m", model, "--attention", drawn).out == wanted
    assert json.loads(drawn.read_text())["title"] == "stdin"
    found = json.loads(said(capsys, "detect", file, "-m", detector, "--json").out)
    for options in ((), ("-o", tmp_path / "o.png", "--features", tmp_path / "f.npz", "--stages", tmp_path / "s.svg")):
        given(file.read_bytes())
        assert json.loads(said(capsys, "detect", "-", "-m", detector, "--json", *options).out) == {
            **found,
            "image": "-",
        }
    assert read_image(tmp_path / "o.png").size == (50, 40) and "proposals: " in (tmp_path / "s.svg").read_text()
    given(file.read_bytes())
    assert said(capsys, "look", "-", "-m", model, "-o", tmp_path / "look.json").out == ""
    given(b"no image")
    assert run(["see", "-", "-m", str(model)]) == 1 and "the file is no image" in capsys.readouterr().err
    assert run(["see", "-", "-", "-m", str(model)]) == 2 and "give - once" in capsys.readouterr().err


def test_images_of_one_name_are_drawn_to_files_of_their_own(detector, images, tmp_path, capsys):
    out = tmp_path / "out"
    told = said(capsys, "detect", images, "-m", detector, "-o", out).err
    assert f"{images / 'one/a.png'} drawn to {out / 'a.png'}\n{images / 'two/a.png'} drawn to {out / 'a-2.png'}" in told
    assert sorted(path.name for path in out.iterdir()) == ["a-2.png", "a.png", "b.png"]
    assert (out / "a.png").read_bytes() != (out / "a-2.png").read_bytes()


@pytest.mark.parametrize("output", ["all.json", "folder", "features.npz"])
def test_nothing_is_written_if_an_image_is_bad_unless_it_is_skipped(detector, images, tmp_path, capsys, output):
    (images / "bad.png").write_bytes(b"no image")
    option = ["--features" if output.endswith("npz") else "-o", str(tmp_path / output)]
    assert run(["see", str(images), "-m", detector, *option]) == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "bad.png is no image" in told.err
    assert not (tmp_path / output).exists()
    told = said(capsys, "detect", images, "-m", detector, *option, "--skip-bad")
    assert len(told.out.splitlines()) == 3 and f"skipped 1 of 4 files: {images / 'bad.png'}" in told.err
    assert (tmp_path / output).exists()


def test_bad_images_are_left_out_of_captions_on_request(make_captioner, images, capsys):
    model, bad = str(make_captioner("soft")), images / "bad.png"
    bad.write_bytes(b"")
    files = [str(images / "b.jpg"), str(bad)]
    assert run(["see", *files, "-m", model]) == 1 and capsys.readouterr().out.endswith("\n\n")
    told = said(capsys, "caption", *files, "-m", model, "--skip-bad")
    assert len(told.out.splitlines()) == 1 and f"skipped 1 of 2 files: {bad}" in told.err
    assert run(["see", str(bad), "-m", model, "--skip-bad"]) == 1


def test_recordings_come_from_folders_and_standard_input(tmp_path, capsys, given):
    model, root = save_recognizer(tmp_path / "speech", tiny_recognizer()), tmp_path / "talks"
    for name, digits in zip(("one/a", "two/a"), utterances(part="test", count=2, seed=1, rate=8000), strict=True):
        (root / name).parent.mkdir(parents=True)
        write_wav(root / f"{name}.wav", digits.samples, 8000)
    wanted = said(capsys, "transcribe", root / "one/a.wav", root / "two/a.wav", "-m", model).out
    assert said(capsys, "transcribe", root, "-m", model).out == wanted
    given(f"{root / 'one/a.wav'}\n{root / 'two/a.wav'}\n".encode())
    assert said(capsys, "transcribe", "-m", model).out == wanted
    given((root / "one/a.wav").read_bytes())
    assert said(capsys, "transcribe", "-", "-m", model).out == wanted.splitlines()[0] + "\n"
    said(capsys, "transcribe", root, "-m", model, "-o", tmp_path / "out")
    written = [(tmp_path / "out" / name).read_text() for name in ("a.txt", "a-2.txt")]
    assert "".join(written) == wanted
    (root / "two/a.wav").write_bytes(b"")
    assert run(["transcribe", str(root), "-m", str(model), "-o", str(tmp_path / "none")]) == 1
    assert not (tmp_path / "none").exists()


def test_proteins_and_scenes_come_from_standard_input(
    make_folder_of_structures, make_forecaster, tmp_path, capsys, given
):
    model, fasta = make_folder_of_structures(), tmp_path / "proteins" / "some.fasta"
    fasta.parent.mkdir()
    fasta.write_text(">first\nACDEFG\n>second\nMKVLA\n")
    wanted = said(capsys, "fold", fasta, "-m", model).out
    assert said(capsys, "fold", fasta.parent, "-m", model).out == wanted
    given(fasta.read_bytes())
    assert said(capsys, "fold", "-", "-m", model).out == wanted and len(wanted.splitlines()) == 2
    given(b">x\nAC1D\n")
    assert run(["fold", "-", "-m", str(model)]) == 1 and "'1' at residue 3" in capsys.readouterr().err
    walkers, scene = make_forecaster(), "\n".join(f"{frame},1,{frame / 10},0" for frame in range(0, 200, 10))
    given(scene.encode())
    rows = said(capsys, "forecast", "-", "-m", walkers, "--samples", "2").out.splitlines()
    assert rows[0] == "frame,agent,sample,x,y" and len(rows) == 1 + 3 * regard.load(walkers).config.future
    given(b"")
    assert run(["forecast", "-", "-m", str(walkers)]) == 1 and "has no row" in capsys.readouterr().err


def test_a_dash_stands_for_lines_where_texts_are_read(make_encoder, capsys, given):
    model = make_encoder("classify")
    wanted = said(capsys, "classify", "one two", "three", "-m", model).out
    given(b"one two\nthree\n")
    assert said(capsys, "classify", "-", "-m", model).out == wanted

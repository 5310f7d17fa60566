"""The commands on images: classify, evaluate, look, generate, compare."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.checkpoints import save_model
from regard.claims import measurements as growth
from regard.cli.main import run
from regard.data.images.reading import read_image
from regard.families.catalog import MODELS
from regard.families.images.generation import Palette


@pytest.fixture
def files(tmp_path):
    """Two images with three bad files between them."""
    rng = np.random.default_rng(0)
    for name in ("a.png", "z.jpg"):
        Image.fromarray(rng.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(tmp_path / name)
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.jpg").write_text("hello")
    return [str(tmp_path / name) for name in ("a.png", "cut.png", "missing.png", "text.jpg", "z.jpg")]


def test_classify_names_bad_files_and_goes_on(make_classifier, files, capsys):
    folder = str(make_classifier("vit"))
    assert run(["see", *files, "-m", folder]) == 1
    out, err = capsys.readouterr()
    lines = out.split("\n")[:-1]
    best = regard.load(folder).classify([files[0], files[-1]])
    assert [line.split("\t")[0] for line in lines] == [best[0].label, "", "", "", best[1].label]
    assert float(lines[0].split("\t")[1]) == pytest.approx(best[0].probability, abs=1e-4)
    assert all(name in err for name in ("cut.png", "missing.png", "text.jpg"))
    assert "Traceback" not in err


def test_classify_as_json(make_classifier, files, capsys):
    assert run(["see", files[0], "-m", str(make_classifier("swin")), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["image"] == files[0] and set(told["labels"]) == {"a", "b", "c"}
    assert sum(told["labels"].values()) == pytest.approx(1, abs=1e-5)
    assert run(["see", files[0], "-m", str(make_classifier("swin")), "--pairs"]) == 2


def test_evaluate_on_a_folder_of_classes(make_classifier, tmp_path, capsys):
    classifier, right = regard.load(make_classifier("vit")), 0
    rng = np.random.default_rng(1)
    for number in range(12):
        label = "abc"[number % 3]
        (tmp_path / "set" / label).mkdir(parents=True, exist_ok=True)
        path = tmp_path / "set" / label / f"{number}.png"
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
        right += classifier.classify(path)[0].label == label
    assert run(["evaluate", str(tmp_path / "set"), "-m", str(make_classifier("vit")), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["pictures"], told["accuracy"]) == (12, pytest.approx(right / 12))
    (tmp_path / "set" / "a" / "bad.png").write_text("no")
    assert run(["evaluate", str(tmp_path / "set"), "-m", str(make_classifier("vit"))]) == 1
    assert "bad.png is no image" in capsys.readouterr().err
    assert run(["evaluate", "scenes", "-m", str(make_classifier("vit"))]) == 1
    assert "class 'circle'; the model knows a, b, c" in capsys.readouterr().err
    assert run(["evaluate", "-m", str(make_classifier("vit"))]) == 2


def test_evaluate_finds_data_as_recipes_do(make_classifier, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REGARD_DATA", "elsewhere")
    (tmp_path / "set" / "a").mkdir(parents=True)
    Image.new("RGB", (16, 16)).save(tmp_path / "set" / "a" / "x.png")
    command = ["evaluate", "data:set", "-m", str(make_classifier("vit")), "--json"]
    assert run(command) == 1
    assert "elsewhere/set is not there; the data root is elsewhere: set REGARD_DATA" in capsys.readouterr().err
    assert run([*command, "--data-root", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 1
    command[1] = "set#part"
    assert run([*command, "--data-root", str(tmp_path)]) == 1
    assert "no 'set' here; what is below the data root is called data:set#part" in capsys.readouterr().err


def test_look_writes_files_and_refuses_in_words(make_classifier, files, tmp_path, capsys):
    folder = str(make_classifier("vit"))
    assert run(["look", files[0], "-m", folder, "-o", str(tmp_path / "o.json"), "--layers", "encoder.0.*"]) == 0
    told = json.loads((tmp_path / "o.json").read_text())
    assert [layer["name"] for layer in told["layers"]] == ["encoder.0.attention"]
    assert told["title"] == "a.png"
    assert run(["look", files[0], "-m", folder, "-o", str(tmp_path / "o.png"), "--at", "0.2,0.4", "--at", "1,1"]) == 0
    assert read_image(tmp_path / "o.png").width > 100
    capsys.readouterr()
    assert run(["look", files[0], "-m", folder, "--at", "2,3"]) == 2
    assert "is not a place" in capsys.readouterr().err
    assert run(["look", files[1], "-m", folder, "-o", str(tmp_path / "o.png")]) == 1
    assert "cut short" in capsys.readouterr().err
    assert run(["look", files[0], "-m", str(make_classifier("resnet")), "-o", str(tmp_path / "o.png")]) == 2
    assert "no attention to look at" in capsys.readouterr().err


@pytest.fixture
def segmenter(tmp_path):
    torch.manual_seed(0)
    values = {**MODELS["segmenter"].presets["tiny"], "classes": 3, "class_names": ("background", "cat", "dog")}
    model = MODELS["segmenter"].model(MODELS["segmenter"].config(**values))
    return str(save_model(tmp_path / "segmenter", "segmenter", model) or tmp_path / "segmenter")


@pytest.mark.parametrize(
    "option", [["--target", "x"], ["--max-tokens", "0"], ["--seed", "0"], ["--top", "3"], ["--to", "es"]]
)
def test_look_refuses_options_that_an_image_does_not_need(make_classifier, files, option, tmp_path, capsys):
    out = tmp_path / "look.html"
    assert run(["look", str(files[0]), "-m", str(make_classifier("vit")), "-o", str(out), *option]) == 2
    assert f"{option[0]} is for models that read texts" in capsys.readouterr().err and not out.exists()


def test_segment_writes_masks_names_bad_files_and_goes_on(segmenter, files, tmp_path, capsys):
    out = tmp_path / "masks"
    assert run(["see", *files, files[0], "-m", segmenter, "-o", str(out)]) == 1
    said, err = capsys.readouterr()
    first, *refused, last, again = said.split("\n")[:-1]
    assert refused == ["", "", ""] and all(name in err for name in ("cut.png", "missing.png", "text.jpg"))
    assert [line.split("\t")[0] for line in (first, last, again)] == [str(out / f"{n}.png") for n in ("a", "z", "a-2")]
    found = regard.load(segmenter).segment(files[0])[0]
    with Image.open(out / "a.png") as mask:
        assert mask.mode == "P" and np.array_equal(np.asarray(mask), found.mask)
    name, share = next(iter(found.shares.items()))
    assert f"{name} {share:.1%}" in first


def test_segment_one_picture_as_json_and_refuse_in_words(segmenter, make_classifier, files, tmp_path, capsys):
    mask = tmp_path / "new" / "mask.png"
    assert run(["see", files[0], "-m", segmenter, "-o", str(mask), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mask"] == str(mask) and sum(told["shares"].values()) == pytest.approx(1)
    assert run(["see", *files, "-m", segmenter, "-o", str(mask)]) == 2
    assert "one file" in capsys.readouterr().err
    assert run(["see", files[0], "-m", str(make_classifier("vit")), "-o", str(mask)]) == 2
    assert "-o is for models that segment images or detect objects" in capsys.readouterr().err
    assert run(["look", files[0], "-m", segmenter, "-o", str(tmp_path / "look.json")]) == 0
    assert json.loads((tmp_path / "look.json").read_text())["layers"][0]["queries"] == [16, 16]
    assert run(["see", files[0], "-m", segmenter]) == 2


def test_generate_makes_pictures_of_classes_and_look_shows_how(tmp_path, capsys):
    torch.manual_seed(0)
    config = MODELS["sagan"].config(
        image_size=16, widths=(16, 8), latent=8, attention_at=8, classes=2, class_names=("cat", "dog")
    )
    save_model(tmp_path / "model", "sagan", MODELS["sagan"].model(config))
    model, sheet = str(tmp_path / "model"), tmp_path / "sheet.png"
    assert run(["generate", "-m", model, "-n", "3", "-o", str(sheet), "--seed", "4"]) == 0
    assert read_image(sheet).size == (2 * 17 - 1, 3 * 17 - 1)
    assert run(["generate", "dog", "-m", model, "-o", str(sheet)]) == 0
    assert read_image(sheet).size == (16, 16)
    assert run(["look", "dog#3", "-m", model, "-o", str(tmp_path / "look.png"), "--at", "0.5,0.5"]) == 0
    assert run(["look", "dog#x", "-m", model, "-o", str(tmp_path / "look.png")]) == 2
    capsys.readouterr()
    assert run(["generate", "-m", model]) == 2
    assert "-o FILE.png" in capsys.readouterr().err
    assert run(["generate", "cow", "-m", model, "-o", str(sheet)]) == 2
    assert run(["see", str(sheet), "-m", model]) == 2


def test_generate_goes_on_from_half_a_picture(tmp_path, capsys):
    torch.manual_seed(0)
    values = {**MODELS["gpt"].presets["igpt-tiny"], "vocab": 4, "width": 16, "heads": 2, "depth": 1, "max_length": 16}
    palette = Palette(torch.tensor([[0.0], [120.0], [250.0]]))
    save_model(tmp_path / "m", "gpt", MODELS["gpt"].model(MODELS["gpt"].config(**values)), lambda f: palette.save(f, 4))
    Image.new("L", (4, 4), 120).save(tmp_path / "grey.png")
    arguments = [str(tmp_path / "grey.png"), "-m", str(tmp_path / "m"), "-n", "2", "-o", str(tmp_path / "o.png")]
    assert run(["generate", *arguments]) == 0
    made = np.asarray(read_image(tmp_path / "o.png"))
    assert made.shape == (4, 9)
    assert (made[:2, :4] == 120).all() and (made[:2, 5:] == 120).all()
    assert run(["generate", *arguments, "--stream"]) == 2
    assert run(["look", str(tmp_path / "grey.png"), "-m", str(tmp_path / "m"), "-o", str(tmp_path / "o.json")]) == 0
    (layer,) = json.loads((tmp_path / "o.json").read_text())["layers"]
    assert layer["keys"] == [4, 4] and np.triu(layer["weights"][0]).max() == 0  # earlier pixels only


def test_compare_measures_what_was_planned(capsys, tmp_path):
    arguments = ["compare", "pictures", "--sides", "64,128", "-o", str(tmp_path / "memory.svg")]
    assert run([*arguments, "--json"]) == 0
    rows = {(row["way"], row["side"]): row for row in json.loads(capsys.readouterr().out)}
    for way in growth.WAYS:  # costs per batch, such as biases, matter less with larger images
        assert rows[way, 128]["peak"] == pytest.approx(rows[way, 128]["planned"], rel=0.1)
    written, fused, windows = (rows[way, 128]["peak"] / rows[way, 64]["peak"] for way in growth.WAYS)
    assert 9 < written < 16  # four times the pixels: sixteen times the matrices, four times the rest
    assert fused == pytest.approx(4, rel=0.1) and windows == pytest.approx(4, rel=0.1)
    assert all(row["tokens"] == (row["side"] // 4) ** 2 and row["seconds"] > 0 for row in rows.values())
    assert b"windows" in (tmp_path / "memory.svg").read_bytes()
    assert run(["compare", "pictures", "--sides", "16,64"]) == 2
    assert "a window is 32 pixels wide" in capsys.readouterr().err


def test_what_does_not_fit_into_memory_is_planned_but_not_measured(capsys, monkeypatch):
    monkeypatch.setattr(growth, "free_bytes", lambda _: 3e6)
    assert run(["compare", "pictures", "--sides", "32,64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "more than there is" in line] == ["everywhere,"]
    assert lines[2].endswith("more than there is")


def test_compare_trains_each_recipe_on_more_and_more_pictures(capsys, tmp_path, monkeypatch):
    shape = 'model={name="vit",preset="tiny",image_size=16,patch=4,width=8,heads=1,depth=1,ffn_width=8,classes=6}'
    sets = [
        shape, "data.scenes.count=40", "data.scenes.valid_count=10", "data.scenes.test_count=4", "training.steps=2",
        "training.warmup=1", "training.batch=8", "training.validate_every=2", "training.device=cpu",
    ]  # fmt: skip
    arguments = ["compare", "data", "-m", "small=scenes-vit", "--counts", "10,20", "--runs", str(tmp_path / "runs")]
    arguments += [
        "-o",
        str(tmp_path / "figure.svg"),
        "--json",
        *(each for change in sets for each in ("--set", change)),
    ]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == [10, 20] and len(told["accuracy"]["small"]) == 2
    assert (tmp_path / "figure.svg").stat().st_size > 1000
    monkeypatch.setattr(growth, "train", lambda *_, **__: pytest.fail("trained again"))
    assert run(arguments) == 0  # completed runs are reused
    assert json.loads(capsys.readouterr().out) == told
    assert run(["compare", "data"]) == 2


def test_a_picture_from_standard_input_is_a_line_with_its_name(make_classifier, files, monkeypatch, capsys):
    class Typed:
        buffer = io.BytesIO(f"{files[0]}\n".encode())

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stdin", Typed())
    Typed.buffer.name = "<stdin>"
    assert run(["see", "-m", str(make_classifier("vit"))]) == 0
    assert "\t" in capsys.readouterr().out

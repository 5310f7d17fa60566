"""The detection pipeline: answers in pixels of the image, region features, and the same answers in any batch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.checkpoints import save_model
from regard.cli.main import run
from regard.data.images.reading import Preprocessing, read_image
from regard.families.catalog import MODELS
from regard.families.detection.pipeline import ObjectDetector
from regard.look.inspection import GivenInput, inspect_input
from regard.look.save import save

NAMES = ("cat", "dog")


@pytest.fixture(params=["tiny", "tiny-swin"])
def folder(request, tmp_path):
    torch.manual_seed(0)
    entry = MODELS["detector"]
    config = entry.config.parse({**entry.presets[request.param], "classes": 2, "class_names": NAMES})
    model = entry.model(config)
    model.regions.label.bias.data[1] = 2.0  # so that something is found
    preprocessing = Preprocessing(size=(64, 64), resize=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "detector", "detector", model, preprocessing.save)
    return tmp_path / "detector"


@pytest.fixture
def files(tmp_path):
    rng, paths = np.random.default_rng(0), []
    for number, (height, width) in enumerate([(64, 64), (90, 120), (120, 90), (30, 40)]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(paths[-1])
    return [str(path) for path in paths]


def close(ours, theirs):
    assert [each.label for each in ours.objects] == [each.label for each in theirs.objects]
    for one, other in zip(ours.objects, theirs.objects, strict=True):
        assert one.box == pytest.approx(other.box, abs=0.01) and one.score == pytest.approx(other.score, abs=1e-4)


def test_batched_answers_are_single_answers_in_pixels_of_the_image(folder, files):
    detector = regard.load(folder)
    together = detector.detect(files)
    assert [each.size for each in together] == [(64, 64), (120, 90), (90, 120), (40, 30)]
    for file, found in zip(files, together, strict=True):
        close(detector.detect(file)[0], found)
        assert found.objects
        width, height = found.size
        for each in found.objects:
            x1, y1, x2, y2 = each.box
            assert 0 <= x1 < x2 <= width + 1e-3 and 0 <= y1 < y2 <= height + 1e-3
    assert all(each.score >= 0.7 for found in detector.detect(files, score=0.7) for each in found.objects)


def test_regions_have_boxes_features_and_probabilities(folder, files):
    detector = regard.load(folder)
    for found, file in zip(detector.regions(files, count=5), files, strict=True):
        count = len(found.boxes)
        assert 1 <= count <= 5 and found.features.shape == (count, 128) and found.probabilities.shape == (count, 3)
        assert found.probabilities.sum(axis=1) == pytest.approx(np.ones(count), abs=1e-5)
        assert found.size == read_image(Path(file)).size and set(found.labels) <= set(NAMES)
        best = found.probabilities[:, 1:].max(axis=1)
        assert (np.diff(best) <= 1e-6).all()


def test_reports_are_written_in_every_form(folder, files, tmp_path):
    report, answer = inspect_input(regard.load(folder), GivenInput(files[1], "one"))
    assert answer["objects"] and answer["image"].startswith("data:image/png")
    assert all(0 <= side <= 1 for each in answer["objects"] for side in each["box"])
    has_attention = "swin" in json.dumps(report.model) or bool(report.panels)
    assert report.view == ("grid" if has_attention else "boxes")
    if not has_attention:
        names = [each["name"] for each in report.details["boxes"]]
        assert names == ["objects", "before suppression", "proposals"]
    for suffix in (".html", ".json") if has_attention else (".png", ".svg", ".html", ".json"):
        assert save(report, tmp_path / f"look{suffix}").stat().st_size > 1000


def test_attention_of_a_plain_transformer_lies_on_images_of_any_shape(files):
    torch.manual_seed(0)
    entry = MODELS["detector"]
    model = entry.model(entry.config.parse({**entry.presets["tiny-vit"], "classes": 2, "class_names": NAMES}))
    preprocessing = Preprocessing(size=(64, 64), resize=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    detector = ObjectDetector(model, preprocessing)
    recorded = detector.attention(wide := Image.new("RGB", (128, 60), "red"))
    assert {layer.queries for layer in recorded.layers} == {(4, 8)}  # a canvas of 32 x 64 pixels, patches of 8
    assert recorded.pixels.shape[1:] == (64, 128)
    read = detector.read(wide)
    assert read.shape == (1, 3, 32, 64) and not read[:, :, 30:].any() and read[:, :, :30].all()


def test_the_verb_writes_coco_figures_and_features(folder, files, tmp_path, capsys):
    out, features = tmp_path / "out" / "all.json", tmp_path / "features.npz"
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    code = run(["see", files[0], str(bad), files[1], "-m", str(folder), "-o", str(out), "--features", str(features),
                "--score", "0.1", "--skip-bad"])  # fmt: skip
    told = capsys.readouterr()
    assert code == 0 and len(told.out.splitlines()) == 2 and f"skipped 1 of 3 files: {bad}" in told.err
    document = json.loads(out.read_text())
    assert [each["file_name"] for each in document["images"]] == [files[0], files[1]]
    detector = regard.load(folder)
    expected = detector.detect([files[0], files[1]], score=0.1)
    assert len(document["annotations"]) == sum(len(each.objects) for each in expected)
    first = document["annotations"][0]
    x1, y1, x2, y2 = expected[0].objects[0].box
    assert first["bbox"] == pytest.approx([x1, y1, x2 - x1, y2 - y1], abs=0.02)
    assert document["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    with np.load(features) as table:
        assert table["files"].tolist() == [files[0], files[1]] and table["names"].tolist() == ["background", *NAMES]
        np.testing.assert_allclose(table["1/boxes"], detector.regions(files[1])[0].boxes, atol=1e-2)


def test_one_image_is_drawn_and_told_as_json(folder, files, tmp_path, capsys):
    drawn, stages = tmp_path / "drawn.png", tmp_path / "stages.svg"
    arguments = ["detect", files[1], "-m", str(folder), "-o", str(drawn), "--stages", str(stages), "--json"]
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["image"] == files[1] and read_image(drawn).size == (120, 90)
    assert "proposals: " in stages.read_text()
    assert run(["see", *files, "-m", str(folder), "-o", str(drawn)]) == 2
    assert "of one image" in capsys.readouterr().err
    assert run(["see", files[0], "-m", str(folder), "-o", str(tmp_path / "drawn.jpg")]) == 2
    assert "FILE.json, FILE.png or a folder" in capsys.readouterr().err
    assert run(["see", *files, "-m", str(folder), "-o", str(tmp_path / "several")]) == 0
    assert sorted(path.name for path in (tmp_path / "several").iterdir()) == ["0.png", "1.png", "2.png", "3.png"]


def test_a_classifier_detects_nothing(make_classifier, files, capsys):
    assert run(["detect", files[0], "-m", str(make_classifier("vit"))]) == 2
    assert "is a Vision Transformer, which does not detect objects; try see" in capsys.readouterr().err

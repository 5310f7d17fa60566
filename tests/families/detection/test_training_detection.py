"""The task of detection on files: what is wrong stops a run before it begins, and scores are those of the answers."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.checkpoints import load_model, save_model
from regard.data.batch import ImageBatch
from regard.data.images.reading import Preprocessing
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import ConfigError, DataError
from regard.families.catalog import MODELS
from regard.families.contract import EvaluationOptions
from regard.families.detection.annotations import TrueBoxes
from regard.families.detection.pipeline import ObjectDetector
from regard.families.detection.task import FoundBoxes, error_kinds, evaluate_detector, evaluated_pairs
from regard.look.reader import Source, reader_of
from regard.training.loop import train
from regard.training.recipe.load import load_recipe, open_task

MODEL = (
    'model={name="detector",preset="tiny",image_size=32,width=8,classes=6,'
    "body_values={stem='large',stem_width=8,widths=[8,8,16],depths=[1,1,1],norm='group'},"
    "proposals={sizes=[[8],[12],[20]],ratios=[1],sampled=16,train_before=20,train_after=20,before=20,after=10},"
    "regions={width=16,sampled=8,score=0.01}}"
)
COMMON = ["training.device=cpu", "training.steps=3", "training.warmup=1", "training.batch=4", "training.ema=0"]


@pytest.fixture
def cells(tmp_path):
    """Scenes of two shapes as COCO's files."""
    folder = tmp_path / "part_images"
    folder.mkdir()
    names = [{"id": n + 1, "name": name} for n, name in enumerate(SHAPE_NAMES)]
    document = {"images": [], "annotations": [], "categories": names}
    for number, scene in enumerate(scenes(part="train", count=8, seed=1, size=48), start=1):
        height = 48 if number % 2 else 40  # two shapes of images
        Image.fromarray(scene.pixels.transpose(1, 2, 0)).crop((0, 0, 48, height)).save(folder / f"{number}.png")
        document["images"].append({"id": number, "file_name": f"{number}.png"})
        for thing in scene.things:
            x1, y1, x2, y2 = (np.array(thing.box) * 48).tolist()
            if y2 <= height:
                label = 1 + SHAPE_NAMES.index(thing.shape)
                box = [x1, y1, x2 - x1, y2 - y1]
                document["annotations"].append({"image_id": number, "category_id": label, "bbox": box})
    path = tmp_path / "part.json"
    path.write_text(json.dumps(document))
    return path


def recipe(cells, *sets):
    data = f"data={{train='{cells}',valid='{cells}'}}"
    return load_recipe("bccd-detector", [MODEL, data, *COMMON, *sets])


def test_files_are_trained_on_and_scores_are_those_of_the_answers(cells, tmp_path):
    out = train(recipe(cells, "training.precision=fp32", "training.validate_every=3"), tmp_path / "run")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (valid,) = [row for row in rows if "ap50" in row]
    detector = regard.load(out)
    assert detector.labels == list(SHAPE_NAMES)
    measured = evaluate_detector(detector, str(cells), EvaluationOptions(out, 1, 1))
    assert measured.scores["images"] == 8 and not measured.unread
    # answers are measured in pixels of the images themselves, validation in those of the model
    assert measured.scores["AP50"] == pytest.approx(valid["ap50"], abs=0.02)


def test_images_of_two_shapes_share_a_canvas(cells, tmp_path):
    task = open_task(recipe(cells), tmp_path / "data", torch.device("cpu"), lambda: None)
    rows = task.corpus.train
    assert rows.images.store.pixels.shape == (8, 3, 32, 32)
    assert rows.sizes.tolist() == [[32, 32] if number % 2 == 0 else [27, 32] for number in range(8)]
    assert rows.boxes.max() <= 32 and (rows.boxes[1::2, :, 3] <= 27.01).all()
    assert "8 images with" in task.summary and "of 6 classes" in task.summary


@pytest.mark.parametrize("skip", [False, True])
def test_a_box_without_area_stops_a_run_or_is_left_out_and_named(cells, tmp_path, skip):
    document = json.loads(cells.read_text())
    document["annotations"].append({"image_id": 2, "category_id": 1, "bbox": [3, 4, 0, 5]})
    cells.write_text(json.dumps(document))
    asked = recipe(cells, f"data.skip_bad={str(skip).lower()}", "training.validate_every=0")
    if not skip:
        with pytest.raises(
            DataError, match=r"part\.json: 2\.png: box \d of \d is \(3, 4\) to \(3, 9\), which has no area"
        ):
            train(asked, tmp_path / "run")
        assert not (tmp_path / "run" / "data").exists()
        return
    task = open_task(asked, tmp_path / "data", torch.device("cpu"), lambda: None)
    assert (
        "2 left out, the first: " in task.summary and "which has no area" in task.summary
    )  # of training and validation


def test_what_does_not_fit_is_refused(cells, tmp_path):
    with pytest.raises(ConfigError, match="boxes have 6 classes"):
        train(recipe(cells, "model.classes=3"), tmp_path / "run")
    with pytest.raises(ConfigError, match="parts and labels of their own"):
        load_recipe("scenes-detector", ["data.valid=x.json"])
    with pytest.raises(ConfigError, match="does not measure"):
        load_recipe("scenes-detector", ["training.metric=accuracy"])


def test_wrong_boxes_are_of_four_kinds():
    true = TrueBoxes(np.array([[0.0, 0, 10, 10], [30, 30, 40, 40]]), np.array([0, 1]), np.zeros(2, dtype=bool))
    boxes = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [30, 30, 40, 40], [35, 30, 45, 40], [60, 60, 70, 70]])
    found = FoundBoxes(boxes, np.array([0, 0, 0, 1, 1]), np.array([0.9, 0.8, 0.7, 0.6, 0.55]))
    kinds = error_kinds([(true, found)])
    assert kinds == {"right": 1, "twice": 1, "another class": 1, "wrong place": 1, "background": 1, "missed": 1}


def test_boxes_on_objects_left_out_of_scores_are_no_mistakes():
    true = TrueBoxes(np.array([[0.0, 0, 10, 10], [30, 30, 60, 60]]), np.array([0, 0]), np.array([False, True]))
    boxes = np.array([[0.0, 0, 10, 10], [32, 32, 42, 42], [45, 45, 55, 55], [0, 0, 10, 9]])
    found = FoundBoxes(boxes, np.zeros(4, dtype=np.int64), np.array([0.9, 0.8, 0.7, 0.6]))
    kinds = error_kinds([(true, found)])
    assert kinds == {"right": 1, "twice": 1, "another class": 0, "wrong place": 0, "background": 0, "missed": 0}


def test_evaluated_pairs_are_of_every_scene(tmp_path):
    out = train(load_recipe("scenes-detector", [MODEL, *COMMON, "data.scenes={count=8,valid_count=2,test_count=2}",
                                                "training.validate_every=0"]), tmp_path / "run")  # fmt: skip
    pairs = evaluated_pairs(regard.load(out), "scenes", EvaluationOptions(out, 5, 1), [])
    assert len(pairs) == 5 and all(len(true.labels) for true, _ in pairs)


@pytest.mark.parametrize("channels", [1, 3])
def test_training_answers_and_readers_see_the_same(tmp_path, channels):
    sets = [MODEL, f"model.channels={channels}", *COMMON, "data.scenes={count=3,valid_count=1,test_count=1}"]
    begun = load_recipe("scenes-detector", sets)
    task = open_task(begun, tmp_path / "data", torch.device("cpu"), lambda: None)
    detector, rows = ObjectDetector(task.build(), task.corpus.preprocessing), task.corpus.train
    reader, drawn = reader_of(detector), scenes(part="train", count=3, seed=begun.seed, size=32)
    examples = list(reader.examples(Source("scenes", count=3, seed=begun.seed)))
    for number, (scene, example) in enumerate(zip(drawn, examples, strict=True)):
        stored = rows.images.store.pixels[number]
        np.testing.assert_array_equal(detector.pixels(scene.image), stored)
        np.testing.assert_array_equal(reader.image(example), stored)
        np.testing.assert_array_equal(example[2].reshape(-1, 4), rows.truth(number).boxes)
    batch, truth = reader.batch(examples), task.train.truth(ImageBatch(torch.arange(3), torch.zeros(3, 0)))
    torch.testing.assert_close(batch.truth.boxes, truth.boxes, rtol=0, atol=0)
    assert torch.equal(batch.truth.labels, truth.labels)


def test_boxes_left_out_of_training_are_left_out_of_what_readers_read(cells):
    document = json.loads(cells.read_text())
    document["annotations"] = [{"image_id": 1, "category_id": 1, "bbox": [3, 4, 9, 9], "iscrowd": n} for n in (0, 1)]
    cells.write_text(json.dumps(document))
    config = recipe(cells).model.config(source_vocab=0, target_vocab=0, pad=0).replace(class_names=SHAPE_NAMES)
    preprocessing = Preprocessing(size=(32, 32), resize=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    reader = reader_of(ObjectDetector(MODELS["detector"].model(config), preprocessing))
    assert [len(example[3]) for example in reader.examples(Source(str(cells)))] == [1, *[0] * 7]


def test_a_detector_starts_from_another_with_its_preprocessing(cells, tmp_path):
    first = train(recipe(cells, "training.validate_every=0"), tmp_path / "first")
    document = json.loads(cells.read_text())
    document["categories"] = document["categories"][:3]  # other classes: their heads begin anew
    document["annotations"] = [each for each in document["annotations"] if each["category_id"] <= 3]
    fewer = cells.with_name("fewer.json")
    fewer.write_text(json.dumps(document))
    data = f"data={{train='{fewer}',train_images='{cells.with_name('part_images')}'}}"
    model = f"model={{name='detector',init='{first}'}}"
    further = load_recipe("bccd-detector", [model, data, *COMMON, "training.validate_every=0"])
    task = open_task(further, tmp_path / "data", torch.device("cpu"), lambda: None)
    assert task.corpus.preprocessing == regard.load(first).preprocessing
    old, new = load_model(first).model.state_dict(), task.build()
    assert new.config.class_names == SHAPE_NAMES[:3]
    for name, tensor in new.state_dict().items():
        if not name.startswith(("regions.label", "regions.box")):
            assert torch.equal(tensor, old[name]), name


def test_the_body_of_a_detector_starts_from_a_classifier(cells, tmp_path):
    config = recipe(cells).model.config(source_vocab=0, target_vocab=0, pad=0)
    torch.manual_seed(5)
    body = MODELS["resnet"].model(config.body_config())
    save_model(tmp_path / "body", "resnet", body, lambda folder: None)
    started = recipe(cells, f"model.body_init={tmp_path / 'body'}")
    begun = open_task(started, tmp_path / "data", torch.device("cpu"), lambda: None).build().body.state_dict()
    assert begun and all(torch.equal(body.state_dict()[name], tensor) for name, tensor in begun.items())

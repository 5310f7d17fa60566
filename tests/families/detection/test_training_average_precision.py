"""Average precision by hand, against COCO's numbers, and against pycocotools on files in COCO's format."""

import contextlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from regard.data.sources import data_root
from regard.families.detection.annotations import TrueBoxes
from regard.families.detection.task import FoundBoxes, average_precision

CELLS = Path(data_root()) / "bccd" / "val.json"


def truth(boxes, labels, ignored=None):
    ignored = np.zeros(len(labels), dtype=bool) if ignored is None else np.array(ignored)
    return TrueBoxes(np.array(boxes, dtype=float).reshape(-1, 4), np.array(labels, dtype=int), ignored)


def found(boxes, labels, scores):
    return FoundBoxes(np.array(boxes, dtype=float).reshape(-1, 4), np.array(labels, dtype=int), np.array(scores))


def test_a_perfect_answer_and_none():
    true = truth([[0, 0, 10, 10], [20, 20, 30, 40]], [0, 1])
    perfect = average_precision([(true, found(true.boxes, true.labels, [0.9, 0.8]))], ["a", "b"])
    assert (perfect.ap, perfect.ap50, perfect.ap75) == pytest.approx((1.0, 1.0, 1.0))
    assert perfect.ap50_by_class == pytest.approx({"a": 1.0, "b": 1.0})
    nothing = average_precision([(true, found([], [], []))], ["a", "b", "unseen"])
    assert nothing.ap == 0.0 and nothing.ap50_by_class == {"a": 0.0, "b": 0.0}


def test_a_wrong_box_before_the_right_one_halves_the_precision():
    true = truth([[0, 0, 10, 10]], [0])
    answer = found([[50, 50, 60, 60], [0, 0, 10, 10]], [0, 0], [0.9, 0.8])
    assert average_precision([(true, answer)], ["a"]).ap50 == pytest.approx(0.5)


def test_a_second_box_on_one_object_is_wrong():
    true = truth([[0, 0, 10, 10], [40, 40, 50, 50]], [0, 0])
    answer = found([[0, 0, 10, 10], [0, 0, 10, 9], [40, 40, 50, 50]], [0, 0, 0], [0.9, 0.8, 0.7])
    # precision 1 up to a recall of one half (51 of 101 recalls), then 2/3
    assert average_precision([(true, answer)], ["a"]).ap50 == pytest.approx((51 + 50 * 2 / 3) / 101)


def test_a_box_on_an_ignored_object_does_not_count():
    true = truth([[0, 0, 10, 10], [40, 40, 60, 60]], [0, 0], [False, True])
    answer = found([[41, 41, 50, 50], [51, 51, 60, 60], [0, 0, 10, 10]], [0, 0, 0], [0.9, 0.8, 0.7])
    assert average_precision([(true, answer)], ["a"]).ap == pytest.approx(1.0)


def drawn(rng, images, crowds):
    pairs = []
    for _ in range(images):
        count, guesses = rng.integers(0, 8), rng.integers(0, 14)
        corners = rng.uniform(0, 80, (count, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(5, 40, (count, 2))], axis=1).round(1)
        ignored = (rng.random(count) < 0.2) & crowds
        near = boxes[rng.integers(0, count, guesses)] if count else np.tile([10.0, 10, 30, 30], (guesses, 1))
        near = near + rng.normal(0, 3, near.shape).round(1)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)
        scores = rng.integers(1, 20, guesses) / 20  # many ties
        pairs.append(
            (truth(boxes, rng.integers(0, 3, count), ignored), found(near, rng.integers(0, 3, guesses), scores))
        )
    return pairs


def pycocotools_scores(document, results):
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = document
        data.createIndex()
        evaluation = COCOeval(data, data.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[:3].tolist()


@pytest.mark.parametrize("crowds", [False, True])
def test_scores_are_those_of_pycocotools(crowds):
    pairs = drawn(np.random.default_rng(4), 30, crowds)
    document = {"images": [], "annotations": [], "categories": [{"id": n + 1, "name": str(n)} for n in range(3)]}
    results = []
    for number, (true, answer) in enumerate(pairs, start=1):
        document["images"].append({"id": number, "width": 200, "height": 200})
        for box, label, crowd in zip(true.boxes, true.labels, true.ignored, strict=True):
            size = box[2:] - box[:2]
            document["annotations"].append({
                "id": len(document["annotations"]) + 1, "image_id": number, "category_id": int(label) + 1,
                "bbox": [*box[:2].tolist(), *size.tolist()], "area": float(size.prod()), "iscrowd": int(crowd),
            })  # fmt: skip
        for box, label, score in zip(answer.boxes, answer.labels, answer.scores, strict=True):
            bbox = [*box[:2].tolist(), *(box[2:] - box[:2]).tolist()]
            results.append({"image_id": number, "category_id": int(label) + 1, "bbox": bbox, "score": float(score)})
    ours = average_precision(pairs, ["a", "b", "c"])
    assert [ours.ap, ours.ap50, ours.ap75] == pytest.approx(pycocotools_scores(document, results), abs=1e-9)


@pytest.mark.skipif(not CELLS.exists(), reason="the shared data are not there")
def test_the_case_of_the_blood_cells():
    """Their README: true boxes moved by 3 pixels, with scores in cycles of 7, have these scores in two other tools."""
    document = json.loads(CELLS.read_text())
    numbers = [each["id"] for each in document["categories"]]
    boxes: dict[int, list] = {each["id"]: [] for each in document["images"]}
    for place, each in enumerate(document["annotations"]):
        boxes[each["image_id"]].append((each["bbox"], numbers.index(each["category_id"]), 0.5 + 0.001 * (place % 7)))
    pairs = []
    for image in sorted(boxes):
        corners = np.array([[x, y, x + w, y + h] for (x, y, w, h), _, _ in boxes[image]]).reshape(-1, 4)
        labels, scores = ([row[column] for row in boxes[image]] for column in (1, 2))
        pairs.append((truth(corners, labels), found(corners + np.array([3, 0, 3, 0]), labels, scores)))
    measured = average_precision(pairs, [each["name"] for each in document["categories"]])
    assert [measured.ap, measured.ap50, measured.ap75] == pytest.approx([0.877956, 1.0, 0.991173], abs=1e-6)

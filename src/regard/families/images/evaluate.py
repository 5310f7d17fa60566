"""Image classifiers: their accuracy, and how it depends on the amount of training data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from PIL import Image

from regard.checkpoints.folder import is_sealed
from regard.data.images.datasets import open_images
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError, UsageError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.images.pipeline import BATCH_IMAGES, ImageClassifier
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.recipe.files import SCENES
from regard.training.recipe.load import load_recipe


def evaluate_images(classifier: ImageClassifier, data: str, options: EvaluationOptions) -> Evaluation:
    """The accuracy on labelled images, overall and by class, and the files that could not be read.

    `count` and `seed` determine which of the built-in scenes are drawn; files are always measured whole.
    """
    labels = SHAPE_NAMES if data == SCENES else open_images(data, ()).labels
    if data != SCENES and all(label.isdecimal() for label in labels):  # numbered classes; the model has names
        labels = tuple(classifier.labels)
    if unknown := [label for label in labels if label not in classifier.labels]:
        raise DataError(f"{data} has the class {unknown[0]!r}; the model knows {', '.join(classifier.labels)}")
    right, of_class, unread = Counter[str](), Counter[str](), list[str]()
    examples = _examples(classifier, data, options, unread)
    while some := list(islice(examples, BATCH_IMAGES)):
        images = [image for image, _ in some]
        for answer, (_, number) in zip(classifier.classify(images), some, strict=True):
            of_class[labels[number]] += 1
            right[labels[number]] += answer.label == labels[number]
    if not of_class:
        raise DataError(f"{data} has no image that can be read")
    each: dict[str, object] = {f"accuracy of {label}": right[label] / of_class[label] for label in of_class}
    return Evaluation({"pictures": of_class.total(), "accuracy": right.total() / of_class.total(), **each}, unread)


def _examples(
    classifier: ImageClassifier, data: str, options: EvaluationOptions, unread: list[str]
) -> Iterator[tuple[Image.Image, int]]:
    if data == SCENES:
        for scene in scenes(part="test", count=options.count, seed=options.seed, size=classifier.config.image_size):
            yield Image.fromarray(scene.pixels.transpose(1, 2, 0)), scene.label
        return
    for found in open_images(data, ()).examples:
        if isinstance(found, str):
            unread.append(found)
        else:
            yield found


def accuracy_by_count(
    recipes: Mapping[str, str], counts: Sequence[int], runs: Path, sets: Sequence[str] = ()
) -> dict[str, list[float]]:
    """Validation accuracy of each recipe for each number of training images; completed runs are reused."""
    results: dict[str, list[float]] = {}
    for name, recipe in recipes.items():
        results[name] = []
        for count in counts:
            out = runs / f"{name}-{count}"
            if not is_sealed(out):
                train(load_recipe(recipe, [*sets, f"data.count={count}"]), out, resume=out.exists())
            measured = [row["accuracy"] for row in read_metrics(out / METRICS) if "accuracy" in row]
            if not measured:
                raise UsageError(f"{recipe} measured no accuracy; compare recipes of task 'images' that validate")
            results[name].append(max(measured))
    return results

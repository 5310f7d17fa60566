"""Classification and segmentation (Long et al. 2015) of images: losses and metrics, in training and for `regard
evaluate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import ImageBatch
from regard.errors import ConfigError, DataError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.images.data import LabelledCorpus, examples_of, open_examples
from regard.families.images.pipeline import BATCH_IMAGES, ImageClassifier
from regard.families.images.recipe import ImagesRecipe, SegmentationRecipe
from regard.layers.vision import ImageConfig
from regard.training.image_task import DeviceImages, ImageTask
from regard.training.initial_model import build_on_body, initialised, planned_config
from regard.training.losses import Loss, soft_cross_entropy
from regard.training.safeguards import Poll
from regard.training.scores import frechet, mean_overlap
from regard.training.task import Forward, SupervisedTask, Values

Pixels = UInt8[Tensor, "B C H W"]


class FrechetJudge:
    """A trained classifier whose features are compared."""

    def __init__(self, folder: str, size: int, channels: int, device: torch.device) -> None:
        self.classifier = ImageClassifier.load(folder, device=str(device))
        known = self.classifier.config
        if (known.image_size, known.channels) != (size, channels):
            raise ConfigError(
                f"data.judge is {folder!r}, which reads images of {known.image_size} pixels and {known.channels} "
                f"channels; these have {size} and {channels}"
            )

    def distance(self, real: Iterable[Tensor], made: Iterable[Tensor]) -> float:
        """The distance between two sets of images, each in batches [B C H W] of any size."""
        return frechet(*(np.concatenate([self._features(pixels) for pixels in each]) for each in (real, made)))

    @torch.inference_mode()
    def _features(self, pixels: Pixels) -> Float[np.ndarray, "B D"]:
        """The mean of the classifier's last map, in full precision even if training uses bf16."""
        judge = self.classifier
        with torch.autocast(pixels.device.type, enabled=False):
            maps = judge.model.features(judge.preprocessing.normalise(pixels))  # type: ignore[operator]
        return maps[-1].mean(dim=(2, 3)).double().cpu().numpy()


class LabelledTask(ImageTask[ImageBatch]):
    """Images of classes."""

    reads = LabelledCorpus
    corpus: LabelledCorpus


class ImageClassificationTask(LabelledTask, SupervisedTask[ImageBatch]):
    """Images that belong to one class each."""

    recipe: ImagesRecipe

    def build(self) -> nn.Module:
        section, names = self.recipe.model, self.corpus.names
        if section.init:
            return initialised(section, {"classes": len(names), "class_names": names})
        config = planned_config(section, ImageConfig)
        if config.classes != len(names):
            raise ConfigError(f"model.classes is {config.classes}, but the images have {len(names)} classes")
        return MODELS[section.name].model(config.replace(class_names=names))

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """Cross-entropy of the augmented images, summed."""
        mixed = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws)
        labels = functional.one_hot(self.train.labels[batch.rows], len(self.corpus.names)).float()
        targets = torch.lerp(mixed.partners(labels), labels, mixed.share[:, None])
        smoothing = self.recipe.training.label_smoothing
        targets = (1 - smoothing) * targets + smoothing / targets.shape[1]
        logits: Tensor = model(self.corpus.preprocessing.normalise(mixed.images))
        return Loss.of(soft_cross_entropy(logits, targets), len(targets))

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """Loss without smoothing, and accuracy."""
        error = torch.zeros((), device=self.device, dtype=torch.float64)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            logits = model(self.read(batch, images)).float()
            labels = images.labels[batch.rows]
            error += functional.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(dim=1) == labels).sum()
        count = len(images)
        return {"loss": error.item() / count, "accuracy": right.item() / count}


BACKGROUND = "background"


class SegmentationTask(LabelledTask, SupervisedTask[ImageBatch]):
    """Images whose every pixel belongs to a class; class 0 is the background."""

    recipe: SegmentationRecipe

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes of pixels."""
        return BACKGROUND, *self.corpus.names

    def build(self) -> nn.Module:
        config = planned_config(self.recipe.model, ImageConfig)
        if config.classes != len(self.names):
            raise ConfigError(f"model.classes is {config.classes}, but pixels have {len(self.names)} classes")
        return build_on_body(self.recipe.model, config, self.names)

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """Cross-entropy, the mean over the pixels of each image."""
        pixels, masks = self.train.pixels(batch).float() / 255, self.train.masks(batch)
        changed = self.recipe.augmentation(pixels, batch.draws, masks)
        assert changed.masks is not None
        logits = model(self.corpus.preprocessing.normalise(changed.images)).float()
        total = functional.cross_entropy(logits, changed.masks, reduction="sum") / changed.masks[0].numel()
        return Loss.of(total, len(masks))

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """Loss and accuracy of pixels, and the mean intersection over union of classes."""
        classes, error = len(self.names), torch.zeros((), device=self.device, dtype=torch.float64)
        confusion = torch.zeros(classes * classes, device=self.device, dtype=torch.int64)
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            logits, masks = model(self.read(batch, images)).float(), images.masks(batch)
            error += functional.cross_entropy(logits, masks, reduction="sum")
            confusion += torch.bincount((masks * classes + logits.argmax(dim=1)).flatten(), minlength=classes**2)
        table = confusion.view(classes, classes).cpu().numpy()
        return {
            "loss": error.item() / table.sum(),
            "accuracy": float(np.trace(table) / table.sum()),
            "iou": mean_overlap(table),
        }


def evaluate_images(classifier: ImageClassifier, data: str, options: EvaluationOptions) -> Evaluation:
    """The accuracy on labelled images, overall and by class, and the files that could not be read."""
    size = classifier.config.image_size
    images = open_examples(data, size=size, part="test", count=options.count, seed=options.seed)
    right, of_class, unread = Counter[str](), Counter[str](), list[str]()
    examples = examples_of(classifier.labels, images, data)
    while some := list(islice(examples, BATCH_IMAGES)):
        unread += [found for found in some if isinstance(found, str)]
        readable = [found for found in some if not isinstance(found, str)]
        for answer, example in zip(classifier.classify([found.image for found in readable]), readable, strict=True):
            label = classifier.labels[example.label]
            of_class[label] += 1
            right[label] += answer.label == label
        options.measured(len(some))
    if not of_class:
        raise DataError(f"{data} has no image that can be read")
    by_class: dict[str, object] = {f"accuracy of {label}": right[label] / of_class[label] for label in of_class}
    return Evaluation({"pictures": of_class.total(), "accuracy": right.total() / of_class.total(), **by_class}, unread)

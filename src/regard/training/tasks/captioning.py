"""Captioning: texts about images, learnt by teacher forcing (Xu et al. 2015)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.batch import CaptionBatch, ImageRowsBatch
from regard.data.images.reading import Preprocessing
from regard.data.loader import Loader, Rows
from regard.models.captioner import Captioner, CaptionerConfig
from regard.training.evaluation.captions import CaptionEvaluation
from regard.training.evaluation.translation import Sample
from regard.training.hard_attention import DrawsLoss
from regard.training.losses import Loss, cross_entropy, doubly_stochastic
from regard.training.prepare.captions import CaptionedRows, CaptionPreparation
from regard.training.prepare.images import DeviceImages
from regard.training.prepare.initial_model import (
    build_model,
    initial_folder,
    initial_tokenizer,
    planned_config,
    start_body,
)
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, SupervisedTask, Values, loader_options
from regard.training.tasks.captioning_recipe import CaptioningRecipe
from regard.training.tasks.image_base import no_validation_images


class CaptioningTask(SupervisedTask[CaptionBatch]):
    """Images with one or several captions each."""

    recipe: CaptioningRecipe

    @classmethod
    def prepare(cls, recipe: CaptioningRecipe, folder: Path, poll: Poll) -> None:
        """Decode the images to the size of the model, learn the vocabulary and encode the captions."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: CaptioningRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, training = recipe, device, recipe.training
        self.config = planned_config(recipe.model, CaptionerConfig)
        self.corpus = _preparation(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if training.validate_every and not len(self.corpus.valid):
            raise no_validation_images()
        self.train = DeviceImages(self.corpus.train.images, device)
        self.valid = self._evaluation(self.corpus.valid, training.validate_images)
        make = self.corpus.train.batches(
            recipe.augmentation, recipe.seed, each=training.captions, round_lengths=training.round_lengths, pad=self.pad
        )
        self.loader = Loader(self._plan, make, **loader_options(training, device))
        self.factored = training.factored(device.type)
        self.draws: DrawsLoss | None = None
        if self.config.attention == "hard" and self.config.estimator == "reinforce":
            self.divisible = False  # every process would have a baseline of its own
            self.draws = DrawsLoss(
                self.carried, device, reward=training.draw_reward, entropy=training.draw_entropy
            )  # fmt: skip

    @property
    def pad(self) -> int:
        """Pads captions, and begins every one of them."""
        return self.corpus.tokenizer.pad

    @cached_property
    def carried(self) -> dict[str, Tensor]:
        """The baseline of drawn attention, if the model draws."""
        return {}

    def _plan(self, epoch: int) -> list[Rows]:
        return self.corpus.train.images.plan(self.recipe.training.batch, self.recipe.seed, epoch)

    def build(self) -> nn.Module:
        """A new model with the vocabulary of the captions, or one with the weights that the recipe starts from."""
        section = self.recipe.model
        model = build_model(section, self.corpus.tokenizer)
        assert isinstance(model, Captioner)
        if section.body_init:
            start_body(model.body, section.body_init)
        return model

    def loss(self, model: Forward, batch: CaptionBatch) -> Loss:
        """Cross-entropy of the words, the penalty of places that are looked at too often or never, and the loss of
        drawn attention."""
        training, labels, mask = self.recipe.training, batch.labels, batch.labels_mask
        pixels = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        images = self.corpus.preprocessing.normalise(pixels)
        logits, seen = model(images, batch.inputs, mask, factored=self.factored)
        total = cross_entropy(logits, labels, mask, training.label_smoothing)
        if seen is not None and training.coverage:
            total = total + training.coverage * doubly_stochastic(seen.probabilities, mask)
        if self.draws is not None:
            assert seen is not None
            total = total + self.draws(seen, logits, labels, mask)
        return Loss(total, mask.sum())

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and, of some images, BLEU-4, CIDEr-D and the share of captions that equal a reference."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the captions that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on all test images; empty if the recipe has none."""
        rows = self.corpus.test
        return self._evaluation(rows, len(rows))(model, poll) if len(rows) else {}

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the preprocessing beside the weights."""
        self.corpus.tokenizer.save(folder)
        self.corpus.preprocessing.save(folder)

    def _evaluation(self, rows: CaptionedRows, decoded: int) -> CaptionEvaluation:
        images = DeviceImages(rows.images, self.device)
        return CaptionEvaluation(
            rows.texts(),
            rows.first_captions(self.pad),
            self._reader(images),
            self.corpus.tokenizer,
            decoding=self.recipe.decoding,
            decoded=decoded,
            batch=self.recipe.training.batch,
            device=self.device,
        )

    def _reader(self, images: DeviceImages) -> Callable[[ImageRowsBatch], Float[Tensor, "B C H W"]]:
        return lambda batch: self.corpus.preprocessing.normalise(images.pixels(batch))


def _preparation(recipe: CaptioningRecipe) -> CaptionPreparation:
    config, init = planned_config(recipe.model, CaptionerConfig), recipe.model.init
    return CaptionPreparation(
        recipe.data,
        recipe.tokenizer,
        config.image_size,
        config.channels,
        recipe.seed,
        initial_tokenizer(init) if init else None,
        Preprocessing.load(initial_folder(init), config.image_size, config.channels) if init else None,
    )

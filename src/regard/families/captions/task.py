"""Captioning: texts about images, learnt by teacher forcing (Xu et al. 2015)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data.batch import CaptionBatch, ImageRowsBatch
from regard.data.images.reading import Preprocessing
from regard.data.loader import Loader, Place, Rows
from regard.data.tokenizers.text import TextTokenizer
from regard.families.captions.data import CaptionedRows, CaptionPreparation
from regard.families.captions.metrics import caption_scores
from regard.families.captions.model import Captioner, CaptionerConfig
from regard.families.captions.pipeline import write_captions
from regard.families.captions.recipe import CaptioningRecipe
from regard.families.translation.metrics import SAMPLES, Sample
from regard.search.settings import SearchSettings
from regard.training.hard_attention import DrawsLoss
from regard.training.image_task import DeviceImages, no_validation_images
from regard.training.initial_model import build_model, initial_folder, initial_tokenizer, planned_config, start_body
from regard.training.losses import Loss, cross_entropy, doubly_stochastic
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options


class CaptionEvaluation:
    """Held-out images with their captions; `decoded` of them, evenly spread, are also described by the model."""

    def __init__(
        self,
        texts: Sequence[Sequence[str]],
        make: Callable[[Rows, Place], CaptionBatch],
        read: Callable[[ImageRowsBatch], Float[Tensor, "B C H W"]],
        tokenizer: TextTokenizer,
        *,
        decoding: SearchSettings,
        decoded: int,
        batch: int,
        device: torch.device,
    ) -> None:
        self.texts, self.make, self.read, self.tokenizer = texts, make, read, tokenizer
        self.decoding, self.batch, self.device = decoding.replace(n_best=1), batch, device
        self.decoded = np.linspace(0, len(texts), min(decoded, len(texts)), endpoint=False).astype(np.int64)
        self.samples: list[Sample] = []  # captions of the last call, of the same images each time

    def __call__(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """All metrics of a model in evaluation mode; `poll` is called between batches and may raise."""
        values = {"loss": self._loss(model, poll)}
        return values | self._scores(model, poll) if len(self.decoded) else values

    @torch.inference_mode()
    def _loss(self, model: nn.Module, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in self._batches(np.arange(len(self.texts))):
            poll()
            logits, _ = model(self.read(batch), batch.inputs, batch.labels_mask, factored=True)
            total += cross_entropy(logits, batch.labels, batch.labels_mask)
            tokens += batch.tokens
        return total.item() / tokens

    def _scores(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        found: list[str] = []
        for batch in self._batches(self.decoded):
            poll()
            hypotheses = write_captions(model, self.read(batch), self.decoding, self.tokenizer)
            found += [self.tokenizer.decode(best[0].tokens) for best in hypotheses]
        references = [self.texts[row] for row in self.decoded]
        self.samples = _samples(found, references)
        scores = caption_scores(found, references)
        right = sum(text in known for text, known in zip(found, references, strict=True))
        return {"bleu4": scores["bleu4"], "cider": scores["cider"], "exact": right / len(found)}

    def _batches(self, rows: Rows) -> Iterator[CaptionBatch]:
        for number, some in enumerate(np.array_split(rows, max(1, -(-len(rows) // self.batch)))):
            yield self.make(some, (0, number)).to(self.device)


def _samples(found: Sequence[str], references: Sequence[Sequence[str]]) -> list[Sample]:
    """A few evenly spread captions, each beside a reference."""
    chosen = range(0, len(found), max(1, math.ceil(len(found) / SAMPLES)))
    return [Sample(source=f"image {i}", target=references[i][0], output=found[i]) for i in chosen]


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

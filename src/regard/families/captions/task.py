"""Captioning: texts about images, learnt by teacher forcing (Xu et al. 2015), and the scores of written captions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import CaptionBatch
from regard.data.loader import Rows
from regard.errors import DataError
from regard.families.captions.data import (
    CaptionBatches,
    CaptionCorpus,
    CaptionedRows,
    DeviceCaptions,
    open_examples,
)
from regard.families.captions.metrics import Looks, baseline_scores, caption_scores
from regard.families.captions.model import Captioner, CaptionerConfig
from regard.families.captions.pipeline import Caption, ImageCaptioner, write_captions
from regard.families.captions.recipe import DECODED, CaptioningRecipe
from regard.families.contract import Evaluation, EvaluationOptions
from regard.training.hard_attention import DrawsLoss
from regard.training.image_task import ImageTask, initial_preprocessing
from regard.training.initial_model import build_model, initial_tokenizer, planned_config, start_body
from regard.training.losses import Loss, cross_entropy, doubly_stochastic
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values

AT_ONCE = 64  # images whose captions are evaluated together


class CaptioningTask(ImageTask[CaptionBatch], SupervisedTask[CaptionBatch]):
    """Images with one or several captions each."""

    recipe: CaptioningRecipe
    corpus: CaptionCorpus

    @classmethod
    def images(cls, recipe: CaptioningRecipe) -> CaptionCorpus:
        config, init = planned_config(recipe.model, CaptionerConfig), recipe.model.init
        size, channels = config.image_size, config.channels
        given, tokenizer = initial_preprocessing(init, size, channels), initial_tokenizer(init) if init else None
        return CaptionCorpus(recipe.data, size, channels, recipe.seed, given, recipe.tokenizer, tokenizer)

    def __init__(self, recipe: CaptioningRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        training, config = recipe.training, planned_config(recipe.model, CaptionerConfig)
        self.factored = training.factored(device.type)
        self._samples: Sequence[Sample] = []
        self.draws: DrawsLoss | None = None
        if config.attention == "hard" and config.estimator == "reinforce":
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

    def maker(self) -> CaptionBatches:
        part, recipe, training = self.corpus.train, self.recipe, self.recipe.training
        return CaptionBatches(
            part, self.pad, part.images.resident, recipe.augmentation, recipe.seed, training.captions,
            training.round_lengths, draws=True,
        )  # fmt: skip

    def placed(self, part: CaptionedRows) -> DeviceCaptions:
        return DeviceCaptions(part, self.device, self.pad)

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
        """Loss and, of some images evenly spread, the scores of their captions."""
        values = {"loss": self._loss(model, self.valid, poll)}
        count, all_images = self.recipe.training.validate_images, len(self.valid)
        chosen = np.linspace(0, all_images, min(count, all_images), endpoint=False).astype(np.int64)
        if not len(chosen):
            return values
        captions, references = self._written(model, self.valid, chosen, poll)
        self._samples = _spread_samples(captions, references)
        return values | _scores(captions, references)

    def samples(self) -> Sequence[Sample]:
        """Some of the captions of the last validation, of the same images each time."""
        return self._samples

    def measured(self, model: nn.Module, images: DeviceCaptions, poll: Poll) -> Values:
        """Loss and scores, both of all images."""
        values = {"loss": self._loss(model, images, poll)}
        return values | _scores(*self._written(model, images, np.arange(len(images)), poll))

    @torch.inference_mode()
    def _loss(self, model: nn.Module, images: DeviceCaptions, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in images.batches(np.arange(len(images)), self.recipe.training.batch):
            poll()
            logits, _ = model(self.read(batch, images), batch.inputs, batch.labels_mask, factored=True)
            total += cross_entropy(logits, batch.labels, batch.labels_mask)
            tokens += batch.tokens
        return total.item() / tokens

    def _written(
        self, model: nn.Module, images: DeviceCaptions, rows: Rows, poll: Poll
    ) -> tuple[list[str], list[list[str]]]:
        """The captions that a model writes to some images, and the references."""
        settings, tokenizer = self.recipe.decoding.replace(n_best=1), self.corpus.tokenizer
        captions: list[str] = []
        for batch in images.batches(rows, self.recipe.training.batch):
            poll()
            hypotheses = write_captions(model, self.read(batch, images), settings, tokenizer)
            captions += [tokenizer.decode(best[0].tokens) for best in hypotheses]
        return captions, [images.texts[row] for row in rows]

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the preprocessing beside the weights."""
        self.corpus.tokenizer.save(folder)
        super().save(folder)


def _scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Values:
    """The scores that training measures."""
    scores = caption_scores(captions, references)
    return {metric.name: scores[metric.name] for metric in DECODED}


def _spread_samples(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[Sample]:
    """A few evenly spread captions, each beside a reference."""
    chosen = range(0, len(captions), max(1, math.ceil(len(captions) / SAMPLES)))
    return [Sample(source=f"image {i}", target=references[i][0], output=captions[i]) for i in chosen]


def evaluate_captions(captioner: ImageCaptioner, data: str, options: EvaluationOptions) -> Evaluation:
    """BLEU-1 to 4, CIDEr-D, ROUGE-L and exact captions; the same of a constant caption and of exchanged images."""
    unread, size = list[str](), captioner.preprocessing.size[0]
    settings = captioner.settings.replace(n_best=1, **({} if options.beam is None else {"beam": options.beam}))
    captions, references, looks = list[Caption](), list[list[str]](), Looks(captioner.tokenizer)
    examples = open_examples(data, size=size, part="test", count=options.count, seed=options.seed, problems=unread)
    while some := list(islice(examples, AT_ONCE)):
        pixels = torch.from_numpy(np.stack([captioner.pixels(example.image) for example in some]))
        written = captioner.describe(pixels, settings)
        captions += written
        references += [example.captions for example in some]
        drawn = [example.scene for example in some if example.scene is not None]
        if drawn and captioner.looks:
            said = [(caption.text, caption.ids) for caption in written]
            looks.add(drawn, said, captioner.forced(pixels, [ids for _, ids in said]))
    if not captions:
        raise DataError(f"{data} has no captioned image that can be read")
    texts = [caption.text for caption in captions]
    scores: dict[str, object] = {"images": len(texts), **caption_scores(texts, references)}
    return Evaluation(scores | looks.scores() | baseline_scores(texts, references), unread)

"""Speech recognition: labels of frames (CTC), teacher forcing of a decoder, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.data.batch import SpeechBatch
from regard.data.loader import Loader, Rows
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.families.speech.conformer import ConformerConfig
from regard.families.speech.ctc import write_speech
from regard.families.speech.data import ROUNDED_LABELS, SpeechBatches, SpokenRows, speech_features
from regard.families.speech.features import LogMelConfig, SpecAugment
from regard.families.speech.metrics import NORMALISATION, error_rates
from regard.families.speech.prepare import SpeechPreparation
from regard.families.speech.recipe import SpeechRecipe
from regard.families.translation.metrics import SAMPLES, Sample
from regard.search.settings import SearchSettings
from regard.training.initial_model import build_model, initial_folder, initial_tokenizer, planned_config
from regard.training.losses import Loss, cross_entropy, ctc
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options

Judge = Callable[[Any, Float[Tensor, "B T M"], Bool[Tensor, "B T"], SpeechBatch], Loss]  # a model's loss of a batch
NOTHING = SpecAugment(band_masks=0, time_masks=0)


class SpeechEvaluation:
    """Held-out utterances; `heard` of them, evenly spread, are also transcribed."""

    def __init__(
        self,
        spoken: SpokenRows,
        audio: LogMelConfig,
        tokenizer: TextTokenizer,
        judge: Judge,
        *,
        decoding: SearchSettings,
        heard: int,
        batch: int,
        device: torch.device,
    ) -> None:
        self.spoken, self.audio, self.tokenizer, self.judge = spoken, audio, tokenizer, judge
        self.decoding, self.batch, self.device = decoding.replace(n_best=1), batch, device
        self.make = SpeechBatches(spoken, NOTHING, tokenizer.pad)
        self.heard = np.linspace(0, len(spoken), min(heard, len(spoken)), endpoint=False).astype(np.int64)
        self.samples: list[Sample] = []  # texts of the last call, of the same utterances each time

    def __call__(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """All metrics of a model in evaluation mode; `poll` is called between batches and may raise."""
        values = {"loss": self._loss(model, poll)}
        return values | self._errors(model, poll) if len(self.heard) else values

    @torch.inference_mode()
    def _loss(self, model: nn.Module, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in self._batches(np.arange(len(self.spoken))):
            poll()
            features, mask = speech_features(batch.samples, batch.lengths, self.audio)
            total += self.judge(model, features, mask, batch).total
            tokens += batch.tokens
        return total.item() / tokens

    def _errors(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        found, blanks, frames = list[str](), 0, 0
        for batch in self._batches(self.heard):
            poll()
            features, mask = speech_features(batch.samples, batch.lengths, self.audio)
            heard = write_speech(model, features, mask, self.decoding, self.tokenizer)
            found += [self.tokenizer.decode(best[0].tokens) for best in heard.texts]
            blanks += sum(int((each.argmax(axis=-1) == self.tokenizer.pad).sum()) for each in heard.frames)
            frames += sum(map(len, heard.frames))
        references = [self.spoken.utterance(int(number)).text for number in self.heard]
        self.samples = _samples(found, references)
        rates = error_rates(references, found)
        values = {"wer": rates.wer, "sentence_errors": rates.wrong_texts}
        return values | ({"blanks": blanks / frames} if frames else {})

    def _batches(self, rows: Rows) -> Iterator[SpeechBatch]:
        for some in np.array_split(rows, max(1, -(-len(rows) // self.batch))):
            yield self.make(some, (0, 0)).to(self.device)


def _samples(found: Sequence[str], references: Sequence[str]) -> list[Sample]:
    """A few evenly spread texts, each beside what was said."""
    chosen = range(0, len(found), max(1, math.ceil(len(found) / SAMPLES)))
    return [Sample(source=f"utterance {i}", target=references[i], output=found[i]) for i in chosen]


class SpeechTask(SupervisedTask[SpeechBatch]):
    """Utterances with their texts."""

    recipe: SpeechRecipe

    @classmethod
    def prepare(cls, recipe: SpeechRecipe, folder: Path, poll: Poll) -> None:
        """Decode the recordings to the rate of the model, learn the vocabulary and encode the texts."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: SpeechRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, training = recipe, device, recipe.training
        self.config, self.corpus = planned_config(recipe.model, ConformerConfig), _preparation(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}; wer of text: {NORMALISATION}"
        if training.validate_every and not len(self.corpus.parts["valid"]):
            raise DataError(
                "there is no recording for validation; give data.valid, raise data.split, or switch validation off "
                "with training.validate_every = 0"
            )
        self.valid = self._evaluation("valid", training.validate_utterances)
        self.spoken = self.corpus.parts["train"]
        rounded = ROUNDED_LABELS if training.shapes_recur else 1
        make = SpeechBatches(self.spoken, recipe.augmentation, self.corpus.tokenizer.pad, rounded)
        self.loader = Loader(self._plan, make, **loader_options(training, device))
        self.factored = training.factored(device.type)

    def _plan(self, epoch: int) -> list[Rows]:
        return self.spoken.plan(self.recipe.training.batch, epoch)

    def build(self) -> nn.Module:
        """A new model with the vocabulary of the texts, or one with the weights that the recipe starts from."""
        return build_model(self.recipe.model, self.corpus.tokenizer)

    def loss(self, model: Forward, batch: SpeechBatch) -> Loss:
        """The loss of augmented spectrograms."""
        features, mask = speech_features(batch.samples, batch.lengths, self.corpus.audio)
        features = self.recipe.augmentation(features, mask.sum(dim=1), batch.draws)
        return self._judge(model, features, mask, batch, self.recipe.training.label_smoothing)

    def _judge(
        self,
        model: Forward,
        features: Float[Tensor, "B T M"],
        mask: Bool[Tensor, "B T"],
        batch: SpeechBatch,
        smoothing: float = 0.0,
    ) -> Loss:
        """CTC's loss of the labels, and the cross-entropy of a decoder, weighed by `training.ctc_weight`."""
        inputs = batch.inputs if self.config.decoder_depth else None
        heard = model(features, mask, inputs, batch.labels_mask, factored=self.factored)
        total = torch.zeros((), device=features.device)
        weight = self.recipe.training.ctc_weight if self.config.decoder_depth else 1.0
        if heard.frames is not None and weight:
            labels = batch.labels_mask.sum(dim=1) - 1  # without the end token
            total = total + weight * ctc(heard.frames, heard.mask.sum(dim=1), batch.labels, labels, self.config.pad)
        if heard.taught is not None:
            share = 1 - weight if self.config.ctc else 1.0
            total = total + share * cross_entropy(heard.taught, batch.labels, batch.labels_mask, smoothing)
        return Loss(total, batch.labels_mask.sum())

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and, of some utterances, errors of words and sentences and the share of blanks."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the texts that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on all test utterances; empty if there are none."""
        spoken = self.corpus.parts["test"]
        return self._evaluation("test", len(spoken))(model, poll) if len(spoken) else {}

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the form of spectrograms beside the weights."""
        self.corpus.tokenizer.save(folder)
        self.corpus.audio.save(folder)

    def _evaluation(self, part: str, heard: int) -> SpeechEvaluation:
        return SpeechEvaluation(
            self.corpus.parts[part],  # type: ignore[index]
            self.corpus.audio,
            self.corpus.tokenizer,
            self._judge,
            decoding=self.recipe.decoding,
            heard=heard,
            batch=self.recipe.training.batch,
            device=self.device,
        )


def _preparation(recipe: SpeechRecipe) -> SpeechPreparation:
    config, init = planned_config(recipe.model, ConformerConfig), recipe.model.init
    return SpeechPreparation(
        recipe.data,
        recipe.tokenizer,
        LogMelConfig.load(initial_folder(init)) if init else recipe.audio,
        recipe.seed,
        config.ctc,
        initial_tokenizer(init) if init else None,
    )

"""Speech recognition: labels of frames (CTC), teacher forcing of a decoder, or both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.data.audio.features import LogMelConfig
from regard.data.batch import SpeechBatch
from regard.data.loader import Loader, Rows
from regard.data.speech.batches import ROUNDED_LABELS, SpeechBatches
from regard.data.speech.features import speech_features
from regard.errors import DataError
from regard.models.conformer import ConformerConfig
from regard.training.evaluation.error_rates import NORMALISATION
from regard.training.evaluation.speech import SpeechEvaluation
from regard.training.evaluation.translation import Sample
from regard.training.losses import Loss, cross_entropy, ctc
from regard.training.prepare.initial_model import build_model, initial_folder, initial_tokenizer, planned_config
from regard.training.prepare.speech import SpeechPreparation
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, SupervisedTask, Values, loader_options
from regard.training.tasks.speech_recipe import SpeechRecipe


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

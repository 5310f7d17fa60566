"""Speech recognition: labels of frames (CTC), teacher forcing of a decoder, or both; its loss and its error rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from regard.data.batch import SpeechBatch
from regard.data.loader import Loader, Rows
from regard.data.sources import Part
from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.speech.audio import Samples
from regard.families.speech.conformer import ConformerConfig
from regard.families.speech.ctc import JOINT, write_speech
from regard.families.speech.data import ROUNDED_LABELS, SpeechBatches, read_spoken
from regard.families.speech.features import Features, SpecAugment, speech_features
from regard.families.speech.metrics import NORMALISATION, error_rates
from regard.families.speech.prepare import SpeechCorpus
from regard.families.speech.recipe import SpeechRecipe
from regard.training.initial_model import build_model, planned_config
from regard.training.losses import Loss, cross_entropy, ctc
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values, loader_options

if TYPE_CHECKING:
    from regard.families.speech.pipeline import Transcriber

NOTHING = SpecAugment(band_masks=0, time_masks=0)


def speech_loss(
    model: Forward,
    config: ConformerConfig,
    features: Features,
    batch: SpeechBatch,
    *,
    ctc_weight: float = JOINT,
    smoothing: float = 0.0,
    factored: bool = False,
) -> Loss:
    """CTC's loss of the labels of frames, and the cross-entropy of a decoder; of a model with both, `ctc_weight` of the
    first and the rest of the second."""
    inputs = batch.inputs if config.decoder_depth else None
    heard = model(features.values, features.mask, inputs, batch.labels_mask, factored=factored)
    total = torch.zeros((), device=features.values.device)
    weight = ctc_weight if config.decoder_depth else 1.0
    if heard.frames is not None and weight:
        labels = batch.labels_mask.sum(dim=1) - 1  # without the end token
        total = total + weight * ctc(heard.frames, heard.mask.sum(dim=1), batch.labels, labels, config.pad)
    if heard.taught is not None:
        share = 1 - weight if config.ctc else 1.0
        total = total + share * cross_entropy(heard.taught, batch.labels, batch.labels_mask, smoothing)
    return Loss(total, batch.labels_mask.sum())


class SpeechTask(SupervisedTask[SpeechBatch]):
    """Utterances with their texts."""

    recipe: SpeechRecipe

    @classmethod
    def prepare(cls, recipe: SpeechRecipe, folder: Path, poll: Poll) -> None:
        """Decode the recordings to the rate of the model, learn the vocabulary and encode the texts."""
        SpeechCorpus.prepare(recipe, folder, poll)

    def __init__(self, recipe: SpeechRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, training = recipe, device, recipe.training
        self.config, self.corpus = planned_config(recipe.model, ConformerConfig), SpeechCorpus(recipe, folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}; wer of text: {NORMALISATION}"
        if training.validate_every and not len(self.corpus.parts["valid"]):
            raise DataError(
                "there is no recording for validation; give data.valid, raise data.split, or switch validation off "
                "with training.validate_every = 0"
            )
        self.spoken = self.corpus.parts["train"]
        rounded = ROUNDED_LABELS if training.shapes_recur else 1
        make = SpeechBatches(self.spoken, recipe.augmentation, self.corpus.tokenizer.pad, rounded)
        self.loader = Loader(self._plan, make, **loader_options(training, device))
        self.factored = training.factored(device.type)
        self._samples: list[Sample] = []  # texts of the last validation, of the same utterances each time

    def _plan(self, epoch: int) -> list[Rows]:
        return self.spoken.plan(self.recipe.training.batch, epoch)

    def build(self) -> nn.Module:
        """A new model with the vocabulary of the texts, or one with the weights that the recipe starts from."""
        return build_model(self.recipe.model, self.corpus.tokenizer)

    def loss(self, model: Forward, batch: SpeechBatch) -> Loss:
        """The loss of augmented spectrograms."""
        features = self._features(batch)
        hidden = self.recipe.augmentation(features.values, features.mask.sum(dim=1), batch.draws)
        return self._loss(model, features._replace(values=hidden), batch, self.recipe.training.label_smoothing)

    def _features(self, batch: SpeechBatch) -> Features:
        return speech_features(batch.samples, batch.lengths, self.corpus.audio)

    def _loss(self, model: Forward, features: Features, batch: SpeechBatch, smoothing: float = 0.0) -> Loss:
        weight = self.recipe.training.ctc_weight
        return speech_loss(
            model, self.config, features, batch, ctc_weight=weight, smoothing=smoothing, factored=self.factored
        )

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and, of some utterances, errors of words and sentences and the share of blanks."""
        values, self._samples = self._measure(model, "valid", self.recipe.training.validate_utterances, poll)
        return values

    def samples(self) -> Sequence[Sample]:
        """Some of the texts that were measured."""
        return self._samples

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on all test utterances; empty if there are none."""
        count = len(self.corpus.parts["test"])
        return self._measure(model, "test", count, poll)[0] if count else {}

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the form of spectrograms beside the weights."""
        self.corpus.tokenizer.save(folder)
        self.corpus.audio.save(folder)

    def _batches(self, part: Part, rows: Rows, poll: Poll) -> Iterator[SpeechBatch]:
        make = SpeechBatches(self.corpus.parts[part], NOTHING, self.corpus.tokenizer.pad)
        for some in np.array_split(rows, max(1, -(-len(rows) // self.recipe.training.batch))):
            poll()
            yield make(some, (0, 0)).to(self.device)

    def _measure(self, model: nn.Module, part: Part, count: int, poll: Poll) -> tuple[Values, list[Sample]]:
        """The metrics of a part, and some texts; `count` utterances, evenly spread, are also transcribed."""
        spoken = self.corpus.parts[part]
        values = {"loss": self._mean_loss(model, part, poll)}
        chosen = np.linspace(0, len(spoken), min(count, len(spoken)), endpoint=False).astype(np.int64)
        if not len(chosen):
            return values, []
        tokenizer, decoding = self.corpus.tokenizer, self.recipe.decoding.replace(n_best=1)
        texts, blanks, frames = list[str](), 0, 0
        for batch in self._batches(part, chosen, poll):
            heard = write_speech(model, *self._features(batch), decoding, tokenizer)
            texts += [tokenizer.decode(best[0].tokens) for best in heard.texts]
            blanks += sum(int((logs.argmax(axis=-1) == tokenizer.pad).sum()) for logs in heard.frames)
            frames += sum(map(len, heard.frames))
        references = [spoken.utterance(int(number)).text for number in chosen]
        rates = error_rates(references, texts)
        values |= {"wer": rates.wer, "sentence_errors": rates.wrong_texts}
        values |= {"blanks": blanks / frames} if frames else {}
        shown = range(0, len(texts), max(1, math.ceil(len(texts) / SAMPLES)))
        return values, [Sample(source=f"utterance {i}", target=references[i], output=texts[i]) for i in shown]

    @torch.inference_mode()
    def _mean_loss(self, model: nn.Module, part: Part, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in self._batches(part, np.arange(len(self.corpus.parts[part])), poll):
            total += self._loss(model, self._features(batch), batch).total
            tokens += batch.tokens
        return total.item() / tokens


def evaluate_speech(transcriber: Transcriber, data: str, options: EvaluationOptions) -> Evaluation:
    """Error rates of words (WER) and characters (CER), by kind of error, and the share of recordings that are not
    exactly right."""
    from regard.families.speech.pipeline import TranscribeOptions

    settings = None if options.beam is None else transcriber.settings.replace(beam=options.beam)
    unread, references, texts, seconds = list[str](), list[str](), list[str](), 0.0

    def audio() -> Iterator[Samples]:
        for spoken in read_spoken(
            data, transcriber.rate, part="test", count=options.count, seed=options.seed,
            refuse=lambda error: unread.append(str(error)),
        ):  # fmt: skip
            references.append(spoken.text)
            yield spoken.samples

    for transcript in transcriber.stream(audio(), TranscribeOptions(settings=settings)):
        if isinstance(transcript, DataError):
            raise transcript
        texts.append(transcript.text)
        seconds += transcript.seconds
    if not texts:
        raise DataError(f"{data} has no recording that can be read")
    rates = error_rates(references, texts)
    scores: dict[str, object] = {
        "recordings": len(texts),
        "minutes": seconds / 60,
        "words": rates.words,
        "text": NORMALISATION,
        "wer": rates.wer,
        "cer": rates.cer,
        "substitutions": rates.substitutions,
        "deletions": rates.deletions,
        "insertions": rates.insertions,
        "recordings with an error": rates.wrong_texts,
    }
    return Evaluation(scores, unread)

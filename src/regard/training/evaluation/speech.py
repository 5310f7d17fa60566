"""Measuring a speech recogniser on held-out utterances: loss, errors of words and sentences, and blanks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.data.audio.features import LogMelConfig
from regard.data.batch import SpeechBatch
from regard.data.loader import Rows
from regard.data.speech.augmentation import SpecAugment
from regard.data.speech.batches import SpeechBatches, SpokenRows
from regard.data.speech.features import speech_features
from regard.data.tokenizers.text import TextTokenizer
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.speech import write_speech
from regard.training.evaluation.error_rates import error_rates
from regard.training.evaluation.translation import SAMPLES, Sample
from regard.training.losses import Loss
from regard.training.safeguards import Poll

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

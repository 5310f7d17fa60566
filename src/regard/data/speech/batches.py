"""Batches of recordings, or of strings that are joined from recordings of one speaker, as a function of their place."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator

from regard.config import Config
from regard.data.batch import SpeechBatch, decoder_inputs, pad_rows
from regard.data.loader import Place, Rows
from regard.data.speech.augmentation import SpecAugment
from regard.data.speech.store import SpeechStore
from regard.errors import ConfigError

NOISE = (1.5, 5.0)  # standard deviation of the noise in pauses, as powers of two in steps of 16 bits
SORTED = 16  # batches whose recordings are sorted by length together
# Lengths of a batch are multiples of these, so that there are few different shapes.
ROUNDED, ROUNDED_LABELS = 0.25, 8  # seconds; tokens, where steps are captured


class JoinConfig(Config):
    """[data.join]: strings of recordings of one speaker, with pauses around each; `longest` = 0 joins nothing."""

    shortest: PositiveInt = 3  # recordings in a string
    longest: NonNegativeInt = 0
    shortest_pause: NonNegativeFloat = 0.02  # seconds
    longest_pause: NonNegativeFloat = 0.3
    count: PositiveInt = 4000  # strings of an epoch; every epoch has others
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 600
    # what validation and test hear: strings as in training, or every recording once, with a pause before and after it
    measured: Literal["strings", "recordings"] = "strings"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.longest and self.longest < self.shortest:
            raise ConfigError(f"longest = {self.longest}: must not be below shortest = {self.shortest}")
        if self.longest_pause < self.shortest_pause:
            raise ConfigError(f"longest_pause = {self.longest_pause}: must not be below shortest_pause")
        return self


class Said(NamedTuple):
    """An utterance: its samples, its token ids with the end token, its text, and who says it."""

    samples: NDArray[np.int16]
    ids: list[int]
    text: str
    speaker: str


@dataclass(frozen=True)
class SpokenRows:
    """The utterances of a part: recordings of a store, or `count` strings of them.

    With `varied` (in training) every epoch draws speeds, and strings, anew.
    """

    store: SpeechStore
    rows: NDArray[np.int64]
    rate: int
    join: JoinConfig
    count: int
    end: int
    seed: int
    varied: bool
    between: tuple[int, ...] = ()  # the tokens between the texts of a string

    def __len__(self) -> int:
        if not len(self.rows):
            return 0
        return self.count if self.join.longest and not self.one_by_one else len(self.rows)

    @property
    def one_by_one(self) -> bool:
        """Whether every utterance is one recording with pauses around it."""
        return not self.varied and self.join.measured == "recordings"

    @cached_property
    def by_speaker(self) -> dict[str, NDArray[np.int64]]:
        """The recordings of each speaker."""
        found: dict[str, list[int]] = {}
        for row in self.rows.tolist():
            found.setdefault(self.store.rows[row].speaker, []).append(row)
        return {speaker: np.array(rows) for speaker, rows in sorted(found.items())}

    def utterance(self, number: int, epoch: int = 0) -> Said:
        """An utterance of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, number, int(self.varied)])
        speed = int(rng.integers(len(self.store.speeds))) if self.varied else self.store.usual
        if self.join.longest:
            chosen = [int(self.rows[number])] if self.one_by_one else self._drawn(rng)
            return self._string(rng, speed, chosen)
        row = int(self.rows[number])
        about = self.store.rows[row]
        return Said(self.store.samples(row, speed), self._ids(row), about.text, about.speaker)

    def plan(self, batch: int, epoch: int) -> list[Rows]:
        """The utterances of every batch of an epoch. Recordings of similar length are together."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self))
        if not self.join.longest:
            lengths = self.store.lengths()[self.rows, self.store.usual]
            groups = np.array_split(order, max(1, len(order) // (SORTED * batch)))
            order = np.concatenate([group[np.argsort(lengths[group], kind="stable")] for group in groups])
        batches = np.array_split(order, -(-len(order) // batch))
        return [batches[number] for number in rng.permutation(len(batches))]

    def _drawn(self, rng: np.random.Generator) -> list[int]:
        """Some recordings of one speaker."""
        speakers = list(self.by_speaker)
        rows = self.by_speaker[speakers[int(rng.integers(len(speakers)))]]
        return rng.choice(rows, int(rng.integers(self.join.shortest, self.join.longest + 1))).tolist()

    def _string(self, rng: np.random.Generator, speed: int, chosen: list[int]) -> Said:
        level = 2 ** rng.uniform(*NOISE)
        pieces: list[NDArray[np.int16]] = []
        for row in chosen:
            pieces += [self._pause(rng, level), self.store.samples(row, speed)]
        ids = self._ids(chosen[0])[:-1]
        for row in chosen[1:]:
            ids += [*self.between, *self._ids(row)[:-1]]
        text = " ".join(self.store.rows[row].text for row in chosen)
        samples = np.concatenate([*pieces, self._pause(rng, level)])
        return Said(samples, [*ids, self.end], text, self.store.rows[chosen[0]].speaker)

    def _pause(self, rng: np.random.Generator, level: float) -> NDArray[np.int16]:
        seconds = rng.uniform(self.join.shortest_pause, self.join.longest_pause)
        return np.rint(rng.normal(0, level, int(seconds * self.rate))).astype(np.int16)

    def _ids(self, row: int) -> list[int]:
        assert self.store.tokens is not None
        return self.store.tokens[row].tolist()


@dataclass(frozen=True)
class SpeechBatches:
    """Makes batches of utterances and the random numbers of their augmentation."""

    spoken: SpokenRows
    augmentation: SpecAugment
    pad: int
    round_labels: int = 1

    def __call__(self, rows: Rows, place: Place) -> SpeechBatch:
        said = [self.spoken.utterance(int(number), place[0]) for number in rows]
        draws = self.augmentation.draw(np.random.default_rng([self.spoken.seed, *place]), len(rows))
        labels, mask = pad_rows([each.ids for each in said], self.pad, self.round_labels)
        inputs = decoder_inputs(labels, mask, pad=self.pad, start=self.pad)
        samples, lengths = padded_samples([each.samples for each in said], round(ROUNDED * self.spoken.rate))
        return SpeechBatch(samples, lengths, torch.from_numpy(draws), inputs, labels, mask)


def padded_samples(waves: list[NDArray[np.int16]], multiple: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples with zeros behind them, whose common length is a multiple, and their own lengths."""
    lengths = np.array([len(wave) for wave in waves])
    padded = np.zeros((len(waves), int(-(-lengths.max() // multiple) * multiple)), dtype=np.int16)
    for row, wave in zip(padded, waves, strict=True):
        row[: len(wave)] = wave
    return torch.from_numpy(padded), torch.from_numpy(lengths)

"""Batches of recordings, or of strings that are joined from recordings of one speaker, as a function of their place."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from regard.config import Config
from regard.data.batch import Ids, SpeechBatch, decoder_inputs, pad_rows
from regard.data.columns import Column, ColumnWriter, map_values
from regard.data.loader import Place, Rows
from regard.errors import ConfigError, DataError
from regard.families.speech.audio import Samples, resample
from regard.families.speech.features import LogMelConfig, SpecAugment, log_mel

ABOUT, WAVES, TOKENS, ROWS = "speech.json", "waves", "tokens", "recordings.jsonl"
FULL = 32_767  # the largest sample
SPEED_STEPS = 100  # speeds are rounded to hundredths


class Spoken(NamedTuple):
    """Samples of a recording, with its name, text and speaker."""

    name: str
    text: str
    speaker: str
    samples: Samples


class Row(NamedTuple):
    """What is known of a recording in a store."""

    name: str
    text: str
    speaker: str


def at_speed(samples: Samples, speed: float) -> Samples:
    """Samples that are played faster (above 1) or slower; the pitch changes with the speed (Ko et al. 2015)."""
    ratio = Fraction(round(speed * SPEED_STEPS), SPEED_STEPS)
    return samples if ratio == 1 else resample(samples, ratio.numerator, ratio.denominator)


def in_16_bits(samples: Samples) -> NDArray[np.int16]:
    """Samples as 16-bit integers."""
    return np.rint(np.clip(samples, -1, 1) * FULL).astype("<i2")


def wav_bytes(samples: Samples, rate: int) -> bytes:
    """Samples as a WAV file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(in_16_bits(samples).tobytes())
    return file.getvalue()


@dataclass(frozen=True)
class SpeechStore:
    """Recordings by number; `waves` has all speeds of a recording one after another."""

    folder: Path
    rows: Sequence[Row]
    waves: Column
    speeds: tuple[float, ...]
    tokens: Column | None  # the ids of the texts with their end token, once they are written

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> tuple[Callable[[Path], SpeechStore], tuple[Path]]:
        return SpeechStore.open, (self.folder,)  # a loader's worker maps the files itself

    def samples(self, number: int, speed: int) -> NDArray[np.int16]:
        """The samples of a recording at a speed, given by its number."""
        return self.waves[number * len(self.speeds) + speed]

    def lengths(self) -> NDArray[np.int64]:
        """The number of samples of every recording, a column for each speed."""
        return self.waves.lengths().reshape(-1, len(self.speeds))

    @property
    def usual(self) -> int:
        """The number of the speed at which recordings are unchanged."""
        return self.speeds.index(1.0)

    @classmethod
    def write(cls, folder: Path, recordings: Iterable[Spoken], speeds: Sequence[float]) -> None:
        """Write recordings as they stream by."""
        folder.mkdir(parents=True, exist_ok=True)
        count = 0
        with closing(ColumnWriter(folder, WAVES, "<i2")) as writer, (folder / ROWS).open("w", encoding="utf-8") as file:
            for each in recordings:
                writer.extend([in_16_bits(at_speed(each.samples, speed)) for speed in speeds])
                print(json.dumps([each.name, each.text, each.speaker], ensure_ascii=False), file=file)
                count += 1
        about = {"recordings": count, "samples": writer.length, "speeds": list(speeds)}
        (folder / ABOUT).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def write_tokens(cls, folder: Path, ids: Sequence[Ids]) -> None:
        """Write the ids of the texts of all recordings."""
        with closing(ColumnWriter(folder, TOKENS, "<i4")) as writer:
            writer.write(ids)
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        (folder / ABOUT).write_text(json.dumps({**about, "tokens": writer.length}), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> SpeechStore:
        """Map the files of a written store."""
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            count, speeds = about["recordings"], tuple(about["speeds"])
            with (folder / ROWS).open(encoding="utf-8") as file:
                rows = [Row(*json.loads(line)) for line in file]
            waves = Column(
                map_values(folder / f"{WAVES}.bin", "<i2", about["samples"]),
                map_values(folder / f"{WAVES}.offsets", "<i8", count * len(speeds) + 1),
            )
            tokens = None
            if "tokens" in about:
                tokens = Column(
                    map_values(folder / f"{TOKENS}.bin", "<i4", about["tokens"]),
                    map_values(folder / f"{TOKENS}.offsets", "<i8", count + 1),
                )
            return cls(folder, rows, waves, speeds, tokens)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder} is not a complete set of recordings ({error}); prepare it again") from error


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
    lengths = np.array([len(samples) for samples in waves])
    padded = np.zeros((len(waves), int(-(-lengths.max() // multiple) * multiple)), dtype=np.int16)
    for row, samples in zip(padded, waves, strict=True):
        row[: len(samples)] = samples
    return torch.from_numpy(padded), torch.from_numpy(lengths)


QUIET = 0.1  # the least deviation that a spectrogram is divided by, so that silence stays silent


class Features(NamedTuple):
    """Spectrograms, padded with zeros, and which of their frames are real."""

    values: Float[Tensor, "B T M"]
    mask: Bool[Tensor, "B T"]


def speech_features(samples: Int[Tensor, "B S"], lengths: Int[Tensor, B], config: LogMelConfig) -> Features:
    """Log-mel spectrograms without the mean of each band, divided by one deviation for each recording.

    So neither loudness nor the tone of a microphone matters, and a recording alone is as in a batch.
    """
    with torch.autocast(samples.device.type, enabled=False):
        bands = log_mel(samples.float() / FULL, config)
        frames = (lengths // config.hop).clamp(min=1)
        mask = torch.arange(bands.shape[1], device=bands.device) < frames[:, None]
        real = mask[..., None]
        mean = torch.where(real, bands, 0.0).sum(dim=1, keepdim=True) / frames[:, None, None]
        centred = torch.where(real, bands - mean, 0.0)
        variance = centred.square().sum(dim=(1, 2), keepdim=True) / (frames[:, None, None] * config.mels)
        return Features(centred / variance.sqrt().clamp(min=QUIET), mask)

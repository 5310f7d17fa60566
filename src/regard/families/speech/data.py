"""Recordings from their source to batches: read or drawn, stored with their tokens, joined to strings, and padded.

Every utterance and batch of training is a function of its place (epoch and number), so that a run can resume anywhere.
"""

from __future__ import annotations

import base64
import io
import json
import wave
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import Ids, SpeechBatch, decoder_inputs, pad_rows
from regard.data.columns import Column, ColumnWriter, MappedStore
from regard.data.loader import Place, Rows, in_batches
from regard.data.sources import Part
from regard.errors import DataError
from regard.families.speech.audio import Samples, read_audio, resample
from regard.families.speech.features import FULL, SpecAugment
from regard.families.speech.manifest import is_built_in, read_recordings, utterances
from regard.families.speech.recipe import JoinConfig

WAVES, TOKENS, ROWS = "waves", "tokens", "recordings.jsonl"
SPEED_STEPS = 100  # speeds are rounded to hundredths
VOICES = 6  # speakers of the built-in speech are told apart by number only
NOISE = (1.5, 5.0)  # standard deviation of the noise in pauses, as powers of two in steps of 16 bits
SHOWN, SHOWN_SEED, SHOWN_RATE = 4, 7, 16_000  # examples on the page
SORTED = 16  # batches whose recordings are sorted by length together
# Lengths of a batch are multiples of these, so that there are few different shapes.
ROUNDED, ROUNDED_LABELS = 0.25, 8  # seconds; tokens, where steps are captured


class Spoken(NamedTuple):
    """Samples of a recording, with its name, text and speaker."""

    name: str
    text: str
    speaker: str
    samples: Samples


def read_spoken(
    source: str,
    rate: int,
    *,
    part: Part = "train",
    count: int = 0,
    seed: int = 1,
    digits: tuple[int, int] = (1, 5),
    refuse: Callable[[DataError], None] | None = None,
) -> Iterator[Spoken]:
    """The recordings of a manifest, a folder or an archive at a rate, or `count` utterances of the built-in speech.

    What cannot be read goes to `refuse`, or is an error. A file of which several parts follow one another is read once.
    """
    if is_built_in(source):
        for number, drawn in enumerate(utterances(part=part, count=count, seed=seed, digits=digits, rate=rate)):
            yield Spoken(f"{part} {number}", drawn.text, f"voice {number % VOICES}", drawn.samples)
        return
    file, whole = None, np.empty(0, dtype=np.float32)
    for recording in read_recordings(source):
        try:
            if not isinstance(recording.audio, Path) or recording.audio != file:
                whole = read_audio(recording.audio, rate, recording.name)
                file = recording.audio
            samples = recording.part_of(whole, rate)
        except DataError as error:
            if refuse is None:
                raise
            refuse(error)
        else:
            yield Spoken(recording.name, " ".join(recording.text.split()), recording.speaker, samples)


@cache
def examples() -> list[dict[str, str]]:
    """Built-in recordings to try a model with on the page: WAV files in base64, and what is said."""
    spoken = utterances(part="test", count=SHOWN, seed=SHOWN_SEED, digits=(2, 4), rate=SHOWN_RATE)
    waves = ((each.text, wav_bytes(each.samples, SHOWN_RATE)) for each in spoken)
    return [{"caption": text, "data": base64.b64encode(wave).decode()} for text, wave in waves]


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


class Row(NamedTuple):
    """What is known of a recording in a store."""

    name: str
    text: str
    speaker: str


@dataclass(frozen=True)
class SpeechStore(MappedStore):
    """Recordings by number; `waves` has all speeds of a recording one after another."""

    about, contents = "speech.json", "recordings"

    folder: Path
    rows: Sequence[Row]
    waves: Column
    speeds: tuple[float, ...]
    tokens: Column | None  # the ids of the texts with their end token, once they are written

    def __len__(self) -> int:
        return len(self.rows)

    def samples(self, number: int, speed: int) -> NDArray[np.int16]:
        """The samples of a recording at a speed, given by its number."""
        return self.waves[number * len(self.speeds) + speed]

    def ids(self, number: int) -> list[int]:
        """The tokens of the text of a recording."""
        assert self.tokens is not None
        return self.tokens[number].tolist()

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
            for spoken in recordings:
                writer.extend([in_16_bits(at_speed(spoken.samples, speed)) for speed in speeds])
                print(json.dumps([spoken.name, spoken.text, spoken.speaker], ensure_ascii=False), file=file)
                count += 1
        about = {"recordings": count, "samples": writer.length, "speeds": list(speeds)}
        (folder / cls.about).write_text(json.dumps(about), encoding="utf-8")

    @classmethod
    def write_tokens(cls, folder: Path, ids: Sequence[Ids]) -> None:
        """Write the ids of the texts of all recordings."""
        with closing(ColumnWriter(folder, TOKENS, "<i4")) as writer:
            writer.write(ids)
        about = json.loads((folder / cls.about).read_text(encoding="utf-8"))
        (folder / cls.about).write_text(json.dumps({**about, "tokens": writer.length}), encoding="utf-8")

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> SpeechStore:
        count, speeds = about["recordings"], tuple(about["speeds"])
        with (folder / ROWS).open(encoding="utf-8") as file:
            rows = [Row(*json.loads(line)) for line in file]
        waves = Column.open(folder, WAVES, "<i2", about["samples"], count * len(speeds))
        tokens = Column.open(folder, TOKENS, "<i4", about["tokens"], count) if "tokens" in about else None
        return cls(folder, rows, waves, speeds, tokens)


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
        strings = self.join.longest and not self._one_by_one
        return self.count if strings and len(self.rows) else len(self.rows)

    @property
    def _one_by_one(self) -> bool:
        """Whether every utterance is one recording with pauses around it."""
        return not self.varied and self.join.measured == "recordings"

    @cached_property
    def _by_speaker(self) -> list[NDArray[np.int64]]:
        """The recordings of each speaker, in the order of their names."""
        rows: dict[str, list[int]] = {}
        for row in self.rows.tolist():
            rows.setdefault(self.store.rows[row].speaker, []).append(row)
        return [np.array(rows[speaker]) for speaker in sorted(rows)]

    def utterance(self, number: int, epoch: int = 0) -> Said:
        """An utterance of an epoch."""
        rng = np.random.default_rng([self.seed, epoch, number, int(self.varied)])
        speed = int(rng.integers(len(self.store.speeds))) if self.varied else self.store.usual
        if not self.join.longest:
            row = int(self.rows[number])
            about = self.store.rows[row]
            return Said(self.store.samples(row, speed), self.store.ids(row), about.text, about.speaker)
        if self._one_by_one:
            return self._string(rng, speed, [int(self.rows[number])])
        rows = self._by_speaker[int(rng.integers(len(self._by_speaker)))]
        size = int(rng.integers(self.join.shortest, self.join.longest + 1))
        return self._string(rng, speed, rng.choice(rows, size).tolist())

    def plan(self, batch: int, epoch: int) -> list[Rows]:
        """The utterances of every batch of an epoch. Recordings of similar length are together."""
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self))
        if not self.join.longest:
            lengths = self.store.lengths()[self.rows, self.store.usual]
            groups = np.array_split(order, max(1, len(order) // (SORTED * batch)))
            order = np.concatenate([group[np.argsort(lengths[group], kind="stable")] for group in groups])
        batches = in_batches(order, batch)
        return [batches[number] for number in rng.permutation(len(batches))]

    def _string(self, rng: np.random.Generator, speed: int, chosen: list[int]) -> Said:
        level = 2 ** rng.uniform(*NOISE)
        samples: list[NDArray[np.int16]] = []
        ids: list[int] = []
        for place, row in enumerate(chosen):
            samples += [self._pause(rng, level), self.store.samples(row, speed)]
            ids += [*(self.between if place else ()), *self.store.ids(row)[:-1]]
        samples.append(self._pause(rng, level))
        text = " ".join(self.store.rows[row].text for row in chosen)
        return Said(np.concatenate(samples), [*ids, self.end], text, self.store.rows[chosen[0]].speaker)

    def _pause(self, rng: np.random.Generator, level: float) -> NDArray[np.int16]:
        seconds = rng.uniform(self.join.shortest_pause, self.join.longest_pause)
        return np.rint(rng.normal(0, level, int(seconds * self.rate))).astype(np.int16)


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
        waves, ids = [one.samples for one in said], [one.ids for one in said]
        return speech_batch(waves, ids, self.pad, draws, round(ROUNDED * self.spoken.rate), self.round_labels)


def speech_batch(
    waves: Sequence[NDArray[np.int16]],
    texts: Sequence[Ids],
    pad: int,
    draws: Float[np.ndarray, "B K"] | None = None,
    multiple: int = 1,
    round_labels: int = 1,
) -> SpeechBatch:
    """Recordings with the tokens of their texts; the lengths of samples and of labels are rounded up to multiples."""
    labels, mask = pad_rows(texts, pad, round_labels)
    inputs = decoder_inputs(labels, mask, pad=pad, start=pad)
    samples, lengths = padded_samples(waves, multiple)
    draws = np.empty((len(waves), 0), dtype=np.float32) if draws is None else draws
    return SpeechBatch(samples, lengths, torch.from_numpy(draws), inputs, labels, mask)


def padded_samples(waves: Sequence[NDArray[np.int16]], multiple: int = 1) -> tuple[Int[Tensor, "B S"], Int[Tensor, B]]:
    """Samples with zeros behind them, whose common length is a multiple, and their own lengths."""
    lengths = np.array([len(samples) for samples in waves])
    padded = np.zeros((len(waves), int(-(-lengths.max() // multiple) * multiple)), dtype=np.int16)
    for row, samples in zip(padded, waves, strict=True):
        row[: len(samples)] = samples
    return torch.from_numpy(padded), torch.from_numpy(lengths)

"""Recordings as samples of 16 bits in a memory-mapped file, each at one or several speeds, with their texts."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.audio.reading import Samples
from regard.data.audio.resampling import resample
from regard.data.batch import Ids
from regard.data.columns import Column, ColumnWriter, map_values
from regard.errors import DataError

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

"""Where recordings with texts come from: manifests, folders and archives, or a small formant synthesiser of digits.

A manifest is JSONL with an object for each recording, or TSV with a header. Its columns are `audio` and `text`, and if
there are such `start` and `end` in seconds, and `speaker`; the names of Common Voice and NeMo are understood too. Paths
are relative to the manifest. In a folder every recording has its text in a .txt file of the same name, or in a
*.trans.txt of LibriSpeech. Recordings named DIGIT_SPEAKER_NUMBER (Free Spoken Digit Dataset) need no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.formats.lines import ARCHIVES, archive_members, read_lines, refuse
from regard.data.sources import PARTS, Part
from regard.errors import DataError, UsageError
from regard.families.speech.audio import SUFFIXES, AudioSource, Samples

SPEECH = "builtin:speech"  # digits that a small synthesiser speaks
COLUMNS = {  # our name -> names in manifests
    "audio": ("audio", "audio_filepath", "path", "file"), "text": ("text", "sentence", "transcript"),
    "speaker": ("speaker", "client_id"), "start": ("start", "offset"), "end": ("end",),
}  # fmt: skip
SPOKEN_DIGIT = re.compile(r"([0-9])_([^_]+)_(\d+)")
EXPECTED = (
    "expected a manifest (.jsonl, or .tsv with a header), with audio and text, or a folder or archive of recordings"
)
CLIPS = "clips"  # where Common Voice keeps its recordings


class Recording(NamedTuple):
    """A recording, its text, and which part of it; `end` is None at the end of the file."""

    name: str
    text: str
    audio: AudioSource
    speaker: str = ""
    start: float = 0.0
    end: float | None = None

    def part_of(self, samples: Samples, rate: int) -> Samples:
        """The samples from `start` to `end` of those of the whole file."""
        last = len(samples) if self.end is None else round(self.end * rate)
        part = samples[round(self.start * rate) : last]
        if not len(part) or last > len(samples) + rate // 10:
            raise DataError(f"{self.name}: is only {len(samples) / rate:.2f} s long")
        return part


def is_built_in(path: str) -> bool:
    """Whether recordings are drawn; `speech` means the same as `builtin:speech`, unless there is such a folder."""
    return path == SPEECH or (path == SPEECH.partition(":")[2] and not Path(path).exists())


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """The recordings of a manifest, a folder or an archive, in order."""
    path = Path(path)
    plain = path.name.removesuffix(".gz")
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise DataError(f"there is no file or folder {str(path)!r}; {EXPECTED}")
    if path.name.endswith(ARCHIVES):
        members = archive_members(path, SUFFIXES, contents=True)
        return (_spoken_digit(f"{path}:{name}", data, PurePosixPath(name).stem) for name, data in members)
    if plain.endswith((".jsonl", ".json")):
        return _of_rows(path, _json_rows(path))
    if plain.endswith(".tsv"):
        return _of_rows(path, _table_rows(path))
    raise DataError(f"{path} has no recordings; {EXPECTED}")


def _of_rows(path: Path, rows: Iterator[tuple[str, Mapping[str, Any]]]) -> Iterator[Recording]:
    """The recordings of the rows of a manifest, each with its place in the file for messages."""
    for where, row in rows:
        audio, text, speaker, start, end = (
            next((row[name] for name in names if name in row), None) for names in COLUMNS.values()
        )
        for column, value in (("audio", audio), ("text", text)):
            if value is None:
                raise DataError(f"{where}: has no {column!r}; {EXPECTED}")
        start, end = _seconds(start, f"{where}: start"), _seconds(end, f"{where}: end")
        if end is None and start is not None and "duration" in row:
            end = start + (_seconds(row["duration"], f"{where}: duration") or 0.0)
        if end is not None and end <= (start or 0.0):
            raise DataError(f"{where}: ends at {end:g} s, but begins at {start or 0.0:g} s")
        place, clip = path.parent / str(audio), path.parent / CLIPS / str(audio)
        name = str(audio) + (f" at {start:g} s" if start else "")
        file = clip if not place.exists() and clip.exists() else place
        yield Recording(name, str(text), file, str(speaker or ""), start or 0.0, end)


def _seconds(value: Any, where: str) -> float | None:
    if value in (None, ""):
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise DataError(f"{where} is {str(value)[:20]!r}; expected seconds, such as 1.25")
    return seconds


def _json_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(read_lines(path, refuse), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{where}: is not JSON ({error}); {EXPECTED}") from None
        if not isinstance(row, dict):
            raise DataError(f"{where}: is not a JSON object; {EXPECTED}")
        yield where, row


def _table_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = read_lines(path, refuse)
    header = next(lines, "").split("\t")
    for number, line in enumerate(lines, 2):
        where, cells = f"{path}, line {number}", line.split("\t")
        if not line.strip():
            continue
        if len(cells) != len(header):
            raise DataError(f"{where}: {len(cells)} columns, but the header has {len(header)}; {EXPECTED}")
        yield where, dict(zip(header, cells, strict=True))


def _of_folder(folder: Path) -> Iterator[Recording]:
    """Recordings with texts beside them; the speaker is the first folder below the one that was given."""
    transcripts: dict[Path, dict[str, str]] = {}  # texts of LibriSpeech by folder
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in SUFFIXES:
            continue
        if file.parent not in transcripts:
            lines = (line for texts in sorted(file.parent.glob("*.trans.txt")) for line in read_lines(texts, refuse))
            columns = (line.partition(" ") for line in lines)
            transcripts[file.parent] = {name: text for name, _, text in columns if text}
        beside = file.with_suffix(".txt")
        if beside.is_file():
            text = " ".join(beside.read_text(encoding="utf-8").split())
            yield Recording(str(file), text, file, [*file.relative_to(folder).parts[:-1], ""][0])
        elif file.stem in transcripts[file.parent]:
            yield Recording(str(file), transcripts[file.parent][file.stem], file, file.stem.split("-")[0])
        else:
            yield _spoken_digit(str(file), file, file.stem)


def _spoken_digit(name: str, audio: AudioSource, stem: str) -> Recording:
    match = SPOKEN_DIGIT.fullmatch(stem)
    if match is None:
        raise DataError(f"{name}: there is no text for it; {EXPECTED}")
    return Recording(name, DIGITS[int(match[1])], audio, match[2])


MIN_RATE = 8_000
OVERTONES = 40
EDGE = 0.012  # seconds of a fade at both ends of a word


class Sound(NamedTuple):
    """Two formants in Hz, whether there is a pitch, how loud, how long in seconds."""

    first: float
    second: float
    voiced: bool = True
    loudness: float = 1.0
    length: float = 0.09


SOUNDS = {
    "i": Sound(280, 2250), "e": Sound(500, 1900), "a": Sound(750, 1300), "o": Sound(480, 850), "u": Sound(310, 900),
    "n": Sound(250, 1500, loudness=0.5), "r": Sound(420, 1200, loudness=0.7), "w": Sound(300, 650, loudness=0.7),
    "v": Sound(250, 1100, loudness=0.4, length=0.06), "z": Sound(250, 3000, loudness=0.4),
    "s": Sound(3300, 3500, voiced=False, loudness=0.5), "f": Sound(2200, 3300, voiced=False, loudness=0.35),
    "t": Sound(3000, 3600, voiced=False, loudness=0.6, length=0.04),
    "k": Sound(1600, 2000, voiced=False, loudness=0.6, length=0.04),
    "h": Sound(1200, 2600, voiced=False, loudness=0.25, length=0.06),
}  # fmt: skip
WORDS = {
    "zero": "ziro", "one": "wan", "two": "tu", "three": "hri", "four": "for", "five": "faiv", "six": "siks",
    "seven": "seven", "eight": "eit", "nine": "nain",
}  # fmt: skip
DIGITS = tuple(WORDS)


class SpokenWord(NamedTuple):
    """A word and when it is spoken, in seconds."""

    text: str
    start: float
    end: float


class Utterance(NamedTuple):
    """Samples, and the words that are spoken in them."""

    samples: NDArray[np.float32]
    rate: int
    words: tuple[SpokenWord, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


class Speaker(NamedTuple):
    """How someone speaks."""

    pitch: float  # Hz
    tract: float  # factor of all formants
    pace: float  # factor of all lengths


def utterances(
    *, part: Part, count: int, seed: int, digits: tuple[int, int] = (1, 5), rate: int = 16_000
) -> Iterator[Utterance]:
    """Draw `count` utterances of so many digits (least and most); no two parts share one."""
    if rate < MIN_RATE:
        raise UsageError(f"speech at {rate} samples a second has too few frequencies; use {MIN_RATE:,} or more")
    for number in range(count):
        rng = np.random.default_rng([seed, PARTS.index(part), number])
        words = rng.choice(DIGITS, rng.integers(digits[0], digits[1] + 1))
        yield draw_utterance(rng, [str(word) for word in words], rate)


def draw_utterance(rng: np.random.Generator, words: list[str], rate: int = 16_000) -> Utterance:
    """Someone says words of `WORDS`, with a pause around each and a little noise."""
    speaker = Speaker(rng.uniform(85, 230), rng.uniform(0.88, 1.14), rng.uniform(0.8, 1.25))
    parts, spoken, place = [np.zeros(int(rng.uniform(0.05, 0.2) * rate))], list[SpokenWord](), 0
    for word in words:
        place = sum(map(len, parts))
        parts.append(_say(rng, WORDS[word], speaker, rate))
        spoken.append(SpokenWord(word, place / rate, (place + len(parts[-1])) / rate))
        parts.append(np.zeros(int(rng.uniform(0.05, 0.25) * rate)))
    samples = np.concatenate(parts)
    samples = samples * rng.uniform(0.3, 0.8) / np.abs(samples).max() + rng.normal(0, 0.002, len(samples))
    return Utterance(samples.clip(-1, 1).astype(np.float32), rate, tuple(spoken))


def _say(rng: np.random.Generator, sounds: str, speaker: Speaker, rate: int) -> NDArray[np.float64]:
    """One word: the formants glide from sound to sound."""
    chosen = [SOUNDS[sound] for sound in sounds]
    lengths = np.array([sound.length * speaker.pace * rng.uniform(0.85, 1.15) for sound in chosen])
    ends = lengths.cumsum()
    time = np.arange(int(ends[-1] * rate)) / rate
    middles = ends - lengths / 2

    def glide(values: list[float]) -> NDArray[np.float64]:
        return np.interp(time, middles, values)

    first, second = (glide([getattr(sound, name) * speaker.tract for sound in chosen]) for name in ("first", "second"))
    pitch = speaker.pitch * np.linspace(rng.uniform(1.0, 1.1), rng.uniform(0.85, 1.0), len(time))
    voiced = _voice(2 * np.pi * pitch.cumsum() / rate, pitch, first, second, rate)
    noise = _noise(rng, chosen, ends, speaker, len(time), rate)
    loudness = glide([sound.loudness * sound.voiced for sound in chosen])
    fade = np.clip(np.minimum(time, time[-1] - time) / EDGE, 0, 1)
    return (loudness * voiced + noise) * fade


def _voice(
    phase: NDArray[np.float64],
    pitch: NDArray[np.float64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    rate: int,
) -> NDArray[np.float64]:
    """Overtones of a pitch, loud around both formants."""
    total = np.zeros(len(phase))
    for overtone in range(1, OVERTONES + 1):
        frequency = overtone * pitch
        near = np.exp(-(((frequency - first) / 120) ** 2)) + 0.6 * np.exp(-(((frequency - second) / 180) ** 2)) + 0.01
        total += np.where(frequency < 0.45 * rate, near, 0) * np.sin(overtone * phase)
    return total


def _noise(
    rng: np.random.Generator, sounds: list[Sound], ends: NDArray[np.float64], speaker: Speaker, count: int, rate: int
) -> NDArray[np.float64]:
    """Noise around the formants of each unvoiced sound, at its place."""
    total, begin = np.zeros(count), 0
    for sound, end in zip(sounds, (ends * rate).astype(int), strict=True):
        length = min(int(end), count) - begin
        if not sound.voiced and length > 0:
            white = np.fft.rfft(rng.normal(0, 1, length))
            frequencies = np.fft.rfftfreq(length, 1 / rate)
            middle, width = (sound.first + sound.second) / 2 * speaker.tract, 300 + sound.second - sound.first
            total[begin : begin + length] = sound.loudness * np.fft.irfft(
                white * np.exp(-(((frequencies - middle) / width) ** 2)), length
            )
        begin += max(length, 0)
    return total

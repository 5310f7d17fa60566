"""Recordings with their texts: manifests, folders and archives, read one by one.

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

from regard.data.audio.reading import SUFFIXES, AudioSource, Samples
from regard.data.formats.archives import ARCHIVES, archive_members
from regard.data.formats.lines import read_lines, refuse
from regard.data.synthetic.speech import DIGITS
from regard.errors import DataError

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


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """The recordings of a manifest, a folder or an archive, in order."""
    path = Path(path)
    plain = path.name.removesuffix(".gz")
    if path.is_dir():
        return _of_folder(path)
    if not path.is_file():
        raise DataError(f"there is no file or folder {str(path)!r}; {EXPECTED}")
    if path.name.endswith(ARCHIVES):
        return _of_archive(path)
    if plain.endswith((".jsonl", ".json")):
        return _of_rows(path, _json_rows(path))
    if plain.endswith(".tsv"):
        return _of_rows(path, _table_rows(path))
    raise DataError(f"{path} has no recordings; {EXPECTED}")


def _of_rows(path: Path, rows: Iterator[tuple[int, Mapping[str, Any]]]) -> Iterator[Recording]:
    for number, row in rows:
        where = f"{path}, line {number}"
        found = {ours: next((row[name] for name in names if name in row), None) for ours, names in COLUMNS.items()}
        for needed in ("audio", "text"):
            if found[needed] is None:
                raise DataError(f"{where}: has no {needed!r}; {EXPECTED}")
        start, end = (_seconds(found[key], f"{where}: {key}") for key in ("start", "end"))
        if end is None and start is not None and "duration" in row:
            end = start + (_seconds(row["duration"], f"{where}: duration") or 0.0)
        if end is not None and end <= (start or 0.0):
            raise DataError(f"{where}: ends at {end:g} s, but begins at {start or 0.0:g} s")
        place = path.parent / str(found["audio"])
        if not place.exists() and (path.parent / CLIPS / str(found["audio"])).exists():
            place = path.parent / CLIPS / str(found["audio"])
        name = str(found["audio"]) + (f" at {start:g} s" if start else "")
        yield Recording(name, str(found["text"]), place, str(found["speaker"] or ""), start or 0.0, end)


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


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(read_lines(path, refuse), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: is not JSON ({error}); {EXPECTED}") from None
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {number}: is no JSON object; {EXPECTED}")
        yield number, row


def _table_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    lines = read_lines(path, refuse)
    header = next(lines, "").split("\t")
    for number, line in enumerate(lines, 2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns, but the header has {len(header)}; {EXPECTED}"
            )
        yield number, dict(zip(header, cells, strict=True))


def _of_folder(folder: Path) -> Iterator[Recording]:
    known: dict[Path, dict[str, str]] = {}  # texts of LibriSpeech by folder
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in SUFFIXES:
            continue
        if file.parent not in known:
            known[file.parent] = _libri_speech(file.parent)
        beside = file.with_suffix(".txt")
        if beside.is_file():
            text = " ".join(beside.read_text(encoding="utf-8").split())
            yield Recording(str(file), text, file, _folder_speaker(folder, file))
        elif file.stem in known[file.parent]:
            yield Recording(str(file), known[file.parent][file.stem], file, file.stem.split("-")[0])
        else:
            yield _spoken_digit(str(file), file)


def _folder_speaker(folder: Path, file: Path) -> str:
    """The first folder below the one that was given."""
    parents = file.relative_to(folder).parts[:-1]
    return parents[0] if parents else ""


def _libri_speech(folder: Path) -> dict[str, str]:
    lines = (line for file in sorted(folder.glob("*.trans.txt")) for line in read_lines(file, refuse))
    return {name: text for name, _, text in (line.partition(" ") for line in lines) if text}


def _of_archive(path: Path) -> Iterator[Recording]:
    for name, data in archive_members(path, SUFFIXES, contents=True):
        yield _spoken_digit(f"{path}:{name}", data, PurePosixPath(name).stem)


def _spoken_digit(name: str, audio: AudioSource, stem: str = "") -> Recording:
    found = SPOKEN_DIGIT.fullmatch(stem or Path(name).stem)
    if found is None:
        raise DataError(f"{name}: there is no text for it; {EXPECTED}")
    return Recording(name, DIGITS[int(found[1])], audio, found[2])

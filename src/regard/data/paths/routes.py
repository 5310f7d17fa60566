"""Room-to-Room: paths through houses with instructions that describe them (Anderson et al. 2018).

A file is a JSON list; each entry has a scan, a path of viewpoint ids, the heading at its start in radians, clockwise
from the y axis, and instructions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.data.formats.lines import open_bytes
from regard.data.paths.houses import House, NodePath, house_of
from regard.errors import DataError

LONGEST_PATH = 8  # viewpoints
LARGEST = 1 << 30  # bytes
WANTED = "expected a JSON list of paths with scan, path, heading and instructions, as Room-to-Room has them"


@dataclass(frozen=True)
class Route:
    """One path through a house, the heading at its start, and what was said of it."""

    scan: str
    path: NodePath
    heading: float
    instructions: tuple[str, ...]


def read_entries(path: str | Path) -> list[Any]:
    """The entries of a file of paths (also .gz), unchecked."""
    with open_bytes(Path(path)) as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path}: is larger than {LARGEST >> 30} GiB")
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is no JSON ({error}); {WANTED}") from None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: holds {type(entries).__name__}; {WANTED}")
    return entries


def routes_of(
    entries: Sequence[Any], houses: Mapping[str, House], where: str, skipped: list[str] | None = None
) -> list[Route]:
    """The routes of a file's entries. Without `skipped`, a bad entry is an error; otherwise it is named there."""
    found = []
    for number, entry in enumerate(entries, 1):
        try:
            found.append(_route(entry, houses, f"{where}, path {number}"))
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
    return found


def read_routes(path: str | Path, houses: Mapping[str, House], skipped: list[str] | None = None) -> list[Route]:
    """The routes of a file."""
    return routes_of(read_entries(path), houses, str(path), skipped)


def told_paths(path: str | Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The scan and the instructions of every path of a file; its house is not needed."""
    for number, entry in enumerate(read_entries(path), 1):
        scan, _, _, texts = _parts(entry, f"{path}, path {number}")
        yield scan, tuple(texts)


def _parts(entry: Any, where: str) -> tuple[str, list[str], float, list[str]]:
    """The scan, the viewpoints, the heading and the instructions of an entry."""
    try:
        scan, names = str(entry["scan"]), [str(each) for each in entry["path"]]
        heading, texts = float(entry["heading"]), [" ".join(str(each).split()) for each in entry["instructions"]]
    except (TypeError, KeyError, ValueError) as error:
        raise DataError(f"{where}: {error!r:.60}; {WANTED}") from None
    if not texts or not all(texts) or not math.isfinite(heading):
        raise DataError(f"{where}: an instruction is empty or missing, or the heading is not finite")
    return scan, names, heading, texts


def _route(entry: Any, houses: Mapping[str, House], where: str) -> Route:
    scan, names, heading, texts = _parts(entry, where)
    if not 2 <= len(names) <= LONGEST_PATH:
        raise DataError(f"{where}: has {len(names)} viewpoints; expected 2 to {LONGEST_PATH}")
    try:
        return Route(scan, house_of(houses, scan).path_of(names), heading, tuple(texts))
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def held_out(scans: Iterable[str], count: int) -> list[str]:
    """The first `count` scans in the order of their SHA-256, so that every run holds out the same houses."""
    return sorted(scans, key=lambda scan: hashlib.sha256(scan.encode()).digest())[:count]

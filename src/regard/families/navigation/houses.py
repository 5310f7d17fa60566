"""Houses as graphs of viewpoints, and Room-to-Room's paths through them with instructions (Anderson et al. 2018).

A file of paths is a JSON list; each entry has a scan, a path of viewpoint ids, the heading at its start in radians,
clockwise from the y axis, and instructions.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.config import nearest
from regard.data.formats.lines import open_bytes
from regard.errors import DataError

SUFFIX = "_connectivity.json"
BESIDE = ("connectivity.tar.xz", "connectivity.tar.gz", "connectivity")  # names of graphs beside a file of paths
LARGEST = 64 << 20  # bytes of one graph
MOST_VIEWPOINTS = 5000
CLOSER = 1e-9  # metres by which a way must be shorter to replace another, so that equal ways do not depend on rounding
WANTED = "expected a list of viewpoints with image_id, pose (16 numbers), included, visible and unobstructed"

NodePath = tuple[int, ...]  # viewpoints by number, from the start to the end


@dataclass(frozen=True, eq=False)
class House:
    """The included viewpoints of a house, their positions in metres (x, y, z up), and which see and reach which."""

    scan: str
    viewpoints: tuple[str, ...]
    positions: Float[np.ndarray, "N 3"]
    edges: Bool[np.ndarray, "N N"]
    visible: Bool[np.ndarray, "N N"]

    @classmethod
    def from_json(cls, scan: str, data: Any, where: str) -> House:
        """The house of a connectivity file; `where` names the file in errors."""
        try:
            kept = [number for number, row in enumerate(data) if row["included"]]
            rows = [data[number] for number in kept]
            names = tuple(str(row["image_id"]) for row in rows)
            poses = np.array([row["pose"] for row in rows], dtype=np.float64).reshape(len(rows), 4, 4)
            visible, free = (_square(rows, kept, key, len(data)) for key in ("visible", "unobstructed"))
        except (TypeError, KeyError, ValueError, IndexError) as error:
            raise DataError(f"{where}: is not a connectivity graph ({error!r:.80}); {WANTED}") from None
        if not rows or len(rows) > MOST_VIEWPOINTS:
            raise DataError(f"{where}: has {len(rows):,} viewpoints; expected 1 to {MOST_VIEWPOINTS:,}")
        if len(set(names)) < len(names) or not np.isfinite(poses).all():
            raise DataError(f"{where}: names a viewpoint twice, or has a pose that is not finite")
        edges = free | free.T
        np.fill_diagonal(edges, False)
        return cls(scan, names, poses[:, :3, 3], edges, visible)

    def to_json(self) -> list[dict[str, Any]]:
        """The house as a connectivity file has it; rotations and heights of cameras are not known."""
        return [
            {
                "image_id": name,
                "pose": [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1],
                "included": True,
                "visible": visible,
                "unobstructed": edges,
            }
            for name, (x, y, z), visible, edges in zip(
                self.viewpoints, self.positions.tolist(), self.visible.tolist(), self.edges.tolist(), strict=True
            )
        ]

    def __len__(self) -> int:
        return len(self.viewpoints)

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.viewpoints)}

    def number(self, viewpoint: str) -> int:
        """The number of a viewpoint by its id."""
        if viewpoint not in self.numbers:
            hint = nearest(viewpoint, self.viewpoints[:20])
            raise DataError(f"house {self.scan} has no viewpoint {viewpoint!r} that can be stood on; {hint}")
        return self.numbers[viewpoint]

    @property
    def distances(self) -> Float[np.ndarray, "N N"]:
        """The length of the shortest way between every two viewpoints, infinite where there is none."""
        return self._ways[0]

    @property
    def following(self) -> Int[np.ndarray, "N N"]:
        """The next viewpoint on the shortest way from one (row) to another (column); -1 where there is no way."""
        return self._ways[1]

    @cached_property
    def _ways(self) -> tuple[np.ndarray, np.ndarray]:
        """Floyd and Warshall's algorithm: allow one more viewpoint in between at a time."""
        count = len(self)
        distances = np.where(self.edges, self.edge_lengths, np.inf)
        np.fill_diagonal(distances, 0.0)
        following = np.where(self.edges, np.arange(count)[None, :], -1)
        np.fill_diagonal(following, np.arange(count))
        for middle in range(count):
            through = distances[:, middle, None] + distances[None, middle, :]
            rows, columns = np.nonzero(through < distances - CLOSER)
            distances[rows, columns] = through[rows, columns]
            following[rows, columns] = following[rows, middle]
        return distances, following

    @cached_property
    def edge_lengths(self) -> Float[np.ndarray, "N N"]:
        """Straight distances between all viewpoints."""
        return np.linalg.norm(self.positions[:, None] - self.positions[None], axis=-1)

    def length(self, path: NodePath) -> float:
        """The length of a path in metres."""
        return float(sum(self.edge_lengths[a, b] for a, b in pairwise(path)))

    def path_of(self, names: list[str]) -> NodePath:
        """A path by the ids of its viewpoints; every two neighbours must be joined by an edge."""
        path = tuple(self.number(name) for name in names)
        for a, b in pairwise(path):
            if not self.edges[a, b]:
                raise DataError(
                    f"house {self.scan}: the path jumps from {self.viewpoints[a]} to {self.viewpoints[b]}, "
                    "which no edge joins"
                )
        return path


def _square(rows: list[Any], kept: list[int], key: str, count: int) -> Bool[np.ndarray, "N N"]:
    """The entries between included viewpoints of a table that the file has for all of them."""
    table = np.array([each[key] for each in rows], dtype=bool).reshape(len(rows), count)
    return table[:, kept]


def read_houses(path: str | Path, scans: set[str] | None = None) -> dict[str, House]:
    """The houses of a folder or a tar archive of connectivity files, or of one such file; all, or only some scans."""
    found = {
        scan: House.from_json(scan, _parsed(content, where), where)
        for scan, where, content in _files(Path(path))
        if scans is None or scan in scans
    }
    if not found and scans is None:
        raise DataError(f"{path}: has no file NAME{SUFFIX}, so no house")
    return found


def graphs_beside(paths: str | Path) -> Path:
    """The connectivity files that lie beside a file of paths."""
    folder = Path(paths).parent
    for name in BESIDE:
        if (folder / name).exists():
            return folder / name
    raise DataError(f"{folder}: has no connectivity files beside {Path(paths).name}; expected {' or '.join(BESIDE)}")


def house_of(houses: Mapping[str, House], scan: str) -> House:
    """The house of a scan."""
    if scan not in houses:
        raise DataError(f"there is no house {scan!r}; {nearest(scan, houses)}")
    return houses[scan]


def _files(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """The scan, the name for errors and the content of every connectivity file."""
    if path.is_dir():
        for file in sorted(path.glob(f"*{SUFFIX}")):
            yield _scan(file.name), str(file), _read(file)
    elif ".tar" in path.suffixes:
        yield from _archived(path)
    else:
        yield _scan(path.name), str(path), _read(path)


def _read(path: Path, largest: int = LARGEST) -> bytes:
    with open_bytes(path) as stream:
        content = stream.read(largest + 1)
    if len(content) > largest:
        raise DataError(f"{path}: is larger than {largest >> 20:,} MiB")
    return content


def _archived(path: Path) -> Iterator[tuple[str, str, bytes]]:
    try:
        with tarfile.open(path) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                if not member.isfile() or not member.name.endswith(SUFFIX):
                    continue
                if member.size > LARGEST:
                    raise DataError(f"{path}: {member.name} is larger than {LARGEST >> 20} MiB")
                stream = archive.extractfile(member)
                assert stream is not None
                yield _scan(PurePosixPath(member.name).name), f"{path}: {member.name}", stream.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise DataError(
            f"{path}: is not a readable tar archive ({error}); expected one of files NAME{SUFFIX}"
        ) from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None


def _scan(name: str) -> str:
    return name.removesuffix(SUFFIX) if name.endswith(SUFFIX) else name.split(".")[0]


def _parsed(content: bytes, where: str, wanted: str = WANTED) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: is not JSON ({error}); {wanted}") from None


LONGEST_PATH = 8  # viewpoints
LARGEST_ROUTES = 1 << 30  # bytes
WANTED_ROUTES = "expected a JSON list of paths with scan, path, heading and instructions, as Room-to-Room has them"


@dataclass(frozen=True)
class Route:
    """One path through a house, the heading at its start, and what was said of it."""

    scan: str
    path: NodePath
    heading: float
    instructions: tuple[str, ...]


def read_entries(path: str | Path) -> list[Any]:
    """The entries of a file of paths (also .gz), unchecked."""
    entries = _parsed(_read(Path(path), LARGEST_ROUTES), str(path), WANTED_ROUTES)
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path}: holds {type(entries).__name__}; {WANTED_ROUTES}")
    return entries


def read_routes(path: str | Path, houses: Mapping[str, House], skipped: list[str] | None = None) -> list[Route]:
    """The routes of a file. Without `skipped`, a bad entry is an error; otherwise it is named there."""
    routes = []
    for number, entry in enumerate(read_entries(path), 1):
        try:
            routes.append(_route(entry, houses, f"{path}, path {number}"))
        except DataError as error:
            if skipped is None:
                raise
            skipped.append(str(error))
    return routes


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
        raise DataError(f"{where}: {error!r:.60}; {WANTED_ROUTES}") from None
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

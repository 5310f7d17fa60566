"""What a model reads of a path: numbers for each viewpoint. There are no images; geometry stands in for what one sees.

Row 0 describes the path as a whole, as ViLBERT's first region is the whole image; the viewpoints follow. Distances are
in tens of metres, so that all numbers are of order 1. Headings are relative to the heading at the start, clockwise;
directions around a viewpoint are relative to the heading with which one arrives there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.errors import DataError
from regard.families.navigation.houses import LONGEST_PATH, House, NodePath

ATTEMPTS = 20  # walks drawn for each one that is kept


class CandidateConfig(Config):
    """[data.candidates]: how many paths are ranked for an instruction, and how many of them are random walks."""

    count: PositiveInt = 30
    walks: NonNegativeInt = 6


def candidate_paths(house: House, start: int, config: CandidateConfig) -> list[NodePath]:
    """Different paths from a start, of 2 to 8 viewpoints: shortest ones first, then walks."""
    rng = np.random.default_rng([zlib.crc32(house.scan.encode()), start])
    shortest = shortest_paths(house, start)
    if not len(shortest):
        raise DataError(f"house {house.scan}: no way leads from {house.viewpoints[start]} to another viewpoint")
    walks = _walks(house, start, min(config.walks, config.count - 1), rng)
    ends = shortest[np.arange(len(shortest)), (shortest >= 0).sum(axis=1) - 1]
    chosen = spread(house.distances[np.ix_(ends, ends)], house.distances[start, ends], config.count - len(walks))
    return [tuple(path[path >= 0].tolist()) for path in shortest[chosen]] + walks


def shortest_paths(house: House, start: int) -> Int[np.ndarray, "N 8"]:
    """The shortest paths to all ends that are at most 8 viewpoints away, padded with -1."""
    ends = np.flatnonzero(np.isfinite(house.distances[start]))
    ends = ends[ends != start]
    paths = np.full((len(ends), LONGEST_PATH), -1)
    paths[:, 0] = start
    for step in range(1, LONGEST_PATH):
        before = paths[:, step - 1]
        on = (before >= 0) & (before != ends)
        paths[on, step] = house.following[before[on], ends[on]]
    return paths[(paths == ends[:, None]).any(axis=1)]


def spread(apart: Float[np.ndarray, "N N"], away: Float[np.ndarray, " N"], count: int) -> Int[np.ndarray, " M"]:
    """`count` of N places, or all: the one farthest away first, then always the one farthest from those chosen."""
    if count >= len(apart):
        return np.arange(len(apart))
    chosen = [int(away.argmax())]
    least = apart[chosen[0]].copy()
    while len(chosen) < count:
        least[chosen[-1]] = -1.0  # never again, even if two places coincide
        chosen.append(int(least.argmax()))
        least = np.minimum(least, apart[chosen[-1]])
    return np.sort(chosen)


def _walks(house: House, start: int, count: int, rng: np.random.Generator) -> list[NodePath]:
    """Different random walks that are not the shortest path to their end; fewer where the house has no more."""
    found: dict[NodePath, None] = {}
    for _ in range(count * ATTEMPTS):
        if len(found) == count:
            break
        walk = _walk(house.edges, start, int(rng.integers(3, LONGEST_PATH + 1)), rng)
        if len(walk) > 2 and not is_shortest(house, walk):
            found[walk] = None
    return list(found)


def _walk(edges: Bool[np.ndarray, "N N"], start: int, longest: int, rng: np.random.Generator) -> NodePath:
    """A walk of at most `longest` viewpoints; it ends where all neighbours were visited."""
    path = [start]
    while len(path) < longest:
        onward = [each for each in np.flatnonzero(edges[path[-1]]).tolist() if each not in path]
        if not onward:
            break
        path.append(onward[int(rng.integers(len(onward)))])
    return tuple(path)


def is_shortest(house: House, path: NodePath) -> bool:
    """Whether no way to the end of a path is shorter."""
    return house.length(path) <= house.distances[path[0], path[-1]] + 1e-6


SECTORS = 12  # directions around a viewpoint
METRES = 10.0
EDGE = 5.0  # metres; the scale of single edges
LOCATION_NAMES = (
    "forward", "right", "up", "sin heading", "cos heading", "sin elevation", "cos elevation", "sin turn", "cos turn",
    "next edge", "walked",
)  # fmt: skip
FEATURE_NAMES = (
    "degree", "visible", "height change", "next height change", "start", "end", "still to walk", "from start",
    *(f"step {number}" for number in range(LONGEST_PATH)),
    *(f"open {30 * sector}" for sector in range(SECTORS)),
    *(f"sight {30 * sector}" for sector in range(SECTORS)),
    *LOCATION_NAMES,  # again, so that a model that predicts features of hidden steps predicts where they are
)  # fmt: skip
LOCATIONS, FEATURES, ROWS = len(LOCATION_NAMES), len(FEATURE_NAMES), LONGEST_PATH + 1


def _mirror(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """For every number of a mirrored path, where it stands in the path itself, and its sign."""

    def source(name: str) -> str:
        kind, _, angle = name.partition(" ")
        return f"{kind} {-int(angle) % 360}" if kind in ("open", "sight") else name

    signs = np.array([-1.0 if name in ("right", "sin heading", "sin turn") else 1.0 for name in names])
    return np.array([list(names).index(source(name)) for name in names]), signs.astype(np.float32)


MIRRORED_FEATURES, MIRRORED_LOCATIONS = _mirror(FEATURE_NAMES), _mirror(LOCATION_NAMES)


class StepFeatures(NamedTuple):
    """N paths as a model reads them: numbers of every row, and which rows there are."""

    features: Float[np.ndarray, "N R F"]
    locations: Float[np.ndarray, "N R L"]
    mask: Bool[np.ndarray, "N R"]


@dataclass(frozen=True, eq=False)
class Geometry:
    """The viewpoints of several houses, numbered through; `offsets` holds the number of each house's first one.

    `openings` and `sights` are the lengths of the longest edge and of the farthest view in every sector around a
    viewpoint, whose first is centred on the y axis.
    """

    scans: tuple[str, ...]
    offsets: Int[np.ndarray, " H"]
    positions: Float[np.ndarray, "M 3"]
    degrees: Float[np.ndarray, " M"]
    seen: Float[np.ndarray, " M"]
    openings: Float[np.ndarray, "M S"]
    sights: Float[np.ndarray, "M S"]

    @classmethod
    def of(cls, houses: Iterable[House]) -> Geometry:
        several = list(houses)
        sizes = [len(house) for house in several]
        columns = [
            (house.positions, house.edges.sum(1), house.visible.sum(1),
             _around(house, house.edges), _around(house, house.visible))
            for house in several
        ]  # fmt: skip
        joined = [np.concatenate(column).astype(np.float32) for column in zip(*columns, strict=True)]
        return cls(tuple(house.scan for house in several), np.cumsum([0, *sizes[:-1]]), *joined)

    @cached_property
    def first(self) -> dict[str, int]:
        """The number of the first viewpoint of every scan."""
        return dict(zip(self.scans, self.offsets.tolist(), strict=True))

    def save(self, file: Path) -> None:
        np.savez(file, scans=np.array(self.scans), **{name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, file: Path) -> Geometry:
        with np.load(file, allow_pickle=False) as stored:
            return cls(tuple(stored["scans"].tolist()), *(stored[name] for name in _ARRAYS))

    def padded(self, scan: str, paths: Sequence[NodePath]) -> Int[np.ndarray, "N 8"]:
        """Paths of one house as numbers of these viewpoints, padded with -1."""
        rows = np.full((len(paths), LONGEST_PATH), -1)
        for row, path in zip(rows, paths, strict=True):
            row[: len(path)] = np.array(path) + self.first[scan]
        return rows

    def steps(self, paths: Int[np.ndarray, "N T"], headings: Float[np.ndarray, " N"]) -> StepFeatures:
        """The features of paths, padded with -1, that begin with these headings."""
        count = len(paths)
        there = paths >= 0
        lengths = there.sum(axis=1)
        last = paths[np.arange(count), lengths - 1]
        filled = np.where(there, paths, last[:, None])  # repeating the end adds edges of length 0
        edges = np.diff(self.positions[filled].astype(np.float64), axis=1)
        flat, metres = np.hypot(edges[..., 0], edges[..., 1]), np.linalg.norm(edges, axis=-1)
        turned = headings[:, None]
        bearing = _last_known(np.arctan2(edges[..., 0], edges[..., 1]), flat > 0, turned)
        arrival = np.concatenate([turned, bearing], axis=1)  # the heading with which one arrives at each viewpoint
        climb = np.arctan2(edges[..., 2], flat)
        moves = np.arange(paths.shape[1])[None, :] < lengths[:, None] - 1  # viewpoints that are left again

        def after(values: np.ndarray) -> np.ndarray:
            """Values of edges, at the viewpoint they lead to."""
            return np.concatenate([np.zeros((count, 1)), values], axis=1)

        def before(values: np.ndarray) -> np.ndarray:
            """Values of edges, at the viewpoint they begin at."""
            return np.concatenate([values, np.zeros((count, 1))], axis=1)

        walked = np.cumsum(after(metres), axis=1)
        from_start = self.positions[filled] - self.positions[filled[:, :1]]
        ahead, right = _rotated(from_start, turned)
        turn = np.concatenate([bearing, arrival[:, -1:]], axis=1) - arrival
        straight = np.linalg.norm(from_start, axis=-1)
        locations = [
            ahead / METRES, right / METRES, from_start[..., 2] / METRES,
            np.sin(arrival - turned), np.cos(arrival - turned), np.sin(after(climb)), np.cos(after(climb)),
            np.sin(turn) * moves, np.cos(turn) * moves, before(metres) / EDGE, walked / METRES,
        ]  # fmt: skip
        numbered = np.broadcast_to(np.eye(LONGEST_PATH)[: paths.shape[1]], (count, paths.shape[1], LONGEST_PATH))
        sector = np.rint(arrival / (2 * np.pi / SECTORS)).astype(int)
        around = (np.arange(SECTORS) + sector[..., None]) % SECTORS
        places = np.arange(paths.shape[1])[None, :]
        single = [
            self.degrees[filled] / METRES, self.seen[filled] / 30.0, after(edges[..., 2]), before(edges[..., 2]),
            places == np.zeros_like(places), places == lengths[:, None] - 1, (walked[:, -1:] - walked) / METRES,
            straight / METRES,
        ]  # fmt: skip
        features = np.concatenate(
            [
                np.stack([np.broadcast_to(each, paths.shape) for each in single], axis=-1),
                numbered,
                np.take_along_axis(self.openings[filled], around, axis=-1) / EDGE,
                np.take_along_axis(self.sights[filled], around, axis=-1) / METRES,
            ],
            axis=-1,
        )
        return _with_whole(features, np.stack(locations, axis=-1), there, walked[:, -1])


_ARRAYS = ("offsets", "positions", "degrees", "seen", "openings", "sights")


def _with_whole(features: np.ndarray, locations: np.ndarray, there: np.ndarray, total: np.ndarray) -> StepFeatures:
    """Put row 0 before the viewpoints: the mean of their features, and the location of the end, where the turn is the
    direction of the end from the start."""
    shown, lengths = there[..., None], there.sum(axis=1)
    whole = locations[np.arange(len(there)), lengths - 1].copy()
    flat = np.hypot(whole[:, 0], whole[:, 1]).clip(1e-6)
    whole[:, 7], whole[:, 8], whole[:, 9] = whole[:, 1] / flat, whole[:, 0] / flat, lengths / LONGEST_PATH
    whole[:, 10] = total / METRES
    mean = (features * shown).sum(axis=1) / lengths[:, None]
    located = np.concatenate([whole[:, None], locations * shown], axis=1)
    told = np.concatenate([mean[:, None], features * shown], axis=1)
    return StepFeatures(
        np.concatenate([told, located], axis=-1).astype(np.float32),
        located.astype(np.float32),
        np.concatenate([np.ones((len(there), 1), dtype=bool), there], axis=1),
    )


def _rotated(vectors: np.ndarray, heading: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The parts of horizontal vectors along a heading and to its right."""
    x, y = vectors[..., 0], vectors[..., 1]
    return x * np.sin(heading) + y * np.cos(heading), x * np.cos(heading) - y * np.sin(heading)


def _last_known(angles: np.ndarray, known: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Angles, each replaced by the last known one before it where it is not known (a vertical or missing edge)."""
    before = np.concatenate([first, angles], axis=1)
    place = np.where(known, np.arange(1, angles.shape[1] + 1)[None, :], 0)
    return np.take_along_axis(before, np.maximum.accumulate(place, axis=1), axis=1)


def _around(house: House, related: Bool[np.ndarray, "N N"]) -> Float[np.ndarray, "N S"]:
    """The distance of the farthest related viewpoint in every sector around each; 0 where there is none."""
    way = house.positions[None] - house.positions[:, None]  # from the row to the column
    sector = np.rint(np.arctan2(way[..., 0], way[..., 1]) / (2 * np.pi / SECTORS)).astype(int) % SECTORS
    found = np.zeros((len(house), SECTORS))
    rows, columns = np.nonzero(related & ~np.eye(len(house), dtype=bool))
    np.maximum.at(found, (rows, sector[rows, columns]), house.edge_lengths[rows, columns])
    return found

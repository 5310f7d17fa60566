"""Candidate paths from a start, made without knowledge of the goal.

Most are shortest paths to ends that cover what can be reached; the others are walks drawn at random that never return
to a viewpoint. Both depend on the house and the start alone, so that every model ranks the same paths.
"""

from __future__ import annotations

import zlib

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.data.paths.houses import House, NodePath
from regard.data.paths.routes import LONGEST_PATH
from regard.errors import DataError

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

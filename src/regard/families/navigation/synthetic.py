"""The built-in houses: one or two floors of viewpoints on a loose grid, joined by stairs, with routes through them.

A house is a function of (seed, number). Instructions say turns, distances and stairs, so that a model can follow them
without images: "turn left and walk 5 metres, then go up the stairs and stop".
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from regard.families.navigation.features import shortest_paths
from regard.families.navigation.houses import House, NodePath, Route

HOUSES = "builtin:houses"  # their name, where a path of data is expected
SIDES = (4, 5, 6)  # viewpoints along a side of a floor
FLOOR, EYE = 3.0, 1.5  # metres between floors, and from a floor to the eye
JITTER = 0.35  # metres by which a viewpoint leaves the grid
KEPT = 0.7  # share of the edges between neighbours that no wall closes
FEWEST, MOST, NEAREST = 4, 7, 5.0  # viewpoints of a route, and metres to its end, as in Room-to-Room
STRAIGHT, BACK = math.radians(40), math.radians(150)  # smaller turns are not said; larger ones are "around"
STEEP = 0.4  # metres of height between viewpoints that make an edge a stair
TELLINGS = 3  # instructions for each route
SHOWN, SHOWN_SEED = 3, 7  # houses on the page, which no recipe trains on
WALKS, CLIMBS = ("walk", "go", "continue", "move"), ("go", "walk", "climb")
ENDS = ("and stop", "and wait there", ". Stop there", ", then stop")
JOINTS = (", then ", ". Then ", " and ", ", ")


class Leg(NamedTuple):
    """A part of a route without a turn: the turn before it, its length, and whether it leads up (1) or down (-1)."""

    turn: float
    metres: float
    climb: int


def built_in_house(seed: int, number: int) -> House:
    """One house."""
    rng = np.random.default_rng([seed, 0, number])
    scan = f"house-{seed}-{number:03d}"
    columns, rows = (int(each) for each in rng.choice(SIDES, 2))
    floors, spacing = int(rng.integers(1, 3)), float(rng.uniform(2.0, 2.8))
    grid = np.stack(np.meshgrid(np.arange(columns), np.arange(rows), indexing="ij"), axis=-1).reshape(-1, 2)
    places: list[np.ndarray] = []
    for floor in range(floors):
        flat = grid * spacing + rng.uniform(-JITTER, JITTER, grid.shape)
        places.append(np.column_stack([flat, np.full(len(grid), floor * FLOOR + EYE)]))
    positions = np.concatenate(places)
    edges = np.zeros((len(positions),) * 2, dtype=bool)
    for floor in range(floors):
        block = slice(floor * len(grid), (floor + 1) * len(grid))
        edges[block, block] = _open_edges(grid, rng)
    if floors > 1:
        positions, edges = _with_stairs(positions, edges, grid, columns, rng)
    one_floor = np.abs(positions[:, None, 2] - positions[None, :, 2]) < STEEP
    visible = edges | ((edges.astype(int) @ edges.astype(int) > 0) & one_floor)
    names = tuple(f"{scan}-{number:03d}" for number in range(len(positions)))
    return House(scan, names, positions, edges, visible)


def built_in_houses(seed: int, count: int) -> Iterator[House]:
    """The first houses of a seed."""
    return (built_in_house(seed, number) for number in range(count))


def built_in_routes(house: House, seed: int, count: int) -> Iterator[Route]:
    """Routes through a house: shortest paths of 4 to 7 viewpoints, each with three instructions."""
    rng = np.random.default_rng([seed, 1, zlib.crc32(house.scan.encode())])
    for _ in range(count):
        start = int(rng.integers(len(house)))
        found = shortest_paths(house, start)
        sizes = (found >= 0).sum(axis=1)
        ends = found[np.arange(len(found)), sizes - 1]
        fit = np.flatnonzero((sizes >= FEWEST) & (sizes <= MOST) & (house.distances[start, ends] >= NEAREST))
        if len(fit):
            path = found[fit[int(rng.integers(len(fit)))]]
            chosen: NodePath = tuple(path[path >= 0].tolist())
            heading = float(rng.uniform(0, 2 * math.pi))
            told = tuple(instruction(house, chosen, heading, rng) for _ in range(TELLINGS))
            yield Route(house.scan, chosen, heading, told)


@cache
def examples() -> list[dict[str, Any]]:
    """Houses to try a model with on the page: connectivity files, each with a route through the house in words;
    headings are in degrees."""
    return [
        {
            "name": house.scan,
            "graph": house.to_json(),
            "start": house.viewpoints[route.path[0]],
            "heading": round(math.degrees(route.heading), 1),
            "instruction": route.instructions[0],
        }
        for house in built_in_houses(SHOWN_SEED, SHOWN)
        for route in built_in_routes(house, SHOWN_SEED, 1)
    ]


def instruction(house: House, path: NodePath, heading: float, rng: np.random.Generator) -> str:
    """A route in words."""
    parts: list[str] = []
    for leg in legs(house, path, heading):
        turn = _turn(leg.turn, first=not parts)
        walk = _walk(leg, rng)
        parts.append(f"{turn} and {walk}" if turn else walk)
    text = parts[0]
    for part in parts[1:]:
        text += str(rng.choice(JOINTS)) + part
    text = f"{text} {rng.choice(ENDS)}".replace(" .", ".").replace(" ,", ",")
    sentences = ". ".join(each[:1].upper() + each[1:] for each in text.split(". "))
    return sentences if sentences.endswith(".") else f"{sentences}."


def legs(house: House, path: NodePath, heading: float) -> list[Leg]:
    """The parts of a route between its turns and stairs."""
    found: list[Leg] = []
    for a, b in pairwise(path):
        way = house.positions[b] - house.positions[a]
        bearing = math.atan2(way[0], way[1])
        turn = (bearing - heading + math.pi) % (2 * math.pi) - math.pi
        climb = 0 if abs(way[2]) < STEEP else int(np.sign(way[2]))
        metres = float(np.linalg.norm(way))
        if found and abs(turn) < STRAIGHT and climb == found[-1].climb:
            found[-1] = found[-1]._replace(metres=found[-1].metres + metres)
        else:
            found.append(Leg(turn, metres, climb))
        heading = bearing
    return found


def _turn(angle: float, *, first: bool) -> str:
    if abs(angle) < STRAIGHT:
        return "face straight ahead" if first else ""
    if abs(angle) > BACK:
        return "turn around"
    return "turn right" if angle > 0 else "turn left"


def _walk(leg: Leg, rng: np.random.Generator) -> str:
    if leg.climb:
        return f"{rng.choice(CLIMBS)} {'up' if leg.climb > 0 else 'down'} the stairs"
    return f"{rng.choice(WALKS)} {max(1, round(leg.metres))} metres"


def _open_edges(grid: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Edges between neighbours on a grid that no wall closes; enough of them that every place can be reached."""
    near = np.abs(grid[:, None] - grid[None]).sum(axis=-1) == 1
    edges, pairs = np.zeros_like(near), [(a, b) for a, b in np.argwhere(near).tolist() if a < b]
    group = list(range(len(grid)))
    for a, b in rng.permutation(pairs).tolist():
        apart = group[a] != group[b]
        if apart or rng.random() < KEPT:
            edges[a, b] = edges[b, a] = True
            old, new = group[b], group[a]
            group = [new if each == old else each for each in group]
    return edges


def _with_stairs(
    positions: np.ndarray, edges: np.ndarray, grid: np.ndarray, columns: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Two steps between a place of the lower floor and one of the upper floor that is two columns farther."""
    low = int(rng.choice(np.flatnonzero(grid[:, 0] < columns - 2)))
    high = len(grid) + int(np.flatnonzero((grid == grid[low] + [2, 0]).all(axis=1))[0])
    between = [positions[low] + share * (positions[high] - positions[low]) for share in (1 / 3, 2 / 3)]
    count = len(positions)
    joined = np.zeros((count + 2, count + 2), dtype=bool)
    joined[:count, :count] = edges
    for a, b in ((low, count), (count, count + 1), (count + 1, high)):
        joined[a, b] = joined[b, a] = True
    return np.concatenate([positions, between]), joined

"""Routes with their candidate paths as arrays, as training and evaluation read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.data.paths.candidates import CandidateConfig, candidate_paths, is_shortest
from regard.data.paths.features import Geometry
from regard.data.paths.houses import House, NodePath
from regard.data.paths.routes import LONGEST_PATH, Route

SUCCESS = 3.0  # metres from the goal within which a path succeeds


@dataclass(frozen=True, eq=False)
class PathStore:
    """R routes with up to C candidates each, and their instructions; paths are padded with -1.

    `errors` is the way left from the end of a candidate to the goal, infinite where there is no candidate. `direct`
    candidates are the shortest path to their end. `shortest` is the way from the start to the goal.
    """

    paths: Int[np.ndarray, "R T"]
    headings: Float[np.ndarray, " R"]
    candidates: Int[np.ndarray, "R C T"]
    errors: Float[np.ndarray, "R C"]
    lengths: Float[np.ndarray, "R C"]
    direct: Bool[np.ndarray, "R C"]
    shortest: Float[np.ndarray, " R"]
    routes: Int[np.ndarray, " N"]  # the route of every instruction
    instructions: list[str]

    def __len__(self) -> int:
        return len(self.instructions)

    @property
    def succeeds(self) -> Bool[np.ndarray, "R C"]:
        """Which candidates end near the goal."""
        return self.errors < SUCCESS

    @property
    def there(self) -> Bool[np.ndarray, "R C"]:
        """Which candidates there are."""
        return self.candidates[..., 0] >= 0

    def save(self, folder: Path, name: str) -> None:
        arrays = {each: getattr(self, each) for each in _ARRAYS}
        np.savez(folder / f"{name}.npz", **arrays)
        (folder / f"{name}.json").write_text(json.dumps(self.instructions, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> PathStore:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {each: stored[each] for each in _ARRAYS}
        return cls(instructions=json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), **arrays)


_ARRAYS = tuple(field.name for field in fields(PathStore) if field.name != "instructions")


def store_routes(
    routes: Sequence[Route],
    houses: Mapping[str, House],
    geometry: Geometry,
    config: CandidateConfig,
    poll: Callable[[], None] = lambda: None,
) -> PathStore:
    """The candidates of every route, measured against its goal."""
    made: dict[tuple[str, int], list[NodePath]] = {}
    count = config.count
    paths, numbers = np.full((len(routes), LONGEST_PATH), -1), []
    candidates = np.full((len(routes), count, LONGEST_PATH), -1)
    errors, lengths = (
        np.full((len(routes), count), np.inf, dtype=np.float32),
        np.zeros((len(routes), count), np.float32),
    )
    direct = np.zeros((len(routes), count), dtype=bool)
    for row, route in enumerate(routes):
        poll()
        house, start, goal = houses[route.scan], route.path[0], route.path[-1]
        if (route.scan, start) not in made:
            made[route.scan, start] = candidate_paths(house, start, config)
        found = made[route.scan, start]
        paths[row] = geometry.padded(route.scan, [route.path])[0]
        candidates[row, : len(found)] = geometry.padded(route.scan, found)
        errors[row, : len(found)] = [house.distances[path[-1], goal] for path in found]
        lengths[row, : len(found)] = [house.length(path) for path in found]
        direct[row, : len(found)] = [is_shortest(house, path) for path in found]
        numbers += [row] * len(route.instructions)
    shortest = [houses[route.scan].distances[route.path[0], route.path[-1]] for route in routes]
    return PathStore(
        paths, np.array([route.heading for route in routes]), candidates, errors, lengths, direct,
        np.array(shortest, dtype=np.float32), np.array(numbers, dtype=np.int64),
        [text for route in routes for text in route.instructions],
    )  # fmt: skip

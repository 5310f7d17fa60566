"""Scenes for the model: windows of tracks, batches of them, and the built-in walkers.

The walkers are people who cross a square by known rules. A scene is a function of (seed, number). Everyone walks at a
speed of their own towards a goal. Rules that a model can learn: at the fork, a circle about the middle of the square,
some turn left and the others right by the same angle; pairs walk side by side; and who would come within a metre of
another person gives way to the right.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.loader import Place, Rows
from regard.data.sources import PARTS, Part
from regard.errors import DataError
from regard.families.trajectories.tracks import SceneSettings, Tracks, far_away, filled, find_tracks

if TYPE_CHECKING:
    from regard.families.trajectories.recipe import ScenesOfTracksSection

BUILT_IN = "builtin:walkers"
AgentChoice = Literal["complete", "present"]
FEWEST_SEEN = 2  # steps of the past in which a present agent must be seen


class WindowProtocol(NamedTuple):
    """How windows are cut: the steps of past and future, and whom they have.

    `complete` agents are seen at every step. `present` agents are seen at the last step of the past and at another one
    before it; where they are not seen, they are masked.
    """

    past: int
    future: int
    stride: int = 1
    fewest: int = 2  # agents of a window
    agents: AgentChoice = "complete"

    @property
    def steps(self) -> int:
        return self.past + self.future


class Window(NamedTuple):
    """Some agents of a file for a while."""

    name: str  # the file
    frame: float  # the first one
    keys: Int[np.ndarray, " N"]  # numbers of the agents, the same wherever they are read
    positions: Float[np.ndarray, "N T 2"]
    seen: Bool[np.ndarray, "N T"]


def agent_key(file: str, agent: str) -> int:
    """A number for an agent of a file, which its random numbers depend on."""
    return zlib.crc32(f"{Path(file).stem}/{agent}".encode())


def windows(tracks: Tracks, protocol: WindowProtocol) -> Iterator[Window]:
    """All windows of a file, in the order of time."""
    keys = np.array([agent_key(tracks.name, agent) for agent in tracks.agents], dtype=np.int64)
    for begin in range(0, tracks.last - protocol.steps + 2, protocol.stride):
        agents, positions, seen = tracks.window(begin, protocol.steps)
        chosen = seen.all(axis=1)
        if protocol.agents == "present":
            past = seen[:, : protocol.past]
            chosen = past[:, -1] & (past.sum(axis=1) >= min(FEWEST_SEEN, protocol.past))
        if chosen.sum() >= protocol.fewest:
            whole = filled(positions[chosen] - far_away(positions[chosen]), seen[chosen])
            yield Window(tracks.name, tracks.frame(begin), keys[agents[chosen]], whole, seen[chosen])


@dataclass(frozen=True, eq=False)
class WindowStore:
    """W windows as arrays: their M tracks after each other, those of window w from `begins[w]` to `begins[w + 1]`."""

    positions: Float[np.ndarray, "M T 2"]
    seen: Bool[np.ndarray, "M T"]
    keys: Int[np.ndarray, " M"]
    begins: Int[np.ndarray, " ends"]
    frames: Float[np.ndarray, " W"]
    files: Int[np.ndarray, " W"]  # numbers of `names`
    names: list[str]

    @classmethod
    def of(cls, scenes: Iterable[Tracks], protocol: WindowProtocol, poll: Callable[[], None] = lambda: None) -> Self:
        """All windows of some scenes; `poll` may raise to stop."""
        kept: list[Window] = []
        for tracks in scenes:
            for window in windows(tracks, protocol):
                poll()
                kept.append(window)
        names, steps = list(dict.fromkeys(window.name for window in kept)), protocol.steps
        empty = Window("", 0.0, np.zeros(0, np.int64), np.zeros((0, steps, 2), np.float32), np.zeros((0, steps), bool))
        _, _, keys, positions, seen = zip(*kept, empty, strict=True)
        return cls(
            np.concatenate(positions), np.concatenate(seen), np.concatenate(keys),
            np.cumsum([0, *(len(window.keys) for window in kept)]), np.array([window.frame for window in kept]),
            np.array([names.index(window.name) for window in kept], dtype=np.int64), names,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def sizes(self) -> Int[np.ndarray, " W"]:
        return np.diff(self.begins)

    def tracks_of(self, window: int) -> Rows:
        """The numbers of the tracks of a window."""
        return np.arange(self.begins[window], self.begins[window + 1])

    def save(self, folder: Path, name: str) -> None:
        np.savez(folder / f"{name}.npz", **{array: getattr(self, array) for array in _ARRAYS})
        (folder / f"{name}.json").write_text(json.dumps(self.names, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {array: stored[array] for array in _ARRAYS}
        return cls(names=json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), **arrays)


_ARRAYS = ("positions", "seen", "keys", "begins", "frames", "files")
SKIPPED = "skipped.json"
_PURPOSES: dict[Part, str] = {"train": "train on", "valid": "validate on", "test": "test on"}


@dataclass(frozen=True)
class SceneCorpus:
    """The windows that a model is trained, validated and tested on, in a folder."""

    stores: Mapping[Part, WindowStore]
    settings: SceneSettings
    skipped: list[str]

    @classmethod
    def write(
        cls, folder: Path, data: ScenesOfTracksSection, past: int, future: int, seed: int, poll: Callable[[], None]
    ) -> None:
        """Read the scenes of a recipe, and cut windows of `past` + `future` steps."""
        skipped: list[str] | None = [] if data.skip_bad else None
        trained: tuple[str, ...] = ()
        for part in PARTS:
            scenes = [
                tracks
                for source in data.sources(part)
                for tracks in read_scenes(source, data.walkers.of(part), seed, every=data.every, part=part, bad=skipped)
            ]
            agents = data.agents if part == "train" else "complete"
            fewest, stride = (data.fewest, data.stride) if part == "train" else (min(2, data.fewest), 1)
            store = WindowStore.of(scenes, WindowProtocol(past, future, stride, fewest, agents), poll)
            if part == "train":
                trained = tuple(Path(tracks.name).stem for tracks in scenes)
                if not len(store):
                    raise DataError(
                        f"data.train has no window of {past} + {future} steps with {fewest} agents or more; lower "
                        "data.fewest, or the steps of the model"
                    )
            store.save(folder, part)
        SceneSettings(leave_out=data.leave_out, trained=trained, every=data.every).save(folder)
        (folder / SKIPPED).write_text(json.dumps(skipped or [], ensure_ascii=False), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """What `write` wrote."""
        stores = {part: WindowStore.load(folder, part) for part in PARTS}
        return cls(stores, SceneSettings.load(folder), json.loads((folder / SKIPPED).read_text(encoding="utf-8")))

    @property
    def summary(self) -> str:
        parts = ", ".join(
            f"{len(store):,} with {len(store.keys):,} tracks to {_PURPOSES[part]}"
            for part, store in self.stores.items()
            if len(store)
        )
        left = f"; {self.settings.leave_out} left out" if self.settings.leave_out else ""
        bad = f"; {len(self.skipped):,} rows left out, the first: {self.skipped[0]}" if self.skipped else ""
        return f"windows: {parts}{left}{bad}"


def read_scenes(
    source: str, numbers: Iterable[int], seed: int, *, every: int, part: Part = "test", leave_out: str = "",
    bad: list[str] | None = None,
) -> Iterator[Tracks]:  # fmt: skip
    """The scenes of a source: built-in ones by their numbers and seed, or those that `find_tracks` finds."""
    if source == BUILT_IN:
        return (built_in_walkers(seed, number) for number in numbers)
    return iter(find_tracks(source, every=every, part=part, leave_out=leave_out, bad=bad))


SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of agents that a batch is padded to, so that shapes recur


@dataclass(frozen=True)
class SceneBatch(TensorBatch):
    """B scenes of up to N agents. Positions are in metres; masks are True where an agent is seen."""

    past: Float[Tensor, "B N P 2"]
    seen: Bool[Tensor, "B N P"]
    future: Float[Tensor, "B N F 2"]
    known: Bool[Tensor, "B N F"]

    @classmethod
    def of(cls, positions: Float[np.ndarray, "B N T 2"], seen: Bool[np.ndarray, "B N T"], past: int) -> SceneBatch:
        """Scenes of which `past` steps are given."""
        places, there = torch.from_numpy(positions), torch.from_numpy(seen)
        return cls(
            places[:, :, :past].clone(), there[:, :, :past].clone(),
            places[:, :, past:].clone(), there[:, :, past:].clone(),
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Agents whose future is known at some step."""
        return max(1, int(self.known.any(dim=-1).sum()))

    @property
    def complete(self) -> Bool[Tensor, "B N"]:
        """The agents that are seen at every step; errors are measured on these."""
        return self.seen.all(dim=-1) & self.known.all(dim=-1)


def padded(
    scenes: Sequence[tuple[Float[np.ndarray, "_ T 2"], Bool[np.ndarray, "_ T"]]], count: int, size: int
) -> tuple[Float[np.ndarray, "B N T 2"], Bool[np.ndarray, "B N T"]]:
    """Positions of scenes, and where they are seen, as arrays of `count` scenes with `size` agents."""
    steps = scenes[0][1].shape[1]
    positions, seen = np.zeros((count, size, steps, 2), np.float32), np.zeros((count, size, steps), bool)
    for number, (places, there) in enumerate(scenes):
        positions[number, : len(there)], seen[number, : len(there)] = places, there
    return positions, seen


def padded_size(agents: int) -> int:
    """The number of agents that a scene is padded to."""
    return next((size for size in SIZES if size >= agents), agents)


def agent_noise(keys: Int[np.ndarray, " N"], samples: int, latent: int, seed: int) -> Float[np.ndarray, "K N L"]:
    """Standard normal numbers that depend on an agent and the seed alone, whoever else is there."""
    drawn = [np.random.default_rng([seed, int(key)]).standard_normal((samples, latent)) for key in keys]
    return np.stack(drawn, axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class SceneBatches:
    """Turns windows of a store into batches.

    In training (`seed` is given) every scene is turned by a random angle, enlarged by a random factor between the two
    of `scale`, so that agents walk slower or faster, and, with `mirror`, half of them are mirrored; of scenes with more
    than `most` agents, one at random and those nearest to it are taken. Batches then have `slots` places for agents,
    and scenes that are missing at the end of an epoch are empty.
    """

    store: WindowStore
    past: int
    seed: int | None = None
    slots: int = 0
    most: int = 0
    mirror: bool = False
    scale: tuple[float, float] = (1.0, 1.0)

    def plan(self, epoch: int) -> list[Rows]:
        """The windows of each batch of an epoch: in random order, with similar numbers of agents."""
        rng = np.random.default_rng([self.seed or 0, epoch])
        order = rng.permutation(len(self.store))
        sizes = np.array([padded_size(size) for size in self.capped(self.store.sizes[order])])
        batches: list[Rows] = []
        for size in np.unique(sizes):
            rows, count = order[sizes == size], max(1, self.slots // int(size))
            batches += [rows[begin : begin + count] for begin in range(0, len(rows), count)]
        return [batches[number] for number in rng.permutation(len(batches))]

    def capped(self, sizes: Int[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
        return np.minimum(sizes, self.most) if self.most else sizes

    def __call__(self, rows: Rows, place: Place) -> SceneBatch:
        """The batch of some windows."""
        rng = None if self.seed is None else np.random.default_rng([self.seed, *place, 1])
        size = padded_size(int(self.capped(self.store.sizes[rows]).max()))
        count = max(len(rows), self.slots // size)
        scenes = []
        for row in rows:
            chosen = self.store.tracks_of(row)
            if rng is not None and self.most and len(chosen) > self.most:
                chosen = self._nearest(chosen, rng)
            scenes.append((self.store.positions[chosen], self.store.seen[chosen]))
        positions, seen = padded(scenes, count, size)
        if rng is not None:
            positions = self._turned(positions, seen, rng)
        return SceneBatch.of(positions, seen, self.past)

    def _nearest(self, tracks: Rows, rng: np.random.Generator) -> Rows:
        """Of some tracks, one at random and those nearest to it at the last step of the past."""
        last = self.store.positions[tracks, self.past - 1]
        away = np.linalg.norm(last - last[rng.integers(len(tracks))], axis=-1)
        return tracks[np.argsort(away, kind="stable")[: self.most]]

    def _turned(
        self, positions: Float[np.ndarray, "B N T 2"], seen: Bool[np.ndarray, "B N T"], rng: np.random.Generator
    ) -> Float[np.ndarray, "B N T 2"]:
        """Scenes turned and enlarged about the mean of their agents' last positions, so that numbers stay small."""
        present = seen[:, :, self.past - 1, None]
        last = (positions[:, :, self.past - 1] * present).sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        angle = rng.uniform(0, 2 * np.pi, len(positions))
        flip = np.where(rng.random(len(positions)) < 0.5 * self.mirror, -1.0, 1.0)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-flip * np.sin(angle), flip * np.cos(angle)]])
        smallest, largest = np.log(self.scale)
        turn *= np.exp(rng.uniform(smallest, largest, len(positions)))  # twice as large as often as half as large
        return np.einsum("bnti,ijb->bntj", positions - last[:, None, None], turn).astype(np.float32)

    def noise(self, rows: Rows, samples: int, latent: int, seed: int = 0) -> Float[Tensor, "B K N L"]:
        """The noise of every agent of some windows, padded as their batch is."""
        size = padded_size(int(self.store.sizes[rows].max()))
        noise = np.zeros((len(rows), samples, size, latent), np.float32)
        for number, row in enumerate(rows):
            keys = self.store.keys[self.store.tracks_of(row)]
            noise[number, :, : len(keys)] = agent_noise(keys, samples, latent, seed)
        return torch.from_numpy(noise)

    def in_order(self, slots: int) -> Iterator[Rows]:
        """All windows in batches of similar sizes, for measuring; no window is left out."""
        order = np.argsort(self.store.sizes, kind="stable")
        begin = 0
        while begin < len(order):
            size = padded_size(int(self.store.sizes[order[begin]]))
            fitting = int((self.store.sizes[order[begin:]] <= size).sum())
            count = min(fitting, max(1, slots // size))
            yield order[begin : begin + count]
            begin += count


STEP = 0.4  # seconds
SIDE, FORK = 8.0, 2.5  # metres from the middle to where walkers start, and to the fork
TURN = np.radians(40.0)  # at the fork, to the left or to the right
SPEEDS = (0.9, 1.5)  # metres a second
NEAR, AHEAD, ASIDE = 1.0, 0.3, 0.35  # metres to a person in front at which one gives way; by how much in a step
PAIR = 0.7  # metres between two who walk together
TOGETHER = 0.3  # share of arrivals that are pairs
ARRIVALS = 4.0  # steps between two arrivals, in the mean
NOISE = 0.01  # metres by which positions are noted wrongly


class _Square:
    """The people on the square: where they are, where they look, how fast they walk, and how they turn at the fork."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.places, self.headings = np.zeros((0, 2)), np.zeros((0, 2))
        self.speeds, self.turns = np.zeros(0), np.zeros(0)
        self.count = 0

    def arrive(self, rng: np.random.Generator) -> None:
        """One person, or two who walk together, at the edge of the square."""
        angle, speed, turn = rng.uniform(0, 2 * np.pi), rng.uniform(*SPEEDS), float(rng.choice((-TURN, TURN)))
        heading = -np.array([np.cos(angle), np.sin(angle)])
        together = 1 + (rng.random() < TOGETHER)
        beside = PAIR * np.outer(np.arange(together), _right(heading))
        self.names += range(self.count, self.count + together)
        self.count += together
        self.places = np.concatenate([self.places, beside - SIDE * heading])
        self.headings = np.concatenate([self.headings, np.tile(heading, (together, 1))])
        self.speeds, self.turns = np.append(self.speeds, [speed] * together), np.append(self.turns, [turn] * together)

    def advance(self) -> None:
        """One step of everyone; who has crossed the square leaves."""
        turning = np.where(np.linalg.norm(self.places, axis=-1) < FORK, self.turns, 0.0)
        cos, sin = np.cos(turning), np.sin(turning)
        x, y = self.headings.T
        self.headings = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
        self.turns = self.turns * (turning == 0)
        away = self.places[None] - self.places[:, None]
        front = np.einsum("ijk,ik->ij", away, self.headings)
        blocked = ((np.linalg.norm(away, axis=-1) < NEAR) & (front > AHEAD)).any(axis=1)
        step = self.headings * (self.speeds * STEP)[:, None]
        self.places = self.places + step + _right(self.headings) * (ASIDE * blocked)[:, None]
        stays = np.linalg.norm(self.places, axis=-1) < SIDE + 1
        self.names = [name for name, stay in zip(self.names, stays, strict=True) if stay]
        self.places, self.headings = self.places[stays], self.headings[stays]
        self.speeds, self.turns = self.speeds[stays], self.turns[stays]


def _right(headings: np.ndarray) -> np.ndarray:
    return np.stack([headings[..., 1], -headings[..., 0]], axis=-1)


def built_in_walkers(seed: int, number: int, steps: int = 40) -> Tracks:
    """One scene of `steps` steps."""
    rng, square = np.random.default_rng([seed, 3, number]), _Square()
    times, names, places = [], [], []
    for time in range(-int(2 * SIDE / STEP), steps):
        for _ in range(rng.poisson(1 / ARRIVALS)):
            square.arrive(rng)
        square.advance()
        if time >= 0:
            times += [time] * len(square.names)
            names += square.names
            places.append(square.places + rng.normal(0, NOISE, square.places.shape))
    agents = sorted(set(names))
    return Tracks(
        f"walkers-{seed}-{number:03d}", [str(each) for each in agents], np.array(times), np.searchsorted(agents, names),
        np.concatenate(places), 0.0, 10.0,
    )  # fmt: skip


EXAMPLES, EXAMPLE_SEED, EXAMPLE_TIME = 3, 7, 24  # scenes that no recipe trains on, and the step to forecast from


@cache
def examples() -> list[dict[str, Any]]:
    """Built-in scenes to try a model with on the page: tracks as CSV, each with the frame to forecast from."""
    scenes = [built_in_walkers(EXAMPLE_SEED, number) for number in range(EXAMPLES)]
    return [{"name": scene.name, "tracks": scene.to_csv(), "frame": scene.frame(EXAMPLE_TIME)} for scene in scenes]

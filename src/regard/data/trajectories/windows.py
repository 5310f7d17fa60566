"""Windows of scenes: some agents over the steps of a past and a future, cut from tracks and stored as arrays."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.data.trajectories.tracks import Tracks, far_away, filled

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
    begins: Int[np.ndarray, " W+1"]
    frames: Float[np.ndarray, " W"]
    files: Int[np.ndarray, " W"]  # numbers of `names`
    names: list[str]

    @classmethod
    def of(cls, found: Iterable[Window], steps: int, poll: Callable[[], None] = lambda: None) -> WindowStore:
        """The store of some windows."""
        kept: list[Window] = []
        for window in found:
            poll()
            kept.append(window)
        names = list(dict.fromkeys(window.name for window in kept))
        empty = Window("", 0.0, np.zeros(0, np.int64), np.zeros((0, steps, 2), np.float32), np.zeros((0, steps), bool))
        _, _, keys, positions, seen = zip(*kept, empty, strict=True) if kept else ([], [], *([e] for e in empty[2:]))
        return cls(
            np.concatenate(positions), np.concatenate(seen), np.concatenate(keys),
            np.cumsum([0, *(len(window.keys) for window in kept)]), np.array([window.frame for window in kept]),
            np.array([names.index(window.name) for window in kept], dtype=np.int64), names,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def sizes(self) -> Int[np.ndarray, " W"]:
        """The number of agents of each window."""
        return np.diff(self.begins)

    def tracks_of(self, window: int) -> slice:
        """Where the tracks of a window are."""
        return slice(int(self.begins[window]), int(self.begins[window + 1]))

    def save(self, folder: Path, name: str) -> None:
        np.savez(folder / f"{name}.npz", **{each: getattr(self, each) for each in _ARRAYS})
        (folder / f"{name}.json").write_text(json.dumps(self.names, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> WindowStore:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {each: stored[each] for each in _ARRAYS}
        return cls(names=json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), **arrays)


_ARRAYS = ("positions", "seen", "keys", "begins", "frames", "files")


def store_tracks(
    files: Sequence[Tracks], protocol: WindowProtocol, poll: Callable[[], None] = lambda: None
) -> WindowStore:
    """All windows of some files."""
    return WindowStore.of((each for tracks in files for each in windows(tracks, protocol)), protocol.steps, poll)

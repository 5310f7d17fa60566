"""Batches of windows: scenes of similar numbers of agents together, turned at random in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.loader import Place, Rows
from regard.data.trajectories.windows import WindowStore

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # of agents that a batch is padded to, so that shapes recur


@dataclass(frozen=True)
class SceneBatch(TensorBatch):
    """B scenes of up to N agents. Positions are in metres; masks are True where an agent is seen."""

    past: Float[Tensor, "B N P 2"]
    seen: Bool[Tensor, "B N P"]
    future: Float[Tensor, "B N F 2"]
    known: Bool[Tensor, "B N F"]

    @property
    def tokens(self) -> int:
        """Agents whose future is known at some step."""
        return max(1, int(self.known.any(dim=-1).sum()))

    @property
    def complete(self) -> Bool[Tensor, "B N"]:
        """The agents that are seen at every step; errors are measured on these."""
        return self.seen.all(dim=-1) & self.known.all(dim=-1)


def padded_size(agents: int) -> int:
    """The number of agents that a scene is padded to."""
    return next((size for size in SIZES if size >= agents), agents)


def agent_noise(keys: Int[np.ndarray, " N"], samples: int, latent: int, seed: int) -> Float[np.ndarray, "K N L"]:
    """Standard normal numbers that depend on an agent and the seed alone, whoever else is there."""
    drawn = [np.random.default_rng([seed, int(key)]).standard_normal((samples, latent)) for key in keys]
    shape = (samples, len(keys), latent)
    return np.stack(drawn, axis=1).astype(np.float32) if drawn else np.zeros(shape, dtype=np.float32)


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
            rows, count = order[sizes == size], self.scenes(int(size))
            batches += [rows[begin : begin + count] for begin in range(0, len(rows), count)]
        return [batches[number] for number in rng.permutation(len(batches))]

    def scenes(self, size: int) -> int:
        """How many scenes of a size make a batch."""
        return max(1, self.slots // size)

    def capped(self, sizes: Int[np.ndarray, " W"]) -> Int[np.ndarray, " W"]:
        return np.minimum(sizes, self.most) if self.most else sizes

    def __call__(self, rows: Rows, place: Place) -> SceneBatch:
        """The batch of some windows."""
        rng = None if self.seed is None else np.random.default_rng([self.seed, *place, 1])
        size = padded_size(int(self.capped(self.store.sizes[rows]).max()))
        count = max(len(rows), self.scenes(size)) if self.slots else len(rows)
        steps = self.store.positions.shape[1]
        positions, seen = np.zeros((count, size, steps, 2), np.float32), np.zeros((count, size, steps), bool)
        for number, row in enumerate(rows):
            where = self.store.tracks_of(int(row))
            chosen = np.arange(where.start, where.stop)
            if rng is not None and self.most and len(chosen) > self.most:
                chosen = self._nearest(chosen, rng)
            positions[number, : len(chosen)] = self.store.positions[chosen]
            seen[number, : len(chosen)] = self.store.seen[chosen]
        if rng is not None:
            positions = self._turned(positions, seen, rng)
        there, place_of = torch.from_numpy(seen), torch.from_numpy(positions)
        past = self.past
        return SceneBatch(
            place_of[:, :, :past].clone(), there[:, :, :past].clone(),
            place_of[:, :, past:].clone(), there[:, :, past:].clone(),
        )  # fmt: skip

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
            keys = self.store.keys[self.store.tracks_of(int(row))]
            noise[number, :, : len(keys)] = agent_noise(keys, samples, latent, seed)
        return torch.from_numpy(noise)

    def in_order(self, slots: int) -> Iterator[Rows]:
        """All windows in batches of similar sizes, for measuring; no window is left out."""
        order = np.argsort(self.store.sizes, kind="stable")
        begin = 0
        while begin < len(order):
            size = padded_size(int(self.store.sizes[order[begin]]))
            fitting: Sequence[int] = np.flatnonzero(self.store.sizes[order[begin:]] <= size).tolist()
            count = min(len(fitting), max(1, slots // size))
            yield order[begin : begin + count]
            begin += count

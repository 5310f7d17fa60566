"""Reading scenes with walking agents: forecasters, by how far the likeliest future is from the true one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.sources import PARTS
from regard.families.trajectories.data import SceneBatch, WindowProtocol, built_in_walkers, windows
from regard.families.trajectories.pipeline import BUILT_IN, Forecaster, find_scene
from regard.families.trajectories.tracks import Tracks, far_away, filled, read_tracks
from regard.look.reader import Example, Reader, Source, TokenUnits, side_of

STRIDE = 4  # steps from one window of a scene to the next
ARROWS, STANDING = "→↗↑↖←↙↓↘", 0.05  # directions of a move, and metres of one that is hardly any


class TrackReader(Reader[SceneBatch]):
    """A forecaster that reads windows of scenes. Every position is an agent at a step: places of its encoder belong to
    the past, those of its decoder to the future."""

    columns: ClassVar = {"positions": "<f4", "seen": "|u1"}
    reads_text: ClassVar = False
    built_in: ClassVar = (BUILT_IN,)

    def __init__(self, pipeline: Forecaster) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.past, self.future = pipeline.config.past, pipeline.config.future

    def examples(self, source: Source) -> Iterator[Example]:
        protocol = WindowProtocol(self.past, self.future, STRIDE)
        found = (each for tracks in self._scenes(source) for each in windows(tracks, protocol))
        for window in islice(found, source.count):
            yield _row(window.positions, window.seen)

    def given(self, text: str) -> Example:
        """The agents that are present at the end of a scene; their future is not known."""
        tracks = find_scene(text, self.pipeline.settings.every)
        _, positions, seen = tracks.window(tracks.last - self.past + 1, self.past + self.future)
        there = seen[:, self.past - 1]
        return _row(filled(positions[there] - far_away(positions[there]), seen[there]), seen[there])

    def batch(self, examples: Sequence[Example]) -> SceneBatch:
        steps, most = self.past + self.future, max(len(seen) for _, seen in examples) // (self.past + self.future)
        positions = torch.zeros(len(examples), most, steps, 2)
        seen = torch.zeros(len(examples), most, steps, dtype=torch.bool)
        for number, (row, mask) in enumerate(examples):
            agents = len(mask) // steps
            positions[number, :agents] = torch.tensor(row).view(agents, steps, 2)
            seen[number, :agents] = torch.tensor(mask).view(agents, steps).bool()
        (past, future), (there, known) = (each.split([self.past, self.future], dim=2) for each in (positions, seen))
        return SceneBatch(past, there, future, known).to(self.device)

    def run(self, batch: SceneBatch) -> object:
        return self._likeliest(batch)

    def loss(self, batch: SceneBatch) -> tuple[float, int]:
        """The square distance in metres of every position that is known."""
        errors = (self._likeliest(batch) - batch.future).square().sum(dim=-1)
        return float(errors[batch.known].sum()), int(batch.known.sum())

    def real(self, batch: SceneBatch, place: str) -> Bool[Tensor, "B T"]:
        if side_of(place) == "source":
            return batch.seen.flatten(1)
        there = batch.seen[:, :, -1:].expand(-1, -1, self.future)
        return (there.transpose(1, 2) if self._step_by_step else there).flatten(1)

    def units(self, example: Example, place: str) -> TokenUnits:
        """The number of each agent, the step, counted from the last of the past, and where the agent walks to."""
        steps = self.past + self.future
        positions, seen = example[0].reshape(-1, steps, 2), example[1].reshape(-1, steps).astype(bool)
        if side_of(place) == "source":
            where = np.argwhere(seen[:, : self.past]).tolist()
        else:
            where = np.argwhere(np.ones((len(seen), self.future))).tolist()
            where = sorted(where, key=lambda each: each[1]) if self._step_by_step else where
            where = [[agent, step + self.past] for agent, step in where]
        return TokenUnits([
            f" {agent + 1}@{step - self.past + 1:+d}{_arrow(positions[agent], seen[agent], step)}"
            for agent, step in where
        ])  # fmt: skip

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """Where every agent is at the end, seen from where it is now, in metres."""
        batch = self.batch([example])
        moved = (self._likeliest(batch)[0, :, -1] - batch.past[0, :, -1]).tolist()
        return ", ".join(f"{agent + 1}: {x:+.1f} {y:+.1f} m" for agent, (x, y) in enumerate(moved))

    @property
    def _step_by_step(self) -> bool:
        """Whether the decoder reads all agents of a step before the next, instead of one agent after another."""
        return self.pipeline.config.decoder == "autoregressive"

    @torch.no_grad()
    def _likeliest(self, batch: SceneBatch) -> Float[Tensor, "B N F 2"]:
        model = self.pipeline.model
        scene = model.read(batch.past, batch.seen)
        return model.decode(scene, scene.prior.mean[:, None])[:, 0]

    def _scenes(self, source: Source) -> Iterator[Tracks]:
        if source.path == BUILT_IN:
            part = PARTS.index(source.part)
            return (built_in_walkers(source.seed, len(PARTS) * number + part) for number in count())
        return iter([read_tracks(source.path, every=self.pipeline.settings.every)])


def _arrow(positions: Float[np.ndarray, "T 2"], seen: Bool[np.ndarray, T], step: int) -> str:
    """The direction of the last move, east to the right and north up; a point if there is hardly any, nothing if it is
    not known."""
    before, after = (step - 1, step) if step else (0, 1)
    if not (seen[before] and seen[after]):
        return ""
    east, north = (positions[after] - positions[before]).tolist()
    if np.hypot(east, north) < STANDING:
        return "·"
    return ARROWS[round(np.arctan2(north, east) / (2 * np.pi) * len(ARROWS)) % len(ARROWS)]


def _row(positions: Float[np.ndarray, "N T 2"], seen: Bool[np.ndarray, "N T"]) -> Example:
    return positions.astype(np.float32).ravel(), seen.astype(np.uint8).ravel()

"""A forecaster as sparse autoencoders read it: agents at steps, and how far the likeliest future is from the truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.sources import PARTS
from regard.families.trajectories.data import BUILT_IN, SceneBatch, WindowProtocol, padded, read_scenes, windows
from regard.families.trajectories.pipeline import Forecaster, find_scene
from regard.families.trajectories.task import path_errors
from regard.families.trajectories.tracks import far_away, filled
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
        super().__init__(pipeline)
        self.past, self.future = pipeline.config.past, pipeline.config.future

    def examples(self, source: Source) -> Iterator[Example]:
        settings, part = self.pipeline.settings, source.part
        numbers = (len(PARTS) * number + PARTS.index(part) for number in count())
        scenes = read_scenes(
            source.path, numbers, source.seed, every=settings.every, part=part, leave_out=settings.leave_out
        )
        protocol = WindowProtocol(self.past, self.future, STRIDE)
        for window in islice((window for tracks in scenes for window in windows(tracks, protocol)), source.count):
            yield _row(window.positions, window.seen)

    def given(self, text: str) -> Example:
        """The agents that are present at the end of a scene; their future is not known."""
        tracks = find_scene(text, self.pipeline.settings.every)
        _, positions, seen = tracks.present(tracks.last, self.past, self.future)
        return _row(filled(positions - far_away(positions), seen), seen)

    def batch(self, examples: Sequence[Example]) -> SceneBatch:
        scenes = [self._scene(example) for example in examples]
        arrays = padded(scenes, len(scenes), max(len(seen) for _, seen in scenes))
        return SceneBatch.of(*arrays, self.past).to(self.device)

    def run(self, batch: SceneBatch) -> object:
        return self._likeliest(batch)

    def loss(self, batch: SceneBatch) -> tuple[float, int]:
        """The squared distance in metres of every position that is known: the loss of training for the likeliest
        future, without the terms that a known future or other samples are needed for."""
        errors = path_errors(self._likeliest(batch), batch.future, batch.known, "squared")
        return float(errors.sum()), int(batch.known.sum())

    def real(self, batch: SceneBatch, place: str) -> Bool[Tensor, "B T"]:
        if side_of(place) == "source":
            return batch.seen.flatten(1)
        there = batch.seen[:, :, -1:].expand(-1, -1, self.future)
        return (there.transpose(1, 2) if self._step_by_step else there).flatten(1)

    def units(self, example: Example, place: str) -> TokenUnits:
        """The number of each agent, the step, counted from the last of the past, and where the agent walks to."""
        positions, seen = self._scene(example)
        if side_of(place) == "source":
            where = np.argwhere(seen[:, : self.past]).tolist()
        else:
            where = np.argwhere(np.ones((len(seen), self.future))).tolist()
            where = sorted(where, key=lambda token: token[1]) if self._step_by_step else where
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

    def _scene(self, example: Example) -> tuple[Float[np.ndarray, "N T 2"], Bool[np.ndarray, "N T"]]:
        steps = self.past + self.future
        return example[0].reshape(-1, steps, 2), example[1].reshape(-1, steps).astype(bool)


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

"""A scene with walking agents in, samples of their future out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import record
from regard.errors import DataError, UsageError
from regard.families.trajectories.agents import AgentAttention
from regard.families.trajectories.data import BUILT_IN, agent_key, agent_noise, built_in_walkers
from regard.families.trajectories.model import AgentFormer, AgentFormerConfig
from regard.families.trajectories.tracks import SceneSettings, Tracks, far_away, filled, frame_text, read_tracks
from regard.look.forced_pass import require_attention
from regard.look.neurons import LayerNeurons, OwnNeurons, record_neurons
from regard.search.pipeline import load_for_pipeline

LAYERS = ("encoder.*", "decoder.*")  # the future encoder reads a future that is known
ROUNDED = 0.2  # of a step: how far a frame may be from its time, since times in files are rounded or measured
LIKELIEST = -1  # in place of the number of a sample
SceneFile = str | Path | bytes | Tracks


@dataclass(frozen=True, eq=False)
class Forecast:
    """The agents that are present in a frame, their past, and samples of their future; positions are in metres.

    `truth` is the future as far as the file has it, NaN elsewhere. A past position that was not seen is NaN.
    """

    name: str
    agents: list[str]
    frame: float  # the last one of the past
    step: float  # frames from one step to the next
    past: Float[np.ndarray, "N P 2"]
    samples: Float[np.ndarray, "K N F 2"]
    likeliest: Float[np.ndarray, "N F 2"]
    truth: Float[np.ndarray, "N F 2"]
    noise: Float[np.ndarray, "K N L"] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values; positions that are not known are null."""
        return {
            "scene": self.name, "frame": self.frame, "step": self.step, "agents": list(self.agents),
            **{name: _plain(getattr(self, name)) for name in ("past", "samples", "likeliest", "truth")},
        }  # fmt: skip


@dataclass(frozen=True)
class SceneAttention:
    """The attention of every recorded layer and head between tokens (agent, step), agent by agent.

    `sides` names the queries and the keys of a layer: "past" or "future". `neurons` are what its scores are made of.
    """

    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]
    sides: dict[str, tuple[str, str]]
    neurons: dict[str, LayerNeurons]


class Forecaster:
    """A model that forecasts tracks."""

    pipeline: ClassVar = "forecaster"

    def __init__(self, model: nn.Module, settings: SceneSettings, *, name: str = "") -> None:
        assert isinstance(model, AgentFormer)
        self.model, self.settings, self.name = model.eval(), settings, name
        self.config, self.device = model.config, next(model.parameters()).device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> Forecaster:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="forecasts no tracks")
        return cls(loaded.model, SceneSettings.load(loaded.folder), name=Path(folder).name)

    def forecast(
        self,
        scenes: SceneFile | Sequence[SceneFile],
        *,
        at: float | None = None,
        samples: int = 20,
        seed: int = 0,
        every: int | None = None,
    ) -> list[Forecast]:
        """Samples of the future of every agent that is present in frame `at`, by default the last one of each scene.

        A scene is a file or the bytes of one, `Tracks`, or builtin:walkers#NUMBER. Of its frames, `every` so many are
        read, by default as in training. The numbers of an agent depend on the seed and the names of scene and agent.
        """
        if samples < 1:
            raise UsageError(f"samples is {samples}; expected at least 1")
        files = [scenes] if isinstance(scenes, SceneFile) else list(scenes)
        return [self._forecast(find_scene(file, every or self.settings.every), at, samples, seed) for file in files]

    @torch.inference_mode()
    def _forecast(self, tracks: Tracks, at: float | None, samples: int, seed: int) -> Forecast:
        c, now = self.config, tracks.last if at is None else _time_of(tracks, at)
        numbers, positions, _ = tracks.present(now, c.past, c.future)
        if not len(numbers):
            raise DataError(
                f"{tracks.name}: no agent is seen in frame {frame_text(tracks.frame(now))}; name another one"
            )
        names = [tracks.agents[number] for number in numbers]
        past, truth = positions[:, : c.past], positions[:, c.past :]
        noise = agent_noise(np.array([agent_key(tracks.name, name) for name in names]), samples, c.latent, seed)
        futures = self.model.forecast(*self._tensors(past), torch.from_numpy(noise).to(self.device)[None])
        drawn, likeliest = (future[0].double().cpu().numpy() + far_away(past) for future in futures)
        return Forecast(tracks.name, names, tracks.frame(now), tracks.step, past, drawn, likeliest, truth, noise)

    def _tensors(self, past: Float[np.ndarray, "N P 2"]) -> tuple[Tensor, Tensor]:
        """The past as the model reads it: without steps that nobody was seen in at its beginning."""
        seen = ~np.isnan(past[..., 0])
        begin = min(int(seen.any(axis=0).argmax()), seen.shape[1] - 2)
        whole = filled(past - far_away(past), seen)[:, begin:]
        return torch.from_numpy(whole)[None].to(self.device), torch.from_numpy(seen[:, begin:])[None].to(self.device)

    @torch.inference_mode()
    def attention(self, scene: Forecast, sample: int = LIKELIEST) -> SceneAttention:
        """The recorded attention of a forecast while one of its samples is decoded."""
        require_attention(self.model, self.name)
        if not LIKELIEST <= sample < len(scene.samples):
            raise UsageError(f"sample is {sample}; there are samples 0 to {len(scene.samples) - 1}")
        past, seen = self._tensors(scene.past)
        agents, steps, c, model = past.shape[1], past.shape[2], self.config, self.model
        recorded = record_neurons(model, LAYERS, unrolled=True)
        with recorded as seen_neurons, record_own_pairs(model) as own, record(model, LAYERS) as looks:
            read = model.read(past, seen)
            latents = read.prior.mean[:, None]
            if sample != LIKELIEST:
                latents = model.latents(read, torch.from_numpy(scene.noise).to(self.device)[None])
                latents = latents[:, sample : sample + 1]
            model.decode(read, latents)
        weights, sides, neurons = {}, {}, {}
        for name, look in looks.items():
            sides[name] = _sides(name)
            cells = [_cells(side, agents, steps, c) for side in sides[name]]
            neurons[name] = replace(seen_neurons[name], cells=(cells[0][None], cells[1][None]))
            if name in own:  # their scores are the bias of the layer
                neurons[name] = replace(neurons[name], bias=None, own=_own_neurons(own[name]))
            sizes = [agents * {"past": c.past, "future": c.future}[side] for side in sides[name]]
            weights[name] = np.zeros((look.shape[1], *sizes), np.float32)  # zeros for steps that were not read
            weights[name][:, cells[0][:, None], cells[1]] = look[0].float().cpu().numpy()
        return SceneAttention(weights, sides, neurons)


@contextmanager
def record_own_pairs(model: AgentFormer) -> Iterator[dict[str, list[tuple[Tensor, ...]]]]:
    """Keep the arguments of every call of `OwnScores`, by the name of its layer."""
    calls: dict[str, list[tuple[Tensor, ...]]] = {}
    with ExitStack() as hooks:
        for name, layer in model.named_modules():
            if isinstance(layer, AgentAttention) and layer.own_scores is not None:
                handle = layer.own_scores.register_forward_hook(
                    lambda _, args, scores, name=name: calls.setdefault(name, []).append(args)
                )
                hooks.enter_context(handle)
        yield calls


def _own_neurons(calls: Sequence[tuple[Tensor, ...]]) -> OwnNeurons:
    """The second projection. Keys have the number of the first query of the last call that is of their agent."""
    masks = [own[0, 0].cpu().numpy() for *_, own in calls]
    of_keys = masks[-1].argmax(axis=0)
    of_queries = np.concatenate([of_keys[mask.argmax(axis=1)] for mask in masks])
    queries, keys = torch.cat([q for _, _, q, _, _ in calls], dim=2), calls[-1][3]
    return OwnNeurons(queries.float().cpu().numpy(), keys.float().cpu().numpy(), (of_queries, of_keys))


def _cells(side: str, agents: int, steps: int, c: AgentFormerConfig) -> Int[np.ndarray, T]:
    """The places, agent by agent, of tokens in the order in which the model has them; a past may be read in part."""
    if side == "past":
        return np.arange(agents * c.past).reshape(agents, c.past)[:, c.past - steps :].ravel()
    grid = np.arange(agents * c.future).reshape(agents, c.future)
    return (grid.T if c.decoder == "autoregressive" else grid).ravel()


def _sides(name: str) -> tuple[str, str]:
    """Whose tokens are the queries and the keys of a layer, by its name."""
    if name.startswith("encoder"):
        return "past", "past"
    return ("future", "past") if name.endswith("cross") else ("future", "future")


def find_scene(reference: SceneFile, every: int = 1, name: str = "") -> Tracks:
    """A scene by the file of its tracks or its bytes, which `name` names, or by builtin:walkers#NUMBER."""
    if isinstance(reference, Tracks):
        return reference
    if isinstance(reference, bytes):
        return read_tracks(reference, every=every, name=name)
    place, _, number = str(reference).partition("#")
    if place == BUILT_IN:
        if not (number or "0").isdecimal():
            raise UsageError(f"{reference} is not a built-in scene; write {BUILT_IN}#NUMBER")
        return built_in_walkers(1, int(number or "0"))
    return read_tracks(reference, every=every)


def _time_of(tracks: Tracks, frame: float) -> int:
    time = round((frame - tracks.first) / tracks.step)
    if abs(tracks.frame(time) - frame) > ROUNDED * tracks.step or not 0 <= time <= tracks.last:
        nearest, end = tracks.frame(min(max(time, 0), tracks.last)), tracks.frame(tracks.last)
        raise DataError(
            f"{tracks.name} has no frame {frame_text(frame)}; they go from {frame_text(tracks.first)} to "
            f"{frame_text(end)} in steps of {frame_text(tracks.step)}: the nearest is {frame_text(nearest)}"
        )
    return time


def _plain(positions: Float[np.ndarray, "*shape 2"]) -> Any:
    """Positions as lists, rounded to millimetres; null where they are not known."""
    if positions.ndim == 1:
        return None if np.isnan(positions[0]) else positions.astype(np.float64).round(3).tolist()
    return [_plain(part) for part in positions]

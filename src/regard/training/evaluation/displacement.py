"""Errors of predicted tracks: ADE, the mean distance over all steps, and FDE, the distance at the last, in metres."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.trajectories.batches import SceneBatch, SceneBatches

SLOTS = 256  # places for agents in a batch that is measured
Predict = Callable[[SceneBatch, Tensor], tuple[Tensor, Tensor]]  # (scenes, noise) -> samples [B K N F 2], likeliest


@dataclass(frozen=True, eq=False)
class Displacements:
    """The errors of A agents in K samples, and of the likeliest future of each; `scenes` numbers their windows."""

    ade: Float[np.ndarray, "A K"]
    fde: Float[np.ndarray, "A K"]
    likeliest: Float[np.ndarray, "A 2"]  # ADE and FDE
    scenes: Int[np.ndarray, " A"]

    def summary(self) -> dict[str, dict[str, float]]:
        """ADE and FDE of the likeliest future and of all samples in the mean; of the best sample of each agent; and of
        the best sample of all agents of a window together."""
        return {
            "likeliest": _pair(*self.likeliest.mean(axis=0)),
            "mean": _pair(self.ade.mean(), self.fde.mean()),
            "best": _pair(self.ade.min(axis=1).mean(), self.fde.min(axis=1).mean()),
            "joint": _pair(self._joint(self.ade), self._joint(self.fde)),
        }

    def _joint(self, errors: Float[np.ndarray, "A K"]) -> float:
        """The mean over agents, where all agents of a window take the sample that is best for them together."""
        _, window, count = np.unique(self.scenes, return_inverse=True, return_counts=True)
        sums = np.zeros((len(count), errors.shape[1]))
        np.add.at(sums, window, errors)
        return float(sums.min(axis=1).sum() / len(errors))


def _pair(ade: float, fde: float) -> dict[str, float]:
    return {"ade": float(ade), "fde": float(fde)}


def displacements(
    samples: Float[Tensor, "B K N F 2"], future: Float[Tensor, "B N F 2"]
) -> tuple[Float[Tensor, "B K N"], Float[Tensor, "B K N"]]:
    """ADE and FDE of every sample of every agent."""
    away = torch.linalg.vector_norm(samples - future[:, None], dim=-1)
    return away.mean(dim=-1), away[..., -1]


@torch.inference_mode()
def measure(
    predict: Predict, batches: SceneBatches, samples: int, latent: int, device: torch.device,
    poll: Callable[[], None] = lambda: None, seed: int = 0,
) -> Displacements:  # fmt: skip
    """The errors of a way to predict on all windows; agents that are not seen at every step do not count."""
    found = list(_measured(predict, batches, samples, latent, device, poll, seed))
    ade, fde, likeliest, scenes = (np.concatenate(each) for each in zip(*found, strict=True))
    return Displacements(ade, fde, likeliest, scenes)


def _measured(
    predict: Predict, batches: SceneBatches, samples: int, latent: int, device: torch.device,
    poll: Callable[[], None], seed: int,
) -> Iterator[tuple[np.ndarray, ...]]:  # fmt: skip
    for rows in batches.in_order(SLOTS):
        poll()
        batch = batches(rows, (0, 0)).to(device)
        drawn, likeliest = predict(batch, batches.noise(rows, samples, latent, seed).to(device))
        counted: Bool[Tensor, "B N"] = batch.complete
        ade, fde = displacements(drawn.float(), batch.future)
        own = torch.stack([each[:, 0] for each in displacements(likeliest.float()[:, None], batch.future)], dim=-1)
        window = torch.from_numpy(rows).to(device)[:, None].expand_as(counted)
        yield (
            ade.transpose(1, 2)[counted].cpu().numpy(), fde.transpose(1, 2)[counted].cpu().numpy(),
            own[counted].cpu().numpy(), window[counted].cpu().numpy(),
        )  # fmt: skip


def constant_velocity(past: Float[Tensor, "B N P 2"], steps: int) -> Float[Tensor, "B N F 2"]:
    """The last step of the past, repeated."""
    velocity = past[:, :, -1] - past[:, :, -2] if past.shape[2] > 1 else torch.zeros_like(past[:, :, -1])
    ahead = torch.arange(1, steps + 1, device=past.device)[:, None]
    return past[:, :, -1:] + velocity[:, :, None] * ahead


def straight_line(past: Float[Tensor, "B N P 2"], steps: int) -> Float[Tensor, "B N F 2"]:
    """The line that is nearest to the past in the sense of least squares, continued."""
    count = past.shape[2]
    times = torch.arange(count, device=past.device, dtype=past.dtype) - (count - 1) / 2
    mean = past.mean(dim=2, keepdim=True)
    slope = (past * times[:, None]).sum(dim=2, keepdim=True) / (times**2).sum().clamp(min=1e-9)
    ahead = torch.arange(steps, device=past.device, dtype=past.dtype) + (count + 1) / 2
    return mean + slope * ahead[:, None]


BASELINES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "constant velocity": constant_velocity,
    "straight line": straight_line,
}

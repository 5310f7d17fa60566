"""Forecasting tracks: the losses of a variational autoencoder of futures and of its diverse sampler (Yuan et al. 2021),
and the errors that training and `regard evaluate` measure."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.data.loader import Loader
from regard.data.sources import Part
from regard.errors import ConfigError, DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.trajectories.data import (
    SceneBatch,
    SceneBatches,
    SceneCorpus,
    WindowProtocol,
    WindowStore,
    read_scenes,
)
from regard.families.trajectories.model import AgentFormer, AgentFormerConfig, Diverse, Reconstruction
from regard.families.trajectories.recipe import ForecastRecipe, PathError, SamplerRecipe, ScenesRecipe
from regard.families.trajectories.tracks import whole_file
from regard.training.initial_model import initialised, planned_config
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options

if TYPE_CHECKING:
    from regard.families.trajectories.pipeline import Forecaster

VALIDATION_SEED = 0


class ScenesTask(SupervisedTask[SceneBatch]):
    """Windows of scenes: a past, and the future of every agent."""

    recipe: ScenesRecipe

    @classmethod
    def write(cls, recipe: ScenesRecipe, folder: Path, poll: Poll) -> None:
        """Read the tracks and cut windows."""
        config = model_config(recipe)
        SceneCorpus.write(folder, recipe.data, config.past, config.future, recipe.seed, poll)

    def __init__(self, recipe: ScenesRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.config, self.corpus = model_config(recipe), SceneCorpus.open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        data, training = recipe.data, recipe.training
        if training.validate_every and not len(self.corpus.stores["valid"]):
            raise DataError(
                "there is no window for validation; give data.valid, or set training.validate_every = 0 to do without"
            )
        batches = SceneBatches(
            self.corpus.stores["train"], self.config.past, recipe.seed,
            training.batch, data.most, data.mirror, data.scale,
        )  # fmt: skip
        self.loader = Loader(batches.plan, batches, **loader_options(training, device))

    def held_out(self, part: Part) -> WindowStore:
        return self.corpus.stores[part]

    def measured(self, model: nn.Module, data: WindowStore, poll: Poll) -> Values:
        """The errors of the best of the samples and of the likeliest future."""
        assert isinstance(model, AgentFormer)
        batches, losses = SceneBatches(data, self.config.past), []
        torch.manual_seed(VALIDATION_SEED)  # the loss draws latent vectors; every step of training seeds its own

        def predict(batch: SceneBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
            loss = self.loss(model, batch)
            losses.append(torch.stack([loss.total, loss.tokens]))
            return model.forecast(batch.past, batch.seen, noise)

        samples, latent = self.recipe.training.samples, self.config.latent
        found = measure(predict, batches, samples, latent, self.device, poll).summary()
        total, agents = torch.stack(losses).sum(dim=0).tolist()
        likeliest = {f"likeliest_{name}": value for name, value in found["likeliest"].items()}
        return {"loss": total / agents, **found["best"], **likeliest}

    @abstractmethod
    def loss(self, model: Forward, batch: SceneBatch) -> Loss:
        """The loss of a batch, summed over agents."""

    def save(self, folder: Path) -> None:
        self.corpus.settings.save(folder)


class ForecastTask(ScenesTask):
    """The first stage: reconstruction, the divergence of the posterior from the prior, and the best of the samples."""

    recipe: ForecastRecipe

    def build(self) -> nn.Module:
        return initialised(self.recipe.model, {}) if self.recipe.model.init else AgentFormer(self.config)

    def loss(self, model: Forward, batch: SceneBatch) -> Loss:
        """The sum of the terms, with the divergence no lower than its floor."""
        training = self.recipe.training
        out: Reconstruction = model(
            batch.past, batch.seen, batch.future, batch.known, training.samples, likeliest=training.likeliest > 0
        )
        agents = batch.known.any(dim=-1)
        count = agents.sum().clamp(min=1)
        total = path_errors(out.positions, batch.future, batch.known, training.error).sum()
        total = total + training.best * path_errors(out.best, batch.future, batch.known, training.error).sum()
        if out.likeliest is not None:
            single = path_errors(out.likeliest, batch.future, batch.known, training.error).sum()
            total = total + training.likeliest * single
        divergence = out.divergence.float().masked_fill(~agents, 0.0).sum() / count
        return Loss(total + training.kl * divergence.clamp(min=training.kl_floor) * count, count)


class SamplerTask(ScenesTask):
    """The second stage: a sampler whose futures are likely, different from each other, and near to the true one."""

    recipe: SamplerRecipe

    def build(self) -> nn.Module:
        """The model of the first stage, frozen, with a new sampler."""
        if not self.config.sampler:
            raise ConfigError("model.sampler is 0; set it to the number of samples, such as 20")
        model = initialised(self.recipe.model, {})
        assert isinstance(model, AgentFormer) and model.sampler is not None
        model.requires_grad_(False)
        model.sampler.requires_grad_(True)
        return model

    def loss(self, model: Forward, batch: SceneBatch) -> Loss:
        """The best of the samples, how alike the samples are, and the divergence from the prior."""
        training = self.recipe.training
        out: Diverse = model(batch.past, batch.seen, batch.future, batch.known, 0)
        agents = batch.known.any(dim=-1)
        count = agents.sum().clamp(min=1)
        errors = path_errors(out.positions, batch.future[:, None], batch.known[:, None], training.error)
        alike = likeness(out.positions, training.diversity_scale).masked_fill(~agents, 0.0).sum()
        divergence = out.divergence.float().masked_fill(~agents, 0.0).sum() / count
        total = training.reconstruction * errors.amin(dim=1).sum() + training.diversity * alike
        return Loss(total + training.kl * divergence.clamp(min=training.kl_floor) * count, count)


def path_errors(
    positions: Float[Tensor, "*B N F 2"],
    future: Float[Tensor, "*#B N F 2"],
    known: Bool[Tensor, "*#B N F"],
    kind: PathError,
) -> Float[Tensor, "*B N"]:
    """The error of every agent, summed over the steps that are known."""
    squared = ((positions - future) ** 2).sum(dim=-1)
    if kind == "distance":
        squared = (squared + 1e-6).sqrt()  # the root has no slope at 0
    return squared.masked_fill(~known, 0.0).sum(dim=-1)


def likeness(samples: Float[Tensor, "B K N F 2"], scale: float) -> Float[Tensor, "B N"]:
    """exp(-squared distance / scale), the mean over pairs of different samples of an agent.

    Differences are taken before squares: |a|² + |b|² - 2 a·b would lose metres in the products of tf32 and bf16.
    """
    rows = samples.transpose(1, 2).flatten(3)
    away = (rows[:, :, :, None] - rows[:, :, None]).square().sum(dim=-1)
    count = rows.shape[2]
    alike = (-away / scale).exp().sum(dim=(-2, -1)) - count  # a sample and itself are left out
    return alike / max(1, count * (count - 1))


def model_config(recipe: ScenesRecipe) -> AgentFormerConfig:
    """The configuration of the model to train."""
    if recipe.task == "forecast_sampler" and not recipe.model.init:
        raise ConfigError("model.init is empty; the sampler is trained for a model of the first stage: give its folder")
    return planned_config(recipe.model, AgentFormerConfig)


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
    parts: list[list[np.ndarray]] = []
    for rows in batches.in_order(SLOTS):
        poll()
        batch = batches(rows, (0, 0)).to(device)
        drawn, likeliest = predict(batch, batches.noise(rows, samples, latent, seed).to(device))
        ade, fde = (errors.transpose(1, 2) for errors in displacements(drawn.float(), batch.future))
        single = torch.cat(displacements(likeliest.float()[:, None], batch.future), dim=1).transpose(1, 2)
        window = torch.from_numpy(rows).to(device)[:, None].expand_as(batch.complete)
        parts.append([errors[batch.complete].cpu().numpy() for errors in (ade, fde, single, window)])
    return Displacements(*(np.concatenate(part) for part in zip(*parts, strict=True)))


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


Continued = Callable[[Tensor, int], Tensor]  # (past, steps) -> future
BASELINES: dict[str, Continued] = {"constant velocity": constant_velocity, "straight line": straight_line}
FIRST_NEW, STEPS = 100_000, 40  # number of the first built-in scene that no recipe trains on, and how long scenes are


def evaluate_forecasts(forecaster: Forecaster, data: str, options: EvaluationOptions) -> Evaluation:
    """ADE and FDE in metres on a file, on a scene of ETH/UCY (FOLDER#SCENE), or on built-in scenes; beside baselines.

    Of a folder without a scene, the one that the model was trained without is taken. Windows are cut by ETH/UCY's
    protocol: stride 1, two agents or more, all of them seen at every step; with one agent where there are no others.
    """
    samples, config, settings, unread = options.samples, forecaster.config, forecaster.settings, list[str]()
    scenes = list(
        read_scenes(
            data, range(FIRST_NEW, FIRST_NEW + max(1, options.count // STEPS)), options.seed, every=settings.every,
            leave_out=settings.leave_out, bad=unread,
        )
    )  # fmt: skip
    for fewest in (2, 1):
        store = WindowStore.of(scenes, WindowProtocol(config.past, config.future, fewest=fewest))
        if len(store):
            break
    else:
        raise DataError(
            f"{scenes[0].name} has no agent that is seen for {config.past + config.future} steps without a gap; errors "
            "are measured on such agents alone"
        )
    batches = SceneBatches(store, config.past)
    errors = measure(
        lambda batch, noise: forecaster.model.forecast(batch.past, batch.seen, noise), batches, samples, config.latent,
        forecaster.device, seed=options.seed,
    ).summary()  # fmt: skip
    scores: dict[str, object] = {
        "files": ", ".join(Path(name).name for name in store.names),
        "windows": len(store),
        "tracks": len(store.keys),
        "protocol": f"{config.past} + {config.future} steps, stride 1, {fewest} agents or more, k = {samples}",
    }
    trained = {Path(name).stem for name in store.names} & set(map(whole_file, settings.trained))
    if trained:
        scores["note"] = f"the model was trained on {', '.join(sorted(trained))}"
    titles = {"likeliest": "likeliest", "mean": f"mean of {samples}", "best": f"best of {samples}",
              "joint": f"best of {samples}, all agents together"}  # fmt: skip
    scores |= {title: errors[name] for name, title in titles.items()}
    for name, continued in BASELINES.items():

        def guess(batch: SceneBatch, noise: Tensor, continued: Continued = continued) -> tuple[Tensor, Tensor]:
            future = continued(batch.past, config.future)
            return future[:, None], future  # one sample, whatever the noise

        scores[name] = measure(guess, batches, 1, 1, forecaster.device).summary()["likeliest"]
    return Evaluation(scores, unread)

"""Forecasting tracks: a variational autoencoder of futures, and its diverse sampler (Yuan et al. 2021)."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.checkpoints import write_folder
from regard.checkpoints.models import identify
from regard.data.loader import Loader
from regard.data.sources import PARTS, Part
from regard.errors import ConfigError, DataError
from regard.families.trajectories.data import (
    SceneBatch,
    SceneBatches,
    WindowProtocol,
    WindowStore,
    built_in_walkers,
    collection_files,
    store_tracks,
)
from regard.families.trajectories.model import AgentFormer, AgentFormerConfig, Diverse, Reconstruction
from regard.families.trajectories.recipe import (
    ForecastRecipe,
    PathError,
    SamplerRecipe,
    ScenesOfTracksSection,
    ScenesRecipe,
)
from regard.families.trajectories.tracks import SceneSettings, Tracks, read_tracks
from regard.training.initial_model import initial_folder, initialised
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options

SKIPPED = "skipped.json"


@dataclass(frozen=True)
class SceneCorpus:
    """The windows that a model is trained, validated and tested on."""

    stores: Mapping[Part, WindowStore]
    settings: SceneSettings
    skipped: list[str]

    @property
    def summary(self) -> str:
        told = ", ".join(
            f"{len(self.stores[part]):,} with {len(self.stores[part].keys):,} tracks to {name}"
            for part, name in _NAMED
            if len(self.stores[part])
        )
        left = f"; {self.settings.leave_out} left out" if self.settings.leave_out else ""
        bad = f"; {len(self.skipped):,} rows left out, the first: {self.skipped[0]}" if self.skipped else ""
        return f"windows: {told}{left}{bad}"


_NAMED: tuple[tuple[Part, str], ...] = (("train", "train on"), ("valid", "validate on"), ("test", "test on"))


@dataclass(frozen=True)
class ScenePreparation:
    """How the files of a recipe become a corpus of windows."""

    data: ScenesOfTracksSection
    past: int
    future: int
    seed: int

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> SceneCorpus:
        """The corpus that was written into `folder`."""
        stores = {part: WindowStore.load(folder, part) for part in PARTS}
        skipped = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return SceneCorpus(stores, SceneSettings.load(folder), skipped)

    def _write(self, folder: Path, poll: Poll) -> None:
        data = self.data
        skipped: list[str] | None = [] if data.skip_bad else None
        trained: tuple[str, ...] = ()
        for part in PARTS:
            tracks = self._tracks(part, skipped)
            agents = data.agents if part == "train" else "complete"
            fewest, stride = (data.fewest, data.stride) if part == "train" else (min(2, data.fewest), 1)
            store = store_tracks(tracks, WindowProtocol(self.past, self.future, stride, fewest, agents), poll)
            if part == "train":
                trained = tuple(Path(each.name).stem for each in tracks)
                if not len(store):
                    raise DataError(
                        f"data.train has no window of {self.past} + {self.future} steps with {fewest} agents or more; "
                        "lower data.fewest, or the steps of the model"
                    )
            store.save(folder, part)
        SceneSettings(leave_out=data.leave_out, trained=trained, every=data.every).save(folder)
        (folder / SKIPPED).write_text(json.dumps(skipped or [], ensure_ascii=False), encoding="utf-8")

    def _tracks(self, part: Part, skipped: list[str] | None) -> list[Tracks]:
        data = self.data
        if data.built_in:
            return [built_in_walkers(self.seed, number) for number in data.walkers.of(part)]
        files = collection_files(data.paths("train")[0], data.leave_out, part) if data.leave_out else data.paths(part)
        for file in files:
            if Path(file).is_dir():
                raise DataError(f"{file} is a folder; name a scene to leave out with data.leave_out, or give files")
        return [read_tracks(file, every=data.every, bad=skipped) for file in files]


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


VALIDATION_SEED = 0


class ScenesTask(SupervisedTask[SceneBatch]):
    """Windows of scenes: a past, and the future of every agent."""

    recipe: ScenesRecipe

    @classmethod
    def prepare(cls, recipe: ScenesRecipe, folder: Path, poll: Poll) -> None:
        """Read the tracks and cut windows."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: ScenesRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.config = model_config(recipe)
        self.corpus = _preparation(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        stores, training = self.corpus.stores, recipe.training
        if training.validate_every and not len(stores["valid"]):
            raise DataError(
                "there is no window for validation; give data.valid, or set training.validate_every = 0 to do without"
            )
        batches = SceneBatches(
            stores["train"],
            self.config.past,
            recipe.seed,
            training.batch,
            recipe.data.most,
            recipe.data.mirror,
            recipe.data.scale,
        )
        self.loader = Loader(batches.plan, batches, **loader_options(training, device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The errors of the best of the samples and of the likeliest future."""
        return self._measured(model, SceneBatches(self.corpus.stores["valid"], self.config.past), poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the scene that was left out, or on the test files; empty if there are none."""
        store = self.corpus.stores["test"]
        return self._measured(model, SceneBatches(store, self.config.past), poll) if len(store) else {}

    def _measured(self, model: nn.Module, batches: SceneBatches, poll: Poll) -> Values:
        assert isinstance(model, AgentFormer)
        config, losses = self.config, []
        torch.manual_seed(VALIDATION_SEED)  # the loss draws latent vectors; every step of training seeds its own

        def predict(batch: SceneBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
            loss = self.loss(model, batch)
            losses.append(torch.stack([loss.total, loss.tokens]))
            return model.forecast(batch.past, batch.seen, noise)

        found = measure(predict, batches, self.recipe.training.samples, config.latent, self.device, poll).summary()
        total, agents = torch.stack(losses).sum(dim=0).tolist()
        likeliest = {f"likeliest_{name}": value for name, value in found["likeliest"].items()}
        return {"loss": total / agents, **found["best"], **likeliest}

    @abstractmethod
    def loss(self, model: Forward, batch: SceneBatch) -> Loss:
        """The loss of a batch, summed over agents."""

    def save(self, folder: Path) -> None:
        """Write which scenes the model has seen beside the weights."""
        self.corpus.settings.save(folder)


class ForecastTask(ScenesTask):
    """The first stage: reconstruction, the divergence of the posterior from the prior, and the best of the samples."""

    recipe: ForecastRecipe

    def build(self) -> nn.Module:
        """A new model, or one with the weights of `model.init`."""
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
    future: Float[Tensor, "*B N F 2"],
    known: Bool[Tensor, "*B N F"],
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
    section = recipe.model
    if section.init:
        config = identify(initial_folder(section.init))[1].replace(**section.overrides)
    elif recipe.task == "forecast_sampler":
        raise ConfigError("model.init is empty; the sampler is trained for a model of the first stage: give its folder")
    else:
        config = section.config(source_vocab=0, target_vocab=0, pad=0)
    assert isinstance(config, AgentFormerConfig)
    return config


def _preparation(recipe: ScenesRecipe) -> ScenePreparation:
    config = model_config(recipe)
    return ScenePreparation(recipe.data, config.past, config.future, recipe.seed)

"""Forecasting tracks: a variational autoencoder of futures, and its diverse sampler (Yuan et al. 2021)."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.checkpoints.models import identify
from regard.data.loader import Loader
from regard.data.trajectories.batches import SceneBatch, SceneBatches
from regard.errors import ConfigError, DataError
from regard.models.agentformer import AgentFormer, AgentFormerConfig, Diverse, Reconstruction
from regard.training.evaluation.displacement import measure
from regard.training.losses import Loss
from regard.training.prepare.initial_model import initial_folder, initialised
from regard.training.prepare.trajectories import ScenePreparation
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, SupervisedTask, Values, loader_options
from regard.training.tasks.forecasting_recipe import ForecastRecipe, PathError, SamplerRecipe, ScenesRecipe

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

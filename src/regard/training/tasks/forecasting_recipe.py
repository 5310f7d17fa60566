"""The recipes of tasks `forecasting` and `forecast_sampler`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection
from regard.training.recipe.trajectory_sections import ScenesOfTracksSection

# In metres: of the best of `samples` for each agent, and of the likeliest future.
ERRORS = (Metric("ade"), Metric("fde"), Metric("likeliest_ade"), Metric("likeliest_fde"))
PathError = Literal["squared", "distance"]


class ScenesTrainingSection(ExampleTrainingSection):
    """[training] on scenes; `batch` counts places for agents."""

    batch: PositiveInt = 256
    samples: PositiveInt = 20
    error: PathError = "squared"  # of a step: the squared distance, as in the paper, or the distance, as it is measured


class ForecastTrainingSection(ScenesTrainingSection):
    """[training] of the first stage."""

    best: NonNegativeFloat = 1.0  # weight of the best of the samples
    likeliest: NonNegativeFloat = 0.0  # weight of the future of the prior's mean; the paper has no such term
    kl: NonNegativeFloat = 1.0
    kl_floor: NonNegativeFloat = 2.0  # below it the divergence does not count


class SamplerTrainingSection(ScenesTrainingSection):
    """[training] of the second stage."""

    reconstruction: NonNegativeFloat = 5.0
    diversity: NonNegativeFloat = 5.0
    diversity_scale: PositiveFloat = 5.0
    kl: NonNegativeFloat = 0.1
    kl_floor: NonNegativeFloat = 10.0


class ScenesRecipe(Recipe):
    """The sections of a recipe of scenes."""

    metrics: ClassVar = (LOSS, *ERRORS)

    model: ModelSection = ModelSection(name="agentformer")
    data: ScenesOfTracksSection
    training: ScenesTrainingSection


class ForecastRecipe(ScenesRecipe):
    """Everything the training of a model that forecasts tracks depends on."""

    task: Literal["forecasting"]
    training: ForecastTrainingSection = ForecastTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check_sampler(self) -> Self:
        if self.model.overrides.get("sampler"):
            raise ConfigError("model.sampler is for task 'forecast_sampler', the second stage; leave it out")
        return self


class SamplerRecipe(ScenesRecipe):
    """Everything the training of the diverse sampler depends on."""

    task: Literal["forecast_sampler"]
    training: SamplerTrainingSection = SamplerTrainingSection()

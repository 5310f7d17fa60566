"""The recipes of tasks `forecasting` and `forecast_sampler`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config
from regard.data.sources import Part
from regard.errors import ConfigError
from regard.families.trajectories.data import BUILT_IN, AgentChoice
from regard.families.trajectories.tracks import SCENES
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import LOSS, ExampleTrainingSection, Metric, ModelSection


class WalkersSection(Config):
    """[data.walkers]: how many of the built-in scenes."""

    count: PositiveInt = 100
    valid_count: PositiveInt = 4
    test_count: PositiveInt = 10

    def of(self, part: Part) -> range:
        """The numbers of the scenes of a part."""
        first_test = self.count + self.valid_count
        ends = {"train": (0, self.count), "valid": (self.count, first_test)}
        return range(*ends.get(part, (first_test, first_test + self.test_count)))


class ScenesOfTracksSection(Config):
    """[data]: files of tracks, the folder of ETH/UCY with a scene to leave out, or `builtin:walkers`."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    leave_out: str = ""  # with a folder: the scene that is tested on, and trained on by no other
    every: PositiveInt = 1  # of the frames, every so many are read
    stride: PositiveInt = 1  # steps from one window to the next
    fewest: PositiveInt = 2  # agents of a window
    most: NonNegativeInt = 32  # agents of a window in training, drawn anew in every epoch; 0: all
    agents: AgentChoice = "complete"  # those seen at every step, or all that are present at the last step of the past
    mirror: bool = True  # half of the scenes are mirrored; all are turned
    scale: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.0)  # a scene is enlarged by a random factor between these
    skip_bad: bool = False  # leave out, count and name wrong rows
    walkers: WalkersSection = WalkersSection()

    @property
    def built_in(self) -> bool:
        """Whether the scenes are the built-in ones."""
        return self.train == BUILT_IN

    def sources(self, part: Part) -> list[str]:
        """Where the scenes of a part are."""
        if self.built_in or self.leave_out:
            return [f"{path}#{self.leave_out}" if self.leave_out else path for path in _listed(self.train)]
        return [path for path in _listed(getattr(self, part)) if path != BUILT_IN]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no file of tracks; give one, a list of them, or {BUILT_IN!r}")
        if self.scale[0] > self.scale[1]:
            raise ConfigError(f"data.scale is {list(self.scale)}; give the smaller factor first")
        if (self.built_in or self.leave_out) and (self.valid or self.test):
            raise ConfigError("data.valid and data.test are for files; these scenes have parts of their own")
        if self.leave_out and self.leave_out not in SCENES:
            raise ConfigError(f"data.leave_out is {self.leave_out!r}; the scenes are {', '.join(SCENES)}")
        if self.leave_out and (self.built_in or len(_listed(self.train)) != 1):
            raise ConfigError("data.leave_out is for the folder of ETH/UCY; give that folder as data.train")
        return self


def _listed(paths: str | list[str]) -> list[str]:
    return [path for path in ([paths] if isinstance(paths, str) else paths) if path]


# In metres: of the best of `samples` for each agent, and of the likeliest future.
ERRORS = (Metric("ade"), Metric("fde"), Metric("likeliest_ade"), Metric("likeliest_fde"))
PathError = Literal["squared", "distance"]


class ScenesTrainingSection(ExampleTrainingSection):
    """[training] on scenes; `batch` counts places for agents."""

    batch: PositiveInt = 256
    samples: PositiveInt = 20
    error: PathError = "squared"  # of a step: the squared distance, as in the paper, or the distance, as it is measured

    def rows(self, length: int) -> int:
        """A batch counts agents; the length of a scene is their number."""
        return max(1, self.batch // length)


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

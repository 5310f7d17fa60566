"""The recipe of task `dictionary`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config
from regard.data.formats.lines import Documents
from regard.look.reader import BUILT_IN, PREFIX
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import LOSS, ExampleTrainingSection, Metric, ModelSection


def is_built_in(path: str) -> bool:
    """Whether data need no files."""
    return path in BUILT_IN or path.startswith(PREFIX)


class ReadSection(Config):
    """[data] of a dictionary: the model that is read, the place in it, and what the model reads."""

    model: str  # a model folder, or hf:owner/name
    place: str  # as `places` and the error of a wrong name list them
    train: str  # files, or built-in data; `samples`: what a language model writes itself
    valid: str = ""
    split: float = pydantic.Field(default=0.05, gt=0, lt=1)  # share that is held out if valid is not given
    count: PositiveInt = 10_000  # the most examples that are read
    block: PositiveInt = 128  # tokens of the longest text
    documents: Documents = "blank"  # what separates them
    to: str = ""  # the target language of pairs, for a translator with several; the language of recordings
    buffer: PositiveInt = 65_536  # vectors that are shuffled together, and the most in memory
    contexts: PositiveInt = 2_000  # examples among which the strongest of every feature are found


class DictionaryTrainingSection(ExampleTrainingSection):
    """[training] of a dictionary."""

    batch: PositiveInt = 1024  # vectors
    weight_decay: NonNegativeFloat = 0.0
    l1: NonNegativeFloat = 1.0  # of `relu`: the price of a feature's value, beside the mean square error
    dead_after: PositiveInt = 50_000  # vectors without a feature, after which it is dead
    dead_weight: NonNegativeFloat = 1.0  # of `topk`: how much the error that dead features leave counts
    resample_every: NonNegativeInt = 1000  # of `relu`: steps after which dead features begin anew; 0: never
    resample_until: float = pydantic.Field(default=0.6, ge=0, le=1)  # share of the steps after which no more do
    resample_gain: PositiveFloat = 0.2  # length of their encoder, as a share of the others' mean


class DictionaryRecipe(Recipe):
    """Everything the training of a dictionary of features depends on."""

    metrics: ClassVar = (
        LOSS,
        Metric("l0"),
        Metric("explained_variance", higher_is_better=True),
        Metric("loss_recovered", higher_is_better=True),
        Metric("loss_recovered_mean", higher_is_better=True),
        Metric("dead"),
    )
    no_init: ClassVar = "a dictionary begins with directions of the activations themselves"

    task: Literal["dictionary"]
    model: ModelSection = ModelSection(name="sparse_autoencoder")
    data: ReadSection
    training: DictionaryTrainingSection = DictionaryTrainingSection()

    @property
    def files(self) -> list[str]:
        """The model that is read, and the files that it reads."""
        paths = [self.data.model, self.data.train, self.data.valid]
        return [path for path in paths if path and not is_built_in(path) and not path.startswith("hf:")]

"""The recipe of task `language`."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol, Self, runtime_checkable

import pydantic
from jaxtyping import Float, Int
from torch import Tensor

from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.layers.blocks import Factors
from regard.models.catalog import MODELS
from regard.models.lstm import Reading, State
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS, PERPLEXITY
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.text_sections import TextBlocksSection
from regard.training.recipe.training_sections import BlockTrainingSection


@runtime_checkable
class StreamModel(Protocol):
    """A recurrent language model: it reads on from the state that an earlier piece of the text left."""

    def read(self, tokens: Int[Tensor, "B T"], state: State | None = None) -> Reading: ...
    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]: ...
    def factors(self, x: Float[Tensor, "B T D"]) -> Factors: ...
    def penalty(self, reading: Reading) -> Float[Tensor, ""]: ...


class LanguageRecipe(Recipe):
    """Everything the training of a language model depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY)

    task: Literal["language"]
    model: ModelSection = ModelSection(name="gpt")
    data: TextBlocksSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: BlockTrainingSection = BlockTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.compile and self.text_order == "streams":
            raise ConfigError(
                f"training.compile does nothing for model {self.model.name!r}, whose kernels are fused already; "
                "set it off"
            )
        return self

    @property
    def text_order(self) -> str:
        """How the model's configuration asks for texts: in blocks, in streams, or in blocks read both ways."""
        config = MODELS[self.model.name].config
        order: str = config.text_order  # type: ignore[attr-defined]  # all models of this task have one
        return order

"""[model]: which model a recipe trains, and with which values."""

from __future__ import annotations

from typing import Any, Self

import pydantic

from regard.config import Config, nearest
from regard.errors import ConfigError
from regard.models.bodies import BodyConfig
from regard.models.catalog import MODELS

FROM_TOKENIZER = ("vocab", "source_vocab", "target_vocab", "pad")


class ModelSection(Config):
    """[model]: a name, one of its presets or a folder to start from, and values of that model's own configuration."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    name: str = "transformer"
    preset: str = ""
    init: str = ""  # a model folder, or hf:owner/name, whose weights and tokenizer training starts from
    fresh: bool = False  # of `init` only the shape and the tokenizer: random weights, to see what its training is worth
    body_init: str = ""  # the same for the body of a model that builds on another, such as a trained classifier

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.name not in MODELS:
            raise ConfigError(f"model.name {self.name!r} is unknown; {nearest(self.name, MODELS)}")
        presets = MODELS[self.name].presets
        if self.preset and self.preset not in presets:
            raise ConfigError(
                f"model.preset {self.preset!r} is not one of {self.name}; {nearest(self.preset, presets)}"
            )
        for key in FROM_TOKENIZER:
            if key in self.overrides:
                raise ConfigError(f"model.{key} comes from the tokenizer; leave it out of the recipe")
        known = MODELS[self.name].config.model_fields
        if self.init and (unknown := next((key for key in self.overrides if key not in known), "")):
            raise ConfigError(f"unknown key {'model.' + unknown!r}; {nearest(unknown, known)}")
        if self.fresh and not self.init:
            raise ConfigError("model.fresh = true: keeps the shape and the tokenizer of model.init, which is not given")
        if not self.init:
            self.config(source_vocab=8, target_vocab=8, pad=0)
        if self.body_init and not issubclass(MODELS[self.name].config, BodyConfig):
            raise ConfigError(f"model.body_init = {self.body_init!r}: {self.name} has no body of its own; leave it out")
        if self.body_init and self.init:
            raise ConfigError("model.init and model.body_init both say what training starts from; leave one out")
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        """The values of the model's own configuration that the recipe gives."""
        return dict(self.model_extra or {})

    def config(self, *, source_vocab: int, target_vocab: int, pad: int) -> Config:
        """The model's own configuration: preset values, then the recipe's, then the sizes of the tokenizer."""
        entry = MODELS[self.name]
        sizes = {"vocab": target_vocab, "source_vocab": source_vocab, "target_vocab": target_vocab, "pad": pad}
        sizes = {key: size for key, size in sizes.items() if key in entry.config.model_fields}
        return entry.config.parse({**self._settings(), **sizes}, section="model")

    def resolved(self) -> ModelSection:
        """The same section with every value of the model written out, so that it outlives changes of presets."""
        if self.init:
            return self
        config = self.config(source_vocab=8, target_vocab=8, pad=0).model_dump(mode="json", exclude_none=True)
        values = {key: value for key, value in config.items() if key not in FROM_TOKENIZER}
        return ModelSection(name=self.name, preset=self.preset, body_init=self.body_init, **values)

    def named(self, name: str) -> ModelSection:
        """The same section for the model of this name."""
        return ModelSection(**{**self.model_dump(), "name": name})

    def _settings(self) -> dict[str, Any]:
        preset = MODELS[self.name].presets[self.preset] if self.preset else {}
        return {**preset, **self.overrides}


class WordsSection(Config):
    """[words]: the stream of words of a model of two streams."""

    init: str = ""  # a BERT folder, or hf:owner/name, whose weights and tokenizer a new model starts from

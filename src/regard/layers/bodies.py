"""Models that build on the feature maps of another: the settings and the making of that body."""

from typing import Any

from pydantic import Field, field_validator, model_validator
from torch import nn

from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.layers.vision import BackboneConfig, ImageInputConfig


class BodyConfig(ImageInputConfig):
    """A body by its name, preset and further values; it reads the images of the whole model."""

    body: str  # any model of the catalog that yields feature maps
    body_preset: str = ""
    body_values: dict[str, Any] = Field(default_factory=dict)

    @field_validator("body_values")
    @classmethod
    def _tuples(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Lists, as files have them, are tuples, so that a configuration equals the one it was saved from."""
        return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}

    @model_validator(mode="after")
    def _check_body(self) -> "BodyConfig":
        if not _is_backbone(self.body):
            known = ", ".join(name for name in MODELS if _is_backbone(name))
            raise ConfigError(f"body = {self.body!r}: yields no feature maps; models that do: {known}")
        presets = MODELS[self.body].presets
        if self.body_preset not in ("", *presets):
            raise ConfigError(f"body_preset = {self.body_preset!r}: is none of {self.body}: {', '.join(presets)}")
        self.body_config()
        return self

    def body_config(self) -> BackboneConfig:
        """The configuration of the body. Its own classes are not used, so it is given one."""
        entry = MODELS[self.body]
        preset = entry.presets[self.body_preset] if self.body_preset else {}
        values = {**preset, **self.body_values, "image_size": self.image_size, "channels": self.channels, "classes": 1}
        config = entry.config.parse(values, section="body_values")
        assert isinstance(config, BackboneConfig)
        return config

    def build_body(self) -> nn.Module:
        """A new body without its output layer."""
        body = MODELS[self.body].model(self.body_config())
        body.output = nn.Identity()
        return body


def _is_backbone(name: str) -> bool:
    return name in MODELS and issubclass(MODELS[name].config, BackboneConfig)

"""Strict configuration: an unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Self, get_args

import pydantic
from pydantic.fields import FieldInfo

from regard.errors import ConfigError


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, and nothing in it is ever ignored in silence."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "") -> Self:
        """Validate `values`; `where` names their origin in the error (a file, an option)."""
        try:
            return cls.model_validate(dict(values))
        except pydantic.ValidationError as error:
            raise ConfigError(_explain(cls, error, where)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed, validated again."""
        return self.parse({**self.model_dump(), **changes})


def _explain(root: type[Config], error: pydantic.ValidationError, where: str) -> str:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    name = ".".join(path) or root.__name__
    prefix = f"{where}: " if where else ""
    if first["type"] == "missing":
        needed = [key for key in required_keys(root) if key == name or key.startswith(f"{name}.")]
        return f"{prefix}{' and '.join(needed)} must be given; in a recipe or with --set {needed[0]}=…"
    if first["type"] != "extra_forbidden":
        return f"{prefix}{name}: {first['msg']} (came: {first['input']!r})"
    known = list(known_keys(root))
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"
    return f"{prefix}unknown key {name!r}; {hint}"


def known_keys(config: type[Config]) -> Iterator[str]:
    """Every dotted key of a configuration, sections and the keys within them."""
    for path, _ in _fields(config, ""):
        yield path


def required_keys(config: type[Config]) -> Iterator[str]:
    """The dotted keys that have no default."""
    for path, field in _fields(config, ""):
        if field.is_required() and _section(field) is None:
            yield path


def _fields(config: type[Config], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for name, field in config.model_fields.items():
        yield prefix + name, field
        section = _section(field)
        if section is not None:
            yield from _fields(section, f"{prefix}{name}.")


def _section(field: FieldInfo) -> type[Config] | None:
    candidates = (field.annotation, *get_args(field.annotation))
    return next((each for each in candidates if isinstance(each, type) and issubclass(each, Config)), None)

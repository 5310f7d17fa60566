"""Strict configuration: an unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Self, get_args

import pydantic

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
    if first["type"] != "extra_forbidden":
        given = "" if first["type"] == "missing" else f" (came: {first['input']!r})"
        return f"{prefix}{name}: {first['msg']}{given}"
    known = list(known_keys(root))
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known keys: {', '.join(known)}"
    return f"{prefix}unknown key {name!r}; {hint}"


def known_keys(config: type[Config], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration, nested sections included."""
    for name, field in config.model_fields.items():
        candidates = (field.annotation, *get_args(field.annotation))
        section = next((c for c in candidates if isinstance(c, type) and issubclass(c, Config)), None)
        if section is None:
            yield prefix + name
        else:
            yield from known_keys(section, f"{prefix}{name}.")

"""Strict configuration: an unknown key is an error that names the nearest known one."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

import pydantic
from pydantic.fields import FieldInfo

from regard.errors import CheckpointError, ConfigError

Fraction = Annotated[float, pydantic.Field(ge=0, lt=1)]  # such as a dropout rate; 1 is excluded
Seed = Annotated[int, pydantic.Field(ge=0, lt=2**63)]  # the range that torch's generators accept
LONGEST_SHOWN = 80  # characters of a wrong value in an error


class Examples(NamedTuple):
    """What a model reads, in words: one example, and several with their size."""

    one: str  # "image"
    many: str  # "images of 32 x 32 pixels"; {source} and {target} stand for the lengths of a plan


class Config(pydantic.BaseModel):
    """Base of every configuration: frozen, with finite numbers only. Unknown keys are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    retired: ClassVar[Mapping[str, object]] = {}  # keys of earlier versions, with the value that changed nothing

    @pydantic.model_validator(mode="before")
    @classmethod
    def _drop_retired(cls, values: Any) -> Any:
        """Accept what earlier versions wrote into every recipe; any other value of such a key is an unknown key."""
        if not isinstance(values, dict) or not cls.retired:
            return values
        return {key: value for key, value in values.items() if key not in cls.retired or cls.retired[key] != value}

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str = "", section: str = "") -> Self:
        """Validate `values`. Errors name the origin `where` (a file, an option) and the `section` of the keys."""
        try:
            return cls.model_validate(dict(values))
        except pydantic.ValidationError as error:
            message = _explain(cls, error, f"{section}." if section else "")
        except ConfigError as error:  # raised by a validator; its message begins with a key
            message = f"{section}.{error}" if section else str(error)
        raise ConfigError(f"{where}: {message}" if where else message)

    @property
    def examples(self) -> Examples | None:
        """What a model with this configuration reads, if all examples have one size; None for texts."""
        return None

    def replace(self, **changes: Any) -> Self:
        """A copy with some values changed, validated again."""
        return self.parse({**self.model_dump(), **changes})


class SavedConfig(Config):
    """A configuration in a JSON file beside the weights of a model: what the model must know besides them."""

    file_name: ClassVar[str]

    def save(self, folder: Path) -> None:
        """Write the file into a model folder."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False)
        (folder / self.file_name).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the file of a model folder."""
        file = folder / cls.file_name
        if not file.is_file():
            raise CheckpointError(f"{folder} has no {cls.file_name}; expected a model that `regard train` made")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise CheckpointError(f"{file} is not JSON ({error}); restore the file, or train the model again") from None
        try:
            return cls.parse(values, where=str(file))
        except (ConfigError, TypeError, ValueError) as error:
            raise CheckpointError(f"{error}; restore {file}, or train the model again") from None


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar known name, or all known names."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(known)}"


def refuse_uneven(whole: str, width: int, part: str, count: int) -> None:
    """Refuse a width that `count` does not divide; `whole` and `part` are the keys of the two numbers."""
    if width % count:
        raise ConfigError(f"{part} = {count}: must divide {whole} = {width} evenly")


def refuse_even(key: str, size: int) -> None:
    """Refuse an even size of a window or a kernel, which has no centre."""
    if size % 2 == 0:
        raise ConfigError(f"{key} = {size}: has no middle; choose an odd number, such as {size + 1}")


def refuse_odd_heads(heads: int, head_width: int) -> None:
    """Refuse heads of odd width, since rotary positions rotate features in pairs."""
    if head_width % 2:
        raise ConfigError(f"heads = {heads}: each is {head_width} wide, but rotary positions need an even width")


def _explain(root: type[Config], error: pydantic.ValidationError, section: str) -> str:
    first = error.errors()[0]
    name = ".".join(_keys(root, first["loc"])) or root.__name__
    if first["type"] == "missing":
        needed = [section + key for key in required_keys(root) if key == name or key.startswith(f"{name}.")]
        return f"{' and '.join(needed)} must be given; in a recipe or with --set {needed[0]}=…"
    if first["type"] != "extra_forbidden":
        came, wanted = repr(first["input"]), first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        if first["type"] == "tuple_type":
            wanted = f"should be a list, such as {json.dumps([first['input']], default=str)}"
        return f"{section}{name} = {came[:LONGEST_SHOWN]}: {wanted}"
    return f"unknown key {section + name!r}; {_known_key(section, name, list(known_keys(root)))}"


def _known_key(section: str, name: str, known: list[str]) -> str:
    """A hint for an unknown key: the most similar one of its table, or of all if there is no such table; else all.

    Keys of a table are compared without its name, which they have in common however different they are.
    """
    table, _, own = name.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in known if key.rpartition(".")[0] == table}
    initials = "".join(word[:1] for word in own.split("_"))
    if initials in beside:
        return f"did you mean {section + beside[initials]!r}?"
    near = difflib.get_close_matches(own, beside, n=1, cutoff=0.5)
    matches = [beside[each] for each in near] if beside else difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if matches:
        return f"did you mean {section + matches[0]!r}?"
    return f"known keys: {', '.join(beside.values() or known)}"


def _keys(root: type[Config], path: Sequence[int | str]) -> Iterator[str]:
    """The keys of pydantic's error path; what follows them is a place inside the value or the tried type."""
    config: type[Config] | None = root
    for part in map(str, path):
        if config is None:
            return
        yield part
        field = config.model_fields.get(part)
        config = _section(field) if field else None


def known_keys(config: type[Config]) -> Iterator[str]:
    """Every dotted key of a configuration: sections, and the keys within them."""
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

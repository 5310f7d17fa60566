"""Name tables: how another library's config and tensors become ours, as data that also reads backwards.

A row of `mappings/*.toml` pairs their tensor names with ours and lists the operations between them. Every operation has
an inverse, so that export is the same table from right to left, and what no row explains is an error.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import pydantic
from torch import Tensor

from regard.checkpoints.operations import Drop, Op, Tie
from regard.checkpoints.weights import listing
from regard.config import Config
from regard.errors import CheckpointError

TABLES = {"marian": "marian.toml"}

Names = Annotated[tuple[str, ...], pydantic.BeforeValidator(lambda v: (v,) if isinstance(v, str) else tuple(v))]


class Row(Config):
    """Their names, our names, and what lies between; `when` limits the row to some configs of ours."""

    theirs: Names
    ours: Names = ()
    ops: tuple[Op, ...] = ()
    when: dict[str, Any] = pydantic.Field(default_factory=dict)

    @property
    def optional(self) -> bool:
        """Whether a file may hold fewer of their tensors than the row names."""
        return any(isinstance(op, Tie | Drop) for op in self.ops)

    def forward(self, tensors: list[Tensor], what: str) -> list[Tensor]:
        """Our tensors from theirs; errors say `what` is wrong."""
        for op in self.ops:
            try:
                tensors = op.forward(tensors, len(self.ours))
            except CheckpointError as error:
                raise CheckpointError(f"{what}: {error}") from None
        return tensors

    def backward(self, tensors: list[Tensor], config: Mapping[str, Any]) -> list[Tensor]:
        """Their tensors from ours: each operation undone, from last to first."""
        for op in reversed(self.ops):
            tensors = op.regenerate(config) if isinstance(op, Drop) else op.backward(tensors, len(self.theirs))
        return tensors


class Alternative(Config):
    """Values of theirs and the values of ours that mean the same."""

    theirs: dict[str, Any]
    ours: dict[str, Any]


class ConfigTable(Config):
    """How configs correspond: the same values under other names, and choices among alternatives."""

    same: dict[str, str]  # ours -> theirs
    defaults: dict[str, Any]  # theirs, where their file leaves them out
    fallbacks: dict[str, str]  # theirs -> another of theirs, which it equals where left out
    copies: dict[str, str]  # theirs -> another of theirs, which it must equal: we have one value for both
    choices: tuple[tuple[Alternative, ...], ...]
    written: dict[str, Any]  # theirs, for export only

    def to_ours(self, theirs: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Our config values from those of their config.json."""
        known = {**self.defaults, **{key: value for key, value in theirs.items() if value is not None}}
        for key, origin in {**self.fallbacks, **self.copies}.items():
            known.setdefault(key, known.get(origin))
        if missing := [key for key in self.same.values() if known.get(key) is None]:
            raise CheckpointError(f"{file} lacks {listing(missing)}")
        for key, origin in self.copies.items():
            if known[key] != known[origin]:
                raise CheckpointError(f"{file} has {key} {known[key]} but {origin} {known[origin]}; they must be equal")
        ours = {our: known[their] for our, their in self.same.items()}
        for alternatives in self.choices:
            chosen = _choose(known, [choice.theirs for choice in alternatives], f"{file} cannot be read")
            ours |= alternatives[chosen].ours
        return ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Their config.json from our config values."""
        theirs = {their: ours[our] for our, their in self.same.items()}
        theirs |= {key: theirs[origin] for key, origin in self.copies.items()}
        for alternatives in self.choices:
            chosen = _choose(ours, [choice.ours for choice in alternatives], "the model cannot be exported")
            theirs |= alternatives[chosen].theirs
        return {**self.written, **theirs}


class NameTable(Config):
    """One file of `mappings/`: a model type of Hugging Face against a model of ours."""

    model: str
    placeholders: dict[str, str]
    config: ConfigTable
    tensors: tuple[Row, ...]

    def to_ours(
        self, theirs: Mapping[str, Tensor], config: Config, expected: Collection[str], source: Path
    ) -> dict[str, Tensor]:
        """Our tensors from theirs; `expected` are the names our model must find."""
        left, ours = dict(theirs), dict[str, Tensor]()
        for row in self._rows(config):
            for binding in self._bindings(row.theirs, left):
                names = [name.format(**binding) for name in row.theirs]
                given = [name for name in names if name in left]
                if len(given) < len(names) and not row.optional:
                    raise CheckpointError(f"{source} lacks {listing({*names} - {*given})}")
                made = row.forward([left.pop(name) for name in given], f"{listing(given)} of {source}")
                ours.update(zip((name.format(**binding) for name in row.ours), made, strict=True))
        if left:
            raise CheckpointError(f"{source} has tensors that its config does not explain: {listing(left)}")
        if missing := {self._their_name(name, config) for name in expected if name not in ours}:
            raise CheckpointError(f"{source} lacks {listing(missing)}")
        return ours

    def to_theirs(self, ours: Mapping[str, Tensor], config: Config) -> dict[str, Tensor]:
        """Their tensors from ours, by the same rows read backwards."""
        left, theirs = dict(ours), dict[str, Tensor]()
        for row in self._rows(config):
            for binding in self._bindings(row.ours, left) if row.ours else [{}]:
                made = row.backward([left.pop(name.format(**binding)) for name in row.ours], config.model_dump())
                # Fewer tensors than names: aliases are written once, and what their library makes itself not at all.
                theirs.update(zip((name.format(**binding) for name in row.theirs), made, strict=False))
        if left:
            raise CheckpointError(f"the mapping has no row for our tensors {listing(left)}")
        return theirs

    def _rows(self, config: Config) -> Iterator[Row]:
        values = config.model_dump()
        return (row for row in self.tensors if all(values[key] == value for key, value in row.when.items()))

    def _bindings(self, patterns: Collection[str], names: Collection[str]) -> list[dict[str, str]]:
        """What the placeholders stand for, once for all the names that fit one of the patterns alike."""
        found = (re.fullmatch(self._regex(pattern), name) for pattern in patterns for name in names)
        return list({tuple(match.groupdict().items()): match.groupdict() for match in found if match}.values())

    def _regex(self, pattern: str) -> str:
        parts = re.split(r"\{(\w+)\}", pattern)  # text, placeholder, text, …
        named = (f"(?P<{name}>{self.placeholders[name]})" for name in parts[1::2])
        return "".join(re.escape(text) + next(named, "") for text in parts[0::2])

    def _their_name(self, our_name: str, config: Config) -> str:
        for row in self._rows(config):
            if bindings := self._bindings(row.ours, [our_name]):
                return row.theirs[0].format(**bindings[0])
        return our_name


def _choose(values: Mapping[str, Any], options: list[dict[str, Any]], trouble: str) -> int:
    """The first option whose values all hold."""
    for number, option in enumerate(options):
        if all(values.get(key) == value for key, value in option.items()):
            return number
    came = {key: values.get(key) for option in options for key in option}
    raise CheckpointError(f"{trouble}: it has {came}; expected {' or '.join(map(str, options))}")


@cache
def read_table(model_type: str) -> NameTable:
    """The name table of a Hugging Face model type, as shipped in `regard/mappings`."""
    text = (files("regard") / "mappings" / TABLES[model_type]).read_text(encoding="utf-8")
    return NameTable.parse(tomllib.loads(text), where=TABLES[model_type])

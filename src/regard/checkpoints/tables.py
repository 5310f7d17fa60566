"""Name tables: data that map another library's config and tensors to Regard's, in both directions.

A row of `mappings/*.toml` pairs their tensor names with ours and lists the operations between them. Every operation has
an inverse, so export applies the same table from right to left. Tensors that no row covers are an error.
"""

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from torch import Tensor

from regard.checkpoints.operations import (
    WINDOW_KEYS,
    Drop,
    Op,
    Tie,
    read_ffn_ratio,
    read_rope,
    read_window,
    write_ffn_ratio,
    write_rope,
    write_window,
)
from regard.checkpoints.weights import listing
from regard.config import Config
from regard.errors import CheckpointError

TABLES = (  # model types of Hugging Face; of several tables for one model, export tries them in this order
    "marian", "bert", "roberta", "xlm-roberta", "distilbert", "albert", "esm", "gpt2", "llama", "mistral", "qwen2",
    "qwen3", "gemma", "t5", "mt5", "vit", "deit", "dinov2", "dinov2_with_registers", "swin", "swinv2", "resnet", "bit",
    "imagegpt", "whisper",
)  # fmt: skip

NOT_EXPORTED = "the model cannot be exported"
# keys that change layers in unsupported ways: quantised weights, values for single layers, sliding windows (but see
# `ConfigTable.window`), padding of convolutions as TensorFlow has it, decoders that see what comes later
FOREIGN = {
    "quantization_config",
    "per_layer_config",
    "layer_types",
    "sliding_window",
    "global_padding",
    "use_bidirectional_attention",
}

Names = Annotated[tuple[str, ...], pydantic.BeforeValidator(lambda v: (v,) if isinstance(v, str) else tuple(v))]


class Row(Config):
    """Their names, our names, and the operations between them; `when` limits the row to some configs of ours.

    A list in `when` holds several values, any of which matches.
    """

    theirs: Names
    ours: Names = ()
    ops: tuple[Op, ...] = ()
    when: dict[str, Any] = pydantic.Field(default_factory=dict)

    @property
    def optional(self) -> bool:
        """Whether a file may hold fewer of their tensors than the row names."""
        return any(isinstance(op, Tie | Drop) for op in self.ops)

    def forward(self, tensors: list[Tensor], what: str) -> list[Tensor]:
        """Our tensors from theirs; `what` begins the message of an error."""
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
    implied: dict[str, Any] = pydantic.Field(default_factory=dict)  # more values of theirs, which a config may omit


class Clue(Config):
    """A tensor of theirs whose presence or absence determines what their config leaves open."""

    tensor: str
    present: dict[str, Any] = pydantic.Field(default_factory=dict)  # values of ours
    absent: dict[str, Any] = pydantic.Field(default_factory=dict)
    when: dict[str, Any] = pydantic.Field(default_factory=dict)


class ConfigTable(Config):
    """How configs correspond: the same values under other names, and choices among alternatives."""

    same: dict[str, str]  # ours -> theirs
    optional: dict[str, str] = pydantic.Field(default_factory=dict)  # ours -> theirs, omitted if ours is None
    aliases: dict[str, str] = pydantic.Field(default_factory=dict)  # theirs -> other names of theirs for the same value
    rope: bool = False  # whether their config may describe rotary positions, in any of several spellings
    ffn_ratio: str = ""  # of theirs: the width of hidden layers as a multiple of the model's
    window: Literal["every", "chosen"] | None = None  # which layers have their `sliding_window`
    unset: tuple[str, ...] = ()  # ours that must be None, empty or off, because theirs has no equivalent
    assumed: dict[str, Any] = pydantic.Field(default_factory=dict)  # ours when reading; export does not check them
    required: dict[str, Any] = pydantic.Field(default_factory=dict)  # theirs when reading: the only supported values
    defaults: dict[str, Any]  # theirs, if their file omits them
    fallbacks: dict[str, str]  # theirs -> another key of theirs whose value it has if omitted
    copies: dict[str, str]  # theirs -> another key of theirs that must be equal: ours has one value for both
    fixed: dict[str, Any] = pydantic.Field(default_factory=dict)  # ours, which theirs always have and do not name
    choices: tuple[tuple[Alternative, ...], ...]
    written: dict[str, Any]  # theirs, for export only
    labels: tuple[str, str] | None = None  # our keys for the number of labels (0: no head) and their names
    needs: tuple[str, ...] = ()  # keys of ours that must not be 0 for export

    def to_ours(self, theirs: Mapping[str, Any], file: Path) -> dict[str, Any]:
        """Our config values from those of their config.json."""
        given = self._renamed({key: value for key, value in theirs.items() if value is not None}, file)
        known = {**self.defaults, **given}
        for key, origin in {**self.fallbacks, **self.copies}.items():
            known.setdefault(key, known.get(origin))
        if missing := [key for key in self.same.values() if known.get(key) is None]:
            raise CheckpointError(f"{file} lacks {listing(missing)}")
        for key, origin in self.copies.items():
            if known[key] != known[origin]:
                raise CheckpointError(f"{file} has {key} {known[key]} but {origin} {known[origin]}; they must be equal")
        followed = WINDOW_KEYS[self.window] if self.window else set()
        for key in FOREIGN & {key for key, value in given.items() if value is not False} - followed:
            raise CheckpointError(f"{file} has {key}, which changes the model in ways that are not supported")
        for key, value in self.required.items():
            if known.get(key) != value:
                raise CheckpointError(f"{file} has {key} {known.get(key)!r}; only {value!r} is supported")
        ours = {**self.assumed, **{our: known[their] for our, their in self.same.items()}}
        ours |= {our: known[their] for our, their in self.optional.items() if their in known}
        for alternatives in self.choices:
            chosen = _choose(known, [choice.theirs for choice in alternatives], f"{file} cannot be read")
            ours |= alternatives[chosen].ours
            for key, value in alternatives[chosen].implied.items():
                if known.get(key, value) != value:
                    wanted = alternatives[chosen].theirs
                    raise CheckpointError(f"{file} has {key} {known[key]!r}, but {wanted} means {key} {value!r}")
        ours |= self.fixed
        if self.rope:
            ours |= read_rope(theirs, ours["max_length"], file)
        if self.window:
            ours |= read_window({**self.defaults, **theirs}, self.window, ours["depth"], file)
        if self.ffn_ratio:
            ours["ffn_width"] = read_ffn_ratio(known[self.ffn_ratio], ours, file)
        if self.labels and ours.get(self.labels[0]) != 0:
            ours |= _read_labels(theirs, self.labels, file)
        return ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Their config.json from our config values."""
        if lacking := [key for key in self.needs if not ours[key]]:
            raise CheckpointError(f"{NOT_EXPORTED}: it has no {' and no '.join(lacking)}")
        if given := [f"{key} {ours[key]}" for key in self.unset if ours[key]]:
            raise CheckpointError(f"{NOT_EXPORTED}: it has {listing(given)}, which theirs have no place for")
        _choose(ours, [self.fixed], NOT_EXPORTED)
        theirs = {their: ours[our] for our, their in self.same.items()}
        theirs |= {their: ours[our] for our, their in self.optional.items() if ours[our] is not None}
        theirs |= {key: theirs[origin] for key, origin in self.copies.items()}
        for alternatives in self.choices:
            chosen = _choose(ours, [choice.ours for choice in alternatives], NOT_EXPORTED)
            theirs |= alternatives[chosen].theirs
        if self.rope:
            theirs |= write_rope(ours)
        if self.window:
            theirs |= write_window(ours, self.window)
        if self.ffn_ratio:
            theirs[self.ffn_ratio] = write_ffn_ratio(ours)
        return {**self.written, **theirs, **(_write_labels(ours, self.labels) if self.labels else {})}

    def _renamed(self, theirs: dict[str, Any], file: Path) -> dict[str, Any]:
        """Their values, with aliases replaced by the one name that the table uses."""
        for alias, name in self.aliases.items():
            if alias in theirs and theirs.setdefault(name, theirs[alias]) != theirs[alias]:
                raise CheckpointError(
                    f"{file} has {alias} {theirs[alias]} but {name} {theirs[name]}, which are two names of one value; "
                    "remove the wrong one"
                )
        return theirs


class NameTable(Config):
    """One file of `mappings/`: a model type of Hugging Face against a model of ours."""

    model: str
    placeholders: dict[str, str]
    config: ConfigTable
    tensors: tuple[Row, ...]
    prefix: str = ""  # prefix of the tensors below a head; a model without a head is saved without it
    bare: dict[str, Any] = pydantic.Field(default_factory=dict)  # configs of ours that are exported without the prefix
    older: dict[str, str] = pydantic.Field(default_factory=dict)  # name endings of older versions -> current ones
    clues: tuple[Clue, ...] = ()

    def todays(self, theirs: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
        """Their tensors under the names that the current version of their library uses below a head."""
        names = {name: name for name in theirs}
        for old, new in self.older.items():
            names |= {name: name.removesuffix(old) + new for name in theirs if name.endswith(old)}
        if not any(name.startswith(self.prefix) for name in names.values()):
            names = {name: self.prefix + today for name, today in names.items()}
        if len(set(names.values())) < len(names):
            raise CheckpointError(f"{source} has a tensor under its old and its present name; keep one of them")
        return {names[name]: tensor for name, tensor in theirs.items()}

    def settled(self, config: Config, names: Collection[str]) -> Config:
        """The config, completed with the values that only the tensors determine."""
        for clue in self.clues:
            if _holds(config.model_dump(), clue.when):
                config = config.replace(**(clue.present if clue.tensor in names else clue.absent))
        return config

    def to_ours(
        self, theirs: Mapping[str, Tensor], config: Config, expected: Collection[str], source: Path
    ) -> dict[str, Tensor]:
        """Our tensors from theirs; `expected` are the names that our model needs."""
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
                names = [name.format(**binding) for name in row.ours]
                given = [left.pop(name) for name in names if name in left or not row.optional]
                made = row.backward(given, config.model_dump())
                # There may be fewer tensors than names: aliases are written once, and tensors that their library
                # recreates are omitted.
                pairs = zip(row.theirs, made, strict=False)
                theirs.update((name.format(**binding), tensor) for name, tensor in pairs)
        if left:
            raise CheckpointError(f"the mapping has no row for our tensors {listing(left)}")
        if self.bare and _holds(config.model_dump(), self.bare):
            return {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        return theirs

    def _rows(self, config: Config) -> Iterator[Row]:
        values = config.model_dump()
        return (row for row in self.tensors if _holds(values, row.when))

    def _bindings(self, patterns: Collection[str], names: Collection[str]) -> list[dict[str, str]]:
        """The values of the placeholders, once for all names that match a pattern with the same values."""
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


def _holds(values: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    return all(
        values[key] in wanted if isinstance(wanted, list) else values[key] == wanted
        for key, wanted in conditions.items()
    )


def _read_labels(theirs: Mapping[str, Any], keys: tuple[str, str], file: Path) -> dict[str, Any]:
    """The number of labels, and their names if the config has any."""
    number_key, names_key = keys
    names = theirs.get("id2label")
    if not names:
        return {number_key: theirs.get("num_labels") or 2}
    if not isinstance(names, dict) or {*names} != {str(number) for number in range(len(names))}:
        raise CheckpointError(f"{file} has id2label {names!r}; expected the labels' numbers, from 0 on, and names")
    if theirs.get("num_labels", len(names)) != len(names):
        raise CheckpointError(f"{file} has num_labels {theirs['num_labels']} but names {len(names)} labels in id2label")
    ordered = tuple(str(names[str(number)]) for number in range(len(names)))
    nameless = ordered == _numbered(len(names))
    return {number_key: len(names), names_key: () if nameless else ordered}


def _write_labels(ours: Mapping[str, Any], keys: tuple[str, str]) -> dict[str, Any]:
    number_key, names_key = keys
    if not ours[number_key]:
        return {}
    names = ours[names_key] or _numbered(ours[number_key])
    return {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }


def _numbered(labels: int) -> tuple[str, ...]:
    return tuple(f"LABEL_{number}" for number in range(labels))


def _choose(values: Mapping[str, Any], options: list[dict[str, Any]], trouble: str) -> int:
    """The first option whose values all match."""
    for number, option in enumerate(options):
        if all(values.get(key) == value for key, value in option.items()):
            return number
    # The options that differ in the fewest keys say which key is wrong.
    wrong = [{key: value for key, value in option.items() if values.get(key) != value} for option in options]
    fewest = min(map(len, wrong))
    nearest = options[list(map(len, wrong)).index(fewest)]
    key = next(key for key in nearest if values.get(key) != nearest[key])
    wanted = dict.fromkeys(repr(keys[key]) for keys in wrong if len(keys) == fewest and key in keys)
    # keys that are right, and that other options have otherwise
    beside = [k for k, v in nearest.items() if values.get(k) == v and any(other.get(k) != v for other in options)]
    given = " beside ".join(f"{key} {values.get(key)!r}" for key in (key, *beside))
    raise CheckpointError(f"{trouble}: it has {given}; expected {key} {' or '.join(wanted)}")


@cache
def read_table(model_type: str) -> NameTable:
    """The name table of a Hugging Face model type, as shipped in `regard/mappings`."""
    return NameTable.parse(_read_values(model_type), where=f"{model_type}.toml")


def _read_values(model_type: str, replaced: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The content of a table's file, with some of its text replaced.

    A file that names a `base` has the content of that table, except for the values that it gives itself; `replace` in
    it says which names differ throughout.
    """
    text = (files("regard") / "mappings" / f"{model_type}.toml").read_text("utf-8")
    for theirs, new in (replaced or {}).items():
        text = text.replace(theirs, new)
    values = tomllib.loads(text)
    if "base" not in values:
        return values
    return _merged(_read_values(values.pop("base"), values.pop("replace", None)), values)


def _merged(base: Any, own: Any) -> Any:
    """The values of `base` with those of `own` in their places, key by key; a list replaces the whole list."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return base | {key: _merged(base.get(key), value) for key, value in own.items()}

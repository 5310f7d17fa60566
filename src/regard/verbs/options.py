"""Options that several commands share, how a command gets them, and the messages that a wrong one gets."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from inspect import Parameter, Signature, get_annotations, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, get_args, get_type_hints

import typer

from regard.errors import DataError, UsageError, with_article

if TYPE_CHECKING:
    from regard.families.contract import PipelineEntry

Models = Annotated[
    list[str], typer.Option("-m", "--model", help="Model folder or hf:owner/name; several translate as an ensemble.")
]
Model = Annotated[str, typer.Option("-m", "--model", help="Model folder or hf:owner/name.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")]
DataRoot = Annotated[
    str,
    typer.Option(
        "--data-root", help="Folder of the files that are named data:NAME. Default: the one that REGARD_DATA names."
    ),
]
Sets = Annotated[list[str], typer.Option("--set", help="Change a value of the recipe: section.key=value. Repeatable.")]
Beam = Annotated[int | None, typer.Option(help="Beam width; 1 is greedy. Default: the model's own.")]
To = Annotated[str, typer.Option("--to", help="Target language, for models that know several.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Precision = Annotated[
    str,
    typer.Option(
        help="fp32; int8 on a CPU, bf16 or fp16 on a GPU: fewer bytes, faster, answers may differ; auto: the fastest "
        "here. `regard doctor` tells what each becomes."
    ),
]
AllowPickle = Annotated[bool, typer.Option("--allow-pickle", help="Also read .bin weights (tensors only, no code).")]
Without = Annotated[
    list[str],
    typer.Option("--without", help="Switch a head off: LAYER:HEAD, such as decoder.1.cross:3; * is all. Repeatable."),
]
Changes = Annotated[
    list[str],
    typer.Option(
        "--change",
        help="WHERE=WHAT, WHERE a head LAYER:HEAD or a place, WHAT off, uniform, row QUERY: W W ..., weights, patch or "
        "add FILE.npy STRENGTH. Repeatable; see docs/reading.md.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line, for machines.")]


# How a command gets its options


def as_command(target: Callable[..., Any]) -> Callable[..., None]:
    """A function that typer can read, of a function or of a dataclass whose fields are the options of a verb.

    A parameter or field whose type is a dataclass stands for the fields of that dataclass.
    """

    def run(**given: Any) -> None:
        made = _built(target, given)
        if isinstance(target, type):
            made()

    parameters = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in _parameters(target)]
    run.__doc__ = target.__doc__
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _own_parameters(target: Any) -> list[Parameter]:
    """The parameters of a function; of a dataclass its fields, those of its base classes last."""
    hints = get_type_hints(target, include_extras=True)
    if not (isinstance(target, type) and is_dataclass(target)):
        found = signature(target).parameters.values()
        return [each.replace(annotation=hints[each.name]) for each in found]
    all_fields = {each.name: each for each in fields(target)}
    names = dict.fromkeys(name for base in target.__mro__ for name in get_annotations(base) if name in all_fields)
    kind = Parameter.KEYWORD_ONLY
    return [Parameter(name, kind, default=_default(all_fields[name]), annotation=hints[name]) for name in names]


def _parameters(target: Any) -> Iterator[Parameter]:
    for each in sorted(_own_parameters(target), key=lambda each: is_dataclass(each.annotation)):
        if is_dataclass(each.annotation):
            yield from _parameters(each.annotation)
        else:
            yield each


def _built(target: Any, given: dict[str, Any]) -> Any:
    """Call a function or a dataclass with the values of its parameters, which leave `given`."""
    own = {}
    for each in _own_parameters(target):
        of_group = is_dataclass(each.annotation)
        own[each.name] = _built(each.annotation, given) if of_group else given.pop(each.name)
    return target(**own)


def _default(option: Field[Any]) -> Any:
    if option.default is not MISSING:
        return option.default
    return option.default_factory() if option.default_factory is not MISSING else Parameter.empty


def options_given(group: Any) -> dict[str, object]:
    """The options of a dataclass that are not as if they had not been given, by their names on the command line."""
    hints, found = get_type_hints(type(group), include_extras=True), dict[str, object]()
    for each in fields(group):
        declared = next((info for info in get_args(hints[each.name]) if hasattr(info, "param_decls")), None)
        names = (getattr(declared, "default", None), *(getattr(declared, "param_decls", None) or ()))
        long = (str(name).partition("/")[0] for name in names if str(name).startswith("--"))  # typer's `default` is one
        name = next(long, f"--{each.name.replace('_', '-')}")
        if (value := getattr(group, each.name)) != _default(each):
            found[name] = value
    return found


# The messages that a wrong option gets


def refuse_given(options: Mapping[str, object], why: str) -> None:
    """Refuse the first of some options, by name, that was given: it has no effect here."""
    for name, value in options.items():
        if value not in (None, "", False, 0, []):
            raise UsageError(f"{name} {why}; leave it out")


def refuse_model(name: str, entry: PipelineEntry, does: str) -> NoReturn:
    """Refuse a model that cannot do what it is asked for, and name the verbs that it has."""
    from regard.checkpoints.folder import local_folder, resolve
    from regard.checkpoints.models import identify
    from regard.families.catalog import MODELS, VERBS

    model, config, _ = identify(resolve(local_folder(name)))
    title, kind, head = MODELS[model].title, entry.load_class(), getattr(config, "head", "")
    able = [verb for verb in VERBS if hasattr(kind, verb.rpartition("/")[2])]
    able = [verb for verb in able if head in (getattr(VERBS[verb].verb, "heads", ()) or (head,))]
    own = [verb for verb in able if VERBS[verb].package == entry.package]
    others = list(dict.fromkeys(verb.partition("/")[0] for verb in own or able))
    more = f"; try {listed(others)}" if others else "; choose another model"
    raise UsageError(f"{name} is {with_article(title)}, which does not {does}{more}")


def refuse_several(output: Path, count: int, of: str, otherwise: str = "") -> None:
    """Refuse all but one input where one file is written or drawn."""
    if count != 1:
        more = f", or name {otherwise}" if otherwise else ""
        raise UsageError(f"{output} is one file, of one {of}, and {count} were given; give one {of}{more}")


def refuse_both(first: object, second: object, names: str) -> None:
    """Refuse two options that say the same thing in two ways."""
    if first and second:
        raise UsageError(f"give {names}, not both")


def check_suffix(output: Path | None, suffixes: Sequence[str], what: str) -> None:
    """Refuse a file whose name does not say a form that it can be written in."""
    if output is not None and output.suffix.lower() not in suffixes:
        raise UsageError(f"cannot write {what} as {output.name!r}; name a file ending in {listed(suffixes)}")


def listed(names: Sequence[str]) -> str:
    """Several names as an enumeration: a, b or c."""
    return " or ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def settings_given(**values: Any) -> dict[str, Any]:
    """The options of a search that were given; the model's own settings stand for the others."""
    return {name: value for name, value in values.items() if value is not None}


def input_of(name: str) -> str:
    """What the model of a folder reads: text, image, or another kind of file."""
    from regard.families import loading

    return loading.input_of(name)


def use_data_root(folder: str) -> None:
    """Set the folder of data files, for this process and its child processes."""
    from regard.data.sources import VARIABLE

    if folder and not Path(folder).is_dir():
        raise UsageError(f"--data-root {folder!r} is not a folder")
    if folder:
        os.environ[VARIABLE] = folder


def located_file(name: str) -> str:
    """The path of `data:NAME`, which must be below the data root, also of a part of it (`data:NAME#PART`); any other
    name as it is, unless it is that of a file which is only there."""
    from regard.data.sources import PREFIX, data_root, is_there, located, missing
    from regard.training.recipe.files import PHRASEBOOK, SCENES

    path, file = located(name), name.partition("#")[0]
    if path != name:
        if message := missing(path.partition("#")[0]):
            raise DataError(message)
    elif file and file not in (PHRASEBOOK, SCENES) and not is_there(file) and is_there(f"{data_root()}/{file}"):
        raise DataError(f"there is no {file!r} here; what is below the data root is called {PREFIX}{name}")
    return str(path)


def existing(path: str) -> Path:
    """The path; raises an error if no file is there."""
    if Path(path).is_dir():
        raise UsageError(f"{path} is a folder; name a file, or repeat the command for each file in it")
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path!r}")
    return Path(path)


def finite(number: float | None) -> float | None:
    """Validate an option with a fraction; typer's own limits accept nan."""
    if number is not None and not math.isfinite(number):
        raise typer.BadParameter(f"{number} is not a finite number.")
    return number


def numbers(text: str, separator: str, count: int | None = None) -> list[int]:
    """Parse the whole numbers of an option: 1,32 or 5-9."""
    parts = text.split(separator)
    if not all(part.strip().isdecimal() for part in parts) or (count and len(parts) != count):
        raise UsageError(f"{text!r} is not understood; write whole numbers separated by {separator!r}")
    return [int(part) for part in parts]

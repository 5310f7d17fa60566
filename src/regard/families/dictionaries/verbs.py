"""regard features: what the features of a dictionary stand for, and what they do to their model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.options import AllowPickle, AsJson, Device, Model

if TYPE_CHECKING:
    from regard.families.dictionaries.pipeline import FeatureDictionary

WRITTEN = (".html", ".json")


def features(
    numbers: Annotated[list[int] | None, typer.Argument(help="Features to tell more of. Default: a list.")] = None,
    model: Model = "",
    text: Annotated[
        str, typer.Option(help="Which features are active on this text, or on the image or recording of this file.")
    ] = "",
    value: Annotated[
        float | None,
        typer.Option(help="With a number and --text: answer with the feature at this value; 0 switches it off."),
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help='Name a feature: 17="days of the week". Repeatable.')
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="The most features that are listed or written.")] = 20,
    of: Annotated[str, typer.Option(help="The folder of the model that is read, if it is not where it was.")] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="One offline page with a part for each: FILE.html; FILE.json.")
    ] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """List the features of a dictionary that `regard train` made: the most frequent first, named ones before all.

    With numbers: the strongest contexts of these features, the outputs they raise and lower, and what the model says
    with the feature off and turned up. With --text: the features that are active on it.

    Example: regard features -m runs/stories260k-dictionary -o features.html
    Example: regard features 17 -m runs/stories260k-dictionary --name 17="days of the week"
    """
    from regard.families.dictionaries.pipeline import FeatureDictionary

    if not model:
        raise UsageError(
            "say whose features: -m FOLDER of a dictionary, as `regard train` with task 'dictionary' makes"
        )
    if output is not None and output.suffix.lower() not in WRITTEN:
        raise UsageError(f"cannot write features as {output.name!r}; name a file ending in .html or .json")
    if value is not None and not (text and numbers and len(numbers) == 1):
        raise UsageError("--value needs one feature and --text: regard features 17 --text TEXT --value 0")
    dictionary = FeatureDictionary.load(_folder(model), device=device, allow_pickle=allow_pickle)
    dictionary = dictionary.of(of) if of else dictionary
    if name:
        dictionary.rename(dict(map(_named, name)))
    if value is not None and numbers:
        _print_answers(dictionary, text, numbers[0], value, as_json)
    elif text:
        _print_active(dictionary, text, top, as_json)
    elif output is not None or numbers:
        _print_chosen(dictionary, numbers or [], top, output, as_json)
    elif not name:
        _print_list(dictionary, top, as_json)


def _folder(model: str) -> Path:
    from regard.checkpoints.hub import local_folder

    return local_folder(model)


def _named(given: str) -> tuple[int, str]:
    number, equals, name = given.partition("=")
    if not equals or not number.strip().isdecimal():
        raise UsageError(f'--name {given!r} is not understood; write a number and a name, as in 17="days of the week"')
    return int(number), name.strip()


def _print_list(dictionary: FeatureDictionary, top: int, as_json: bool) -> None:
    from regard.families.dictionaries.page import list_features

    for row in list_features(dictionary)[:top]:
        if as_json:
            print(json.dumps(row, ensure_ascii=False))
        else:
            title = row["name"] or " ".join(row["words"])
            print(f"{row['number']:6} {row['share']:8.2%} {row['largest']:8.2f}  {title}")


def _print_active(dictionary: FeatureDictionary, text: str, top: int, as_json: bool) -> None:
    units, found = dictionary.active(text, top)
    names, labels = dictionary.names, getattr(units, "tokens", None) or [str(at) for at in range(len(units))]
    if as_json:
        rows = [each._asdict() | {"name": names.get(each.number, "")} for each in found]
        print(json.dumps({"units": labels, "features": rows}, ensure_ascii=False))
        return
    for each in found:
        lit = [labels[at] for at, value in enumerate(each.values) if value > 0]
        print(f"{each.number:6} {each.value:8.2f}  {names.get(each.number, ''):24.24} {' '.join(lit)[:100]}")


def _print_answers(dictionary: FeatureDictionary, text: str, number: int, value: float, as_json: bool) -> None:
    whole, changed = dictionary.answers(text, number, value)
    if as_json:
        print(json.dumps({"feature": number, "value": value, "whole": whole, "changed": changed}, ensure_ascii=False))
    else:
        print(f"as it is       {whole}\nfeature {number} at {value:g}  {changed}")


def _print_chosen(
    dictionary: FeatureDictionary, numbers: list[int], top: int, output: Path | None, as_json: bool
) -> None:
    from regard.families.dictionaries.page import feature_report, lines_of, ranked

    chosen = numbers or [feature.number for feature in ranked(dictionary)[:top]]
    report = feature_report(dictionary, chosen, progress=_progress if output else lambda done, total: None)
    if output is not None:
        _write(report, output)
    elif as_json:
        for each in report["features"]:
            print(json.dumps(each, ensure_ascii=False))
    else:
        for each in report["features"]:
            print("\n".join(lines_of(each)))


def _write(report: dict[str, Any], output: Path) -> None:
    from regard.families.dictionaries.page import render_features

    text = render_features(report) if output.suffix.lower() == ".html" else json.dumps(report, ensure_ascii=False)
    write_whole(output, text)
    print(f"{len(report['features'])} features written to {output}", file=sys.stderr)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\rfeature {done + 1} of {total}", end="\n" if done + 1 == total else "", file=sys.stderr, flush=True)

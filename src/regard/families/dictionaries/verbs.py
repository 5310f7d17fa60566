"""regard features: what the features of a dictionary stand for, and what they do to their model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.options import check_suffix
from regard.verbs.progress import Progress
from regard.verbs.verb import Verb

if TYPE_CHECKING:
    from regard.families.dictionaries.pipeline import FeatureDictionary

WRITTEN = (".html", ".json")


@dataclass(kw_only=True)
class Features(Verb):
    """List the features of a dictionary that `regard train` made: the most frequent first, named ones before all.

    With numbers: the strongest contexts of these features, the outputs they raise and lower, and what the model says
    with the feature off and turned up. With --text: the features that are active on it.

    Example: regard features -m runs/stories260k-dictionary -o features.html
    Example: regard features 17 -m runs/stories260k-dictionary --name 17="days of the week"
    """

    abilities, method, does = ("name_features",), "active", "name features"

    numbers: Annotated[list[int] | None, typer.Argument(help="Features to tell more of. Default: a list.")] = None
    text: Annotated[
        str, typer.Option(help="Which features are active on this text, or on the image or recording of this file.")
    ] = ""
    value: Annotated[
        float | None,
        typer.Option(help="With a number and --text: answer with the feature at this value; 0 switches it off."),
    ] = None
    name: Annotated[
        list[str] | None, typer.Option("--name", help='Name a feature: 17="days of the week". Repeatable.')
    ] = None
    top: Annotated[int, typer.Option(min=1, help="The most features that are listed or written.")] = 20
    of: Annotated[str, typer.Option(help="The folder of the model that is read, if it is not where it was.")] = ""
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="One offline page with a part for each: FILE.html; FILE.json.")
    ] = None

    def check(self) -> None:
        check_suffix(self.output, WRITTEN, "features")
        if self.value is not None and not (self.text and self.numbers and len(self.numbers) == 1):
            raise UsageError("--value needs one feature and --text: regard features 17 --text TEXT --value 0")

    def run(self) -> None:
        dictionary = self.pipeline.of(self.of) if self.of else self.pipeline
        if self.name:
            dictionary.rename(dict(map(_named, self.name)))
        if self.value is not None and self.numbers:
            self._print_answers(dictionary, self.numbers[0], self.value)
        elif self.text:
            self._print_active(dictionary)
        elif self.output is not None or self.numbers:
            self._print_chosen(dictionary)
        elif not self.name:
            self._print_list(dictionary)

    def _print_list(self, dictionary: FeatureDictionary) -> None:
        from regard.families.dictionaries.page import list_features

        for row in list_features(dictionary)[: self.top]:
            title = row["name"] or " ".join(row["words"])
            self.say(f"{row['number']:6} {row['share']:8.2%} {row['largest']:8.2f}  {title}", row)

    def _print_active(self, dictionary: FeatureDictionary) -> None:
        units, found = dictionary.active(self.text, self.top)
        names, labels = dictionary.names, getattr(units, "tokens", None) or [str(at) for at in range(len(units))]
        lines, rows = [], []
        for each in found:
            name = names.get(each.number, "")
            lit = " ".join(labels[at] for at, value in enumerate(each.values) if value > 0)
            lines.append(f"{each.number:6} {each.value:8.2f}  {name:24.24} {lit[:100]}")
            rows.append(each._asdict() | {"name": name})
        if lines or self.as_json:
            self.say("\n".join(lines), {"units": labels, "features": rows})

    def _print_answers(self, dictionary: FeatureDictionary, number: int, value: float) -> None:
        whole, changed = dictionary.answers(self.text, number, value)
        values = {"feature": number, "value": value, "whole": whole, "changed": changed}
        self.say(f"as it is       {whole}\nfeature {number} at {value:g}  {changed}", values)

    def _print_chosen(self, dictionary: FeatureDictionary) -> None:
        from regard.families.dictionaries.page import feature_report, lines_of, ranked, render_features

        chosen = self.numbers or [feature.number for feature in ranked(dictionary)[: self.top]]
        with Progress("features", len(chosen), wanted=self.output is not None) as progress:
            report = feature_report(dictionary, chosen, progress=progress.show)
        if self.output is None:
            for each in report["features"]:
                self.say("\n".join(lines_of(each)), each)
            return
        page = self.output.suffix.lower() == ".html"
        write_whole(self.output, render_features(report) if page else json.dumps(report, ensure_ascii=False))
        print(f"{len(report['features'])} features written to {self.output}", file=sys.stderr)


def _named(given: str) -> tuple[int, str]:
    number, equals, name = given.partition("=")
    if not equals or not number.strip().isdecimal():
        raise UsageError(f'--name {given!r} is not understood; write a number and a name, as in 17="days of the week"')
    return int(number), name.strip()

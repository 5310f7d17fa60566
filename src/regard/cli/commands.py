"""Verbs as commands of typer: their options in groups, and the verbs that do what a model was trained for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand

from regard.errors import UsageError
from regard.verbs.options import as_command, listed, refuse_model

HELP = {"help_option_names": ["-h", "--help"]}
STYLE: dict[str, Any] = {
    "context_settings": HELP, "add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False
}  # fmt: skip
WrongUsage: Any = typer.BadParameter.__base__  # base class of all argument errors, which typer does not export


class Grouped(TyperCommand):
    """A command whose options are listed in the groups that its verb declares; what is in none comes first."""

    groups: Mapping[str, str] = {}  # names of fields, apart by spaces, by the title of the group

    def format_options(self, ctx: Any, formatter: Any) -> None:
        titles = {name: title for title, names in self.groups.items() for name in names.split()}
        sections: dict[str, list[Any]] = {"Arguments": [], "Options": [], **{title: [] for title in self.groups}}
        for parameter in self.get_params(ctx):
            if record := parameter.get_help_record(ctx):
                is_argument = parameter.param_type_name == "argument"
                sections["Arguments" if is_argument else titles.get(parameter.name, "Options")].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class ByModel(TyperCommand):
    """A verb that does with its inputs what a model was trained for.

    Each way of doing it is a verb of the family of the model, with options of its own. The model that is named chooses
    the way, and from then on the command is that verb. Without a model, `--help` lists the ways with their options.
    """

    def __init__(self, name: str, text: str, ways: Mapping[str, Any]) -> None:
        super().__init__(
            name, help=about(text), context_settings=HELP, options_metavar="[INPUT]... -m MODEL [OPTIONS]",
            rich_markup_mode=None,
        )  # fmt: skip
        self.ways = ways

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        name = _model_in(args)
        if not name:
            if any(word in args for word in HELP["help_option_names"]):
                return super().make_context(info_name, ["--help"], parent, **extra)
            raise UsageError(
                f"name the model: -m FOLDER or -m hf:owner/name; `regard {self.name} -h` says which it takes"
            )
        chosen = self._way(name)
        own = command(self.name, chosen)
        try:
            return own.make_context(info_name, args, parent, **extra)
        except WrongUsage as error:
            option = getattr(error, "option_name", None)
            others = [way.does for way in self.ways.values() if option in _options(command(self.name, way))]
            if others and option not in _options(own):
                raise UsageError(
                    f"{option} is for models that {listed(others)}; {name} was trained to {chosen.does}; leave it out"
                ) from None
            raise

    def _way(self, name: str) -> Any:
        """The verb that does what a model was trained for."""
        from regard.families.loading import entry_of, head_of

        entry, head = entry_of(name), head_of(name)
        for way in self.ways.values():
            if entry.ability in way.abilities and (not way.heads or head in way.heads):
                return way
        return refuse_model(name, entry, listed([way.does for way in self.ways.values()]))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        ways = {way.does: (way, command(self.name, way)) for way in self.ways.values()}
        records = {does: _records(own, ctx) for does, (_, own) in ways.items()}
        first, *others = records.values()
        explain = formatter.write_text
        common = [record for record in first if all(record in other for other in others)]
        for does, (way, _) in ways.items():
            with formatter.section(f"Models that {does}"):
                explain((way.__doc__ or "").partition("\n\n")[0])
                if own := [record for record in records[does] if record not in common]:
                    formatter.write_dl(own)
        with formatter.section("All of them"):
            formatter.write_dl(sorted(common, key=lambda record: not record[0].startswith("-m,")))


class Renamed(TyperCommand):
    """An earlier name of a verb: it works, and says the name of today."""

    def __init__(self, name: str, today: str, command: TyperCommand) -> None:
        super().__init__(name)
        self.today, self.command = today, command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        context = self.command.make_context(info_name, args, parent, **extra)
        print(f"regard: `{self.name}` is {self.today} now", file=sys.stderr)
        return context


@cache
def command(name: str | None, verb: Any) -> Any:
    """A verb with its options; typer builds them anew at every call, which takes a while."""
    if isinstance(verb, typer.Typer):
        group = typer.main.get_group(verb)
        group.name = name
        return group
    alone = typer.Typer(**STYLE)
    alone.command(name, context_settings=HELP, cls=Grouped, help=about(verb.__doc__))(as_command(verb))
    made: Any = typer.main.get_command(alone)
    made.groups = getattr(verb, "groups", {})
    return made


def about(text: str | None) -> str:
    """The help of a verb, with its examples as they are typed: one on a line, and not wrapped."""
    explained, example, examples = cleandoc(text or "").partition("\nExample: ")
    lines = [line for line in f"{example.strip()} {examples}".splitlines() if line.strip()]
    return explained + ("\n\n\b\n" + "\n".join(lines) if examples else "")


def _model_in(arguments: list[str]) -> str:
    """The model that is named among arguments whose options are not known yet."""
    found = ""
    for place, word in enumerate(arguments):
        if word == "--":
            break
        if word in ("-m", "--model"):
            found = "".join(arguments[place + 1 : place + 2])
        elif word.startswith("--model="):
            found = word.partition("=")[2]
        elif word.startswith("-m"):
            found = word.removeprefix("-m")
    return found


def _options(own: Any) -> list[str]:
    return [name for parameter in own.params for name in (*parameter.opts, *parameter.secondary_opts)]


def _records(own: Any, ctx: Any) -> list[Any]:
    return [record for parameter in own.params if (record := parameter.get_help_record(ctx))]

"""`regard COMMAND ...`: the commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regard.cli.commands import STYLE, ByModel, Renamed, WrongUsage, command
from regard.errors import RegardError, UsageError
from regard.families.catalog import VERBS
from regard.families.contract import GROUPS, INSIDE, MEASURE, START, TRAIN, USE, VerbEntry
from regard.processes import Share

# Where torch allocates with mimalloc (ARM), memory that is free for 10 ms is returned to the system, and the next
# training step has to ask for it again page by page, which costs a tenth of the step. One minute is soon enough.
# torch reads the variable when it is imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")

OWN = {  # verbs that belong to no family: the function of this name in the module of this name
    name: VerbEntry(f"{name}.{name}", summary, group, package=__package__)
    for group, verbs in {
        START: {
            "demo": "Translate at once, then watch a small translator learn",
            "models": "List the models and the recipes that come with them",
            "doctor": "Check what this machine can run, and how fast",
        },
        TRAIN: {
            "train": "Train a model by a recipe",
            "plan": "Parameters, memory and time of a model, before it is built",
            "convert": "Convert model folders from and to other libraries",
        },
        USE: {"serve": "Serve the page and the LibreTranslate and OpenAI APIs"},
        MEASURE: {
            "evaluate": "Measure a model by the metrics of its kind",
            "compare": "Compare models on the same data",
            "bench": "Time the same work in Regard and in other libraries",
        },
        INSIDE: {
            "look": "Draw where a model looks: every layer and head",
            "heads": "What a model loses without each of its heads",
            "claims": "Put what the lectures claim to the test",
        },
    }.items()
    for name, summary in verbs.items()
}
BY_MODEL = {  # verbs that do what a model was trained for: their line in the list, and their help
    "read": (
        "Read texts: classify, tag, answer questions, fill in words",
        """Read texts as the model was trained to: label them, tag their words, answer questions, fill in hidden words.

        `regard read -m MODEL -h` lists the options of that model alone.

        Example: regard read "a moving, funny film" -m runs/sst2

        Example: regard read "Paris is the [MASK] of France." -m hf:google-bert/bert-base-uncased --top 5
        """,
    ),
    "see": (
        "See images: classify, describe, find objects, name every pixel",
        """See images as the model was trained to: label them, describe them, find objects, name every pixel.

        `regard see -m MODEL -h` lists the options of that model alone.

        Example: regard see holiday/*.jpg -m hf:google/vit-base-patch16-224

        Example: regard see cells.jpg -m runs/bccd-detector -o cells.png
        """,
    ),
}


class Verbs(TyperGroup):
    """Verbs by name; the module of a verb is imported when it is called for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for name in VERBS if "/" not in name), *BY_MODEL, *OWN]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in OWN:
            return command(cmd_name, OWN[cmd_name].verb)
        if cmd_name in BY_MODEL:
            return ByModel(cmd_name, BY_MODEL[cmd_name][1], _ways(f"{cmd_name}/", ""))
        if cmd_name in VERBS:
            return command(cmd_name, VERBS[cmd_name].verb)
        if earlier := _ways("", f"/{cmd_name}"):
            return _renamed(cmd_name, earlier)
        from regard.config import nearest

        raise UsageError(f"there is no command {cmd_name!r}; {nearest(cmd_name, self.list_commands(ctx))}")

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for name in self.list_commands(ctx):
            group, summary = _line(name)
            groups[group].append((f"{name:{COLUMN}}", summary))
        for group, lines in groups.items():
            with formatter.section(group):
                formatter.write_dl(lines)


COLUMN = 11  # characters for the names of verbs


def _line(name: str) -> tuple[str, str]:
    """The group of a verb in the list of commands, and what is said of it there."""
    if name in BY_MODEL:
        return USE, BY_MODEL[name][0]
    entry = OWN.get(name) or VERBS[name]
    return entry.group, entry.summary or (entry.verb.__doc__ or "").partition(".")[0].partition(":")[0]


def _ways(begin: str, end: str) -> dict[str, Any]:
    """The verbs without a command of their own whose names begin and end like this."""
    return {name: VERBS[name].verb for name in VERBS if "/" in name and name.startswith(begin) and name.endswith(end)}


def _renamed(name: str, ways: dict[str, Any]) -> Renamed:
    """A verb by the name that it had when it was a command of its own."""
    verbs = [way.partition("/")[0] for way in ways]
    today = " or ".join(f"`{verb}`" if verb in BY_MODEL else f"`{verb} --{name}`" for verb in verbs)
    (alone,) = ways.values() if len(ways) == 1 else (None,)
    return Renamed(name, today, command(name, alone) if alone else ByModel(name, f"Now {today}.", ways))


app = typer.Typer(name="regard", cls=Verbs, help="Attention models you can train, run fast, and look into.", **STYLE)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if show:
        typer.echo(version("regard"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def main() -> None:
    """Run the command line; a user error is one line on stderr without a traceback."""
    for stream in (sys.stdout, sys.stderr):  # input is UTF-8, so output is UTF-8 too, whatever the locale
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    code = run(sys.argv[1:])
    if Share.launched().count > 1:
        # Torch's caches may hold a process group, and an interpreter that exits while its threads run may crash.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run the command line on these arguments; returns the exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            code = _commands()(arguments, standalone_mode=False) or 0
            sys.stdout.flush()
            return code
        except RegardError as error:
            return _complain(error, error.exit_code)
        except WrongUsage as error:
            return _complain(error.format_message(), 2)
        except (typer.Abort, KeyboardInterrupt):
            return _complain("interrupted", 130)
        except (BrokenPipeError, SystemExit) as error:
            if not any(isinstance(each, BrokenPipeError) for each in (error, error.__context__)):
                raise
            # The reader of the output has closed the pipe, as `head` does; typer turns that into an exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            return _complain(f"{error.filename or _full_place(error, arguments)}: {error.strerror or error}", 1)


LITTLE = 2**20  # bytes: a disk with less is full


def _full_place(error: OSError, arguments: list[str]) -> str:
    """Which disk is full, if an error without a path says that one is: the first of those that a command may write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        places = [*map(Path, arguments), Path.cwd(), Path(tempfile.gettempdir())]
        for place in places:
            with suppress(OSError, ValueError):  # a text among the arguments that cannot be the name of a file
                folder = next(each for each in (place.absolute(), *place.absolute().parents) if each.exists())
                if shutil.disk_usage(folder).free < LITTLE:
                    return str(folder)
        return "standard output"
    return "input/output"


@cache
def _commands() -> Any:
    """The commands with their options; typer builds them anew at every call of `app`, which takes a while."""
    return typer.main.get_command(app)


def _warn(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"regard: warning: {_one_line(message)}", file=sys.stderr)


def _complain(message: object, code: int) -> int:
    print(f"regard: {_one_line(message)}", file=sys.stderr)
    return code


def _one_line(message: object) -> str:
    return " ".join(str(message).split())

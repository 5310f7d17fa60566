"""`regard COMMAND ...`: the commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from regard.errors import RegardError
from regard.families.catalog import VERBS, imported
from regard.processes import Share
from regard.verbs.options import as_command

# Where torch allocates with mimalloc (ARM), memory that is free for 10 ms is returned to the system, and the next
# training step has to ask for it again page by page, which costs a tenth of the step. One minute is soon enough.
# torch reads the variable when it is imported.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")

HELP = {"help_option_names": ["-h", "--help"]}
WrongUsage: Any = typer.BadParameter.__base__  # base class of all argument errors, which typer does not export

OWN = {  # verbs that belong to no family: module of this package, whose function has the name of the verb
    "demo": "demo", "train": "train", "evaluate": "evaluate", "look": "look", "heads": "heads", "plan": "plan",
    "compare": "compare", "claims": "claims", "convert": "convert", "serve": "serve", "bench": "bench",
    "models": "models", "doctor": "doctor",
}  # fmt: skip


class Verbs(TyperGroup):
    """Verbs by name; the module of a verb is imported when it is called for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*OWN, *VERBS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in OWN:
            verb = imported(f"regard.cli.{OWN[cmd_name]}.{cmd_name}")
        elif cmd_name in VERBS:
            verb = imported(VERBS[cmd_name])
        else:
            return None
        return _command(cmd_name, verb)


@cache
def _command(name: str, verb: Any) -> Any:
    """A verb with its options; typer builds them anew at every call, which takes a while."""
    if isinstance(verb, typer.Typer):
        group = typer.main.get_group(verb)
        group.name = name
        return group
    alone = typer.Typer(**STYLE)
    alone.command(name, context_settings=HELP)(as_command(verb))
    return typer.main.get_command(alone)


STYLE: dict[str, Any] = {
    "context_settings": HELP, "add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False
}  # fmt: skip
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
            return _complain(f"{error.filename or 'input/output'}: {error.strerror or error}", 1)


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

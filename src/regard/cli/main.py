"""`regard COMMAND ...`: the commands, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache
from importlib.metadata import version
from typing import Annotated, Any

import typer

from regard.cli import (
    answer,
    bench,
    caption,
    claims,
    classify,
    compare,
    convert,
    data,
    demo,
    detect,
    doctor,
    embed,
    evaluate,
    features,
    fill,
    fold,
    forecast,
    generate,
    heads,
    interact,
    look,
    match,
    models,
    navigate,
    neighbours,
    plan,
    segment,
    serve,
    tag,
    train,
    transcribe,
    translate,
)
from regard.errors import RegardError
from regard.processes import Share

HELP = {"help_option_names": ["-h", "--help"]}
WrongUsage: Any = typer.BadParameter.__base__  # base class of all argument errors, which typer does not export

app = typer.Typer(
    name="regard",
    help="Attention models you can train, run fast, and look into.",
    context_settings=HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (
    demo.demo,
    train.train,
    translate.translate,
    generate.generate,
    fill.fill,
    embed.embed,
    neighbours.neighbours,
    classify.classify,
    tag.tag,
    answer.answer,
    segment.segment,
    caption.caption,
    transcribe.transcribe,
    navigate.navigate,
    forecast.forecast,
    detect.detect,
    fold.fold,
    match.match,
    interact.interact,
    evaluate.evaluate,
    look.look,
    heads.heads,
    features.features,
    plan.plan,
    compare.compare,
    claims.claims,
    convert.convert,
    serve.serve,
    bench.bench,
    models.models,
    doctor.doctor,
):
    app.command(context_settings=HELP)(verb)
app.add_typer(data.data, name="data", context_settings=HELP)


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

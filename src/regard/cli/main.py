"""`regard VERB ...`: the verbs, and the one place where errors become a line and an exit code."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated

import click
import typer

from regard.cli import compare, convert, demo, evaluate, look, models, plan, train, translate
from regard.errors import RegardError

HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="regard",
    help="Attention models you can train, run fast, and look into.",
    context_settings=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (
    demo.demo,
    train.train,
    translate.translate,
    evaluate.evaluate,
    look.look,
    plan.plan,
    compare.compare,
    convert.convert,
    models.models,
    models.doctor,
):
    app.command(context_settings=HELP)(verb)


@app.callback(invoke_without_command=True)
def about(show: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    if show:
        typer.echo(version("regard"))
        raise typer.Exit


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr, never a traceback."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run the command line on these arguments; returns the exit code."""
    try:
        return app(arguments, standalone_mode=False) or 0
    except RegardError as error:
        return _complain(error, error.exit_code)
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader of our output has gone, as `head` does
        sys.stderr.close()
        return 0
    except OSError as error:
        return _complain(f"{error.filename or 'input/output'}: {error.strerror or error}", 1)


def _complain(message: object, code: int) -> int:
    print(f"regard: {message}", file=sys.stderr)
    return code

"""Errors that a user can act on. The command line prints each as one line and exits with its code."""

import re


class RegardError(Exception):
    """An error that the user can fix. Its message says what was given, what was expected and what to do."""

    exit_code = 1


class UsageError(RegardError):
    """The command or its options were wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe or model configuration is invalid or contradicts itself."""


class DataError(RegardError):
    """A data file is missing, malformed or unsuitable."""


class CheckpointError(RegardError):
    """A model folder is missing, damaged, or of another kind than expected."""


class TrainingError(RegardError):
    """Training stopped, and the user must decide how to continue."""


def with_article(name: str) -> str:
    """A name with the article that it has when it is read aloud: a vit, an elmo, an lstm."""
    return f"{'an' if re.match('[aeio]|[flmn][^aeiouyhlr]', name.lower()) else 'a'} {name}"

"""The errors a user can act on. The command line prints each as one line and exits with its code."""


class RegardError(Exception):
    """Something went wrong that the user can mend: says what came, what was expected, what to do."""

    exit_code = 1


class UsageError(RegardError):
    """The command or its options were wrong."""

    exit_code = 2


class ConfigError(UsageError):
    """A recipe or model configuration does not hold together."""


class DataError(RegardError):
    """A data file cannot be used as it is."""


class CheckpointError(RegardError):
    """A model folder is missing, damaged, or not what it says it is."""


class TrainingError(RegardError):
    """Training stopped for a reason the user must decide about."""

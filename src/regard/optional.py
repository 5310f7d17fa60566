"""Optional packages: imported on use; if one is missing, the error names the extra to install."""

import importlib
from types import ModuleType

from regard.errors import UsageError


def needed(module: str, *, extra: str) -> ModuleType:
    """The module, or an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(
            f"this needs the package {package}, which cannot be imported ({error}); "
            f'install it with: pip install -c constraints.txt "regard[{extra}]"'
        ) from error

"""Recorded attention as figures, pages and JSON. The package can be called: `regard.look(model, text)`."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.look.notebook import Look


class _Look(ModuleType):
    """A package that is also the function it is named after, so that `regard.look` means both."""

    def __call__(self, model: Any, text: str, pair: str = "", **options: Any) -> Look:
        """Record a model's attention on an input; the result displays itself in a notebook. See `notebook.look`."""
        from regard.look.notebook import look

        return look(model, text, pair, **options)


sys.modules[__name__].__class__ = _Look

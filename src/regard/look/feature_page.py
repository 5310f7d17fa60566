"""The features of a dictionary as one HTML page that needs no network: a list, and a part for each feature."""

from __future__ import annotations

from functools import cache
from typing import Any

from regard.look.bundle import bundle
from regard.look.page import fill_page, read_web


def render_features(report: dict[str, Any]) -> str:
    """The page of a report of `studies/features.py`."""
    style = read_web("page.css") + read_web("features.css")
    return fill_page(title=f"Features of {report['place']}", style=style, script=_script(), data=report)


@cache
def _script() -> str:
    return bundle(["feature_page.js"], read_web)

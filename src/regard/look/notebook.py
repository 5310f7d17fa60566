"""A look at a model that shows itself in a notebook cell, and saves itself anywhere."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regard
from regard.look.figures import save
from regard.look.page import render_page
from regard.look.scenes import Viewed, set_scene
from regard.look.sight import Sight

HEIGHT = 820  # pixels of the frame in a notebook


@dataclass(frozen=True)
class Look:
    """What `regard.look(...)` gives: displayed by Jupyter and Colab, or written to a file by `save`.

    `said` is what the model wrote: a translation, an answer, or nothing if it only read.
    """

    sight: Sight = field(repr=False)
    text: str
    said: str

    def _repr_html_(self) -> str:
        """The offline page in a frame of its own, so that neither its style nor its script meets the notebook's."""
        page = html.escape(render_page(self.sight), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0;border-radius:12px"
        return f'<iframe sandbox="allow-scripts" style="{style}" title="Attention" srcdoc="{page}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write it as .html, .svg, .png or .json."""
        return save(self.sight, path)


def look(
    model: Viewed | str | Path, text: str, pair: str = "", *, to: str = "", target: str = "", **writing: Any
) -> Look:
    """Look at any model with a text: every layer and head, the word alignment, and what it expects; see `set_scene`."""
    found = regard.load(model) if isinstance(model, str | Path) else model
    scene = set_scene(found, text, pair=pair, to=to, target=target, **writing)
    return Look(scene.sight(), text, scene.said)

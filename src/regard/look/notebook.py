"""A look at a model that shows itself in a notebook cell, and saves itself anywhere."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path

from regard.checkpoints.hub import local_folder
from regard.inference.pipelines import Translator
from regard.look.figures import save
from regard.look.page import render_page
from regard.look.sight import Sight
from regard.look.views import translation_sight

HEIGHT = 820  # pixels of the frame in a notebook


@dataclass(frozen=True)
class Look:
    """What `regard.look(...)` gives: displayed by Jupyter and Colab, or written to a file by `save`."""

    sight: Sight = field(repr=False)
    text: str
    translation: str

    def _repr_html_(self) -> str:
        """The offline page in a frame of its own, so that neither its style nor its script meets the notebook's."""
        page = html.escape(render_page(self.sight), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0;border-radius:12px"
        return f'<iframe sandbox="allow-scripts" style="{style}" title="Attention" srcdoc="{page}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write it as .html, .svg, .png or .json."""
        return save(self.sight, path)


def look(model: Translator | str | Path, text: str, *, to: str = "", target: str = "") -> Look:
    """Look at a model translating `text`, or made to say `target`: every layer and head, and the word alignment."""
    translator = model if isinstance(model, Translator) else Translator.load(local_folder(model))
    sight = translation_sight(translator, translator.translate(text, to=to), target=target)
    return Look(sight, text, sight.meta["translation"])

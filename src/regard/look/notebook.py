"""A look at a model that shows itself in a notebook cell, and saves itself anywhere."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import regard
from regard.data.arguments import refuse_pictures
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.errors import UsageError
from regard.inference.pipelines.images import PictureReader
from regard.look.figures import save
from regard.look.page import render_page
from regard.look.pictures import PictureSight, picture_page, picture_sight, save_picture
from regard.look.scenes import set_scene
from regard.look.sight import Sight

HEIGHT = 820  # pixels of the frame in a notebook


@dataclass(frozen=True)
class Look:
    """What `regard.look(...)` gives: displayed by Jupyter and Colab, or written to a file by `save`.

    `said` is what the model wrote: a translation, an answer, the class of a picture, or nothing if it only read.
    """

    sight: Sight | PictureSight = field(repr=False)
    text: str
    said: str
    unknown: list[UnknownWord] = field(default_factory=list)  # words of the text that the model does not know

    def _repr_html_(self) -> str:
        """The offline page in a frame of its own, so that neither its style nor its script meets the notebook's."""
        sight = self.sight
        page = html.escape(picture_page(sight) if isinstance(sight, PictureSight) else render_page(sight), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0;border-radius:12px"
        return f'<iframe sandbox="allow-scripts" style="{style}" title="Attention" srcdoc="{page}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write it as .html, .svg, .png or .json."""
        if isinstance(self.sight, PictureSight):
            return save_picture(self.sight, Path(path))
        return save(self.sight, path)


def look(model: Any, text: str | Path, pair: str = "", *, to: str = "", target: str = "", **writing: Any) -> Look:
    """Look at any model with a text: every layer and head, the word alignment, and what it expects; see `set_scene`.

    For a model of pictures `text` is the file of one.
    """
    found: Any = regard.load(model) if isinstance(model, str | Path) else model
    if isinstance(found, PictureReader):
        seen = picture_sight(found, Path(text), title=Path(text).name)
        return Look(seen, str(text), ", ".join(seen.meta))
    if not isinstance(text, str):
        raise UsageError(f"{found.name or 'this model'} reads texts, not {text!r:.60} ({type(text).__name__})")
    refuse_pictures((text, pair))
    scene = set_scene(found, text, pair=pair, to=to, target=target, **writing)
    return Look(scene.sight(), text, scene.said, found.unknown_words(text))

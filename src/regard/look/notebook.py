"""A look at a model that displays itself in a notebook cell, and can be saved to a file."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from regard.data.arguments import refuse_images, refuse_missing_image
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.errors import UsageError
from regard.families.loading import load_pipeline
from regard.look.inspection import GivenInput, inspect_input, inspect_text
from regard.look.page import render_page
from regard.look.report import AttentionReport
from regard.look.save import save

HEIGHT = 820  # pixels of the frame in a notebook


@dataclass(frozen=True)
class Look:
    """The result of `regard.look(...)`: displayed by Jupyter and Colab, or written to a file by `save`.

    `said` is the model's answer: a translation, a completion, the class of an image, or nothing if it only read.
    """

    report: AttentionReport = field(repr=False)
    text: str
    said: str
    unknown: list[UnknownWord] = field(default_factory=list)  # words of the text that the model does not know

    def _repr_html_(self) -> str:
        """The offline page in a frame of its own, which keeps its style and script apart from the notebook's."""
        page = html.escape(render_page(self.report), quote=True)
        style = f"width:100%;height:{HEIGHT}px;border:0;border-radius:12px"
        return f'<iframe sandbox="allow-scripts" style="{style}" title="Attention" srcdoc="{page}"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write it as .html, .svg, .png or .json."""
        return save(self.report, path)


def look(model: Any, text: str | Path, pair: str = "", *, to: str = "", target: str = "", **generation: Any) -> Look:
    """Record every layer and head of a model on one input, with the word alignment and the model's predictions.

    `model` is a pipeline, a model folder or `hf:owner/name`. For models that read files, such as images, `text` is the
    path of a file, and `pair` the text beside it if they read one; the other options are for texts and are described at
    `inspect_text`.
    """
    pipeline: Any = load_pipeline(model) if isinstance(model, str | Path) else model
    if found := inspect_input(pipeline, GivenInput(text, Path(str(text)).name, pair)):
        return Look(found.report, str(text), ", ".join(found.report.meta))
    if not isinstance(text, str):
        raise UsageError(f"{pipeline.name or 'this model'} reads texts, not {text!r:.60} ({type(text).__name__})")
    refuse_images((text, pair))
    refuse_missing_image(text)
    inspection = inspect_text(pipeline, text, pair=pair, to=to, target=target, **generation)
    return Look(inspection.report(), text, inspection.said, pipeline.unknown_words(text))

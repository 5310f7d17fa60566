"""Reports of captioners: the words of a caption as queries, the cells of the image as keys."""

from __future__ import annotations

from regard.inference.pipelines.captioner import DRAWN, Caption, CaptionAttention, ImageCaptioner
from regard.inference.pipelines.images import ImageSource
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.panels import Grid, Panel, Tokens
from regard.look.report import AttentionReport

STRIP = "strip"  # the view: the image once for every word


def inspect_caption(captioner: ImageCaptioner, given: GivenInput) -> Inspected:
    """The caption of an image, and where the model looked at every word of it."""
    (found,) = captioner.caption(given.file)
    answer = {"caption": found.text, "score": found.score}
    return Inspected(caption_report(captioner, given.file, found, given.title), answer)


def caption_report(captioner: ImageCaptioner, image: ImageSource, caption: Caption, title: str) -> AttentionReport:
    """Where the model looked while it wrote a caption; without attention, a report without panels."""
    meta = {"caption": caption.text, "score": f"{caption.score:.4f}"}
    if not captioner.looks or not caption.ids:
        seen = CaptionAttention(captioner.shown(image), [], (1, 1), {})
    else:
        seen = captioner.attention(image, caption.ids)
    words, cells = Tokens(seen.tokens), Grid(*seen.grid)
    panels = [
        Panel(name, "cross", weights, words, cells, seen.neurons.get(name)) for name, weights in seen.weights.items()
    ]
    details = {"gates": [round(gate, 4) for gate in seen.gates], "drawn": [DRAWN in panel.name for panel in panels]}
    return AttentionReport(
        title or str(image),
        captioner.name,
        panels,
        meta=meta,
        image=seen.pixels,
        shown_as=STRIP if panels else "",
        details=details if panels else {},
    )

"""Reports of models that read or generate images: recorded attention as panels between the cells of the image."""

from __future__ import annotations

from regard.inference.pipelines.images import ImageAttention, ImagePipeline, ImageSource, LayerAttention
from regard.look.panels import Grid, Kind, Panel
from regard.look.report import AttentionReport


def inspect_image(reader: ImagePipeline, image: ImageSource, title: str = "") -> AttentionReport:
    """Every layer and head while a model reads an image, with its answer."""
    recorded = reader.attention(image)
    return image_report(recorded, title=title or str(image), model=reader.name, meta=reader.summary(image))


def image_report(recorded: ImageAttention, *, title: str, model: str, meta: dict[str, str]) -> AttentionReport:
    """The report of attention that was recorded on an image."""
    kind: Kind = "causal" if recorded.in_order else "self"
    panels = [_panel(layer, kind) for layer in recorded.layers]
    return AttentionReport(title, model, panels, meta=meta, image=recorded.pixels, rollout=recorded.rollout())


def _panel(layer: LayerAttention, kind: Kind) -> Panel:
    queries, keys = (Grid(*sides, layer.extra, layer.windows) for sides in (layer.queries, layer.keys))
    return Panel(layer.name, kind, layer.weights, queries, keys)

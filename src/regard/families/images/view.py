"""Reports of models that read or generate images: recorded attention as panels between the cells of the image."""

from __future__ import annotations

from dataclasses import replace

import torch

from regard.attention.record import attention_names
from regard.families.images.pipeline import (
    ImageAttention,
    ImageClassifier,
    ImagePipeline,
    ImageSegmenter,
    ImageSource,
    LayerAttention,
)
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Grid, Kind, Panel
from regard.look.predictions import Unembeds, lens_of
from regard.look.report import AttentionReport

CLASSES = 5  # of every layer in the logit lens


def inspect_classifier(classifier: ImageClassifier, given: GivenInput) -> Inspected:
    """Every layer and head while a classifier reads an image, and the probabilities of its classes, if any."""
    report = inspect_image(classifier, given.file, given.title)
    if not classifier.labels:
        return Inspected(report, {"labels": {}})
    (answer,) = classifier.classify(given.file)
    if isinstance(classifier.model, Unembeds):
        read = torch.inference_mode()(lambda: classifier.model(classifier.read(given.file)))
        labels = classifier.labels
        lens = lens_of(classifier.model, read, ["class"], lambda ids: [labels[each] for each in ids], CLASSES)
        report = replace(report, logit_lens=lens)
    return Inspected(report, {"labels": answer.labels})


def inspect_segmenter(segmenter: ImageSegmenter, given: GivenInput) -> Inspected:
    """Every layer and head while a segmenter reads an image, and the share of every class."""
    (answer,) = segmenter.segment(given.file)
    return Inspected(inspect_image(segmenter, given.file, given.title), {"labels": answer.shares})


def inspect_image(reader: ImagePipeline, image: ImageSource, title: str = "") -> AttentionReport:
    """Every layer and head while a model reads an image; a model without attention gives a report without panels."""
    layers = reader.attention(image) if attention_names(reader.model) else ImageAttention(reader.shown(image), [])
    return image_report(layers, title=title or str(image), model=reader.name, meta=reader.summary(image))


def image_report(recorded: ImageAttention, *, title: str, model: str, meta: dict[str, str]) -> AttentionReport:
    """The report of attention that was recorded on an image."""
    kind: Kind = "causal" if recorded.in_order else "self"
    panels = [_panel(layer, kind) for layer in recorded.layers]
    return AttentionReport(title, model, panels, meta=meta, image=recorded.pixels, rollout=recorded.rollout())


def _panel(layer: LayerAttention, kind: Kind) -> Panel:
    queries, keys = (Grid(*sides, layer.extra, layer.windows) for sides in (layer.queries, layer.keys))
    return Panel(layer.name, kind, layer.weights, queries, keys, layer.neurons)

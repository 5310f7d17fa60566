"""Reports of detectors: the attention of the body, or, if it has none, the boxes of each stage over the image."""

from __future__ import annotations

import base64
from dataclasses import replace

from regard.attention.record import attention_names
from regard.data.images.reading import Pixels, png
from regard.data.regions.fitting import fit
from regard.inference.pipelines.detection import ObjectDetector
from regard.inference.pipelines.images import DETAIL, ImageSource, open_image
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.adapters.images import inspect_image
from regard.look.panels import Boxes
from regard.look.report import DATA_URL

LEAST = 0.5  # score of the objects that a page shows


def inspect_detector(detector: ObjectDetector, given: GivenInput) -> Inspected:
    """The objects of an image, and every layer and head of a body that has attention."""
    (found,) = detector.detect(given.file, LEAST)
    report = inspect_image(detector, given.file, given.title)
    whole = whole_image(detector, given.file)
    data_url = DATA_URL + base64.b64encode(png(whole)).decode()
    if not attention_names(detector.model):
        details = {"boxes": detector.stages(given.file)}
        report = replace(report, image=whole, shown_as=Boxes.view, details=details)
    return Inspected(report, {"objects": found.fractions(), "image": data_url})


def whole_image(detector: ObjectDetector, image: ImageSource) -> Pixels:
    """The image in as much detail as is shown, without padding."""
    opened = open_image(image)
    longest = min(DETAIL, max(opened.size))
    return fit(opened, longest, detector.config.channels)[0]

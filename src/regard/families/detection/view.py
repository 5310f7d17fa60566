"""What a detector shows: reports and figures of its boxes and stages, curves of its precision, and COCO's JSON."""

from __future__ import annotations

import base64
import colorsys
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont

from regard.attention.record import attention_names
from regard.data.images.reading import GOLDEN, Pixels, png
from regard.families.detection.data import fit
from regard.families.detection.pipeline import Detected, DetectedObject, ObjectDetector
from regard.families.detection.task import RECALLS, AveragePrecision
from regard.families.images.pipeline import DETAIL, ImageSource, open_image
from regard.families.images.view import inspect_image
from regard.look.figures import COLOURS, INK, draw, save_figure
from regard.look.image_figures import draw_regions, show_image
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Boxes, Point
from regard.look.report import DATA_URL, AttentionReport

LEAST = 0.5  # score of the objects that a page shows
SIDE = 4.2  # inches of an image


def inspect_detector(detector: ObjectDetector, given: GivenInput) -> Inspected:
    """The objects of an image, and every layer and head of a body that has attention."""
    (answer,) = detector.detect(given.file, LEAST)
    report = inspect_image(detector, given.file, given.title)
    whole = _whole_image(detector, given.file)
    data_url = DATA_URL + base64.b64encode(png(whole)).decode()
    if not attention_names(detector.model):
        details = {"boxes": detector.stages(given.file)}
        report = replace(report, image=whole, shown_as=Boxes.view, details=details)
    return Inspected(report, {"objects": answer.fractions(), "image": data_url})


def _whole_image(detector: ObjectDetector, image: ImageSource) -> Pixels:
    """The image in as much detail as is shown, without padding."""
    opened = open_image(image)
    return fit(opened, min(DETAIL, max(opened.size)), detector.config.channels)[0]


def coco_document(answers: Sequence[tuple[str, Detected]], names: Sequence[str]) -> dict[str, Any]:
    """A data set in COCO's form: `annotations` also have a score, as COCO's results have."""
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (file, answer) in enumerate(answers, start=1):
        width, height = answer.size
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        for found in answer.objects:
            x1, y1, x2, y2 = found.box
            box = [round(side, 2) for side in (x1, y1, x2 - x1, y2 - y1)]
            annotations.append({
                "id": len(annotations) + 1, "image_id": number, "category_id": 1 + list(names).index(found.label),
                "bbox": box, "area": round(box[2] * box[3], 2), "iscrowd": 0, "score": round(found.score, 5),
            })  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def _class_colour(number: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def annotated_png(image: Image.Image, objects: Sequence[DetectedObject], names: Sequence[str]) -> bytes:
    """The image with the box, the class and the probability of each object, as the bytes of a PNG file."""
    drawn, file = image.convert("RGB"), io.BytesIO()
    pen = ImageDraw.Draw(drawn)
    thick = max(1, round(max(image.size) / 320))
    font = ImageFont.load_default(size=max(9, round(max(image.size) / 45)))
    for found in reversed(objects):  # the best is drawn last, on top
        colour = _class_colour(list(names).index(found.label))
        pen.rectangle(found.box, outline=colour, width=thick)
        text, (x, y) = f"{found.label} {found.score:.0%}", found.box[:2]
        left, top, right, bottom = pen.textbbox((x, y), text, font=font)
        up = min(y, bottom - top + 4)  # above the box, or inside it at the top of the image
        pen.rectangle((left, top - up, right + 4, bottom - up + 2), fill=colour)
        pen.text((x + 2, y - up), text, fill=(16, 19, 26), font=font)
    drawn.save(file, "PNG")
    return file.getvalue()


def draw_boxes(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The stages of a detector side by side, or what words and regions look at. Layers within words are matrices."""
    if any(isinstance(axis, Boxes) for panel in report.panels for axis in (panel.queries, panel.keys)):
        return draw_regions(report)
    if report.panels or report.image is None:
        return draw(report, "heads")
    return _stages_figure(report.image, report.details["boxes"], f"{report.title}  {report.model}")


def save_stages(detector: ObjectDetector, image: ImageSource, title: str, path: Path) -> Path:
    """Write the stages of a detector on one image as .png or .svg."""
    stages, shown = detector.stages(image), _whole_image(detector, image)
    return save_figure(lambda: _stages_figure(shown, stages, title), path)


def _stages_figure(image: Pixels, stages: Sequence[dict[str, Any]], title: str) -> Figure:
    """An image for each stage, with its boxes; a colour for each name."""
    _, height, width = image.shape
    figure = Figure(figsize=(SIDE * len(stages), SIDE * height / width + 0.7))
    names = sorted({box["name"] for stage in stages for box in stage["boxes"]})
    colours = {name: [part / 255 for part in _class_colour(number)] for number, name in enumerate(names)}
    for axes, stage in zip(figure.subplots(1, len(stages), squeeze=False)[0], reversed(stages), strict=True):
        axes.set_axis_off()
        show_image(axes, image)
        for box in stage["boxes"]:
            x1, y1, x2, y2 = box["box"]
            corner, size = (x1 * width - 0.5, y1 * height - 0.5), ((x2 - x1) * width, (y2 - y1) * height)
            axes.add_patch(Rectangle(corner, *size, fill=False, edgecolor=colours[box["name"]], linewidth=1.2))
        axes.set_title(f"{stage['name']}: {len(stage['boxes'])}", fontsize=9, color=INK, loc="left")
    handles = [Rectangle((0, 0), 1, 1, color=colours[name], label=name) for name in names if name]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=min(8, len(handles)), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9, color=INK)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def save_precision(precision: AveragePrecision, kinds: Mapping[str, int], title: str, path: Path) -> Path:
    """Write precision against recall for each class, and the numbers of right and wrong boxes by kind."""
    return save_figure(lambda: _precision_figure(precision, kinds, title), path)


def _precision_figure(precision: AveragePrecision, kinds: Mapping[str, int], title: str) -> Figure:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (name, precisions) in enumerate(precision.curves.items()):
        colour, label = COLOURS[number % len(COLOURS)], f"{name}  AP50 {precisions.mean():.3f}"
        left.plot(RECALLS, precisions, color=colour, label=label)
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    left.legend(frameon=False, fontsize=8, loc="lower left")
    right.barh(list(kinds), list(kinds.values()), color=COLOURS[0])
    right.invert_yaxis()
    right.set_xlabel("boxes of a score of 0.5 or more; objects missed")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10, color=INK)
    return figure

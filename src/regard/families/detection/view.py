"""Boxes over an image as PNG and SVG: the stages of a detector side by side, and curves of its precision."""

from __future__ import annotations

import base64
import colorsys
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image, ImageDraw, ImageFont

from regard.attention.record import attention_names
from regard.data.images.reading import GOLDEN, Pixels, png
from regard.families.detection.data import fit
from regard.families.detection.pipeline import ObjectDetector
from regard.families.images.pipeline import DETAIL, ImageSource, open_image
from regard.families.images.view import inspect_image
from regard.look.box_figures import draw_regions
from regard.look.charts import COLOURS
from regard.look.figure_files import save_figure
from regard.look.figures import INK, draw
from regard.look.given import GivenInput, Inspected
from regard.look.panels import Boxes, Point
from regard.look.report import DATA_URL, AttentionReport

if TYPE_CHECKING:
    from regard.families.detection.pipeline import ObjectDetector
    from regard.families.images.pipeline import ImageSource


class FoundObject(Protocol):
    """A found object."""

    @property
    def label(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def box(self) -> tuple[float, float, float, float]: ...


class FoundObjects(Protocol):
    """The objects of an image, and its width and height."""

    @property
    def objects(self) -> Sequence[FoundObject]: ...
    @property
    def size(self) -> tuple[int, int]: ...


def coco_document(found: Sequence[tuple[str, FoundObjects]], names: Sequence[str]) -> dict[str, Any]:
    """A data set in COCO's form: `annotations` also have a score, as COCO's results have."""
    images, annotations = list[dict[str, Any]](), list[dict[str, Any]]()
    for number, (file, answer) in enumerate(found, start=1):
        width, height = answer.size
        images.append({"id": number, "file_name": file, "width": width, "height": height})
        for each in answer.objects:
            x1, y1, x2, y2 = each.box
            box = [round(side, 2) for side in (x1, y1, x2 - x1, y2 - y1)]
            annotations.append({
                "id": len(annotations) + 1, "image_id": number, "category_id": 1 + list(names).index(each.label),
                "bbox": box, "area": round(box[2] * box[3], 2), "iscrowd": 0, "score": round(each.score, 5),
            })  # fmt: skip
    categories = [{"id": number, "name": name} for number, name in enumerate(names, start=1)]
    return {"images": images, "annotations": annotations, "categories": categories}


def class_colour(number: int) -> tuple[int, int, int]:
    """The colour of a class."""
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN % 1, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def annotated_png(image: Image.Image, objects: Sequence[FoundObject], names: Sequence[str]) -> bytes:
    """The image with the box, the class and the probability of each object, as the bytes of a PNG file."""
    drawn, file = image.convert("RGB"), io.BytesIO()
    pen = ImageDraw.Draw(drawn)
    thick = max(1, round(max(image.size) / 320))
    font = ImageFont.load_default(size=max(9, round(max(image.size) / 45)))
    for each in reversed(objects):  # the best is drawn last, on top
        colour = class_colour(list(names).index(each.label))
        pen.rectangle(each.box, outline=colour, width=thick)
        text, (x, y) = f"{each.label} {each.score:.0%}", each.box[:2]
        left, top, right, bottom = pen.textbbox((x, y), text, font=font)
        up = min(y, bottom - top + 4)  # above the box, or inside it at the top of the image
        pen.rectangle((left, top - up, right + 4, bottom - up + 2), fill=colour)
        pen.text((x + 2, y - up), text, fill=(16, 19, 26), font=font)
    drawn.save(file, "PNG")
    return file.getvalue()


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


SIDE = 4.2  # inches of an image


def draw_boxes(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The stages of a detector side by side, or what words and regions look at. Layers within words are matrices."""
    if any(isinstance(axis, Boxes) for panel in report.panels for axis in (panel.queries, panel.keys)):
        return draw_regions(report)
    if report.panels or report.image is None:
        return draw(report, "heads")
    return stages_figure(report.image, report.details["boxes"], f"{report.title}  {report.model}")


def stages_figure(image: Pixels, stages: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """An image for each stage, with its boxes; a colour for each name."""
    figure = Figure(figsize=(SIDE * len(stages), SIDE * image.shape[1] / image.shape[2] + 0.7))
    names = sorted({each["name"] for stage in stages for each in stage["boxes"]})
    colours = {name: [part / 255 for part in class_colour(number)] for number, name in enumerate(names)}
    for axes, stage in zip(figure.subplots(1, len(stages), squeeze=False)[0], reversed(stages), strict=True):
        _show(axes, image)
        for each in stage["boxes"]:
            x1, y1, x2, y2 = each["box"]
            place = (x1 * image.shape[2] - 0.5, y1 * image.shape[1] - 0.5)
            size = (x2 - x1) * image.shape[2], (y2 - y1) * image.shape[1]
            axes.add_patch(Rectangle(place, *size, fill=False, edgecolor=colours[each["name"]], linewidth=1.2))
        axes.set_title(f"{stage['name']}: {len(stage['boxes'])}", fontsize=9, color=INK, loc="left")
    shown = [name for name in names if name]
    handles = [Rectangle((0, 0), 1, 1, color=colours[name], label=name) for name in shown]
    if handles:
        figure.legend(handles=handles, loc="lower center", ncols=min(8, len(handles)), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=9, color=INK)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def precision_figure(curves: Mapping[str, Sequence[float]], kinds: Mapping[str, int], title: str = "") -> Figure:
    """Precision against recall for each class, and the numbers of right and wrong boxes by kind."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (name, precisions) in enumerate(curves.items()):
        recalls = [place / (len(precisions) - 1) for place in range(len(precisions))]
        mean = sum(precisions) / len(precisions)
        left.plot(recalls, precisions, color=COLOURS[number % len(COLOURS)], label=f"{name}  AP50 {mean:.3f}")
    left.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    left.legend(frameon=False, fontsize=8, loc="lower left")
    right.barh(list(kinds), list(kinds.values()), color=COLOURS[0])
    right.invert_yaxis()
    right.set_xlabel("boxes of a score of 0.5 or more; objects missed")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10, color=INK)
    return figure


def _show(axes: Axes, image: Pixels) -> None:
    axes.set_axis_off()
    axes.imshow(image[0] if len(image) == 1 else image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=255)


def save_stages(detector: ObjectDetector, image: ImageSource, title: str, path: Path) -> Path:
    """Write the stages of a detector on one image as .png or .svg."""

    stages, shown = detector.stages(image), whole_image(detector, image)
    return save_figure(lambda: stages_figure(shown, stages, title), path)

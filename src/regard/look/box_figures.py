"""Boxes over an image as PNG and SVG: the stages of a detector side by side, and curves of its precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from regard.data.images.reading import Pixels
from regard.data.regions.drawing import class_colour
from regard.look.charts import COLOURS
from regard.look.figure_files import save_figure
from regard.look.figures import INK, draw
from regard.look.panels import Boxes, Point
from regard.look.region_figures import draw_regions
from regard.look.report import AttentionReport

if TYPE_CHECKING:
    from regard.inference.pipelines.detection import ObjectDetector
    from regard.inference.pipelines.images import ImageSource

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
    from regard.look.adapters.detection import whole_image

    stages, shown = detector.stages(image), whole_image(detector, image)
    return save_figure(lambda: stages_figure(shown, stages, title), path)

"""Found objects in COCO's form, which other tools and `regard train` read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


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

"""The adapters of pipelines that read files, by the key of the pipeline. A new modality is one more row.

Texts have options of their own, and all text pipelines share `inspect_text`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from regard.look.report import AttentionReport

FILE_ADAPTERS: dict[str, str] = {  # "module.function" of this folder, called with a pipeline, a path and a title
    "image_classifier": "images.inspect_image",
    "image_segmenter": "images.inspect_image",
}


def inspect_file(pipeline: Any, path: str | Path, title: str = "") -> AttentionReport | None:
    """The report of a model that reads files; None if the pipeline has no adapter here."""
    adapter = FILE_ADAPTERS.get(getattr(pipeline, "pipeline", ""))
    if adapter is None:
        return None
    module, _, name = adapter.partition(".")
    report: AttentionReport = getattr(import_module(f"{__package__}.{module}"), name)(pipeline, path, title)
    return report

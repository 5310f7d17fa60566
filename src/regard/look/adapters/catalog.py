"""The adapters of pipelines that read files, by the key of the pipeline. A new modality is one more row.

Texts have options of their own, and all text pipelines share `inspect_text`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from regard.look.adapters.given import GivenInput, Inspected

FILE_ADAPTERS: dict[str, str] = {  # "module.function" of this folder, called with a pipeline and its input
    "image_classifier": "images.inspect_classifier",
    "image_segmenter": "images.inspect_segmenter",
    "image_captioner": "captions.inspect_caption",
    "navigator": "paths.inspect_navigator",
    "forecaster": "trajectories.inspect_forecaster",
    "object_detector": "detection.inspect_detector",
    "speech_recognizer": "speech.inspect_speech",
    "structure_predictor": "structures.inspect_structure",
    "vision_language": "vision_language.inspect_regions",
    "whisper_transcriber": "speech.inspect_speech",
    "interactions": "proteins.inspect_interaction",
}


def inspect_input(pipeline: Any, given: GivenInput) -> Inspected | None:
    """The report of a model that reads files, and its answer; None if the pipeline has no adapter here."""
    adapter = FILE_ADAPTERS.get(getattr(pipeline, "pipeline", ""))
    if adapter is None:
        return None
    module, _, name = adapter.partition(".")
    inspected: Inspected = getattr(import_module(f"{__package__}.{module}"), name)(pipeline, given)
    return inspected

"""The evaluations of `regard evaluate DATA -m MODEL`, by the key of the model's pipeline. A modality is one row.

Translators and language models have options of their own, and `cli/evaluate.py` calls their functions itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple


@dataclass(frozen=True)
class EvaluationOptions:
    """What the command line says about an evaluation; an evaluation reads the options that apply to it."""

    folder: Path  # of the model
    count: int  # how many built-in examples are drawn
    seed: int  # which draw of the built-in examples
    beam: int | None = None  # None: the model's own beam width
    output: Path | None = None  # a file for more than the scores: a detector's curves
    samples: int = 20  # futures of which the best counts


class Evaluation(NamedTuple):
    """Metrics by name, and a message for each example that could not be read."""

    scores: dict[str, object]
    unread: Sequence[str] = ()


Evaluate = Callable[[Any, str, EvaluationOptions], Evaluation]

EVALUATIONS: dict[str, str] = {  # "module.function" of this folder
    "image_classifier": "images.evaluate_images",
    "object_detector": "detection.evaluate_detector",
    "image_captioner": "captions.evaluate_captions",
    "text_encoder": "texts.evaluate_texts",
    "navigator": "paths.evaluate_paths",
    "forecaster": "trajectories.evaluate_forecasts",
    "structure_predictor": "structures.evaluate_structures",
    "vision_language": "vision_language.evaluate_regions",
    "speech_recognizer": "speech.evaluate_speech",
    "whisper_transcriber": "speech.evaluate_speech",
    "interactions": "interactions.evaluate_interactions",
    "feature_dictionary": "dictionaries.evaluate_dictionary",
}
# The pipelines whose evaluation draws a figure to `output`, searches with a `beam`, or draws `samples`.
DRAWN, SEARCHED, SAMPLED = (
    ("object_detector",), ("image_captioner", "speech_recognizer", "whisper_transcriber"), ("forecaster",),
)  # fmt: skip


def find_evaluation(pipeline: str) -> Evaluate | None:
    """The evaluation of a pipeline; None if it has none in this catalog."""
    if pipeline not in EVALUATIONS:
        return None
    module, _, name = EVALUATIONS[pipeline].partition(".")
    found: Evaluate = getattr(import_module(f"{__package__}.{module}"), name)
    return found

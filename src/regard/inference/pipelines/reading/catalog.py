"""The readers of pipelines. A new kind of model that can be read is one more row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from regard.errors import UsageError, with_article
from regard.inference.pipelines.captioner import ImageCaptioner
from regard.inference.pipelines.detection import ObjectDetector
from regard.inference.pipelines.folding import StructurePredictor
from regard.inference.pipelines.forecaster import Forecaster
from regard.inference.pipelines.image_generation import PixelGenerator
from regard.inference.pipelines.images import ImageClassifier, ImageSegmenter
from regard.inference.pipelines.interactions import InteractionPredictor
from regard.inference.pipelines.language_models import LanguageModel, TextToText
from regard.inference.pipelines.navigator import Navigator
from regard.inference.pipelines.reading.base import Reader
from regard.inference.pipelines.reading.captions import CaptionReader
from regard.inference.pipelines.reading.chains import ChainReader
from regard.inference.pipelines.reading.detection import BoxReader
from regard.inference.pipelines.reading.images import ImageReader, MaskReader, WrittenPixelReader
from regard.inference.pipelines.reading.interactions import InteractionReader
from regard.inference.pipelines.reading.labels import encoder_reader
from regard.inference.pipelines.reading.pairs import PairReader, PromptReader
from regard.inference.pipelines.reading.paths import PathReader
from regard.inference.pipelines.reading.speech import SpeechReader, WhisperReader
from regard.inference.pipelines.reading.texts import LanguageModelReader
from regard.inference.pipelines.reading.tracks import TrackReader
from regard.inference.pipelines.reading.vision_language import RegionTextReader
from regard.inference.pipelines.speech import SpeechRecognizer
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.inference.pipelines.translator import Translator
from regard.inference.pipelines.vision_language import VisionLanguageModel
from regard.inference.pipelines.whisper import WhisperTranscriber

READERS: dict[type[Any], Callable[[Any], Reader[Any]]] = {
    LanguageModel: LanguageModelReader,
    Translator: PairReader,
    TextToText: PromptReader,
    TextEncoder: encoder_reader,
    ImageClassifier: ImageReader,
    ImageSegmenter: MaskReader,
    ObjectDetector: BoxReader,
    PixelGenerator: WrittenPixelReader,
    ImageCaptioner: CaptionReader,
    SpeechRecognizer: SpeechReader,
    WhisperTranscriber: WhisperReader,
    VisionLanguageModel: RegionTextReader,
    Forecaster: TrackReader,
    Navigator: PathReader,
    StructurePredictor: ChainReader,
    InteractionPredictor: InteractionReader,
}


def reader_of(pipeline: Any) -> Reader[Any]:
    """The reader of a loaded pipeline."""
    for kind, reader in READERS.items():
        if isinstance(pipeline, kind):
            return reader(pipeline)
    known = ", ".join(kind.__name__ for kind in READERS)
    raise UsageError(f"a dictionary of features cannot read {with_article(type(pipeline).__name__)}; it reads: {known}")

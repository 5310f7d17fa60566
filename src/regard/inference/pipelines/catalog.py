"""Every pipeline by key: its class, what it can do, and how it is used. A new pipeline is one more row.

`models/catalog.py` names the pipeline of every model; `find_pipeline` also looks into the model folder, because some
models are run by another pipeline depending on what they were trained on. Classes are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from regard.checkpoints.folder import resolve
from regard.checkpoints.hub import local_folder
from regard.checkpoints.models import identify
from regard.config import Config
from regard.data.images.reading import PREPROCESSING
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import UsageError
from regard.models.catalog import MODELS

if TYPE_CHECKING:
    from regard.inference.pipelines.captioner import ImageCaptioner
    from regard.inference.pipelines.detection import ObjectDetector
    from regard.inference.pipelines.feature_dictionary import FeatureDictionary
    from regard.inference.pipelines.folding import StructurePredictor
    from regard.inference.pipelines.forecaster import Forecaster
    from regard.inference.pipelines.image_generation import ClassImageGenerator, PixelGenerator
    from regard.inference.pipelines.images import ImageClassifier, ImageSegmenter
    from regard.inference.pipelines.interactions import InteractionPredictor
    from regard.inference.pipelines.language_models import LanguageModel, TextToText
    from regard.inference.pipelines.navigator import Navigator
    from regard.inference.pipelines.speech import SpeechRecognizer
    from regard.inference.pipelines.text_encoder import TextEncoder
    from regard.inference.pipelines.translator import Translator
    from regard.inference.pipelines.vision_language import VisionLanguageModel
    from regard.inference.pipelines.whisper import WhisperTranscriber
    from regard.inference.pipelines.word_vectors import WordVectors

    Pipeline: TypeAlias = (
        Translator
        | TextEncoder
        | LanguageModel
        | TextToText
        | WordVectors
        | ImageClassifier
        | ImageSegmenter
        | ImageCaptioner
        | ObjectDetector
        | PixelGenerator
        | ClassImageGenerator
        | Navigator
        | Forecaster
        | SpeechRecognizer
        | StructurePredictor
        | VisionLanguageModel
        | InteractionPredictor
        | WhisperTranscriber
        | FeatureDictionary
    )

Ability = Literal[
    "translate",
    "write",
    "embed",
    "see",
    "segment",
    "caption",
    "detect",
    "generate_images",
    "navigate",
    "forecast",
    "fold",
    "compare",
    "transcribe",
    "interact",
    "name_features",
]
TEXT, IMAGE, HOUSE, AUDIO, PROTEIN, SCENE = "text", "image", "house", "audio", "protein", "scene"  # inputs of pipelines
FEATURES = "features"  # a dictionary reads another model, whatever that reads
TRANSLATOR = "translator"  # the pipeline of every folder with a tokenizer of sentence pairs
ANY_HEAD = ""  # key of `uses` for models whose head has no line of its own


class PipelineEntry(NamedTuple):
    """One pipeline: where its class is, and what the commands, the server and model cards say of it."""

    module: str  # in this package
    class_name: str
    ability: Ability
    uses: Mapping[str, str]  # the line of a model card that runs the model, by the head of the model
    input: str = TEXT  # what one input is; anything but a text comes as a file
    takes_precision: bool = False  # whether it can run in int8, fp16 or bf16
    answers: bool = False  # whether it writes an answer to its prompt; other writers continue the prompt
    not_served: str = ""  # why the server does not serve it, as the end of a sentence; empty if it does
    text_label: str = ""  # for models that read a file and a text: what the text is
    for_images: str = ""  # the pipeline that takes its place where the model folder has image preprocessing

    def load_class(self) -> Any:
        """Import the class."""
        return getattr(import_module(f"regard.inference.pipelines.{self.module}"), self.class_name)


PIPELINES: dict[str, PipelineEntry] = {
    TRANSLATOR: PipelineEntry(
        "translator", "Translator", "translate",
        {ANY_HEAD: 'print(model.translate("we are eating bread").text)'},
        takes_precision=True,
    ),
    "language_model": PipelineEntry(
        "language_models", "LanguageModel", "write",
        {ANY_HEAD: 'print(model.generate("Once upon a time").text)'},
        takes_precision=True, for_images="pixel_generator",
    ),
    "text_to_text": PipelineEntry(
        "language_models", "TextToText", "write",
        {ANY_HEAD: 'print(model.generate("Translate EN-ES: we are eating bread").text)'},
        takes_precision=True, answers=True,
    ),
    "text_encoder": PipelineEntry(
        "text_encoder", "TextEncoder", "embed",
        {
            ANY_HEAD: 'print(model.embed("we are eating bread"))',
            "masked": 'print(model.fill("we are [MASK] bread"))',
            "pretraining": 'print(model.fill("we are [MASK] bread"))',
            "classify": 'print(model.classify("we are eating bread"))',
            "tags": 'print(model.tag("Anna lives in New York"))',
            "answer": 'print(model.answer("Where does Anna live?", "Anna lives in New York.")[0].text)',
        },
    ),
    "word_vectors": PipelineEntry(
        "word_vectors", "WordVectors", "embed", {ANY_HEAD: 'print(model.neighbours("bread"))'}
    ),
    "image_classifier": PipelineEntry(
        "images", "ImageClassifier", "see", {ANY_HEAD: 'print(model.classify("image.png")[0])'},
        input=IMAGE,
    ),
    "image_segmenter": PipelineEntry(
        "images", "ImageSegmenter", "segment",
        {ANY_HEAD: 'print(model.segment("image.png")[0].shares)'},
        input=IMAGE,
    ),
    "image_captioner": PipelineEntry(
        "captioner", "ImageCaptioner", "caption", {ANY_HEAD: 'print(model.caption("image.png")[0].text)'},
        input=IMAGE,
    ),
    "object_detector": PipelineEntry(
        "detection", "ObjectDetector", "detect",
        {ANY_HEAD: 'print(model.detect("image.png")[0].objects)'},
        input=IMAGE,
    ),
    "pixel_generator": PipelineEntry(
        "image_generation", "PixelGenerator", "generate_images",
        {ANY_HEAD: 'images = model.paint("image.png", count=4)  # bytes [4 C H W]; the upper half stays'},
        input=IMAGE,
        not_served="makes images, which the server does not; use `regard generate`",
    ),
    "image_generator": PipelineEntry(
        "image_generation", "ClassImageGenerator", "generate_images",
        {ANY_HEAD: "images = model.make(model.labels, seed=1)  # bytes [N C H W], one of each class"},
        input=IMAGE,
        not_served="makes images, which the server does not; use `regard generate`",
    ),
    "navigator": PipelineEntry(
        "navigator", "Navigator", "navigate",
        {ANY_HEAD: 'print(model.navigate("turn left and stop", "builtin:houses#0", "house-1-000-000")[0].best)'},
        input=HOUSE, text_label="Instruction",
    ),
    "speech_recognizer": PipelineEntry(
        "speech", "SpeechRecognizer", "transcribe",
        {ANY_HEAD: 'print(model.transcribe("recording.wav")[0].text)'},
        input=AUDIO,
    ),
    "structure_predictor": PipelineEntry(
        "folding", "StructurePredictor", "fold",
        {ANY_HEAD: 'print(model.fold("MKTAYIAKQRQISFVKSHFSRQ")[0].mean_confidence)'},
        input=PROTEIN,
    ),
    "forecaster": PipelineEntry(
        "forecaster", "Forecaster", "forecast",
        {ANY_HEAD: 'print(model.forecast("builtin:walkers#0", samples=20)[0].likeliest)'},
        input=SCENE,
    ),
    "vision_language": PipelineEntry(
        "vision_language", "VisionLanguageModel", "compare",
        {
            ANY_HEAD: 'print(model.match("image.png", ["a red circle", "a blue square"])[0])',
            "point": 'print(model.point("image.png", "the red circle")[0].box)',
            "answer": 'print(model.answer("image.png", "what colour is the large ring")[0].label)',
        },
        input=IMAGE, text_label="Text or question",
    ),
    "interactions": PipelineEntry(
        "interactions", "InteractionPredictor", "interact",
        {ANY_HEAD: 'print(model.interact("MSTAVLENPGLGRKLSDF", "MKLVNIGRALAEK")[0].probability)'},
        input=PROTEIN,
    ),
    "whisper_transcriber": PipelineEntry(
        "whisper", "WhisperTranscriber", "transcribe", {ANY_HEAD: 'print(model.transcribe("speech.wav")[0].text)'},
        input=AUDIO,
    ),
    "feature_dictionary": PipelineEntry(
        "feature_dictionary", "FeatureDictionary", "name_features",
        {ANY_HEAD: 'units, features = model.active("we are eating bread")'},
        input=FEATURES,
    ),
}  # fmt: skip


def find_pipeline(folder: Path, model: str = "") -> str:
    """The key of the pipeline that runs the model in a folder; `model` names it where the folder is not complete yet.

    A tokenizer of sentence pairs makes any model a translator. Image preprocessing means that the tokens of a language
    model are the colours of pixels.
    """
    if PairTokenizer.is_in(folder):
        return TRANSLATOR
    key = MODELS[model or identify(folder)[0]].pipeline
    return PIPELINES[key].for_images or key if (folder / PREPROCESSING).is_file() else key


def load_pipeline(
    *folders: str | Path, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32"
) -> Pipeline:
    """The pipeline of one model folder or `hf:owner/name`, or of an ensemble of translators; see `regard.load`."""
    for folder in folders:
        if not isinstance(folder, str | PathLike):
            raise UsageError(f"load takes model folders or hf:owner/name, not {folder!r:.60} ({type(folder).__name__})")
    if not folders:
        raise UsageError("load takes a model folder or hf:owner/name; none came")
    places = [local_folder(folder) for folder in folders]
    pipeline = PIPELINES[find_pipeline(resolve(places[0])) if len(places) == 1 else TRANSLATOR]
    if precision != "fp32" and not pipeline.takes_precision:
        name, _, _ = identify(resolve(places[0]))
        raise UsageError(f"precision {precision} is for models that write or translate; {name} has fp32 alone")
    options = {"precision": precision} if pipeline.takes_precision else {}
    loaded: Pipeline = pipeline.load_class().load(*places, device=device, allow_pickle=allow_pickle, **options)
    return loaded


def ability_of(model: str | Path) -> Ability:
    """What the model of a folder, or of `hf:owner/name`, can do."""
    return PIPELINES[find_pipeline(resolve(local_folder(model)))].ability


def input_of(model: str | Path) -> str:
    """What the model of a folder, or of `hf:owner/name`, reads."""
    return PIPELINES[find_pipeline(resolve(local_folder(model)))].input


def models_that(ability: Ability) -> tuple[str, ...]:
    """The names of the models whose pipeline has an ability."""
    return tuple(name for name, entry in MODELS.items() if PIPELINES[entry.pipeline].ability == ability)


def use_line(folder: Path, model: str, config: Config) -> str:
    """The line of Python with which the card of a model folder shows its use."""
    uses = PIPELINES[find_pipeline(folder, model)].uses
    return uses.get(getattr(config, "head", ANY_HEAD), uses[ANY_HEAD])

"""Regard: attention models you can train, run fast, and look into.

>>> import regard
>>> translator = regard.load("runs/en-es")
>>> answer = translator.translate("we are eating bread", beam=5)
>>> answer.text, answer.score, answer.attention, answer.alignment
>>> encoder = regard.load("hf:sentence-transformers/all-MiniLM-L6-v2")
>>> encoder.embed(["we are eating bread", "they have lunch"])  # a folder of BERT's family is a TextEncoder
>>> regard.load("hf:openai-community/gpt2").generate("In a shocking finding,", temperature=0.8, best_of=10).text
>>> regard.look(translator, "we are eating bread")  # every layer and head, shown in a notebook cell
>>> regard.look("hf:openai-community/gpt2", "In a shocking finding,", max_tokens=20)  # and what it expected next
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from regard.inference.pipelines.generator import LanguageModel, TextToText
    from regard.inference.pipelines.image_generation import Painter, PictureMaker
    from regard.inference.pipelines.images import ImageClassifier, ImageSegmenter
    from regard.inference.pipelines.text_encoder import TextEncoder
    from regard.inference.pipelines.translator import Translator
    from regard.inference.pipelines.word_vectors import WordVectors

    Loaded: TypeAlias = (
        Translator
        | TextEncoder
        | LanguageModel
        | TextToText
        | WordVectors
        | ImageClassifier
        | ImageSegmenter
        | Painter
        | PictureMaker
    )

__all__ = ["load", "look"]

# Where torch allocates with mimalloc (ARM), memory that is free for 10 ms goes back to the system, and every step asks
# for it anew, page by page: a tenth of a training step. After a minute is early enough. torch reads this as it loads.
os.environ.setdefault("MIMALLOC_PURGE_DELAY", "60000")


def load(*folders: str | Path, device: str = "cpu", allow_pickle: bool = False, precision: str = "fp32") -> Loaded:
    """Load a model folder or `hf:owner/name` as what it is for.

    BERT's family and ELMo become a TextEncoder, GPTs and LSTMs a LanguageModel, a T5 a TextToText, a word2vec
    WordVectors; models of pictures an ImageClassifier, an ImageSegmenter, a PictureMaker (SAGAN) or a Painter (a GPT of
    colours); and whatever was trained on sentence pairs a Translator; several folders of these with the same tokenizer
    translate as an ensemble. Models that write or translate run on a CPU in a form of their own: exact as fp32, faster
    and less exact as fp16 or int8 (`precision`).
    """
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.checkpoints.models import identify
    from regard.data.images.reading import PREPROCESSING
    from regard.data.tokenizers.pair import PairTokenizer
    from regard.errors import UsageError
    from regard.inference.pipelines.generation import Writer
    from regard.inference.pipelines.generator import LanguageModel, TextToText
    from regard.inference.pipelines.image_generation import Painter, PictureMaker
    from regard.inference.pipelines.images import CLASSIFIERS, ImageClassifier, ImageSegmenter
    from regard.inference.pipelines.text_encoder import TextEncoder
    from regard.inference.pipelines.translator import Translator
    from regard.inference.pipelines.word_vectors import WordVectors

    for folder in folders:
        if not isinstance(folder, str | os.PathLike):
            raise UsageError(f"load takes model folders or hf:owner/name, not {folder!r:.60} ({type(folder).__name__})")
    if not folders:
        raise UsageError("load takes a model folder or hf:owner/name; none came")
    places = [local_folder(folder) for folder in folders]
    if len(places) == 1 and not PairTokenizer.is_in(resolve(places[0])):
        name, _, _ = identify(resolve(places[0]))
        of_colours = (resolve(places[0]) / PREPROCESSING).is_file()
        kinds: dict[str, Any] = {
            "bert": TextEncoder, "elmo": TextEncoder, "gpt": Painter if of_colours else LanguageModel,
            "lstm": LanguageModel, "t5": TextToText, "word2vec": WordVectors, "sagan": PictureMaker,
            "segmenter": ImageSegmenter, **dict.fromkeys(CLASSIFIERS, ImageClassifier),
        }  # fmt: skip
        if name in kinds:
            writes = issubclass(kinds[name], Writer)
            if precision != "fp32" and not writes:
                raise UsageError(f"precision {precision} is for models that write or translate; {name} has fp32 alone")
            options = {"precision": precision} if writes else {}
            found: Loaded = kinds[name].load(places[0], device=device, allow_pickle=allow_pickle, **options)
            return found
    return Translator.load(*places, device=device, allow_pickle=allow_pickle, precision=precision)


def __getattr__(name: str) -> Any:
    """`regard.look` is imported when it is first used: drawing takes a while to load."""
    if name == "look":
        return import_module("regard.look")
    raise AttributeError(f"module 'regard' has no attribute {name!r}")

"""Decoding of texts about images by the one search, for pipelines and for validation during training."""

from __future__ import annotations

from typing import Any, cast

from jaxtyping import Float
from torch import Tensor

from regard.data.tokenizers.text import TextTokenizer
from regard.inference.decoding.protocols import ImageSourceModel
from regard.inference.decoding.search import Hypothesis, search
from regard.inference.decoding.settings import SearchSettings, Vocabulary
from regard.inference.decoding.start import from_images

NEVER = -1e4  # added to the logit of the unknown token, which says nothing


def caption_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """The special tokens of captions; the padding token begins every one."""
    assert tokenizer.end is not None
    return Vocabulary(tokenizer.pad, tokenizer.end, tokenizer.pad)


def write_captions(
    model: Any, images: Float[Tensor, "S C H W"], settings: SearchSettings, tokenizer: TextTokenizer
) -> list[list[Hypothesis]]:
    """The best captions of each image."""
    vocabulary, unknown = caption_vocabulary(tokenizer), tokenizer.only_unknown
    if unknown is not None:
        settings = settings.replace(logit_bias={unknown: NEVER, **settings.logit_bias})
    start = from_images(cast(ImageSourceModel, model), images, settings, vocabulary.start)
    return search(cast(ImageSourceModel, model), start, settings, vocabulary)

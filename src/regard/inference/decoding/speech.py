"""Texts of recordings: by the labels of frames (CTC), by the one search, or by both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.tokenizers.text import TextTokenizer
from regard.inference.decoding import ctc
from regard.inference.decoding.search import Hypothesis, search
from regard.inference.decoding.settings import SearchSettings, Vocabulary
from regard.inference.decoding.start import SearchStart

Way = Literal["ctc", "attention"]
JOINT = 0.3  # how much the labels of frames count when they judge what a decoder found
NEVER = -1e4  # added to the logit of the unknown token, which says nothing


class HeardTexts(NamedTuple):
    """For every recording the best texts, and the log-probabilities of its frames if the model labels them."""

    texts: list[list[Hypothesis]]
    frames: list[Float[np.ndarray, "T V"]]


def speech_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """The special tokens of texts; the padding token begins every one, and is CTC's blank."""
    assert tokenizer.end is not None
    return Vocabulary(tokenizer.pad, tokenizer.end, tokenizer.pad)


@torch.inference_mode()
def write_speech(
    model: Any,
    features: Float[Tensor, "S T F"],
    mask: Bool[Tensor, "S T"] | None,
    settings: SearchSettings,
    tokenizer: TextTokenizer,
    way: Way | None = None,
) -> HeardTexts:
    """The best texts of each recording.

    Without a decoder, or by the way `ctc`, they are the labels of frames: greedy, or by prefix beam search. Otherwise
    the decoder is searched; if the beam is wider than 1 and the model labels frames too, both judge what was found.
    """
    memory, real = model.encode(features, mask)
    lengths = [memory.shape[1]] * len(memory) if real is None else real.sum(dim=1).tolist()
    frames: list[Float[np.ndarray, "T V"]] = []
    logs = None
    if model.label is not None:
        logs = model.label(memory).float().log_softmax(dim=-1)
        frames = [row[:length].cpu().numpy() for row, length in zip(logs, lengths, strict=True)]
    if model.decoder is None or way == "ctc":
        return HeardTexts([_labelled(each, settings, tokenizer) for each in frames], frames)
    if tokenizer.only_unknown is not None:
        settings = settings.replace(logit_bias={tokenizer.only_unknown: NEVER, **settings.logit_bias})
    judged = logs is not None and settings.beam > 1 and way is None
    wanted = settings.n_best
    vocabulary = speech_vocabulary(tokenizer)
    state = model.decoder.first_state(memory, None if real is None else real[:, None, None])
    first = torch.full((len(memory),), vocabulary.start, dtype=torch.long, device=memory.device)
    limits = [min(settings.limit(length), max(1, length)) for length in lengths]  # nobody says a token a frame
    start = SearchStart(state, first, limits, [""] * len(memory))
    found = search(model.decoder, start, settings.replace(n_best=settings.width) if judged else settings, vocabulary)
    if judged:
        assert logs is not None
        found = [
            _judged(each, row[:length], tokenizer.pad)[:wanted]
            for each, row, length in zip(found, logs, lengths, strict=True)
        ]
    return HeardTexts(found, frames)


def _labelled(frames: Float[np.ndarray, "T V"], settings: SearchSettings, tokenizer: TextTokenizer) -> list[Hypothesis]:
    """Labels of frames as hypotheses; their score is a mean over tokens, as that of a decoder."""
    if settings.width == 1:
        found = [ctc.greedy(frames, tokenizer.pad)]
    else:
        found = ctc.beam_search(frames, tokenizer.pad, settings.width, settings.n_best)
    return [Hypothesis(labels, score / (len(labels) + 1), score, True) for labels, score in found]


def _judged(found: list[Hypothesis], frames: Float[Tensor, "T V"], blank: int) -> list[Hypothesis]:
    """The texts that a decoder found, ordered by both judgements (Watanabe et al. 2017)."""
    fitting = [each for each in found if ctc.needed_frames(each.tokens) <= len(frames)]
    if not fitting:
        return found
    stacked = frames[:, None].expand(-1, len(fitting), -1)
    labelled = ctc.scores(stacked, [len(frames)] * len(fitting), [each.tokens for each in fitting], blank)
    return sorted(map(_weighed, fitting, labelled), key=lambda each: -each.log_probability)


def _weighed(found: Hypothesis, labelled: float) -> Hypothesis:
    """A text with the judgement of both in place of the decoder's."""
    total = (1 - JOINT) * found.log_probability + JOINT * labelled
    return replace(found, score=total / (len(found.tokens) + 1), log_probability=total)

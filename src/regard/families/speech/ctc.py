"""Texts of recordings: by the labels of frames (CTC, Graves et al. 2006), by the search of a decoder, or by both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import SearchStart

LEAST = 1e-6  # labels of a frame below this probability are not tried in a beam search


class Labelling(NamedTuple):
    """Labels without blanks, and the logarithm of their probability: of all paths, or of one if it is greedy."""

    labels: list[int]
    score: float


class Span(NamedTuple):
    """The frames of a label on the most probable path: from `first` up to `last`, which is excluded."""

    label: int
    first: int
    last: int
    score: float  # mean log-probability of the label in its frames


def collapse(path: Sequence[int], blank: int) -> list[int]:
    """The labels that a path stands for."""
    return [label for place, label in enumerate(path) if label != blank and (not place or label != path[place - 1])]


def needed_frames(labels: Sequence[int]) -> int:
    """The fewest frames that these labels fit into: one each, and a blank between equal neighbours."""
    return len(labels) + sum(one == other for one, other in pairwise(labels))


def greedy(frames: Float[np.ndarray, "T V"], blank: int) -> Labelling:
    """The labels of the most probable path."""
    best = frames.argmax(axis=-1)
    return Labelling(collapse(best.tolist(), blank), float(frames.max(axis=-1).sum()))


@dataclass
class _Prefix:
    """The probability of a prefix over all paths that end with a blank, and over those that end with its last label."""

    blank: float = -math.inf
    label: float = -math.inf

    @property
    def total(self) -> float:
        return _add(self.blank, self.label)


def beam_search(frames: Float[np.ndarray, "T V"], blank: int, width: int, count: int = 1) -> list[Labelling]:
    """The most probable labels, best first, each summed over the paths whose prefixes stay among the `width` best.

    `frames` are log-probabilities.
    """
    beam: dict[tuple[int, ...], _Prefix] = {(): _Prefix(blank=0.0)}
    for row in frames:
        grown: dict[tuple[int, ...], _Prefix] = {}
        tried = [label for label in np.flatnonzero(row > math.log(LEAST)).tolist() if label != blank]
        for prefix, so_far in beam.items():
            same = grown.setdefault(prefix, _Prefix())
            same.blank = _add(same.blank, so_far.total + float(row[blank]))
            if prefix:
                same.label = _add(same.label, so_far.label + float(row[prefix[-1]]))
            for label in tried:
                longer = grown.setdefault((*prefix, label), _Prefix())
                # A repeated label begins anew only after a blank.
                before = so_far.blank if prefix and label == prefix[-1] else so_far.total
                longer.label = _add(longer.label, before + float(row[label]))
        ranked = sorted(grown.items(), key=lambda item: (-item[1].total, item[0]))
        beam = dict(ranked[:width])
    return [Labelling(list(prefix), state.total) for prefix, state in list(beam.items())[:count]]


def _add(first: float, second: float) -> float:
    """log(exp(first) + exp(second))."""
    low, high = sorted((first, second))
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))


def align(frames: Float[np.ndarray, "T V"], labels: Sequence[int], blank: int) -> list[Span]:
    """The frames of every label on the most probable path of these labels (Viterbi)."""
    if needed_frames(labels) > len(frames):
        raise UsageError(f"{len(labels)} labels need {needed_frames(labels)} frames, but there are {len(frames)}")
    if not labels:
        return []
    states = [blank, *(state for label in labels for state in (label, blank))]
    best = np.full(len(states), -math.inf)
    best[:2] = frames[0, states[:2]]
    came = np.zeros((len(frames), len(states)), dtype=np.int64)  # states back: 0, 1 or 2
    skips = np.array([at > 1 and label not in (blank, states[at - 2]) for at, label in enumerate(states)])
    for time in range(1, len(frames)):
        one, two = np.full_like(best, -math.inf), np.full_like(best, -math.inf)
        one[1:], two[2:] = best[:-1], best[:-2]
        options = np.stack([best, one, np.where(skips, two, -math.inf)])
        came[time] = options.argmax(axis=0)
        best = options.max(axis=0) + frames[time, states]
    at = len(states) - 1 if best[-1] >= best[-2] else len(states) - 2
    path = [at]
    for time in range(len(frames) - 1, 0, -1):
        at -= int(came[time, at])
        path.append(at)
    places = np.array(path[::-1])
    of_label = (np.flatnonzero(places == 2 * number + 1) for number in range(len(labels)))
    return [
        Span(label, int(where[0]), int(where[-1]) + 1, float(frames[where, label].mean()))
        for label, where in zip(labels, of_label, strict=True)
    ]


def scores(
    frames: Float[Tensor, "T B V"], lengths: Sequence[int], labels: Sequence[Sequence[int]], blank: int
) -> list[float]:
    """The log-probability of the labels of each recording, over all paths; `frames` are log-probabilities."""
    targets = torch.tensor([label for row in labels for label in row], dtype=torch.long)
    sizes = torch.tensor([len(row) for row in labels])
    loss = functional.ctc_loss(frames.cpu(), targets, torch.tensor(list(lengths)), sizes, blank=blank, reduction="none")
    return (-loss).tolist()


Way = Literal["ctc", "attention"]
JOINT = 0.3  # how much the labels of frames count beside a decoder, in its loss and in a search


class HeardTexts(NamedTuple):
    """For every recording the best texts, and the log-probabilities of its frames if the model labels them."""

    texts: list[list[Hypothesis]]
    frames: list[Float[np.ndarray, "T V"]]


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
        return HeardTexts([_labelled(row, settings, tokenizer) for row in frames], frames)
    settings = settings.without(tokenizer.only_unknown)
    assert tokenizer.end is not None
    pad, judged = tokenizer.pad, logs is not None and settings.beam > 1 and way is None
    state = model.decoder.first_state(memory, None if real is None else real[:, None, None])
    first = torch.full((len(memory),), pad, dtype=torch.long, device=memory.device)  # begins every text
    limits = [min(settings.limit(length), max(1, length)) for length in lengths]  # nobody says a token a frame
    start = SearchStart(state, first, limits, [""] * len(memory))
    wide = settings.replace(n_best=settings.width) if judged else settings
    texts = search(model.decoder, start, wide, Vocabulary(pad, tokenizer.end, pad))
    if judged:
        assert logs is not None
        rows = zip(texts, logs, lengths, strict=True)
        texts = [_judged(some, row[:length], pad)[: settings.n_best] for some, row, length in rows]
    return HeardTexts(texts, frames)


def _labelled(frames: Float[np.ndarray, "T V"], settings: SearchSettings, tokenizer: TextTokenizer) -> list[Hypothesis]:
    """Labels of frames as hypotheses; their score is a mean over tokens, as that of a decoder."""
    if settings.width == 1:
        best = [greedy(frames, tokenizer.pad)]
    else:
        best = beam_search(frames, tokenizer.pad, settings.width, settings.n_best)
    return [Hypothesis(labels, score / (len(labels) + 1), score, True) for labels, score in best]


def _judged(texts: list[Hypothesis], frames: Float[Tensor, "T V"], blank: int) -> list[Hypothesis]:
    """The texts that a decoder found, ordered by both judgements (Watanabe et al. 2017)."""
    fitting = [text for text in texts if needed_frames(text.tokens) <= len(frames)]
    if not fitting:
        return texts
    stacked = frames[:, None].expand(-1, len(fitting), -1)
    labelled = scores(stacked, [len(frames)] * len(fitting), [text.tokens for text in fitting], blank)
    both = [(1 - JOINT) * text.log_probability + JOINT * score for text, score in zip(fitting, labelled, strict=True)]
    judged = [
        replace(text, score=total / (len(text.tokens) + 1), log_probability=total)
        for text, total in zip(fitting, both, strict=True)
    ]
    return sorted(judged, key=lambda text: -text.log_probability)

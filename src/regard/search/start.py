"""Where a search starts: the state of a model that has read its source, and what the search must know of each sentence.

A search never sees the source itself. A pipeline for another kind of source (an image, a recording) calls its model's
`start` and makes a `SearchStart` of the state; `from_source` and `from_prompt` do so for token ids, `from_images` for
images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.search.candidates import Rule
from regard.search.constraints import Constraints
from regard.search.protocols import DecoderState, ImageSourceModel, TokenSourceModel
from regard.search.settings import SearchSettings

Stop = Callable[[int, list[int]], bool]  # (number of the sentence, tokens of an answer) -> whether the answer ends here


@dataclass(frozen=True)
class SearchStart:
    """S sentences to decode, in the order of the rows of `state`."""

    state: DecoderState
    first: Int[Tensor, S]  # the token that is fed first
    limits: Sequence[int]  # the most tokens of each answer
    seeds: Sequence[str] = ()  # one a sentence, for sampling: equal seeds draw equal answers
    prompt: Int[Tensor, "S P"] | None = None  # tokens that the repetition penalty counts besides the answer's own
    prefixes: Sequence[Sequence[int]] | None = None  # tokens that each answer must begin with
    stop: Stop | None = None  # may end answers before their end token
    rule: Rule | None = None  # may forbid tokens, by what an answer says so far
    constraints: Sequence[Constraints] | None = None  # terms that each answer must contain

    def copy(self) -> SearchStart:
        """The same start for a second search: a search changes the state that it is given."""
        return replace(self, state=self.state.copy())

    def select(self, sentences: Sequence[int]) -> SearchStart:
        """These sentences only, each as often as it is named; takes over the state."""
        rows, stop = torch.tensor(sentences, dtype=torch.long, device=self.first.device), self.stop
        self.state.keep(rows)
        return SearchStart(
            self.state,
            self.first[rows],
            [self.limits[sentence] for sentence in sentences],
            [self.seeds[sentence] for sentence in sentences] if self.seeds else (),
            None if self.prompt is None else self.prompt[rows],
            None if self.prefixes is None else [self.prefixes[sentence] for sentence in sentences],
            None if stop is None else lambda row, tokens: stop(sentences[row], tokens),
            self.rule,
            None if self.constraints is None else [self.constraints[sentence] for sentence in sentences],
        )


@torch.inference_mode()
def from_source(
    model: TokenSourceModel,
    source: Int[Tensor, "S L"],
    source_mask: Bool[Tensor, "S L"],
    settings: SearchSettings,
    start_token: int,
    *,
    prefixes: Sequence[Sequence[int]] | None = None,
    stop: Stop | None = None,
    constraints: Sequence[Constraints] | None = None,
) -> SearchStart:
    """Answers to a source, each beginning with the start token (encoder-decoders)."""
    first = torch.full((len(source),), start_token, dtype=torch.long, device=source.device)
    state = model.start(source, source_mask)
    limits, seeds = _limits(source_mask, settings), _seeds(source, source_mask, settings)
    return SearchStart(state, first, limits, seeds, prefixes=prefixes, stop=stop, constraints=constraints)


@torch.inference_mode()
def from_prompt(
    model: TokenSourceModel,
    prompt: Int[Tensor, "S L"],
    prompt_mask: Bool[Tensor, "S L"],
    settings: SearchSettings,
    *,
    stop: Stop | None = None,
) -> SearchStart:
    """Continuations of a prompt (language models): the state has read all but its last token, which is fed first."""
    place = torch.arange(prompt.shape[1], device=prompt.device)
    first = prompt.gather(1, torch.where(prompt_mask, place, 0).amax(dim=1, keepdim=True))[:, 0]
    state = model.start(prompt, prompt_mask)
    limits, seeds = _limits(prompt_mask, settings), _seeds(prompt, prompt_mask, settings)
    said = torch.where(prompt_mask, prompt, first[:, None])  # padding must not count as said
    return SearchStart(state, first, limits, seeds, said, stop=stop)


@torch.inference_mode()
def from_images(
    model: ImageSourceModel, images: Float[Tensor, "S C H W"], settings: SearchSettings, start_token: int
) -> SearchStart:
    """Texts about images (captioners), each beginning with the start token; equal images draw equal texts."""
    first = torch.full((len(images),), start_token, dtype=torch.long, device=images.device)
    limits, seeds = [settings.limit(0)] * len(images), list[str]()
    if settings.sample:
        seeds = [blake2b(image.float().cpu().numpy().tobytes()).hexdigest() for image in images]
    return SearchStart(model.start(images), first, limits, seeds)


def _limits(mask: Bool[Tensor, "S L"], settings: SearchSettings) -> list[int]:
    return [settings.limit(length) for length in mask.sum(1).tolist()]


def _seeds(tokens: Int[Tensor, "S L"], mask: Bool[Tensor, "S L"], settings: SearchSettings) -> list[str]:
    """The real tokens of each row as text: what is drawn depends neither on padding nor on the other rows."""
    if not settings.sample:
        return []
    return [str(row[real].tolist()) for row, real in zip(tokens, mask, strict=True)]

"""The tokens with which a text of speech says more than words: language, task, times; and which of them may come next.

A text is written after a prompt: an earlier text (optional), the start token, language and task (models of several
languages), and a token that asks for no times. With times, a text is a row of segments, each between two of them.
The rules are those of Whisper (Radford et al. 2022, §4.5), as `generation_config.json` declares them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import CheckpointError
from regard.search.candidates import Grid

SEVERAL_LANGUAGES = 51_865  # tokens of the models that know more than English
LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
PROMPT_SHARE = 2  # an earlier text takes at most half of the places, as in training


@dataclass(frozen=True)
class SpokenTokens:
    """The ids of special tokens, and the tokens that a text may not contain or begin with."""

    start: int
    end: int
    no_times: int  # asks for a text without times; times follow it in the vocabulary
    no_speech: int
    transcribe: int | None = None
    previous: int | None = None  # before an earlier text
    languages: Mapping[str, int] = field(default_factory=dict)  # none if the model knows one alone
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()
    latest_first: int | None = None  # the first time of a text is at most this step
    heads: Sequence[tuple[int, int]] = ()  # layers and heads whose attention follows the audio

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    def prompt(self, language: str, earlier: Sequence[int], *, times: bool, places: int) -> list[int]:
        """What is fed before a text."""
        room = max(1, places // PROMPT_SHARE - 1)
        before = [] if self.previous is None or not earlier else [self.previous, *earlier[-room:]]
        asked = [self.languages[language], *([] if self.transcribe is None else [self.transcribe])] if language else []
        return [*before, self.start, *asked, *([] if times else [self.no_times])]

    @classmethod
    def read(cls, values: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> SpokenTokens:
        """The tokens from the values of a folder's configs, and from the names in its vocabulary."""

        def find(key: str, *names: str) -> int | None:
            given = values.get(key)
            known = [vocabulary[name] for name in names if name in vocabulary]
            return given if isinstance(given, int) else known[0] if known else None

        end = values.get("eos_token_id")
        end = end[0] if isinstance(end, list) and end else end
        end = end if isinstance(end, int) else vocabulary.get("<|endoftext|>")
        start, no_times = (
            find("decoder_start_token_id", "<|startoftranscript|>"),
            find("no_timestamps_token_id", "<|notimestamps|>"),
        )
        if start is None or end is None or no_times is None:
            raise CheckpointError(f"{where} names no <|startoftranscript|>, <|endoftext|> or <|notimestamps|> token")
        several = values.get("is_multilingual", "lang_to_id" in values or len(vocabulary) >= SEVERAL_LANGUAGES)
        named = {name: number for name, number in vocabulary.items() if LANGUAGE.fullmatch(name)}
        languages = values.get("lang_to_id", named) if several else {}
        silent = find("no_speech_token_id", "<|nospeech|>", "<|nocaptions|>")
        return cls(
            start=start,
            end=end,
            no_times=no_times,
            no_speech=no_times - 1 if silent is None else silent,
            transcribe=(values.get("task_to_id") or {}).get("transcribe", vocabulary.get("<|transcribe|>")),
            previous=find("prev_sot_token_id", "<|startofprev|>"),
            languages={name.strip("<|>"): number for name, number in languages.items()},
            suppressed=[token for token in values.get("suppress_tokens") or () if token >= 0],
            suppressed_first=list(values.get("begin_suppress_tokens") or ()),
            latest_first=values.get("max_initial_timestamp_index"),
            heads=[(layer, head) for layer, head in values.get("alignment_heads") or ()],
        )


class SpokenRule:
    """What may come next in a text of speech; a `Rule` of a search."""

    def __init__(self, tokens: SpokenTokens, device: torch.device, *, times: bool):
        self.tokens, self.times = tokens, times
        self.never, self.not_first = (
            torch.tensor(list(some), dtype=torch.long, device=device)
            for some in (tokens.suppressed, tokens.suppressed_first)
        )

    def __call__(self, log_p: Float[Tensor, "S W V"], grid: Grid) -> None:
        log_p.index_fill_(2, self.never, -math.inf)
        if grid.length == 0:
            log_p.index_fill_(2, self.not_first, -math.inf)
        if self.times:
            self._forbid_times(log_p, grid.history)

    def _forbid_times(self, log_p: Float[Tensor, "S W V"], history: Int[Tensor, "S W T"]) -> None:
        """Times come in pairs and never decrease; a text begins with one, and one comes where all together are more
        probable than any other token."""
        begin = self.tokens.first_time
        log_p[..., self.tokens.no_times] = -math.inf
        if not history.shape[2]:
            log_p[..., :begin] = -math.inf
            if self.tokens.latest_first is not None:
                log_p[..., begin + self.tokens.latest_first + 1 :] = -math.inf
        else:
            is_time = history >= begin
            last = is_time[..., -1]
            before = is_time[..., -2] if history.shape[2] > 1 else torch.ones_like(last)
            log_p[..., begin:].masked_fill_((last & before)[..., None], -math.inf)
            log_p[..., : self.tokens.end].masked_fill_((last & ~before)[..., None], -math.inf)
            latest = torch.where(is_time, history, begin - 1).amax(dim=-1)
            lowest = torch.where(last & ~before, latest, latest + 1)
            times = torch.arange(begin, log_p.shape[2], device=log_p.device)
            log_p[..., begin:].masked_fill_(times < lowest[..., None], -math.inf)
        together = log_p[..., begin:].logsumexp(dim=-1) > log_p[..., :begin].amax(dim=-1)
        log_p[..., :begin].masked_fill_(together[..., None], -math.inf)

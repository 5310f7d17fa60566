"""Evidence of an answer's quality that costs more than one pass: what the model says with dropout, and a reverse model.

Both follow Fomicheva et al. 2020, "Unsupervised Quality Estimation for Neural Machine Translation". They are computed
only for a translator whose `quality.opinions` ask for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import sacrebleu
import torch
from torch import nn

from regard.data.formats.languages import find_language
from regard.errors import UsageError
from regard.inference.decoding.protocols import TokenSourceModel
from regard.inference.insight.quality import Evidence

if TYPE_CHECKING:
    from regard.inference.pipelines.translator import Translator


@dataclass(frozen=True)
class SecondOpinions:
    """Other voices on the answers of a translator.

    `passes` says how often its model reads and answers with dropout; the members of an ensemble speak instead, once
    each, without dropout. `reverse` translates the answers back.
    """

    translator: Translator
    passes: int
    reverse: Translator | None

    def __post_init__(self) -> None:
        if self.passes and len(self.translator.models) == 1 and not getattr(self._model.config, "dropout", 0.0):
            raise UsageError(f"{self.translator.name} was trained without dropout; leave out the passes with dropout")
        if self.reverse is not None:
            self.back_to(self.translator.tokenizer.target_languages)

    def back_to(self, languages: Sequence[str]) -> str:
        """The source language as the reverse model calls it; refuses a model that does not read one of `languages`."""
        assert self.reverse is not None
        ours, theirs = self.translator.tokenizer.source_language, self.reverse.tokenizer
        back = find_language(theirs.target_languages, ours)
        if back is None or find_language(languages, theirs.source_language) is None:
            raise UsageError(
                f"{self.reverse.name} translates {theirs.source_language} to {', '.join(theirs.target_languages)}; "
                f"expected {', '.join(languages)} to {ours}, the reverse of {self.translator.name}"
            )
        return back

    def added(
        self, evidence: Sequence[Evidence], sources: Sequence[str], answers: Sequence[Sequence[int]], to: str
    ) -> list[Evidence]:
        """The evidence of answers (token ids) to sources, with what was asked for besides."""
        found = list(evidence)
        if not found:
            return found
        texts = self._texts(sources, answers, to)
        if self.passes:
            found = self._with_passes(found, sources, answers, texts, to)
        if self.reverse is not None:
            found = self._with_reverse(found, sources, texts, to)
        return found

    def _with_passes(
        self,
        evidence: list[Evidence],
        sources: Sequence[str],
        answers: Sequence[Sequence[int]],
        texts: list[str],
        to: str,
    ) -> list[Evidence]:
        """What each voice thinks of the answers, and how much its own answers are like them."""
        means, alike = [], []
        for voice in self._voices():
            forced = self.translator.quality.token_evidence(sources, answers, to, [voice])
            means.append([float(log_p.mean()) for log_p, _ in forced])
            said = self.translator.quality.greedy(cast(TokenSourceModel, voice), sources, to)
            alike.append(_similarities(self._texts(sources, said, to), texts))
        return [
            replace(each, passes=passes, agreement=float(agreement))
            for each, passes, agreement in zip(evidence, np.transpose(means), np.mean(alike, axis=0), strict=True)
        ]

    def _with_reverse(
        self, evidence: list[Evidence], sources: Sequence[str], texts: list[str], to: str
    ) -> list[Evidence]:
        """How probable the source is given the answer, and how much the answer translated back is like the source."""
        assert self.reverse is not None
        back = self.back_to([to])
        ids = self.reverse.tokenizer.target.encode(list(sources))
        forced = self.reverse.quality.token_evidence(texts, ids, back)
        returned = [answer.text for answer in self.reverse.translate(texts, to=back)]
        return [
            replace(each, backward=float(np.exp(log_p.mean())), round_trip=alike)
            for each, (log_p, _), alike in zip(evidence, forced, _similarities(returned, sources), strict=True)
        ]

    def _voices(self) -> Iterator[nn.Module]:
        """The members of an ensemble, or one model again and again with dropout, the same in every call."""
        if len(self.translator.models) > 1:
            yield from self.translator.models
            return
        for number in range(self.passes):
            with _seeded(number, self.translator.device):
                yield self._dropping

    @property
    def _model(self) -> nn.Module:
        return self.translator.models[0]

    @cached_property
    def _dropping(self) -> nn.Module:
        """A copy with dropout, because others may be using the model itself."""
        return deepcopy(self._model).train()

    def _texts(self, sources: Sequence[str], answers: Sequence[Sequence[int]], to: str) -> list[str]:
        text = self.translator.answer_text.text
        return [text(source, list(ids), to) for source, ids in zip(sources, answers, strict=True)]


def _similarities(texts: Sequence[str], others: Sequence[str]) -> list[float]:
    chrf = sacrebleu.CHRF()
    return [chrf.sentence_score(text, [other]).score / 100 for text, other in zip(texts, others, strict=True)]


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Fix what dropout draws inside of the block; what is drawn after it is as if the block had not been."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

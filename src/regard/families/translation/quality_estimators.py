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

from regard.data.batch import collate
from regard.data.formats.languages import find_language
from regard.errors import UsageError
from regard.families.translation.quality import (
    Assessment,
    Calibration,
    Evidence,
    Flag,
    coverage,
    find_flags,
    token_evidence,
    word_doubts,
)
from regard.families.translation.repetition import repeats
from regard.search.pipeline import batches_by_length
from regard.search.protocols import TokenSourceModel

if TYPE_CHECKING:
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator


class QualityEstimator:
    """Estimates the quality of a translator's answers, by its calibration."""

    def __init__(self, translator: Translator, calibration: Calibration):
        self.translator, self.calibration = translator, calibration
        self.opinions: SecondOpinions | None = None  # other voices on the quality of answers, if they are asked for

    def assess(self, answer: Translation) -> Assessment:
        """The quality of a translation, by this model's calibration, the doubt of each word, and what is wrong.

        The quality of several sentences is their mean, weighted by tokens. What came from a translation memory is as
        good as it is similar.
        """
        qualities, lengths, doubts, flags = list[float](), list[int](), list[float](), dict[Flag, None]()
        sources, said = [source for source, _ in answer.parts], [ids for _, ids in answer.parts]
        tokenizer = self.translator.tokenizer
        target, read = tokenizer.target, tokenizer.source_ids(sources, answer.to)
        for source, ids, known, each in zip(
            sources, said, read, self.evidence(sources, said, to=answer.to), strict=True
        ):
            words_of = target.words_of(ids, unknown=["?"] * ids.count(target.unknown))
            doubts += word_doubts(each.log_probabilities.tolist(), words_of, max(words_of, default=-1) + 1)
            again = repeats(known, ids, source, target.decode(ids))
            found = find_flags(known, ids, len(source.split()), each.coverage, finished=answer.finished, repeated=again)
            flags |= dict.fromkeys(found)
            qualities.append(self.calibration.quality(each))
            lengths.append(len(ids) + 1)
        quality = float(np.average(qualities, weights=lengths)) if qualities else 1.0
        words = len(answer.target_words)  # a prefix or a term may be written in other words than its tokens
        return Assessment(
            quality=quality if answer.remembered is None else answer.remembered,
            doubts=[*doubts, *[0.0] * words][:words],
            flags=list(flags),
        )

    def evidence(self, sources: Sequence[str], answers: Sequence[Sequence[int]], *, to: str = "") -> list[Evidence]:
        """What the model knows of its answers (token ids) to `sources`; see `regard.families.translation.quality`."""
        to, by = self.translator.target_language(to), self.translator.alignment
        covered: list[float | None] = [None] * len(answers)
        if by is not None:
            passes = self.translator.passes(sources, answers, to=to, layers=by.layer)
            covered = [coverage(each, by) for each in passes]
        known = [
            Evidence(log_p, entropy, share)
            for (log_p, entropy), share in zip(self.token_evidence(sources, answers, to), covered, strict=True)
        ]
        return known if self.opinions is None else self.opinions.added(known, sources, answers, to)

    def token_evidence(
        self,
        sources: Sequence[str],
        answers: Sequence[Sequence[int]],
        to: str,
        models: Sequence[nn.Module] | None = None,
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The log-probability and the entropy at every token of each answer, and at its end, by these models or else by
        the translator's own."""
        tokenizer, models = self.translator.tokenizer, models or self.translator.models
        target, found = tokenizer.target, dict[int, tuple[np.ndarray, np.ndarray]]()
        for places in batches_by_length([len(answer) for answer in answers]):
            ends = [[*answers[i], target.end] for i in places]
            rows = tokenizer.source_ids([sources[i] for i in places], to)
            batch = collate(rows, ends, pad=target.pad, start=target.start).to(self.translator.device)
            log_p, entropy = (values.cpu().numpy() for values in token_evidence(models, batch))
            found |= {i: (log_p[row, : len(ends[row])], entropy[row, : len(ends[row])]) for row, i in enumerate(places)}
        return [found[i] for i in range(len(answers))]

    def greedy(self, model: TokenSourceModel, sources: Sequence[str], to: str) -> list[list[int]]:
        """The token ids that a model with the translator's tokenizer says to each source, found greedily."""
        settings = self.translator.search_settings({"beam": 1, "n_best": 1, "sample": False})
        rows = self.translator.tokenizer.source_ids(list(sources), to)
        searching = replace(self.translator.source_search, model=model)
        return [best.tokens for best, *_ in searching.search(rows, [[]] * len(rows), settings)]


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
        if back is None or not any(find_language(languages, code) for code in theirs.source_languages):
            raise UsageError(
                f"{self.reverse.name} translates {', '.join(theirs.source_languages)} to "
                f"{', '.join(theirs.target_languages)}; "
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

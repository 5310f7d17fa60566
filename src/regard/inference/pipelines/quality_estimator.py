"""How good the answers of a translator probably are: what its models think of them, and what a calibration makes of it.

The formulas are in `regard.inference.insight.quality`; this file runs the models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from regard.data.batch import collate
from regard.inference.decoding.protocols import TokenSourceModel
from regard.inference.insight.quality import (
    Assessment,
    Calibration,
    Evidence,
    Flag,
    coverage,
    find_flags,
    token_evidence,
    word_doubts,
)
from regard.inference.pipelines.batching import batches_by_length

if TYPE_CHECKING:
    from regard.inference.pipelines.second_opinions import SecondOpinions
    from regard.inference.pipelines.translation import Translation
    from regard.inference.pipelines.translator import Translator


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
            found = find_flags(known, ids, len(source.split()), each.coverage, finished=answer.finished)
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
        """What the model knows of its answers (token ids) to `sources`; see `regard.inference.insight.quality`."""
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

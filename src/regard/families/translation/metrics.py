"""Measuring a translator on held-out pairs: loss, perplexity, and BLEU, chrF and exact match of its outputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple, Protocol, cast

import numpy as np
import sacrebleu
import torch
from torch import nn

from regard.data.batch import Batch, collate
from regard.data.formats.pairs import Pair
from regard.data.text.pair_loader import plan_batches
from regard.search.protocols import TokenSourceModel
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_source
from regard.training.losses import cross_entropy
from regard.training.recipe.sections import BLEU, CHRF
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Sample

DEFAULT = "13a"
CHARACTERS = "char"
TOKENIZERS = {"zh": "zh", **dict.fromkeys(("th", "lo", "km", "my", "bo"), CHARACTERS)}
# sacrebleu's own choice for these languages, the module it needs, and what is taken where that is not installed
ANALYSED = {"ja": ("ja-mecab", "MeCab", CHARACTERS), "ko": ("ko-mecab", "mecab_ko", DEFAULT)}


def bleu_tokenizer(languages: Iterable[str]) -> str:
    """The name of sacrebleu's tokenizer for texts in these languages; its default if they need different ones."""
    names = {_of_language(code.replace("_", "-").lower().split("-")[0]) for code in languages}
    return names.pop() if len(names) == 1 else DEFAULT


def _of_language(language: str) -> str:
    if language in ANALYSED:
        name, module, otherwise = ANALYSED[language]
        return name if find_spec(module) else otherwise
    return TOKENIZERS.get(language, DEFAULT)


def bleu_metric(languages: Iterable[str], references: Iterable[str] | None = None) -> sacrebleu.BLEU:
    """sacrebleu's BLEU of detokenised text in these languages; `references` are tokenised once if they are given."""
    given = None if references is None else [list(references)]
    return sacrebleu.BLEU(tokenize=bleu_tokenizer(languages), force=True, references=given)


SHOWN = {BLEU.name: "BLEU", CHRF.name: "chrF"}


class Compared(NamedTuple):
    """The metrics of one domain before and after."""

    before: dict[str, float]
    after: dict[str, float]


def flat(domains: Mapping[str, Compared]) -> dict[str, float]:
    """One value for each metric, domain and time: `bleu_new_before`, `bleu_new_after`, …"""
    return {
        f"{metric}_{domain}_{time}": values[metric]
        for domain, compared in domains.items()
        for metric in SHOWN
        for time, values in compared._asdict().items()
    }


def table(domains: Mapping[str, Compared]) -> str:
    """The same for people, as a table in Markdown."""
    rows = [
        f"| {domain} domain, {shown} | {before[metric]:.1f} | {after[metric]:.1f} |"
        for domain, (before, after) in domains.items()
        for metric, shown in SHOWN.items()
    ]
    return "\n".join(["| | before | after |", "|---|---|---|", *rows])


SENTENCES = 64  # decoded together


class TargetTokenizer(Protocol):
    """The special tokens of answers, and how answers become text."""

    @property
    def pad(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    def decode(self, ids: list[int], /) -> str: ...


class PairEncoder(Protocol):
    """Encodes pairs as tokens, and decodes answers to text."""

    @property
    def target(self) -> TargetTokenizer: ...
    def source_ids(self, texts: Sequence[str], to: str = "") -> list[list[int]]: ...
    def target_ids(self, texts: Sequence[str]) -> list[list[int]]: ...


class PairEvaluation:
    """Held-out pairs, encoded once and batched by length; `decoded` of them, evenly spread, are also translated."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        tokenizer: PairEncoder,
        *,
        decoding: SearchSettings,
        decoded: int,
        batch_tokens: int,
        device: torch.device,
    ) -> None:
        self.tokenizer, self.decoding, self.device = tokenizer, decoding.replace(n_best=1), device
        stride = max(1, math.ceil(len(pairs) / decoded)) if decoded else len(pairs) + 1
        self.batches = [batch for _, batch in _batched(pairs, tokenizer, batch_tokens)]
        self.to_decode = _batched(pairs[stride - 1 :: stride], tokenizer, batch_tokens) if decoded else []
        side = tokenizer.target
        self.vocabulary = Vocabulary(start=side.start, end=side.end, pad=side.pad)
        self.samples: list[Sample] = []  # outputs of the last call, of the same sentences each time

    def __call__(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """All metrics of a model in evaluation mode; `poll` is called between batches and may raise."""
        loss = self._loss(model, poll)
        values = {"loss": loss, "perplexity": math.exp(min(loss, 100.0))}
        return values | self.scores(model, poll) if self.to_decode else values

    @torch.inference_mode()
    def _loss(self, model: nn.Module, poll: Poll) -> float:
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        tokens = 0
        for batch in self.batches:
            poll()
            tokens += batch.tokens
            moved = batch.to(self.device)
            logits = model(moved.source, moved.source_mask, moved.inputs, factored=True)
            total += cross_entropy(logits, moved.labels, moved.labels_mask)
        return total.item() / tokens

    def scores(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """BLEU, chrF and exact match of the sentences to translate."""
        answers: list[str] = []
        pairs: list[Pair] = []
        for some, batch in self.to_decode:
            poll()
            moved = batch.to(self.device)
            decoder = cast(TokenSourceModel, model)
            start = from_source(decoder, moved.source, moved.source_mask, self.decoding, self.vocabulary.start)
            found = search(decoder, start, self.decoding, self.vocabulary)
            answers += [self.tokenizer.target.decode(best[0].tokens) for best in found]
            pairs += some
        self.samples = _samples(pairs, answers)
        values = corpus_scores(answers, [pair.target for pair in pairs], {pair.to for pair in pairs})
        for direction, part in direction_scores(answers, pairs).items():
            values |= {f"{name}_{direction}": value for name, value in part.items()}
        return values


def _samples(pairs: Sequence[Pair], answers: Sequence[str]) -> list[Sample]:
    """A few evenly spread translations. Batches hold sentences of similar length, so some are short and some long."""
    chosen = range(0, len(pairs), math.ceil(len(pairs) / SAMPLES))
    return [Sample(source=pairs[i].source, target=pairs[i].target, output=answers[i]) for i in chosen]


def corpus_scores(answers: Sequence[str], references: Sequence[str], targets: Iterable[str]) -> dict[str, float]:
    """BLEU and chrF of detokenised text in the target languages, and the share of answers that are exactly right."""
    same = sum(answer == reference for answer, reference in zip(answers, references, strict=True))
    return {
        "bleu": bleu_metric(targets).corpus_score(answers, [references]).score,
        "chrf": sacrebleu.corpus_chrf(answers, [references]).score,
        "exact": same / len(answers),
    }


def direction_scores(answers: Sequence[str], pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """The scores of each pair of languages, by the name of the language in which they differ; none if all are alike."""
    several = [len({getattr(pair, side) for pair in pairs}) > 1 for side in ("source_language", "to")]
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        named = [code for code, differs in zip((pair.source_language, pair.to), several, strict=True) if differs]
        rows.setdefault("-".join(named), []).append(row)
    return {
        name: corpus_scores([answers[i] for i in some], [pairs[i].target for i in some], {pairs[i].to for i in some})
        for name, some in sorted(rows.items())
        if any(several)
    }


def _batched(pairs: Sequence[Pair], tokenizer: PairEncoder, batch_tokens: int) -> list[tuple[list[Pair], Batch]]:
    """Pairs of similar length together, each batch beside its pairs."""
    sources = [tokenizer.source_ids([pair.source], pair.to)[0] for pair in pairs]
    targets = tokenizer.target_ids([pair.target for pair in pairs])
    lengths = (np.array([len(ids) for ids in side], dtype=np.int64) for side in (sources, targets))
    plan = plan_batches(*lengths, batch_tokens=batch_tokens, seed=0, epoch=0, max_sentences=SENTENCES)
    pad, start = tokenizer.target.pad, tokenizer.target.start
    return [
        (
            [pairs[i] for i in rows],
            collate([sources[i] for i in rows], [targets[i] for i in rows], pad=pad, start=start),
        )
        for rows in plan
    ]

"""The effect of every head: how much worse a model becomes when one of its heads is switched off.

A head is replaced by zero, or by the mean of its output over the same data, which removes what it says about an input
but not what it always says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from regard.attention.intervene import HEADS, WithoutHead, head_count, intervene
from regard.attention.places import record_activations
from regard.attention.record import attention_names
from regard.checkpoints.folder import local_folder, resolve
from regard.data.formats.lines import read_text
from regard.data.formats.pairs import Pair
from regard.errors import DataError, UsageError, with_article
from regard.families.contract import EvaluationOptions
from regard.families.language.gpt import Gpt
from regard.families.language.language_models import LanguageModel
from regard.families.language.reader import LanguageModelReader
from regard.families.loading import entry_of
from regard.families.translation.evaluate import evaluate_pairs, held_out_pairs
from regard.families.translation.translator import Translator
from regard.families.translation.view import PairReader
from regard.look.forced_pass import CROSS, Pass, readings
from regard.look.interventions import models_of
from regard.look.reader import Example, Reader
from regard.look.word_alignment import alignment_error_rate
from regard.verbs.options import refuse_given

COOL_WARM = "RdBu_r"  # heads that help are red, heads that harm are blue
NUMBERS_UP_TO = 16  # heads of a layer that get numbers


def draw_effects(effects: Mapping[str, Sequence[float]], *, title: str, note: str) -> Figure:
    """`effects` has for each layer what the model loses without each of its heads."""
    widest = max(len(row) for row in effects.values())
    table = np.full((len(effects), widest), np.nan)
    for number, row in enumerate(effects.values()):
        table[number, : len(row)] = row
    figure = Figure(figsize=(2.2 + 0.62 * widest + 1.2, 1.3 + 0.42 * len(effects)), layout="constrained")
    axes = figure.subplots()
    reach = max(float(np.nanmax(np.abs(table))), 1e-9)
    drawn = axes.imshow(table, cmap=COOL_WARM, vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks(range(widest), labels=[str(head) for head in range(widest)])
    axes.set_yticks(range(len(effects)), labels=list(effects))
    axes.set_xlabel("head")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if widest <= NUMBERS_UP_TO:
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = "white" if abs(value) > 0.6 * reach else "black"
                axes.text(column, row, f"{value:+.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False)
    figure.colorbar(drawn, ax=axes, label=note, shrink=0.9)
    return figure


By = Literal["zero", "mean"]
LOSS = "loss"
OF_GROUP = " / "  # between the name of a group of scores and that of a score
NO_SCORES = ("minutes", "unknown")  # what evaluations tell beside their scores
LESS_IS_BETTER = (
    "ade", "alignment_error_rate", "cer", "distance loss", "error", "fde", "recordings with an error", "rmsd", "wer",
)  # fmt: skip


class Measure(NamedTuple):
    """What is measured: its name, whether more is better, the value, and a run over the inputs for the means of heads,
    one at a time where they can be."""

    name: str
    more_is_better: bool
    value: Callable[[], float]
    run_each: Callable[[], object]


class HeadEffect(NamedTuple):
    """A head, the metric without it, and by how much that is worse; `aer` is the alignment error of its weights."""

    layer: str
    head: int
    value: float
    effect: float
    aer: float | None = None


@dataclass(frozen=True)
class HeadTable:
    """The effects of the heads of a model, in the order of its layers."""

    metric: str
    whole: float
    by: By
    effects: Sequence[HeadEffect]

    @property
    def ranked(self) -> list[HeadEffect]:
        """The most needed heads first."""
        return sorted(self.effects, key=lambda each: -each.effect)

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(each.layer for each in self.effects))

    def to_json(self) -> dict[str, Any]:
        """The table as plain values, the most needed heads first."""
        heads = [
            {"layer": e.layer, "head": e.head, self.metric: e.value, "effect": e.effect}
            | ({} if e.aer is None else {"alignment_error_rate": e.aer})
            for e in self.ranked
        ]
        return {"metric": self.metric, "whole": self.whole, "by": self.by, "heads": heads}

    def __str__(self) -> str:
        width = max(len(each.layer) for each in self.effects) + 6
        lines = [f"{'all heads':{width}}{self.whole:10.4f}"]
        for e in self.ranked:
            aligned = "" if e.aer is None else f"  AER {e.aer:.3f}"
            lines.append(f"{f'{e.layer}:{e.head}':{width}}{e.value:10.4f}{e.effect:+10.4f}{aligned}")
        return "\n".join(lines)

    def with_alignment(self, rates: Mapping[tuple[str, int], float]) -> HeadTable:
        """The same table with the alignment error rates of heads beside their effects."""
        effects = [each._replace(aer=rates.get((each.layer, each.head))) for each in self.effects]
        return replace(self, effects=effects)


@torch.inference_mode()
def head_table(
    pipeline: Any,
    measure: Measure,
    *,
    layers: str = "*",
    by: By = "zero",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HeadTable:
    """Measure a pipeline as it is, and without each head of the layers whose names match; those of an ensemble are
    switched off in all of its models."""
    models = models_of(pipeline)
    names = [name for name in attention_names(models[0]) if fnmatchcase(name, layers)]
    if not names:
        known = ", ".join(attention_names(models[0])) or "none"
        raise UsageError(f"no attention layer matches {layers!r}; this model has: {known}")
    whole, means = measure.value(), [_means(model, names, measure) if by == "mean" else {} for model in models]
    heads = [(name, head) for name in names for head in range(head_count(models[0], name))]
    effects = []
    for done, (name, head) in enumerate(heads):
        progress(done, len(heads))
        with ExitStack() as stack:
            for model, mean in zip(models, means, strict=True):
                change = WithoutHead(name, head, mean[name][head] if by == "mean" else None)
                stack.enter_context(intervene(model, change))
            value = measure.value()
        effects.append(HeadEffect(name, head, value, whole - value if measure.more_is_better else value - whole))
    return HeadTable(measure.name, whole, by, effects)


def _means(model: nn.Module, layers: Sequence[str], measure: Measure) -> dict[str, Float[Tensor, "H K"]]:
    """The mean output of every head over all places of the data."""
    with record_activations(model, [f"{layer}.{HEADS}" for layer in layers]) as seen:
        measure.run_each()
    means = {}
    for layer in layers:
        calls = seen.steps(f"{layer}.{HEADS}")
        rows = [call if call.dim() == 4 else call[:, None] for call in calls]  # one head has no axis of heads
        total = torch.stack([each.double().sum(dim=(0, 2)) for each in rows]).sum(dim=0)
        means[layer] = (total / sum(each.shape[0] * each.shape[2] for each in rows)).float()
    return means


def head_alignment(translator: Translator, pairs: Sequence[Pair]) -> dict[tuple[str, int], float]:
    """The alignment error rate of every head of the cross-attention against the gold links of pairs, read where the
    target word is predicted or one step later, whichever is better."""
    known = [pair for pair in pairs if pair.links is not None]
    if not known:
        raise DataError("these pairs have no gold links to align by; use phrasebook, or leave out --align")
    passes: list[Pass] = []
    for to in dict.fromkeys(pair.to for pair in known):
        some = [pair for pair in known if pair.to == to]
        passes += translator.passes([pair.source for pair in some], [pair.target for pair in some], to=to, layers=CROSS)
    ordered = [pair for to in dict.fromkeys(pair.to for pair in known) for pair in known if pair.to == to]
    sure = [pair.links or () for pair in ordered]
    possible = [pair.possible or pair.links or () for pair in ordered]
    rates: dict[tuple[str, int], float] = {}
    for reading in readings(passes):
        if reading.head is None and len(passes[0].weights[reading.layer]) > 1:
            continue  # the mean of several heads
        key = (reading.layer, reading.head or 0)
        rate = alignment_error_rate([each.links(reading) for each in passes], sure, possible)
        rates[key] = min(rate, rates.get(key, 1.0))
    return rates


# What is measured


def measured(
    pipeline: Any,
    name: str,
    data: str,
    metric: str,
    options: Mapping[str, object],
    *,
    to: str,
    count: int,
    seed: int,
    max_words: int,
) -> tuple[Measure, dict[tuple[str, int], float]]:
    """What a model of this name is measured by on data, and alignment error rates of heads if --align asks for them.

    `options` are those of translators, by their names on the command line.
    """
    if isinstance(pipeline, Translator):
        pairs = held_out_pairs(pipeline, data, to, count=count, seed=seed, max_words=max_words)[:count]
        rates = head_alignment(pipeline, pairs) if options["--align"] else {}
        if metric in ("", LOSS):
            return pair_loss(pipeline, pairs), rates
        return score(metric, lambda: evaluate_pairs(pipeline, pairs)[0]), rates
    kind = with_article(type(pipeline).__name__)
    refuse_given(options, f"is for translators, and {name} is {kind}")
    if isinstance(pipeline, LanguageModel):
        if metric not in ("", LOSS):
            raise UsageError(f"a language model is measured by its loss; leave out --metric {metric}")
        return text_loss(pipeline, [line.text.strip() for line in islice(read_text(data, "line"), count)]), {}
    entry = entry_of(name)
    if not entry.evaluate:
        raise UsageError(f"{name} is {kind}, which has no evaluation")
    evaluate, asked = entry.load(entry.evaluate), EvaluationOptions(resolve(local_folder(name)), count, seed)
    return score(metric, lambda: evaluate(pipeline, data, asked).scores), {}


def text_loss(model: LanguageModel, texts: Sequence[str]) -> Measure:
    """The mean loss of a token of texts, in nats; a text longer than the model's context is cut."""
    if not isinstance(model.model, Gpt):
        raise UsageError(f"{model.name or 'this model'} has no attention, so it has no heads")
    reader = LanguageModelReader(model)
    examples = [example for example in map(reader.given, texts) if len(example[0]) > 1]
    if not examples:
        raise DataError("the texts have no token to predict; give at least a word")
    # Nothing follows the last token of a text, so it is only predicted.
    read = [(ids[:-1],) for (ids,) in examples]
    return _mean_loss(reader, examples)._replace(run_each=lambda: [reader.run(reader.batch([each])) for each in read])


def pair_loss(translator: Translator, pairs: Sequence[Pair]) -> Measure:
    """The mean loss of a target token of pairs, in nats; that of the first model of an ensemble."""
    if not pairs:
        raise DataError("there is nothing to measure on: no pair came")
    first = translator if len(translator.models) == 1 else Translator(translator.models[:1], translator.tokenizer)
    reader = PairReader(first)
    return _mean_loss(reader, [reader.example(pair) for pair in pairs])


def _mean_loss(reader: Reader[Any], examples: Sequence[Example]) -> Measure:
    @torch.inference_mode()
    def loss(numbers: Sequence[int]) -> tuple[float, int]:
        return reader.loss(reader.batch([examples[number] for number in numbers]))

    def value() -> float:
        totals, counts = zip(*map(loss, reader.batches(examples)), strict=True)
        return sum(totals) / sum(counts)

    return Measure(LOSS, False, value, lambda: [loss([number]) for number in range(len(examples))])


def score(name: str, evaluate: Callable[[], Mapping[str, object]]) -> Measure:
    """A score of an evaluation by its name, or by the last part of its name; without a name, the first one."""
    found = dict(_scores(evaluate()))
    chosen = next((each for each in found if name in ("", each, _last(each))), None)
    if chosen is None:
        asked = f"no metric {name!r}" if name else "no metric"
        raise UsageError(f"there is {asked} here; there are: {', '.join(found) or 'none'}")
    return Measure(chosen, _last(chosen) not in LESS_IS_BETTER, lambda: dict(_scores(evaluate()))[chosen], evaluate)


def _scores(found: Mapping[str, object], before: str = "") -> Iterator[tuple[str, float]]:
    """The scores of an evaluation by name; that of a score of a group follows that of the group."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _scores(value, f"{before}{name}{OF_GROUP}")
        elif isinstance(value, float) and name not in NO_SCORES:
            yield before + name, value


def _last(name: str) -> str:
    return name.rpartition(OF_GROUP)[2]

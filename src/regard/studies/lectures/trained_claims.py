"""Claims that only training decides: recipes on built-in data, several seeds, the same budget for every side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from regard.checkpoints.folder import is_sealed
from regard.studies.lectures.claim import ClaimOptions, Row, Verdict
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.tasks.catalog import load_recipe

SPREADS = 2.0  # a difference counts if it exceeds so many standard errors


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a recipe and the settings that make it different."""

    recipe: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contest:
    """Sides trained alike. The claim is that `better` has the higher metric than every other side."""

    sides: Mapping[str, Side]
    better: str
    metric: str
    settings: tuple[str, ...]  # of all sides: small data and models, so that minutes suffice
    steps: int
    margin: float = 0.0  # the least difference that matters

    def __call__(self, options: ClaimOptions) -> Verdict:
        """Train every side with every seed and compare."""
        found = {
            name: [self._score(name, seed, options) for seed in range(1, options.seeds + 1)] for name in self.sides
        }
        rows: list[Row] = [
            {"side": name, self.metric: mean(scores), **_spread(scores)} for name, scores in found.items()
        ]
        others = [name for name in found if name != self.better]
        wins = [name for name in others if _beats(found[self.better], found[name], self.margin)]
        losses = [name for name in others if _beats(found[name], found[self.better], self.margin)]
        words = ", ".join(f"{name} {mean(scores):.3g}" for name, scores in found.items())
        if len(wins) == len(others):
            return Verdict("holds", words, rows)
        return Verdict("does not hold" if losses else "depends", words, rows)

    def _score(self, name: str, seed: int, options: ClaimOptions) -> float:
        """The best validation metric of a run; a run that is complete is not trained again."""
        side = self.sides[name]
        steps = options.steps or self.steps
        values = [
            *self.settings,
            *side.settings,
            f"training.steps={steps}",
            f"training.validate_every={steps}",
            f"seed={seed}",
        ]
        out = options.runs / _folder(name, seed, steps)
        if not is_sealed(out):
            train(load_recipe(side.recipe, values), out, resume=out.exists())
        return max(float(row[self.metric]) for row in read_metrics(out / METRICS) if self.metric in row)


def _folder(name: str, seed: int, steps: int) -> Path:
    return Path(f"{name.replace(' ', '-').replace(',', '')}-{steps}-seed{seed}")


def _spread(scores: Sequence[float]) -> Row:
    return {"spread": stdev(scores) if len(scores) > 1 else 0.0, "seeds": len(scores)}


def _beats(first: Sequence[float], second: Sequence[float], margin: float) -> bool:
    """Whether the means differ by more than the margin and more than chance would make them."""
    difference = mean(first) - mean(second)
    error = sum((stdev(x) if len(x) > 1 else 0.0) ** 2 / len(x) for x in (first, second)) ** 0.5
    return difference > max(margin, SPREADS * error)


PHRASES = ("data.phrasebook.count=6000", "training.batch_tokens=4096", "training.warmup=50", "training.lr=2e-3",
           "training.label_smoothing=0", "training.validate_sentences=100", "decoding.beam=1")  # fmt: skip
WORDS = ("tokenizer.kind=word", "tokenizer.size=8000", "tokenizer.min_frequency=1")
RNN = ("model.preset=tiny", "training.guide=0", *WORDS)
TRANSFORMER = ("model.preset=tiny", "training.average=0", "training.keep=1", *WORDS)
SHORT, LONG = ("data.phrasebook.max_words=12",), ("data.phrasebook.max_words=40",)

fixed_context = Contest(
    {
        "attention": Side("phrasebook-rnn", RNN),
        "one context vector": Side("phrasebook-rnn", (*RNN, "model.attention=none")),
    },
    "attention", "bleu", (*PHRASES, *LONG), 500, margin=2.0,
)  # fmt: skip
guidance = Contest(
    {"guided": Side("phrasebook-rnn", (*RNN, "training.guide=0.1")), "not guided": Side("phrasebook-rnn", RNN)},
    "not guided", "bleu", (*PHRASES, *SHORT), 500,
)  # fmt: skip
many_heads = Contest(
    {f"{heads} heads": Side("phrasebook-transformer", (*TRANSFORMER, f"model.heads={heads}")) for heads in (4, 1)},
    "4 heads", "bleu", (*PHRASES, *SHORT), 600,
)  # fmt: skip
positions = Contest(
    {
        kind: Side("phrasebook-transformer", (*TRANSFORMER, f"model.positions={kind}"))
        for kind in ("sinusoidal", "learned", "rotary", "linear")
    }
    | {"sinusoidal, concatenated": Side("phrasebook-transformer", (*TRANSFORMER, "model.join_positions=concatenate"))},
    "sinusoidal", "bleu", (*PHRASES, *SHORT), 600,
)  # fmt: skip
hard_attention = Contest(
    {
        "soft": Side("phrasebook-rnn", RNN),
        "hard, straight through": Side("phrasebook-rnn", (*RNN, "model.reading=hard")),
    },
    "soft", "bleu", (*PHRASES, *SHORT), 500,
)  # fmt: skip
little_data = Contest(
    {"ResNet": Side("scenes-resnet"), "ViT": Side("scenes-vit")}, "ResNet", "accuracy", ("data.count=500",), 200,
)  # fmt: skip

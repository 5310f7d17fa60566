"""Sides trained alike: what each run measured is kept, and a difference counts only beyond the spread of the seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from statistics import mean, stdev
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.claims.claims import ClaimOptions, Outcome, Row
from regard.training.optim import cosine

Example = TypeVar("Example")
WARM_UP, CLIP = 0.1, 1.0  # the share of the steps in which the learning rate rises, and the largest gradient norm


def fit(
    model: nn.Module,
    examples: Iterable[Example],
    loss: Callable[[Example], Tensor],
    *,
    steps: int,
    rate: float,
) -> None:
    """Train with Adam; the learning rate rises to `rate` and falls to zero."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.98), fused=True)
    warm_up = max(1, round(WARM_UP * steps))
    model.train()
    for step, example in enumerate(islice(examples, steps), start=1):
        optimiser.param_groups[0]["lr"] = cosine(step, lr=rate, warmup=warm_up, steps=steps)
        optimiser.zero_grad()
        loss(example).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
    model.eval()


SPREADS = 2.0  # a difference counts if it exceeds so many standard errors

Scores = dict[str, float]  # what a run measured, by name
Side = Callable[[int, int], Scores]  # (seed, steps) -> what was measured; its repr has all of its settings


@dataclass(frozen=True)
class Longer:
    """A side that is trained for so many times the steps of the others."""

    side: Side
    times: int

    def __call__(self, seed: int, steps: int) -> Scores:
        return self.side(seed, self.times * steps)


@dataclass(frozen=True)
class Found:
    """What every side measured, one entry a seed."""

    scores: Mapping[str, Sequence[Scores]]

    def values(self, side: str, measure: str) -> list[float]:
        """One value a seed."""
        return [each[measure] for each in self.scores[side]]

    def mean(self, side: str, measure: str) -> float:
        return mean(self.values(side, measure))

    def beats(self, first: str, second: str, measure: str, margin: float = 0.0) -> bool:
        """Whether `first` is higher by more than the margin and by more than chance would make it."""
        return exceeds(self.values(first, measure), self.values(second, measure), margin)

    def outcome(self, better: str, measure: str, margin: float = 0.0) -> Outcome:
        """On the claim that `better` is higher than every other side: it is, another is higher than it, or neither."""
        others = [side for side in self.scores if side != better]
        if all(self.beats(better, other, measure, margin) for other in others):
            return "holds"
        return "does not hold" if any(self.beats(other, better, measure, margin) for other in others) else "depends"

    def told(self, measure: str, sides: Iterable[str] = ()) -> str:
        """The mean and the spread of each side in words."""
        return ", ".join(f"{side} {_told(self.values(side, measure))}" for side in sides or self.scores)

    @property
    def rows(self) -> list[Row]:
        """A row for each side and each thing measured."""
        return [
            {"side": side, "measured": name, "mean": mean(values), "spread": _spread(values), "seeds": len(values)}
            for side, runs in self.scores.items()
            for name in runs[0]
            if (values := [run[name] for run in runs])
        ]


@dataclass(frozen=True)
class Contest:
    """Sides that are trained with the same seeds for the same number of steps (or fewer, where a side says so)."""

    sides: Mapping[str, Side]
    steps: int

    def run(self, options: ClaimOptions) -> Found:
        """Train every side with every seed."""
        seeds = range(1, options.seeds + 1)
        return Found({name: [self._scores(name, seed, options) for seed in seeds] for name in self.sides})

    def _scores(self, name: str, seed: int, options: ClaimOptions) -> Scores:
        """What a run measured. A run that was made before with the same settings, by any contest, is read from its
        file."""
        side, steps = self.sides[name], options.steps or self.steps
        settings = {"side": repr(side), "seed": seed, "steps": steps}
        path = options.runs / _file_name(settings)
        if path.exists():
            kept: Scores = json.loads(path.read_text())["measured"]
            return kept
        measured = side(seed, steps)
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({**settings, "measured": measured}, indent=1) + "\n")
        part.replace(path)  # a run that was stopped while it was written is made again
        return measured


def exceeds(first: Sequence[float], second: Sequence[float], margin: float = 0.0) -> bool:
    """Whether the means differ by more than the margin and by more than so many standard errors."""
    error = sum(_spread(values) ** 2 / len(values) for values in (first, second)) ** 0.5
    return mean(first) - mean(second) > max(margin, SPREADS * error)


def _file_name(settings: Mapping[str, object]) -> Path:
    return Path(blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=8).hexdigest() + ".json")


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _told(values: Sequence[float]) -> str:
    return f"{mean(values):.3g} ± {_spread(values):.2g}"

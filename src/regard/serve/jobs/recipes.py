"""The shipped recipes as a page offers them, and how they are fitted to the data that came."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import Any

from regard.config import Config
from regard.models.catalog import MODELS
from regard.studies.costs.plan import make_plan
from regard.training.recipe.recipes import opening_comment, recipe_names, recipe_text
from regard.training.recipe.sections import PHRASEBOOK, ModelSection, TrainingSection

DEMO_SETS = ("training.log_every=10", "training.validate_every=130")  # often enough to be watched
HELD_OUT = 200  # pairs for validation, where a tenth of them is as many


class Offer(Config):
    """A recipe to choose; `own_data` takes a person's own sentence pairs, the others bring theirs."""

    name: str
    description: str
    family: str
    title: str  # what people call the family
    parameters: int | None  # depends on the data where they are a person's own
    own_data: bool


@dataclass(frozen=True)
class Size:
    """What a corpus of fewer than `below` pairs can teach within minutes on two cores: a tiny model."""

    below: int
    pieces: int
    batch_tokens: int
    steps: int


SIZES = (Size(3_000, 1000, 1024, 1500), Size(30_000, 4000, 2048, 4000), Size(100_000, 8000, 4096, 8000))


def offers() -> list[Offer]:
    """The recipes that run on any machine. Those for a person's own pairs come first, the default model's first."""
    offered = [_offer(name) for name in recipe_names() if needs_data(name) or brings_data(name)]
    return sorted(offered, key=lambda each: (not each.own_data, each.family != ModelSection().name))


@cache
def _offer(name: str) -> Offer:
    own_data, family = needs_data(name), _values(name)["model"]["name"]
    return Offer(
        name=name,
        description=opening_comment(recipe_text(name)),
        family=family,
        title=MODELS[family].title,
        parameters=None if own_data else make_plan(name).parameters,
        own_data=own_data,
    )


def needs_data(name: str) -> bool:
    """Whether a recipe waits to be given sentence pairs."""
    return "data" not in _values(name)


def brings_data(name: str) -> bool:
    """Whether a recipe makes its own sentence pairs."""
    return not needs_data(name) and _values(name)["data"]["train"] == PHRASEBOOK


def suited(name: str, *, pairs: int | None = None, steps: int | None = None) -> tuple[str, ...]:
    """Changes that fit a recipe to so many pairs and steps, and let it be watched as it goes."""
    size = next((size for size in SIZES if pairs is not None and pairs < size.below), None)
    recipe = TrainingSection.parse(_values(name)["training"])
    steps = steps or (size.steps if size else recipe.steps)
    often = min(recipe.validate_every, max(10, steps // 15))
    training = {
        "steps": steps,
        "warmup": min(recipe.warmup, steps // 8),
        "validate_every": often,
        "checkpoint_every": often,
        "log_every": max(1, min(5, steps // 100)),
    }
    changes = [f"training.{key}={value}" for key, value in training.items()]
    if pairs is not None:
        changes.append(f"data.split={min(0.1, max(0.01, HELD_OUT / pairs)):.3f}")
    if size is not None:
        changes += [
            "model.preset=tiny",
            f"tokenizer.size={size.pieces}",
            f"training.batch_tokens={size.batch_tokens}",
            "training.schedule=cosine",
            "training.lr=2e-3",
            "training.patience=0",
            "training.validate_sentences=100",
        ]
    return tuple(changes)


def _values(name: str) -> dict[str, Any]:
    return tomllib.loads(recipe_text(name))

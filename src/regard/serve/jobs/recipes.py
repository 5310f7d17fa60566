"""The shipped recipes that the page offers, and the settings that fit them to uploaded data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from regard.config import Config
from regard.families.catalog import MODELS
from regard.families.translation.recipe import TranslationTrainingSection
from regard.plan.plan import count_parameters
from regard.training.recipe.files import PHRASEBOOK, opening_comment, recipe_names, recipe_text, shipped_values
from regard.training.recipe.sections import ModelSection

DEMO_SETS = ("training.log_every=10", "training.validate_every=130")  # often enough to watch the progress
ADAPT = "adapt"  # the recipe that improves a model, which is chosen instead of a recipe
HELD_OUT = 200  # pairs for validation, but at most a tenth of all pairs


class Offer(Config):
    """A recipe to choose; one with `own_data` trains on uploaded sentence pairs, the others have built-in data."""

    name: str
    description: str
    family: str
    title: str  # what people call the family
    parameters: int | None  # None if it depends on the uploaded data
    own_data: bool


@dataclass(frozen=True)
class SmallCorpus:
    """Settings for a corpus of fewer than `below` pairs: a tiny model that trains within minutes on two cores."""

    below: int
    pieces: int
    batch_tokens: int
    steps: int


SMALL_CORPORA = (
    SmallCorpus(3_000, 1000, 1024, 1500),
    SmallCorpus(30_000, 4000, 2048, 4000),
    SmallCorpus(100_000, 8000, 4096, 8000),
)


def offers() -> list[Offer]:
    """The recipes that run on any machine: first those for uploaded pairs, and of these the default model's first."""
    names = [name for name in recipe_names() if name != ADAPT]
    offered = [_offer(name) for name in names if needs_data(name) or has_builtin_data(name)]
    return sorted(offered, key=lambda each: (not each.own_data, each.family != ModelSection().name))


@cache
def _offer(name: str) -> Offer:
    own_data, family = needs_data(name), shipped_values(name)["model"]["name"]
    return Offer(
        name=name,
        description=opening_comment(recipe_text(name)),
        family=family,
        title=MODELS[family].title,
        parameters=None if own_data else count_parameters(name),
        own_data=own_data,
    )


def needs_data(name: str) -> bool:
    """Whether a recipe needs uploaded sentence pairs."""
    return "data" not in shipped_values(name)


def has_builtin_data(name: str) -> bool:
    """Whether a recipe generates its own sentence pairs."""
    return not needs_data(name) and shipped_values(name)["data"]["train"] == PHRASEBOOK


def settings_for(name: str, *, pairs: int | None = None, steps: int | None = None) -> tuple[str, ...]:
    """The `--set` values that fit a recipe to this number of pairs and steps, and log often enough for the page."""
    sizes = SMALL_CORPORA if name != ADAPT else ()  # the size of a model that is improved is its own
    size = next((size for size in sizes if pairs is not None and pairs < size.below), None)
    recipe = TranslationTrainingSection.parse(shipped_values(name)["training"])
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

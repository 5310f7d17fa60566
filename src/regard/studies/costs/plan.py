"""The costs of training and running a model, before anything is allocated, and the worked examples of the lectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from regard.checkpoints import resolve
from regard.checkpoints.models import identify
from regard.config import Config
from regard.data.tokenizers.pair import TokenizerConfig
from regard.errors import UsageError, with_article
from regard.families.catalog import MODELS
from regard.families.images.recipe import PixelsRecipe
from regard.families.trajectories.recipe import ScenesTrainingSection
from regard.families.translation.recipe import TranslationTrainingSection
from regard.studies.costs import training_step
from regard.studies.costs.models import COSTS
from regard.studies.costs.parts import FLOAT, Cost, Costs, Matrix
from regard.training.initial_model import initial_folder
from regard.training.recipe.files import changed
from regard.training.recipe.load import load_recipe
from regard.training.recipe.sections import (
    FROM_TOKENIZER,
    ExampleTrainingSection,
    ModelSection,
    TextTrainingSection,
    TrainingSection,
)

LENGTH = 32  # tokens of a sentence by default


class TextPreset(Config):
    """The recipe with which a text preset is planned: all defaults, and no data."""

    model: ModelSection
    tokenizer: TokenizerConfig
    training: TranslationTrainingSection = TranslationTrainingSection()


class ExamplePreset(Config):
    """The same for models that read no tokens, such as those of images."""

    model: ModelSection
    training: ExampleTrainingSection = ExampleTrainingSection()


@dataclass(frozen=True)
class Plan:
    """The costs of a model for batches of one size."""

    name: str
    config: Config
    batch: int
    source_length: int
    target_length: int
    costs: Costs
    training: TrainingSection

    @property
    def parameters(self) -> int:
        return self.costs.total.parameters

    @property
    def forward_flops(self) -> int:
        return self.batch * self.costs.total.flops

    @property
    def training_flops(self) -> int:
        """Forward and backward; the optimiser's few operations per weight are left out."""
        return 3 * self.forward_flops

    @property
    def memory(self) -> dict[str, int]:
        """Peak bytes of a training step in float32; `training_step.py` says what is alive at the peak."""
        return training_step.memory(self.costs, self.batch, self.training)

    @property
    def tokens(self) -> int:
        """The tokens, or images, that a step learns from."""
        return self.training.accumulate * self.batch * self.costs.tokens

    @property
    def cache(self) -> dict[str, int]:
        """The bytes that decoding caches for one sentence: for its source, and for each hypothesis at full length."""
        return {"sentence": FLOAT * self.costs.sentence_cache, "hypothesis": FLOAT * self.costs.hypothesis_cache}

    def to_json(self) -> dict[str, Any]:
        """Everything above as plain values; memory in bytes, attention for one sentence."""
        return {
            "model": self.name,
            "config": self.config.model_dump(mode="json"),
            "batch": self.batch,
            "source_length": self.source_length,
            "target_length": self.target_length,
            "parameters": self.parameters,
            "flops": {"forward": self.forward_flops, "training": self.training_flops},
            "memory": {**self.memory, "total": sum(self.memory.values())},
            "parts": {name: self._part(cost) for name, cost in self.costs.parts.items()},
            "attention": [
                {**asdict(matrix), "entries": matrix.entries, "bytes": matrix.nbytes} for matrix in self.costs.matrices
            ],
            "cache": self.cache,
        }

    def _part(self, cost: Cost) -> dict[str, int]:
        return {
            "parameters": cost.parameters,
            "flops": self.batch * cost.flops,
            "activations": FLOAT * self.batch * cost.kept,
        }


def make_plan(
    what: str,
    *,
    sets: Sequence[str] = (),
    batch: int | None = None,
    source_length: int | None = None,
    target_length: int | None = None,
) -> Plan:
    """Plan a recipe (shipped name or TOML file), a model folder, or a preset such as `transformer:base`.

    By default `batch` is the recipe's: its number of images, or as many sentences of this length as its tokens allow.
    By default a sentence has 32 tokens, and an image that is read as a text has one token per pixel.
    """
    name, config, training, tokens, lengths = _describe(what, sets)
    usual_source = getattr(config, "usual_source", tokens)  # of models whose source is no text
    usual_source, usual_target = lengths or (usual_source, tokens)
    source_length = usual_source if source_length is None else source_length
    target_length = usual_target if target_length is None else target_length
    if name not in COSTS:
        raise UsageError(f"{what} is {with_article(name)} model; costs are known of {', '.join(COSTS)}")
    if batch is None:
        batch = _usual_batch(training, max(source_length, target_length))
    for option, value in (("batch", batch), ("source length", source_length), ("target length", target_length)):
        if value < 1:
            raise UsageError(f"the {option} is {value}; it must be at least 1")
    costs = COSTS[name](config, source_length, target_length)
    return Plan(name, config, batch, source_length, target_length, costs, training)


def _usual_batch(training: TrainingSection, length: int) -> int:
    """The number of examples in a batch, or of sentences of this length that its tokens allow."""
    if isinstance(training, ScenesTrainingSection):  # it counts agents; the length of a scene is their number
        return max(1, training.batch // length)
    if isinstance(training, ExampleTrainingSection):
        return training.batch
    assert isinstance(training, TextTrainingSection)
    return max(1, training.batch_tokens // length)


class Subject(NamedTuple):
    """What is planned: the name and configuration of a model, how it is trained, and its default number of tokens."""

    name: str
    config: Config
    training: TrainingSection
    tokens: int
    lengths: tuple[int, int] | None = None  # of source and target, if the recipe fixes them


def _describe(what: str, sets: Sequence[str]) -> Subject:
    if Path(what).is_dir():
        if sets:
            raise UsageError(f"--set changes recipes and presets; {what} is a trained model and stays as it is")
        name, config, _ = identify(resolve(Path(what)))
        return Subject(name, config, TranslationTrainingSection(), _usual_tokens(config))
    model, _, preset = what.partition(":")
    if model in MODELS:
        config, training = _of_preset(what, model, preset, sets)
        return Subject(model, config, training, _usual_tokens(config))
    recipe = load_recipe(what, sets)
    tokens = recipe.data.size**2 if isinstance(recipe, PixelsRecipe) else LENGTH
    if recipe.model.init:
        name, config, _ = identify(initial_folder(recipe.model.init))
        return Subject(name, config, recipe.training, tokens, recipe.lengths)
    config = _config(recipe.model, recipe.vocabulary)
    return Subject(recipe.model.name, config, recipe.training, tokens, recipe.lengths)


def _usual_tokens(config: Config) -> int:
    """The number of pixels if these are the tokens; otherwise the default length of a sentence."""
    return getattr(config, "pixels", 0) or LENGTH


def _of_preset(what: str, model: str, preset: str, sets: Sequence[str]) -> tuple[Config, TrainingSection]:
    if any(change.partition("=")[0].strip() == "model.init" for change in sets):
        raise UsageError(f"{what} is a preset, which has a shape of its own; plan the folder of model.init instead")
    section = {"name": model, "preset": preset}
    if MODELS[model].config.model_fields.keys().isdisjoint(FROM_TOKENIZER):
        seen = ExamplePreset.parse(changed({"model": section}, sets), where=what)
        return _config(seen.model, 1), seen.training
    published = MODELS[model].vocabulary
    size = published.get(preset) or published.get("")  # --set tokenizer.size names another tokenizer
    values = {"model": section, "tokenizer": {"size": size} if size else {}}
    read = TextPreset.parse(changed(values, sets), where=what)
    return _config(read.model, read.tokenizer.size), read.training


def _config(section: ModelSection, vocabulary: int) -> Config:
    return section.config(source_vocab=vocabulary, target_vocab=vocabulary, pad=0)


@dataclass(frozen=True)
class Figure:
    """A worked example of the lectures: attention over a grid of tokens, in every head of every layer."""

    what: str
    formula: str
    matrix: Matrix
    layers: int = 1
    windows: int = 1

    @property
    def entries(self) -> int:
        """The entries of one head in one layer."""
        return self.windows * self.matrix.queries * self.matrix.keys

    @property
    def nbytes(self) -> int:
        """The bytes of one head in one layer, in float32."""
        return FLOAT * self.entries

    @property
    def total_bytes(self) -> int:
        return self.layers * self.matrix.heads * self.nbytes

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "formula": self.formula, "entries": self.entries, "bytes": self.nbytes,
            "layers": self.layers, "heads": self.matrix.heads, "total_bytes": self.total_bytes,
        }  # fmt: skip


def _square(side: int, heads: int = 1) -> Matrix:
    """Every token of a square grid attends to every other."""
    return Matrix(f"{side}x{side} grid", heads, side**2, side**2)


LECTURES = (
    Figure("Transformer on pixels (iGPT): image of 128 x 128", "R = 128: R^4", _square(128, heads=16), layers=48),
    Figure("ViT: 224 x 224 image, 14 x 14 patches of 16 pixels", "R = 224/16: R^4", _square(14, heads=16), layers=48),
    Figure("ViT: 224 x 224 image, 16 x 16 patches of 14 pixels", "R = 224/14: R^4", _square(16, heads=16), layers=48),
    Figure("Swin's first stage, 56 x 56 tokens, if all looked at all", "H = W = 56: H^2 W^2", _square(56)),
    Figure("Swin's first stage in windows of 7 x 7", "M = 7: M^2 H W", _square(7), windows=(56 // 7) ** 2),
)

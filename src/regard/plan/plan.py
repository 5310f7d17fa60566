"""The costs of training and running a model, before anything is allocated.

Memory is that of a step of our loop in float32 without a compiler. The loop computes the loss while the gradients of
the previous step still exist, and frees them before the backward pass; with accumulation they are never freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch

from regard.checkpoints import resolve
from regard.checkpoints.models import identify
from regard.config import Config, nearest
from regard.data.tokenizers.pair import TokenizerConfig
from regard.errors import UsageError
from regard.families.catalog import MODELS, TASKS
from regard.families.translation.recipe import TranslationTrainingSection
from regard.plan.decoding import cache_bytes
from regard.plan.measure import Measurement, measure_step
from regard.plan.recorder import FLOAT
from regard.training.initial_model import initial_folder
from regard.training.recipe.files import changed, read_values
from regard.training.recipe.load import load_recipe
from regard.training.recipe.sections import FROM_TOKENIZER, ExampleTrainingSection, ModelSection, TrainingSection

LENGTH = 32  # tokens of a sentence by default
MOMENTS = 2  # of AdamW, per weight


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
    measured: Measurement
    training: TrainingSection

    @property
    def parameters(self) -> int:
        return self.measured.parameters

    @property
    def forward_flops(self) -> int:
        return self.measured.flops

    @property
    def training_flops(self) -> int:
        """Forward and backward of a batch; the optimiser's few operations per weight are left out."""
        return self.measured.step_flops

    @property
    def memory(self) -> dict[str, int]:
        """Peak bytes of a training step by part; they add up to the total. `temporary` are the tensors that are alive
        at the peak and not kept: logits, gradients of activations, results of operations."""
        measured, weights, accumulates = self.measured, FLOAT * self.parameters, self.training.accumulate > 1
        peak = max(measured.forward_peak + weights, measured.backward_peak + accumulates * weights)
        return {
            "weights": weights,
            "gradients": weights,
            "optimizer": MOMENTS * weights,
            **({"average": weights} if self.training.ema else {}),
            "activations": measured.activations,
            "temporary": max(0, peak - weights - measured.activations),
        }

    @property
    def tokens(self) -> int:
        """The tokens, or images, that a step learns from."""
        lengths = {"source": self.source_length, "target": self.target_length, "examples": 1}
        return self.training.accumulate * self.batch * lengths[MODELS[self.name].example.learns]

    @property
    def reads(self) -> str:
        """What a batch consists of, in words."""
        words = self.config.examples.many if self.config.examples else MODELS[self.name].example.reads
        return f"{self.batch} {words.format(source=self.source_length, target=self.target_length)}"

    @cached_property
    def cache(self) -> dict[str, int]:
        """The bytes that decoding caches for one sentence: for its source, and for each hypothesis at full length."""
        return cache_bytes(self.name, self.config, self.source_length, self.target_length)

    def to_json(self) -> dict[str, Any]:
        """Everything above as plain values; memory in bytes, attention for one sentence."""
        matrices = self.measured.matrices
        return {
            "model": self.name,
            "config": self.config.model_dump(mode="json"),
            "batch": self.batch,
            "source_length": self.source_length,
            "target_length": self.target_length,
            "parameters": self.parameters,
            "flops": {"forward": self.forward_flops, "training": self.training_flops},
            "memory": {**self.memory, "total": sum(self.memory.values())},
            "parts": {name: asdict(part) for name, part in self.measured.parts.items()},
            "attention": [{**asdict(m), "entries": m.entries, "bytes": m.nbytes} for m in matrices],
            "cache": self.cache,
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
    usual_source = getattr(config, "usual_source", tokens)  # of models whose source is not a text
    usual_source, usual_target = lengths or (usual_source, tokens)
    source_length = usual_source if source_length is None else source_length
    target_length = usual_target if target_length is None else target_length
    if batch is None:
        batch = training.rows(max(1, source_length, target_length))
    for option, value in (("batch", batch), ("source length", source_length), ("target length", target_length)):
        if value < 1:
            raise UsageError(f"the {option} is {value}; it must be at least 1")
    measured = measure_step(name, config, batch, source_length, target_length, training)
    return Plan(name, config, batch, source_length, target_length, measured, training)


def count_parameters(what: str) -> int:
    """The parameters of a recipe, model folder or preset, without planning it."""
    name, config, *_ = _describe(what, ())
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in MODELS[name].model(config).parameters())


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
    if preset and not Path(what).exists():
        raise UsageError(f"{what}: there is no model {model!r}; {nearest(model, MODELS)}")
    if _lacks_data_alone(values := read_values(what, sets)):
        return _without_data(what, values)
    recipe = load_recipe(what, sets)
    if recipe.model.init:
        name, config, _ = identify(initial_folder(recipe.model.init))
        return Subject(name, config, recipe.training, LENGTH, recipe.lengths)
    config = _config(recipe.model, recipe.vocabulary)
    return Subject(recipe.model.name, config, recipe.training, LENGTH, recipe.lengths)


def _lacks_data_alone(values: dict[str, Any]) -> bool:
    """Whether a recipe of a new model for texts still has to name its data."""
    sections = TASKS[values["task"]].recipe.model_fields if values.get("task") in TASKS else {}
    if "data" in values or "tokenizer" not in sections or values.get("model", {}).get("init"):
        return False
    return values.keys() <= sections.keys()


def _without_data(what: str, values: dict[str, Any]) -> Subject:
    """A recipe whose data are still to be named: no cost depends on them."""
    sections = {name: field.annotation for name, field in TASKS[values["task"]].recipe.model_fields.items()}
    parsed: dict[str, Any] = {
        name: section.parse(values.get(name, {}), where=what, section=name)
        for name, section in sections.items()
        if name != "data" and isinstance(section, type) and issubclass(section, Config)
    }
    model = parsed["model"]
    return Subject(model.name, _config(model, parsed["tokenizer"].size), parsed["training"], LENGTH)


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
    """Every token of a square grid attends to every other, or to those of its window."""

    what: str
    formula: str
    side: int  # of the grid, or of a window
    heads: int = 1
    layers: int = 1
    windows: int = 1

    @property
    def entries(self) -> int:
        """The entries of one head in one layer."""
        return self.windows * self.side**4

    @property
    def nbytes(self) -> int:
        """The bytes of one head in one layer, in float32."""
        return FLOAT * self.entries

    @property
    def total_bytes(self) -> int:
        return self.layers * self.heads * self.nbytes

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what, "formula": self.formula, "entries": self.entries, "bytes": self.nbytes,
            "layers": self.layers, "heads": self.heads, "total_bytes": self.total_bytes,
        }  # fmt: skip


LECTURES = (
    Figure("Transformer on pixels (iGPT): image of 128 x 128", "R = 128: R^4", 128, heads=16, layers=48),
    Figure("ViT: 224 x 224 image, 14 x 14 patches of 16 pixels", "R = 224/16: R^4", 14, heads=16, layers=48),
    Figure("ViT: 224 x 224 image, 16 x 16 patches of 14 pixels", "R = 224/14: R^4", 16, heads=16, layers=48),
    Figure("Swin's first stage, 56 x 56 tokens, if all looked at all", "H = W = 56: H^2 W^2", 56),
    Figure("Swin's first stage in windows of 7 x 7", "M = 7: M^2 H W", 7, windows=(56 // 7) ** 2),
)


def byte_size(count: int) -> str:
    """Bytes in binary units, as in the lectures: 768 GB is 768 x 2^30."""
    return scaled(count, 1024, "B")


def scaled(count: int, base: int = 1000, unit: str = "") -> str:
    """A number with a prefix: 1,234,567 is 1.235 M."""
    value, prefixes = float(count), ["", "K", "M", "G", "T", "P", "E"]
    while value >= base and len(prefixes) > 1:
        value, prefixes = value / base, prefixes[1:]
    number = f"{value:.4g}" if value < 1000 else f"{value:.0f}"
    return f"{number} {prefixes[0]}{unit}"

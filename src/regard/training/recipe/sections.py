"""[training]: the options of the loop, and those that tasks on texts add."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config, Fraction, nearest
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.layers.vision import BodyConfig
from regard.training import fused_loss


@dataclass(frozen=True)
class Metric:
    """A number by which two models of one task can be compared."""

    name: str  # as in a recipe's `training.metric` and in metrics.jsonl
    higher_is_better: bool = False

    @property
    def arrow(self) -> str:
        """The direction that is better, as tables of results mark it."""
        return "↑" if self.higher_is_better else "↓"

    def better(self, value: float, best: float | None) -> bool:
        """Whether a measured value beats the best so far; NaN never does."""
        if best is None or math.isnan(value):
            return not math.isnan(value)
        return value > best if self.higher_is_better else value < best


LOSS = Metric("loss")
PERPLEXITY = Metric("perplexity")
ACCURACY = Metric("accuracy", higher_is_better=True)
FRECHET = Metric("frechet")
BLEU = Metric("bleu", higher_is_better=True)
CHRF = Metric("chrf", higher_is_better=True)
EXACT = Metric("exact", higher_is_better=True)
DECODED = (BLEU, CHRF, EXACT)  # measured on decoded answers


FROM_TOKENIZER = ("vocab", "source_vocab", "target_vocab", "pad")


class ModelSection(Config):
    """[model]: a name, one of its presets or a folder to start from, and values of that model's own configuration."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    name: str = "transformer"
    preset: str = ""
    init: str = ""  # a model folder, or hf:owner/name, whose weights and tokenizer training starts from
    fresh: bool = False  # of `init` only the shape and the tokenizer: random weights, to see what its training is worth
    body_init: str = ""  # the same for the body of a model that builds on another, such as a trained classifier

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.name not in MODELS:
            raise ConfigError(f"model.name {self.name!r} is unknown; {nearest(self.name, MODELS)}")
        presets = MODELS[self.name].presets
        if self.preset and self.preset not in presets:
            raise ConfigError(
                f"model.preset {self.preset!r} is not one of {self.name}; {nearest(self.preset, presets)}"
            )
        for key in FROM_TOKENIZER:
            if key in self.overrides:
                raise ConfigError(f"model.{key} comes from the tokenizer; leave it out of the recipe")
        known = MODELS[self.name].config.model_fields
        if self.init and (unknown := next((key for key in self.overrides if key not in known), "")):
            raise ConfigError(f"unknown key {'model.' + unknown!r}; {nearest(unknown, known)}")
        if self.fresh and not self.init:
            raise ConfigError("model.fresh = true: keeps the shape and the tokenizer of model.init, which is not given")
        if not self.init:
            self.config(source_vocab=8, target_vocab=8, pad=0)
        if self.body_init and not issubclass(MODELS[self.name].config, BodyConfig):
            raise ConfigError(f"model.body_init = {self.body_init!r}: {self.name} has no body of its own; leave it out")
        if self.body_init and self.init:
            raise ConfigError("model.init and model.body_init both say what training starts from; leave one out")
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        """The values of the model's own configuration that the recipe gives."""
        return dict(self.model_extra or {})

    def config(self, *, source_vocab: int, target_vocab: int, pad: int) -> Config:
        """The model's own configuration: preset values, then the recipe's, then the sizes of the tokenizer."""
        entry = MODELS[self.name]
        sizes = {"vocab": target_vocab, "source_vocab": source_vocab, "target_vocab": target_vocab, "pad": pad}
        sizes = {key: size for key, size in sizes.items() if key in entry.config.model_fields}
        return entry.config.parse({**self._settings(), **sizes}, section="model")

    def resolved(self) -> ModelSection:
        """The same section with every value of the model written out, so that it outlives changes of presets."""
        if self.init:
            return self
        config = self.config(source_vocab=8, target_vocab=8, pad=0).model_dump(mode="json", exclude_none=True)
        values = {key: value for key, value in config.items() if key not in FROM_TOKENIZER}
        return ModelSection(name=self.name, preset=self.preset, body_init=self.body_init, **values)

    def named(self, name: str) -> ModelSection:
        """The same section for the model of this name."""
        return ModelSection(**{**self.model_dump(), "name": name})

    def _settings(self) -> dict[str, Any]:
        preset = MODELS[self.name].presets[self.preset] if self.preset else {}
        return {**preset, **self.overrides}


class WordsSection(Config):
    """[words]: the stream of words of a model of two streams."""

    init: str = ""  # a BERT folder, or hf:owner/name, whose weights and tokenizer a new model starts from


Parallel = Literal["auto", "none", "ddp", "fsdp", "hsdp"]


class TrainingSection(Config):
    """[training] of any task: the optimiser, and when to validate, save and stop."""

    steps: PositiveInt = 10000
    lr: PositiveFloat = 1e-3
    schedule: Literal["noam", "cosine", "constant"] = "noam"
    warmup: NonNegativeInt = 1000
    accumulate: PositiveInt = 1  # batches of one update; several processes share them
    parallel: Parallel = "auto"  # a copy on every process (ddp, auto), shards (fsdp), or shards per machine (hsdp)
    clip: NonNegativeFloat = 1.0
    precision: Literal["fp32", "tf32", "bf16", "bf16-stream"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    weight_decay: NonNegativeFloat = 0.01
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    ema: Fraction = 0.0
    average: NonNegativeInt = 0
    validate_every: NonNegativeInt = 500
    checkpoint_every: NonNegativeInt = 500
    keep: PositiveInt = 3
    patience: NonNegativeInt = 0
    metric: str = "loss"  # one of the task's metrics; it decides which checkpoint is best
    on_nan: Literal["stop", "skip"] = "stop"
    log_every: PositiveInt = 50
    workers: NonNegativeInt | None = None  # processes that make batches; by default 4 on a GPU, else none
    time_limit: PositiveFloat | None = None
    compile: bool | Literal["cuda"] = False  # "cuda": only if training runs on a GPU
    graphs: bool = True  # on a GPU, capture a step per batch shape and replay it instead of launching every kernel

    lengths_vary: ClassVar[bool] = True  # False: every batch has one shape, so compiled code need not be dynamic

    @property
    def shapes_recur(self) -> bool:
        """Whether batches have few different shapes, so that capturing a step of each shape pays."""
        return not self.lengths_vary

    def rows(self, length: int) -> int:
        """The number of examples of this length in a batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say how large its batches are")

    @property
    def half(self) -> bool:
        """Whether matrix products are computed in bf16."""
        return self.precision in ("bf16", "bf16-stream")

    def compiles(self, device: str) -> bool:
        """Whether the model and its loss are compiled on this kind of device."""
        return self.compile in (True, device)

    def factored(self, device: str) -> bool:
        """Whether the loss over a vocabulary gets unmultiplied logits (hidden states and output matrix).

        The loss then multiplies them piece by piece, so that all logits never exist at once. Compiled code is faster
        with plain logits, and under FSDP the output matrix is unsharded only inside the model.
        """
        return self.parallel not in ("fsdp", "hsdp") and (not self.compiles(device) or fused_loss.applies(device))

    @pydantic.model_validator(mode="after")
    def _check_average(self) -> Self:
        if self.average > self.keep:
            raise ConfigError(
                f"training.average is {self.average} but only {self.keep} checkpoints are kept; raise training.keep"
            )
        return self


class ExampleTrainingSection(TrainingSection):
    """[training] of models whose examples all have one size, such as images."""

    lengths_vary: ClassVar[bool] = False

    batch: PositiveInt = 128  # examples
    schedule: Literal["noam", "cosine", "constant"] = "cosine"

    def rows(self, length: int) -> int:
        return self.batch


class DrawsTrainingSection(TrainingSection):
    """[training] of models that may draw what they look at (hard attention with the estimator `reinforce`)."""

    draw_reward: NonNegativeFloat = 0.1  # λ_r: how much the estimated gradient of the draws counts
    draw_entropy: NonNegativeFloat = 0.002  # λ_e: the bonus for attention that is spread


class TextTrainingSection(TrainingSection):
    """[training] of models of texts."""

    batch_tokens: PositiveInt = 4096

    def rows(self, length: int) -> int:
        return max(1, self.batch_tokens // length)


class RDropTrainingSection(TextTrainingSection):
    """[training] with R-Drop: two passes over a batch are trained to agree."""

    r_drop: NonNegativeFloat = 0.0

    def factored(self, device: str) -> bool:
        """The GPU kernel does not compare two passes, but compiled code does."""
        return super().factored(device) and not (self.r_drop and self.compiles(device))


class BlockTrainingSection(TextTrainingSection):
    """[training] of models that read blocks of one length."""

    lengths_vary: ClassVar[bool] = False


class AnswerTrainingSection(TextTrainingSection):
    """[training] of models that write answers, some of which are decoded at each validation."""

    label_smoothing: Fraction = 0.0
    validate_sentences: NonNegativeInt = 200  # how many are decoded; 0 measures the loss alone

    @pydantic.model_validator(mode="after")
    def _check_decoded(self) -> Self:
        if self.metric in [metric.name for metric in DECODED] and not self.validate_sentences:
            raise ConfigError(f"training.metric is {self.metric!r}, which needs training.validate_sentences above 0")
        return self

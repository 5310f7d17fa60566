"""[training]: the options of the loop, and those that tasks on texts add."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.training import fused_loss
from regard.training.recipe.metrics import DECODED

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
    workers: NonNegativeInt = 0
    time_limit: PositiveFloat | None = None
    compile: bool | Literal["cuda"] = False  # "cuda": only if training runs on a GPU
    graphs: bool = True  # on a GPU, capture a step per batch shape and replay it instead of launching every kernel

    lengths_vary: ClassVar[bool] = True  # False: every batch has one shape, so compiled code need not be dynamic

    @property
    def shapes_recur(self) -> bool:
        """Whether batches have few different shapes, so that capturing a step of each shape pays."""
        return not self.lengths_vary

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


class DrawsTrainingSection(TrainingSection):
    """[training] of models that may draw what they look at (hard attention with the estimator `reinforce`)."""

    draw_reward: NonNegativeFloat = 0.1  # λ_r: how much the estimated gradient of the draws counts
    draw_entropy: NonNegativeFloat = 0.002  # λ_e: the bonus for attention that is spread


class TextTrainingSection(TrainingSection):
    """[training] of models of texts."""

    batch_tokens: PositiveInt = 4096


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

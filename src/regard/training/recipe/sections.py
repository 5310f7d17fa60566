"""The sections of recipes: what a model, its data and its training can be told, and what of it does not fit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config, Fraction
from regard.data.formats.filters import FilterConfig
from regard.data.formats.labelled_tables import Table
from regard.data.formats.plain_text import Documents
from regard.errors import ConfigError
from regard.models.catalog import MODELS
from regard.training import fused_loss

FROM_TOKENIZER = ("vocab", "source_vocab", "target_vocab", "pad")
PHRASEBOOK = "phrasebook"
DECODED = {"bleu", "chrf", "exact"}
HIGHER_IS_BETTER = {*DECODED, "accuracy", "iou", "f1", "matthews", "pearson", "spearman"}
Parallel = Literal["auto", "none", "ddp", "fsdp", "hsdp"]
Metric = Literal[
    "loss", "perplexity", "bleu", "chrf", "exact", "accuracy", "f1", "matthews", "pearson", "spearman", "iou", "frechet"
]  # fmt: skip


class ModelSection(Config):
    """[model]: a name, one of its presets or a folder to start from, and values of that model's own configuration."""

    model_config = pydantic.ConfigDict(extra="allow", frozen=True)

    name: str = "transformer"
    preset: str = ""
    init: str = ""  # a model folder, or hf:owner/name, whose weights and tokenizer training starts from

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
        if not self.init:
            self.config(source_vocab=8, target_vocab=8, pad=0)
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    def config(self, *, source_vocab: int, target_vocab: int, pad: int) -> Config:
        """The model's own configuration: preset values, then the recipe's, then what the tokenizer says."""
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
        return ModelSection(name=self.name, preset=self.preset, **values)

    def _settings(self) -> dict[str, Any]:
        preset = MODELS[self.name].presets[self.preset] if self.preset else {}
        return {**preset, **self.overrides}


class PhrasebookSection(Config):
    """[data.phrasebook]: how much of the built-in corpus to make, per target language."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 500
    min_words: PositiveInt = 1
    max_words: PositiveInt = 60
    everyday: bool = False  # what newcomers type, capitals and full stops included, not the lectures' sentences alone


class DataSection(Config):
    """[data]: where the sentence pairs are; a path, or a table of paths by target language, or `phrasebook`."""

    train: str | dict[str, str]
    valid: str | dict[str, str] = ""
    test: str | dict[str, str] = ""
    source: str
    target: str | list[str]
    swap: bool = False  # the files hold the target first, as a table without a header may
    split: float = pydantic.Field(default=0.01, gt=0, lt=1)  # set aside from train where valid is not given
    filters: FilterConfig = FilterConfig.parse({})
    phrasebook: PhrasebookSection = PhrasebookSection()

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else self.target

    def path(self, part: Literal["train", "valid", "test"], target: str) -> str:
        """Where the pairs of one part and target language are; empty where there are none."""
        where: str | dict[str, str] = getattr(self, part)
        return where if isinstance(where, str) else where.get(target, "")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"data.target is {self.target!r}; expected one language code, or several different ones")
        if self.source in self.targets:
            raise ConfigError(f"data.source {self.source!r} is also in data.target; a language is not its own target")
        for part in ("train", "valid", "test"):
            table = getattr(self, part)
            extra = set(table) - set(self.targets) if isinstance(table, dict) else set()
            if extra:
                raise ConfigError(f"data.{part} names {sorted(extra)}, but data.target is {self.targets}")
        missing = [target for target in self.targets if not self.path("train", target)]
        if missing:
            raise ConfigError(f"data.train has no path for {missing}; give one for every language of data.target")
        return self


class LoopSection(Config):
    """[training] of any task: the optimiser, and when to look, save and stop."""

    steps: PositiveInt = 10000
    lr: PositiveFloat = 1e-3
    schedule: Literal["noam", "cosine", "constant"] = "noam"
    warmup: NonNegativeInt = 1000
    accumulate: PositiveInt = 1  # batches of an update; several processes share them
    parallel: Parallel = "auto"  # copies of the model (ddp, auto), pieces (fsdp), or pieces within a machine (hsdp)
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
    metric: Metric = "loss"
    on_nan: Literal["stop", "skip"] = "stop"
    log_every: PositiveInt = 50
    workers: NonNegativeInt = 0
    time_limit: PositiveFloat | None = None
    compile: bool | Literal["cuda"] = False  # "cuda": where training runs on a GPU
    graphs: bool = True  # where batches are alike, a GPU replays a captured step instead of being told every kernel

    lengths_vary: ClassVar[bool] = True  # or every batch has one shape, for which a graph of its own is compiled

    @property
    def shapes_recur(self) -> bool:
        """Whether batches have few different shapes, so that to capture the steps of each pays."""
        return not self.lengths_vary

    @property
    def half(self) -> bool:
        """Whether products are computed in bf16."""
        return self.precision in ("bf16", "bf16-stream")

    def compiles(self, device: str) -> bool:
        """Whether the model and its loss are compiled on this kind of device."""
        return self.compile in (True, device)

    def factored(self, device: str) -> bool:
        """Whether the loss over a vocabulary takes the factors of logits, which then never exist all at once: not where
        a compiler does better, nor where weights come together (FSDP) only inside of the model."""
        return self.parallel not in ("fsdp", "hsdp") and (not self.compiles(device) or fused_loss.applies(device))

    @pydantic.model_validator(mode="after")
    def _check_average(self) -> Self:
        if self.average > self.keep:
            raise ConfigError(
                f"training.average is {self.average} but only {self.keep} checkpoints are kept; raise training.keep"
            )
        return self


class TextLoopSection(LoopSection):
    """[training] of models of texts."""

    batch_tokens: PositiveInt = 4096


class AgreeingSection(TextLoopSection):
    """[training] in which two passes over a batch can be made to agree."""

    r_drop: NonNegativeFloat = 0.0

    def factored(self, device: str) -> bool:
        """No kernel of ours compares two passes; a compiler's does."""
        return super().factored(device) and not (self.r_drop and self.compiles(device))


class BlockLoopSection(TextLoopSection):
    """[training] of models that read blocks of one length."""

    lengths_vary: ClassVar[bool] = False


class WritingSection(TextLoopSection):
    """[training] of models that write answers, some of which are decoded to measure them."""

    label_smoothing: Fraction = 0.0
    validate_sentences: NonNegativeInt = 200  # how many are decoded; 0 measures the loss alone

    @pydantic.model_validator(mode="after")
    def _check_decoded(self) -> Self:
        if self.metric in DECODED and not self.validate_sentences:
            raise ConfigError(f"training.metric is {self.metric!r}, which needs training.validate_sentences above 0")
        return self


class TrainingSection(WritingSection, AgreeingSection):
    """[training] of translators."""

    label_smoothing: Fraction = 0.1
    guide: NonNegativeFloat = 0.0  # weight of learning where to look, from links found by statistics
    round_lengths: PositiveInt = 1  # sentences are padded to a multiple of so many tokens: fewer shapes, more padding

    @property
    def shapes_recur(self) -> bool:
        """Where lengths are rounded, and nobody watches the attention."""
        return self.round_lengths > 1 and not self.guide

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.guide and self.compile:
            raise ConfigError("training.guide watches the attention, which a compiled model hides; set one of them off")
        return self


class PlainSection(Config):
    """[data] of plain text: files, or `phrasebook`, the English sentences of the built-in corpus, one a document."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    documents: Documents = "blank"  # what separates them
    split: float = pydantic.Field(default=0.01, gt=0, lt=1)  # of the text, its end, set aside where valid is not given
    sentences: PositiveInt = 20000  # drawn from the phrasebook

    def paths(self, part: Literal["train", "valid", "test"]) -> list[str]:
        where: str | list[str] = getattr(self, part)
        return [path for path in ([where] if isinstance(where, str) else where) if path]

    @pydantic.model_validator(mode="after")
    def _check_train(self) -> Self:
        if not self.paths("train"):
            raise ConfigError("data.train names no file; give one, or a list of them")
        if self.train == PHRASEBOOK and (self.valid or self.test):
            raise ConfigError("data.train is 'phrasebook', which has parts of its own; leave out data.valid, data.test")
        return self


class TextSection(PlainSection):
    """[data] of a model that reads plain text in blocks."""

    block: PositiveInt = 128  # tokens read at once


class WordsSection(PlainSection):
    """[data] of word vectors."""

    subsample: Fraction = 1e-3  # words with a greater share are thinned out; 0: none


class MaskedSection(TextSection):
    """[data] of a model that guesses hidden words."""

    block: int = pydantic.Field(default=128, ge=8)
    share: float = pydantic.Field(default=0.15, gt=0, lt=1)  # of the tokens, to be guessed
    whole_words: bool = False  # hide all pieces of a word together
    next_sentence: bool = True  # also guess whether two segments belong together


class LabelledSection(Config):
    """[data] of a classifier: tab-separated tables, as GLUE has them."""

    train: str
    valid: str = ""
    test: str = ""
    text: str | NonNegativeInt = "sentence"  # the column of the text: its name, or its number where there is no header
    pair: str | NonNegativeInt | None = None  # of its partner
    label: str | NonNegativeInt = "label"
    labels: tuple[str, ...] = ()  # the labels by number; none: the column holds values
    longest: int = pydantic.Field(default=128, ge=8)  # tokens; longer texts are cut, and counted

    @pydantic.model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"data.labels is {self.labels}; expected two or more different ones, or none for values")
        return self

    @property
    def table(self) -> Table:
        """How its tables are read."""
        return Table(self.text, self.pair, self.label, self.labels)


class SpansSection(TextSection):
    """[data] of a model that writes again what was cut out of a text."""

    block: int = pydantic.Field(default=128, ge=8)
    density: float = pydantic.Field(default=0.15, gt=0, lt=1)  # the share of tokens that is cut out
    span: float = pydantic.Field(default=3.0, ge=1)  # mean tokens of a span
    sentinels: PositiveInt = 100  # tokens that stand for spans, in a vocabulary learnt in place


class PromptsSection(Config):
    """[data] of a model that answers prompts: tables of paths by the name of the task; `builtin:…` are made here."""

    train: dict[str, str]
    valid: dict[str, str] = pydantic.Field(default_factory=dict)
    test: dict[str, str] = pydantic.Field(default_factory=dict)
    prefixes: dict[str, str] = pydantic.Field(default_factory=dict)  # put before the texts of a task's files
    temperature: float = pydantic.Field(default=1.0, ge=1)  # tasks are drawn in proportion to their size ** (1 / this)
    count: PositiveInt = 20000  # training prompts of each built-in task
    held_out: PositiveInt = 200  # prompts of each for validation, and as many for testing
    max_words: PositiveInt = 8  # of the sentences built-in prompts are made of

    @pydantic.model_validator(mode="after")
    def _check_tasks(self) -> Self:
        for key in ("valid", "test", "prefixes"):
            if extra := sorted(set(getattr(self, key)) - set(self.train)):
                raise ConfigError(f"data.{key} names the task {extra[0]!r}, but data.train has {', '.join(self.train)}")
        if not self.train:
            raise ConfigError("data.train names no task; write a table: name = path, or name = 'builtin:translate'")
        return self


def nearest(name: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    """The known name most like this one, or all of them."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"did you mean {matches[0]!r}?" if matches else f"known: {', '.join(known)}"

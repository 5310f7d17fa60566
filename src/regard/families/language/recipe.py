"""The recipes of tasks on texts: plain texts, prompts, texts with labels, tags or answers, and word vectors."""

from __future__ import annotations

from typing import ClassVar, Literal, Protocol, Self, runtime_checkable

import pydantic
from jaxtyping import Float, Int
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from regard.config import Config, Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.families.language.formats import Table
from regard.families.language.lstm import Reading, State
from regard.layers.blocks import Factors
from regard.search.settings import SearchSettings
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import PlainTextSection, TextBlocksSection
from regard.training.recipe.sections import (
    ACCURACY,
    DECODED,
    EXACT,
    LOSS,
    PERPLEXITY,
    AnswerTrainingSection,
    BlockTrainingSection,
    Metric,
    ModelSection,
    RDropTrainingSection,
    TextTrainingSection,
)


@runtime_checkable
class StreamModel(Protocol):
    """A recurrent language model: it reads on from the state that an earlier piece of the text left."""

    def read(self, tokens: Int[Tensor, "B T"], state: State | None = None) -> Reading: ...
    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]: ...
    def factors(self, x: Float[Tensor, "B T D"]) -> Factors: ...
    def penalty(self, reading: Reading) -> Float[Tensor, ""]: ...


class LanguageRecipe(Recipe):
    """Everything the training of a language model depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY)

    task: Literal["language"]
    model: ModelSection = ModelSection(name="gpt")
    data: TextBlocksSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: BlockTrainingSection = BlockTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.compile and self.text_order == "streams":
            raise ConfigError(
                f"training.compile does nothing for model {self.model.name!r}, whose kernels are fused already; "
                "set it off"
            )
        return self

    @property
    def text_order(self) -> str:
        """How the model's configuration asks for texts: in blocks, in streams, or in blocks read both ways."""
        return MODELS[self.model.name].config.text_order  # type: ignore[attr-defined]  # all models of this task have one


class MaskedSection(TextBlocksSection):
    """[data] of a model that predicts masked words."""

    block: int = pydantic.Field(default=128, ge=8)
    share: float = pydantic.Field(default=0.15, gt=0, lt=1)  # of the tokens, to be predicted
    whole_words: bool = False  # mask all tokens of a word together
    next_sentence: bool = True  # also predict whether two segments follow each other


class MaskedRecipe(Recipe):
    """Everything the training of a BERT from plain documents depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, ACCURACY)

    task: Literal["masked"]
    model: ModelSection = ModelSection(name="bert")
    data: MaskedSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece"})
    training: TextTrainingSection = TextTrainingSection()


class SpansSection(TextBlocksSection):
    """[data] of a model that restores the spans cut out of a text."""

    block: int = pydantic.Field(default=128, ge=8)
    density: float = pydantic.Field(default=0.15, gt=0, lt=1)  # the share of tokens that is cut out
    span: float = pydantic.Field(default=3.0, ge=1)  # mean tokens of a span
    sentinels: PositiveInt = 100  # tokens that stand for spans, in a vocabulary learnt by this run


class SpansRecipe(Recipe):
    """Everything the training of a T5 from plain text depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY)

    task: Literal["spans"]
    model: ModelSection = ModelSection(name="t5")
    data: SpansSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: AnswerTrainingSection = AnswerTrainingSection()


class PromptsSection(Config):
    """[data] of a model that answers prompts: tables of paths by the name of the task; `builtin:…` are generated."""

    train: dict[str, str]
    valid: dict[str, str] = pydantic.Field(default_factory=dict)
    test: dict[str, str] = pydantic.Field(default_factory=dict)
    prefixes: dict[str, str] = pydantic.Field(default_factory=dict)  # put before the texts of a task's files
    temperature: float = pydantic.Field(default=1.0, ge=1)  # tasks are drawn in proportion to their size ** (1 / this)
    count: PositiveInt = 20000  # training prompts of each built-in task
    held_out: PositiveInt = 200  # prompts of each for validation, and as many for testing
    max_words: PositiveInt = 8  # of the sentences that built-in prompts are made of

    @pydantic.model_validator(mode="after")
    def _check_tasks(self) -> Self:
        for key in ("valid", "test", "prefixes"):
            if extra := sorted(set(getattr(self, key)) - set(self.train)):
                raise ConfigError(f"data.{key} names the task {extra[0]!r}, but data.train has {', '.join(self.train)}")
        if not self.train:
            raise ConfigError("data.train names no task; write a table: name = path, or name = 'builtin:translate'")
        return self


class PromptsRecipe(Recipe):
    """Everything the training of one model for several tasks depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, *DECODED)

    task: Literal["prompts"]
    model: ModelSection = ModelSection(name="t5")
    data: PromptsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: AnswerTrainingSection = AnswerTrainingSection()
    decoding: SearchSettings = SearchSettings()


BINARY = (Metric("f1", higher_is_better=True), Metric("matthews", higher_is_better=True))  # of two labels
CORRELATIONS = (Metric("pearson", higher_is_better=True), Metric("spearman", higher_is_better=True))  # of values


class LabelledTextsSection(Config):
    """[data] of a classifier: tab-separated tables, as GLUE has them."""

    train: str
    valid: str = ""
    test: str = ""
    text: str | NonNegativeInt = "sentence"  # the column of the text: its name, or its number if there is no header
    pair: str | NonNegativeInt | None = None  # the column of a second text
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


class ClassificationRecipe(Recipe):
    """Everything the fine-tuning of a classifier depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, *BINARY, *CORRELATIONS)

    task: Literal["classification"]
    model: ModelSection
    data: LabelledTextsSection
    training: RDropTrainingSection = RDropTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model.init:
            raise ConfigError("model.init must be given: a model folder, or hf:owner/name, to fine-tune")
        labels, metric = self.data.labels, self.goal
        if metric in BINARY and len(labels) != 2:
            raise ConfigError(f"training.metric {metric.name!r} needs two labels, data.labels has {len(labels)}")
        if metric != LOSS and (metric in CORRELATIONS) == bool(labels):
            what = "labels" if labels else "values"
            raise ConfigError(f"training.metric {metric.name!r} does not fit data with {what}; see data.labels")
        return self


F1 = Metric("f1", higher_is_better=True)


class ReadTextsSection(Config):
    """[data] of texts with something to find in each; `builtin:facts` is generated."""

    train: str
    valid: str = ""
    test: str = ""
    count: PositiveInt = 5000  # training texts of builtin:facts
    held_out: PositiveInt = 300  # of its texts for validation, and as many for testing
    longest: int = pydantic.Field(default=256, ge=8)  # tokens; training leaves longer texts out, and counts them


class TaggedSection(ReadTextsSection):
    """[data] of tagged words: CoNLL's columns."""

    column: NonNegativeInt | None = None  # where the tags are, counted from 0; the last column unless given


class TokenHeadRecipe(Recipe):
    """What both tasks have; without `model.init` the vocabulary is learnt from the training texts."""

    model: ModelSection = ModelSection(name="bert")
    data: ReadTextsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece"})
    training: TextTrainingSection = TextTrainingSection()


class TagsRecipe(TokenHeadRecipe):
    """Everything the training of a tagger depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, F1)

    task: Literal["tags"]
    data: TaggedSection


class AnswersRecipe(TokenHeadRecipe):
    """Everything the training of a model that finds answers in texts depends on."""

    metrics: ClassVar = (LOSS, EXACT, F1)

    task: Literal["answers"]


class WordsSection(PlainTextSection):
    """[data] of word vectors."""

    subsample: Fraction = 1e-3  # words with a greater share of the text are thinned out; 0: none


class WordsTrainingSection(TextTrainingSection):
    """[training] of word vectors."""

    # sgd: plain gradient descent after every few words, as in word2vec's program; adamw: a step for every batch
    optimizer: Literal["sgd", "adamw"] = "adamw"

    @pydantic.model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        unused = ("betas", "clip", "weight_decay", "precision")
        changed = [name for name in unused if getattr(self, name) != type(self).model_fields[name].default]
        if self.optimizer == "sgd" and changed:
            raise ConfigError(
                f"training.{changed[0]}: has no effect with training.optimizer = 'sgd'; leave it out, or choose 'adamw'"
            )
        if self.optimizer == "sgd" and self.on_nan == "skip":
            raise ConfigError("training.on_nan = 'skip': 'sgd' changes weights within a step; it can only 'stop'")
        return self


class WordsRecipe(Recipe):
    """Everything the training of word vectors depends on."""

    metrics: ClassVar = (LOSS,)
    no_init: ClassVar = "word vectors are learnt from scratch"

    task: Literal["words"]
    model: ModelSection = ModelSection(name="word2vec")
    data: WordsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "word", "size": 100_000, "min_frequency": 5})
    training: WordsTrainingSection = WordsTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokenizer.kind != "word":
            raise ConfigError(f"tokenizer.kind = {self.tokenizer.kind!r}: task 'words' learns vectors of whole words; "
                              "it must be 'word'")  # fmt: skip
        return self

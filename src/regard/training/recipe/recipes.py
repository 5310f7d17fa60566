"""A recipe: one TOML file, one validated object, everything a training run depends on."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import pydantic
import tomli_w

from regard.config import Config, Seed
from regard.data.data_root import is_there, located, missing
from regard.data.images.augmentation import Augmentation
from regard.data.tokenizers.pair import TokenizerConfig
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError, DataError, UsageError
from regard.inference.decoding.settings import SearchSettings
from regard.models.catalog import models_for
from regard.training.recipe.image_sections import (
    SCENES,
    GanLoopSection,
    GanSection,
    ImageLoopSection,
    ImageSection,
    LabelLoopSection,
    PixelsLoopSection,
    PixelsSection,
)
from regard.training.recipe.sections import (
    DECODED,
    PHRASEBOOK,
    AgreeingSection,
    BlockLoopSection,
    DataSection,
    LabelledSection,
    LoopSection,
    MaskedSection,
    ModelSection,
    PromptsSection,
    SpansSection,
    TextLoopSection,
    TextSection,
    TrainingSection,
    WordsSection,
    WritingSection,
    nearest,
)

MADE, BUILTIN = (PHRASEBOOK, SCENES), "builtin:"  # data that are no files


class AnyRecipe(Config):
    """What the loop needs of a recipe, whatever its task; the rest is for the task alone."""

    metrics: ClassVar[set[str]]  # that the task measures
    anew: ClassVar[str] = ""  # why training cannot start from a model folder; empty where it can

    task: str
    takes: str = ""  # how long training was measured to take, and where
    seed: Seed = 1
    model: ModelSection
    training: LoopSection

    @pydantic.model_validator(mode="after")
    def _check_task(self) -> Self:
        models = models_for(self.task)
        if self.model.name not in models:
            raise ConfigError(
                f"model.name is {self.model.name!r}, which cannot do task {self.task!r}; use {' or '.join(models)}"
            )
        if self.training.metric not in self.metrics:
            raise ConfigError(
                f"training.metric is {self.training.metric!r}, which task {self.task!r} does not measure; "
                f"it measures {', '.join(sorted(self.metrics))}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_init(self) -> Self:
        if self.model.init and self.anew:
            raise ConfigError(
                f"model.init = {self.model.init!r}: is not for task {self.task!r}: {self.anew}; leave it out"
            )
        if self.model.init and self.model.preset:
            raise ConfigError(
                f"model.preset = {self.model.preset!r}: the shape comes from model.init; set model.preset to ''"
            )
        return self

    @property
    def vocabulary(self) -> int:
        """How many tokens a new model will know at most; 0 where they come with the model."""
        tokenizer: TokenizerConfig | VocabularyConfig | None = getattr(self, "tokenizer", None)
        return 0 if self.model.init or tokenizer is None else tokenizer.size

    @property
    def files(self) -> list[str]:
        """The paths of its data, as far as they are files."""
        return data_files(self.model_dump()["data"])

    def refuse_missing(self) -> None:
        """Refuse to begin where a file below the data root is not there."""
        for path in self.files:
            if message := missing(path):
                raise DataError(message)

    def to_toml(self) -> str:
        """The recipe as a TOML document that `load_recipe` reads back unchanged."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def resolved(self) -> Self:
        """The recipe with the model's preset written out."""
        return type(self)(**{**dict(self), "model": self.model.resolved()})


class Recipe(AnyRecipe):
    """Everything the training of a translator depends on."""

    metrics: ClassVar = {"loss", "perplexity", *DECODED}
    anew: ClassVar = "a translator begins with random weights"

    task: Literal["translation"] = "translation"
    model: ModelSection = ModelSection()
    data: DataSection
    tokenizer: TokenizerConfig = TokenizerConfig.parse({})
    training: TrainingSection = TrainingSection()
    decoding: SearchSettings = SearchSettings()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if (
            getattr(self.model.config(source_vocab=8, target_vocab=8, pad=0), "tie", "") == "all"
            and not self.tokenizer.joint
        ):
            raise ConfigError("model.tie = 'all': shares one embedding, which needs tokenizer.joint = true")
        if self.training.guide and self.tokenizer.dropout:
            raise ConfigError(
                "training.guide links the tokens of one segmentation, which tokenizer.dropout changes all the time; "
                "set one of them to 0"
            )
        return self


class LanguageRecipe(AnyRecipe):
    """Everything the training of a language model depends on."""

    metrics: ClassVar = {"loss", "perplexity"}

    task: Literal["language"]
    model: ModelSection = ModelSection(name="gpt")
    data: TextSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: BlockLoopSection = BlockLoopSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.compile and self.model.name == "lstm":
            raise ConfigError("training.compile does nothing for an lstm, whose kernels are fused already; set it off")
        return self


class WordsRecipe(AnyRecipe):
    """Everything the training of word vectors depends on."""

    metrics: ClassVar = {"loss"}
    anew: ClassVar = "word vectors are learnt from scratch"

    task: Literal["words"]
    model: ModelSection = ModelSection(name="word2vec")
    data: WordsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "word", "size": 100_000, "min_frequency": 5})
    training: TextLoopSection = TextLoopSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokenizer.kind != "word":
            raise ConfigError(f"tokenizer.kind = {self.tokenizer.kind!r}: task 'words' learns vectors of whole words; "
                              "it must be 'word'")  # fmt: skip
        return self


class MaskedRecipe(AnyRecipe):
    """Everything the training of a BERT from plain documents depends on."""

    metrics: ClassVar = {"loss", "perplexity", "accuracy"}

    task: Literal["masked"]
    model: ModelSection = ModelSection(name="bert")
    data: MaskedSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece"})
    training: TextLoopSection = TextLoopSection()


class ClassificationRecipe(AnyRecipe):
    """Everything the fine-tuning of a classifier depends on."""

    metrics: ClassVar = {"loss", "accuracy", "f1", "matthews", "pearson", "spearman"}

    task: Literal["classification"]
    model: ModelSection
    data: LabelledSection
    training: AgreeingSection = AgreeingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model.init:
            raise ConfigError("model.init must be given: a model folder, or hf:owner/name, to fine-tune")
        labels, metric = self.data.labels, self.training.metric
        if metric in ("f1", "matthews") and len(labels) != 2:
            raise ConfigError(f"training.metric {metric!r} needs two labels, data.labels has {len(labels)}")
        if metric != "loss" and (metric in ("pearson", "spearman")) == bool(labels):
            what = "labels" if labels else "values"
            raise ConfigError(f"training.metric {metric!r} does not fit data with {what}; see data.labels")
        return self


class SpansRecipe(AnyRecipe):
    """Everything the training of a T5 from plain text depends on."""

    metrics: ClassVar = {"loss", "perplexity"}

    task: Literal["spans"]
    model: ModelSection = ModelSection(name="t5")
    data: SpansSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: WritingSection = WritingSection()


class PromptsRecipe(AnyRecipe):
    """Everything the training of one model for several tasks depends on."""

    metrics: ClassVar = {"loss", "perplexity", *DECODED}

    task: Literal["prompts"]
    model: ModelSection = ModelSection(name="t5")
    data: PromptsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: WritingSection = WritingSection()
    decoding: SearchSettings = SearchSettings()


class ImagesRecipe(AnyRecipe):
    """Everything the training of a classifier of pictures depends on."""

    metrics: ClassVar = {"loss", "accuracy"}

    task: Literal["images"]
    model: ModelSection
    data: ImageSection
    augmentation: Augmentation = Augmentation()
    training: LabelLoopSection = LabelLoopSection()


class SegmentationRecipe(AnyRecipe):
    """Everything the training of a model that names every pixel depends on."""

    metrics: ClassVar = {"loss", "accuracy", "iou"}
    anew: ClassVar = "a segmenter begins with random weights"

    task: Literal["segmentation"]
    model: ModelSection = ModelSection(name="segmenter")
    data: ImageSection
    augmentation: Augmentation = Augmentation()
    training: ImageLoopSection = ImageLoopSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.data.drawn:
            raise ConfigError("task 'segmentation' learns from masks, which only data.train = 'scenes' has")
        _refuse_mixing(self)
        return self


class PixelsRecipe(AnyRecipe):
    """Everything the training of a model that predicts pixels depends on."""

    metrics: ClassVar = {"loss", "accuracy", "frechet"}
    anew: ClassVar = "its palette is that of the training pictures"

    task: Literal["pixels"]
    model: ModelSection = ModelSection(name="gpt")
    data: PixelsSection
    augmentation: Augmentation = Augmentation()
    training: PixelsLoopSection = PixelsLoopSection()

    @property
    def vocabulary(self) -> int:
        """The colours, and the token that starts a picture."""
        return self.data.colours + 1

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        _refuse_mixing(self)
        if self.training.metric == "accuracy" and not self.training.probe:
            raise ConfigError("training.metric is 'accuracy', that of the probe; set training.probe above 0")
        if self.training.metric == "frechet" and not self.data.judge:
            raise ConfigError("training.metric is 'frechet', which a judge measures; give the folder of a classifier, "
                              "data.judge")  # fmt: skip
        return self


class GanRecipe(AnyRecipe):
    """Everything the training of a generator of pictures depends on."""

    metrics: ClassVar = {"frechet"}
    anew: ClassVar = "a generator begins with random weights"

    task: Literal["gan"]
    model: ModelSection = ModelSection(name="sagan")
    data: GanSection
    augmentation: Augmentation = Augmentation()
    training: GanLoopSection = GanLoopSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.validate_every and not self.data.judge:
            raise ConfigError(
                "data.judge must be given, the folder of a classifier that measures what is generated; or switch "
                "validation off with training.validate_every = 0"
            )
        _refuse_mixing(self)
        return self


def data_files(data: Mapping[str, Any]) -> list[str]:
    """The paths that a section [data] names, as far as they are files."""
    found = (path for part in ("train", "valid", "test") for path in _strings(data.get(part, "")))
    return [path for path in found if path and path not in MADE and not path.startswith(BUILTIN)]


def _strings(value: Any) -> list[str]:
    """All strings within a value: of a path, of several, or of a table of them."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [value] if isinstance(value, str) else [text for each in inner for text in _strings(each)]


def _refuse_mixing(recipe: SegmentationRecipe | PixelsRecipe | GanRecipe) -> None:
    if recipe.augmentation.mixup or recipe.augmentation.cutmix:
        raise ConfigError(
            f"mixup and cutmix are for task 'images', not {recipe.task!r}; take them out of [augmentation]"
        )


RECIPES: dict[str, type[AnyRecipe]] = {
    "translation": Recipe,
    "language": LanguageRecipe,
    "words": WordsRecipe,
    "masked": MaskedRecipe,
    "classification": ClassificationRecipe,
    "spans": SpansRecipe,
    "prompts": PromptsRecipe,
    "images": ImagesRecipe,
    "segmentation": SegmentationRecipe,
    "pixels": PixelsRecipe,
    "gan": GanRecipe,
}


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(Path(str(file)).stem for file in _shipped().iterdir() if file.name.endswith(".toml"))


def recipe_text(name: str) -> str:
    """A shipped recipe as it is written, beginning with a comment that says what it is for."""
    if name not in recipe_names():
        raise UsageError(f"there is no shipped recipe {name!r}; {nearest(name, recipe_names())}")
    return str((_shipped() / f"{name}.toml").read_text(encoding="utf-8"))


class Shipped(NamedTuple):
    """What is known of a shipped recipe before it is run."""

    purpose: str
    data: dict[str, bool] | None  # its files, and whether each is there; None where they must be given
    takes: str  # how long it was measured to take; empty where nobody has


def shipped(name: str) -> Shipped:
    """What a shipped recipe does, needs and takes."""
    text = recipe_text(name)
    values = located(tomllib.loads(text))
    data = {path: is_there(path) for path in data_files(values["data"])} if "data" in values else None
    return Shipped(opening_comment(text), data, values.get("takes", ""))


def opening_comment(text: str) -> str:
    """What a recipe says of itself: the comment it begins with."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)


def load_recipe(name_or_path: str | Path, sets: Sequence[str] = ()) -> AnyRecipe:
    """Read a shipped recipe by name, or a file, with `section.key=value` changes made before anything is checked."""
    values = located(changed(_read(str(name_or_path)), sets))
    task = values.get("task", "translation")
    if task not in RECIPES:
        raise ConfigError(f"{name_or_path}: task {task!r} is unknown; {nearest(str(task), RECIPES)}")
    return RECIPES[task].parse(values, where=str(name_or_path))


def changed(values: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Values of a recipe with `section.key=value` changes made to them."""
    for change in sets:
        _merge(values, change)
    return values


def _shipped() -> Any:
    return resources.files("regard") / "recipes"


def _read(name: str) -> dict[str, Any]:
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no recipe file {name!r}; give an existing TOML file or one of {recipe_names()}")
        text = path.read_text(encoding="utf-8")
    else:
        text = recipe_text(name)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None


def _merge(values: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UsageError(f"--set {change!r} is not understood; write section.key=value, as in training.lr=3e-4")
    table = values
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise UsageError(f"--set {change!r}: {part!r} is a value, not a section")
    table[path[-1]] = _value(text.strip())


def _value(text: str) -> Any:
    """A TOML value; what is not one (a bare word, a path) is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text

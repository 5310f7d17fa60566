"""[data] sections of texts: sentence pairs and plain text. Sections that one task alone has are beside that task."""

from __future__ import annotations

from typing import Any, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config, Fraction
from regard.data.formats.filters import FilterConfig
from regard.data.formats.lines import Documents
from regard.data.images.augmentation import Augmentation
from regard.data.sources import PARTS, Part
from regard.errors import ConfigError
from regard.training.recipe.files import PHRASEBOOK, SCENES


class ScenesSection(Config):
    """[data.scenes]: how many of the built-in images to draw."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 1000
    test_count: PositiveInt = 1000

    def of(self, part: Part) -> int:
        """How many of a part."""
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[part]


class ImagesSection(Config):
    """[data]: where the labelled images are; a path, a list of paths, or `scenes`."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    split: NonNegativeInt = 0  # how many of the last training images are held out if valid is not given
    count: NonNegativeInt = 0  # learn from this many of them, drawn by the seed; 0: all
    labels: tuple[str, ...] = ()  # names of the classes, if the files have none
    scenes: ScenesSection = ScenesSection()

    def paths(self, part: Part) -> list[str]:
        """The files or folders of a part."""
        where: str | list[str] = getattr(self, part)
        return [path for path in ([where] if isinstance(where, str) else where) if path]

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.paths("train"):
            raise ConfigError(f"data.train names no images; give a file, a folder, a list of them, or {SCENES!r}")
        if self.built_in and (self.valid or self.test or self.split or self.labels):
            raise ConfigError("the built-in scenes have parts and labels of their own; size them with [data.scenes]")
        if self.valid and self.split:
            raise ConfigError("data.valid and data.split both say what to validate on; leave one out")
        return self


def refuse_mixing(task: str, augmentation: Augmentation) -> None:
    """Refuse mixup and cutmix for a task whose targets cannot be mixed."""
    if augmentation.mixup or augmentation.cutmix:
        raise ConfigError(f"mixup and cutmix are for task 'images', not {task!r}; take them out of [augmentation]")


PairPart = Part | Literal["old", "old_valid"]
PAIR_PARTS: tuple[PairPart, ...] = (*PARTS, "old", "old_valid")


class PhrasebookSection(Config):
    """[data.phrasebook]: how much of the built-in corpus to generate, per target language."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 500
    min_words: PositiveInt = 1
    max_words: PositiveInt = 60

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_everyday(cls, values: Any) -> Any:
        """Recipes of earlier versions, kept with their models, may have `everyday` sentences, which are gone."""
        return {key: values[key] for key in values if key != "everyday"} if isinstance(values, dict) else values


class PairsSection(Config):
    """[data]: where the sentence pairs are; a path, or a table of paths by target language, or `phrasebook`.

    A table that names the source language too has a file of lines for each language, line i translating line i.
    """

    train: str | dict[str, str]
    valid: str | dict[str, str] = ""
    test: str | dict[str, str] = ""
    source: str
    target: str | list[str]
    style: str = ""  # the column of tables, or key of JSONL, with the style of each translation: formal, informal, …
    swap: bool = False  # the files hold the target first, as a table without a header may
    split: float = pydantic.Field(default=0.01, gt=0, lt=1)  # share of train that is held out if valid is not given
    filters: FilterConfig = FilterConfig.parse({})
    phrasebook: PhrasebookSection = PhrasebookSection()
    old: str | dict[str, str] = ""  # with model.init: pairs such as it was trained on, mixed in against forgetting
    old_share: Fraction = 0.5  # of the pairs of an epoch
    old_valid: str | dict[str, str] = ""  # on which forgetting is measured; by default a share of `old`

    @property
    def sources(self) -> list[str]:
        return [self.source] if isinstance(self.source, str) else self.source

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else self.target

    def targets_of(self, part: PairPart) -> list[str]:
        """The target languages of a part; those of the old data may be others than are trained now."""
        where: str | dict[str, str] = getattr(self, part)
        return [code for code in where if code != self.source] if isinstance(where, dict) else self.targets

    def path(self, part: PairPart, target: str) -> str:
        """Where the pairs of one part and target language are; empty if there are none."""
        where: str | dict[str, str] = getattr(self, part)
        return where if isinstance(where, str) else where.get(target, "")

    def source_lines(self, part: PairPart) -> str:
        """The file of the lines that are translated, where each language has a file of its own; else empty."""
        where: str | dict[str, str] = getattr(self, part)
        return "" if isinstance(where, str) else where.get(self.source, "")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"data.target is {self.target!r}; expected one language code, or several different ones")
        if self.source in self.targets:
            raise ConfigError(f"data.source {self.source!r} is also in data.target; a language is not its own target")
        for part in PARTS:
            table = getattr(self, part)
            extra = set(table) - {self.source, *self.targets} if isinstance(table, dict) else set()
            if extra:
                raise ConfigError(f"data.{part} names {sorted(extra)}, but data.target is {self.targets}")
        if self.style and any(self.source_lines(part) for part in PAIR_PARTS):
            raise ConfigError(f"data.style is {self.style!r}, but files of lines have no styles; give a table or JSONL")
        missing = [target for target in self.targets if not self.path("train", target)]
        if missing:
            raise ConfigError(f"data.train has no path for {missing}; give one for every language of data.target")
        return self


class PlainTextSection(Config):
    """[data] of plain text: files, or `phrasebook`, the English sentences of the built-in corpus, one a document."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    documents: Documents = "blank"  # what separates them
    split: float = pydantic.Field(default=0.01, gt=0, lt=1)  # share at the end, held out if valid is not given
    sentences: PositiveInt = 20000  # drawn from the phrasebook

    def paths(self, part: Part) -> list[str]:
        """The files of a part."""
        where: str | list[str] = getattr(self, part)
        return [path for path in ([where] if isinstance(where, str) else where) if path]

    @pydantic.model_validator(mode="after")
    def _check_train(self) -> Self:
        if not self.paths("train"):
            raise ConfigError("data.train names no file; give one, or a list of them")
        if self.train == PHRASEBOOK and (self.valid or self.test):
            raise ConfigError("data.train is 'phrasebook', which has parts of its own; leave out data.valid, data.test")
        return self


class TextBlocksSection(PlainTextSection):
    """[data] of a model that reads plain text in blocks."""

    block: PositiveInt = 128  # tokens of a block

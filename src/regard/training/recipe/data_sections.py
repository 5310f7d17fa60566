"""[data] sections of texts: sentence pairs and plain text. Sections that one task alone has are beside that task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config, Fraction
from regard.data.formats.filters import FilterConfig
from regard.data.formats.languages import code_of, language_name
from regard.data.formats.lines import Documents
from regard.data.images.augmentation import Augmentation
from regard.data.sources import PARTS, Part
from regard.data.text.variants import VariantsSection
from regard.errors import ConfigError
from regard.training.recipe.files import PHRASEBOOK, SCENES


class PartCounts(Config):
    """How many examples of each part to draw."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 1000
    test_count: PositiveInt = 1000

    def of(self, part: Part) -> int:
        """How many of a part."""
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[part]


class ScenesSection(PartCounts):
    """[data.scenes]: how many of the built-in images to draw."""


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
        refuse_two_validations(self)
        return self


class DescribedImagesSection(Config):
    """[data] of images that files beside them describe, with captions or boxes; or `scenes`."""

    train: str
    valid: str = ""
    test: str = ""
    train_images: str = ""  # a folder or an archive; by default it is looked for beside the file that describes them
    valid_images: str = ""
    test_images: str = ""
    split: NonNegativeInt = 0  # how many of the last training images are held out if valid is not given

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    def files(self, part: Part) -> tuple[str, str]:
        """The file that describes the images of a part and their place; empty if there are none."""
        return (SCENES, "") if self.built_in else (getattr(self, part), getattr(self, f"{part}_images"))


def refuse_two_validations(data: ImagesSection | DescribedImagesSection) -> None:
    """Refuse validation images of their own beside some of the training images."""
    if data.valid and data.split:
        raise ConfigError("data.valid and data.split both say what to validate on; leave one out")


def refuse_mixing(task: str, augmentation: Augmentation) -> None:
    """Refuse mixup and cutmix for a task whose targets cannot be mixed."""
    if augmentation.mixup or augmentation.cutmix:
        raise ConfigError(f"mixup and cutmix are for task 'images', not {task!r}; take them out of [augmentation]")


PairPart = Part | Literal["old", "old_valid"]
PAIR_PARTS: tuple[PairPart, ...] = (*PARTS, "old", "old_valid")


class PhrasebookSection(Config):
    """[data.phrasebook]: how much of the built-in corpus to generate, per target language."""

    retired: ClassVar = {"everyday": False}

    count: PositiveInt = 20000
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 500
    min_words: PositiveInt = 1
    max_words: PositiveInt = 60


class CorpusSection(Config):
    """[[data.train]]: one of several corpora; its languages are those of [data] if there is one on that side."""

    path: str  # a file of pairs, the prefix of a Moses pair, or `phrasebook`
    source: str = ""
    target: str = ""
    share: pydantic.PositiveFloat = 1.0  # how often each pair is drawn per epoch; 0.25: another quarter every time
    swap: bool = False  # the file holds the target first
    style: str = ""  # as data.style
    lines: str = ""  # the file of source lines, if each language has a file of its own; path has the target lines


Corpora = str | dict[str, str] | list[CorpusSection]


class PairsSection(Config):
    """[data]: where the sentence pairs are; a path, a table of paths by language, `phrasebook`, or a list of corpora.

    A table that names the one source (or target) language too has a file of lines for each language, line i translating
    line i.
    """

    train: Corpora
    valid: Corpora = ""
    test: Corpora = ""
    source: str | list[str]
    target: str | list[str]
    style: str = ""  # the column of tables, or key of JSONL, with the style of each translation: formal, informal, …
    swap: bool = False  # the files hold the target first, as a table without a header may
    temperature: float = pydantic.Field(default=1.0, ge=1.0)  # draw languages in proportion to count^(1/temperature)
    split: float | None = pydantic.Field(default=None, gt=0, lt=1)  # share of train held out if valid is not given
    filters: FilterConfig = FilterConfig.parse({})
    variants: VariantsSection = VariantsSection()
    phrasebook: PhrasebookSection = PhrasebookSection()
    old: Corpora = ""  # with model.init: pairs such as it was trained on, mixed in against forgetting
    old_share: Fraction = 0.5  # of the pairs of an epoch
    old_valid: Corpora = ""  # on which forgetting is measured; by default a share of `old`

    @property
    def sources(self) -> list[str]:
        return [self.source] if isinstance(self.source, str) else self.source

    @property
    def targets(self) -> list[str]:
        return [self.target] if isinstance(self.target, str) else self.target

    @property
    def is_mixture(self) -> bool:
        """Whether the training pairs are a list of corpora."""
        return isinstance(self.train, list)

    def corpora(self, part: PairPart) -> list[CorpusSection]:
        """The corpora of a part, each with its two languages; old ones may be in others than are trained now."""
        where: Corpora = getattr(self, part)
        if isinstance(where, list):
            return [self._completed(part, each) for each in where]
        if isinstance(where, dict):
            return [self._of_table(where, language) for language in where if language != self._hub]
        return [self._corpus(where, source, target) for source in self.sources for target in self.targets if where]

    @property
    def _hub(self) -> str:
        """The one language that all pairs of a table of paths have in common."""
        return self.sources[0] if len(self.sources) == 1 else self.targets[0]

    def _of_table(self, table: Mapping[str, str], language: str) -> CorpusSection:
        if len(self.sources) == 1:
            return self._corpus(table[language], self._hub, language, lines=table.get(self._hub, ""))
        lines = table[language] if self._hub in table else ""
        return self._corpus(table.get(self._hub, table[language]), language, self._hub, lines=lines)

    def _corpus(self, path: str, source: str, target: str, lines: str = "") -> CorpusSection:
        return CorpusSection(path=path, source=source, target=target, swap=self.swap, style=self.style, lines=lines)

    def _completed(self, part: PairPart, corpus: CorpusSection) -> CorpusSection:
        known, given = {"source": self.sources, "target": self.targets}, dict[str, str]()
        for side, codes in known.items():
            given[side] = getattr(corpus, side) or (codes[0] if len(codes) == 1 else "")
            if not given[side]:
                raise ConfigError(f"data.{part}: {corpus.path} does not say its {side}; give one of {codes}")
        own = {"style": corpus.style or self.style, "swap": corpus.swap or self.swap}
        return corpus.model_copy(update={**given, **own})

    def drawn(self, sizes: Sequence[int]) -> list[int]:
        """How many pairs of each training corpus are drawn per epoch, for its numbers of pairs."""
        corpora = self.corpora("train")
        wanted = [size * corpus.share for size, corpus in zip(sizes, corpora, strict=True)]
        directions = [(corpus.source, corpus.target) for corpus in corpora]
        known = {each: sum(w for w, d in zip(wanted, directions, strict=True) if d == each) for each in directions}
        smooth = {each: count ** (1 / self.temperature) for each, count in known.items()}
        scale = sum(wanted) / max(sum(smooth.values()), 1.0)
        factors = {each: scale * smooth[each] / max(known[each], 1.0) for each in known}
        if self.temperature == 1.0:
            factors = dict.fromkeys(known, 1.0)
        return [round(count * factors[each]) for count, each in zip(wanted, directions, strict=True)]

    def targets_of(self, part: PairPart) -> list[str]:
        """The target languages of a part; those of the old data may be others than are trained now."""
        return list(dict.fromkeys(corpus.target for corpus in self.corpora(part)))

    def path(self, part: PairPart, target: str) -> str:
        """Where the (first) pairs of one part and target language are; empty if there are none."""
        return next((corpus.path for corpus in self.corpora(part) if corpus.target == target), "")

    def source_lines(self, part: PairPart) -> str:
        """The file of the lines that are translated, where each language has a file of its own; else empty."""
        return next((corpus.lines for corpus in self.corpora(part) if corpus.lines), "")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        for side, codes in {"source": self.sources, "target": self.targets}.items():
            if not codes or len(set(codes)) < len(codes):
                given = getattr(self, side)
                raise ConfigError(f"data.{side} is {given!r}; expected one language code, or several different ones")
            if code := next(filter(None, map(code_of, codes)), ""):
                raise ConfigError(f"data.{side} is {language_name(code)}; write the code of the language, {code!r}")
        if both := [code for code in self.sources if code in self.targets]:
            raise ConfigError(f"data.source {both[0]!r} is also in data.target; a language is not its own target")
        self._check_tables()
        for part in PARTS:
            for corpus in self.corpora(part):
                self._check_languages(part, corpus)
        if self.style and any(self.source_lines(part) for part in PAIR_PARTS):
            raise ConfigError(f"data.style is {self.style!r}, but files of lines have no styles; give a table or JSONL")
        if missing := [target for target in self.targets if target not in self.targets_of("train")]:
            raise ConfigError(f"data.train has no path for {missing}; give one for every language of data.target")
        told = {corpus.source for corpus in self.corpora("train")}
        if missing := [source for source in self.sources if source not in told]:
            raise ConfigError(f"data.train has no path for {missing}; give one for every language of data.source")
        return self

    def _check_tables(self) -> None:
        for part in PAIR_PARTS:
            table = getattr(self, part)
            if not isinstance(table, dict):
                continue
            if len(self.sources) > 1 and len(self.targets) > 1:
                raise ConfigError(
                    f"data.{part} is a table, but there are several sources and targets; write [[data.{part}]] for "
                    "each corpus, with path, source and target"
                )
            extra = set(table) - {*self.sources, *self.targets}
            if part in PARTS and extra:
                many, codes = ("source", self.sources) if len(self.sources) > 1 else ("target", self.targets)
                raise ConfigError(f"data.{part} names {sorted(extra)}, but data.{many} is {codes}")

    def _check_languages(self, part: PairPart, corpus: CorpusSection) -> None:
        for side, codes in {"source": self.sources, "target": self.targets}.items():
            if getattr(corpus, side) not in codes:
                raise ConfigError(
                    f"data.{part}: the {side} of {corpus.path} is {getattr(corpus, side)!r}, but data.{side} is {codes}"
                )


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

"""A verb is a declaration: a dataclass whose fields are its options and whose docstring is its help.

`Verb` loads the model and refuses one that cannot do it; `AttentionVerb` changes its heads. `LineVerb` prints an answer
for each input, as text or JSON, and says which inputs it could not read. `TextVerb` and `FileVerb` say what inputs are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar

import typer

from regard.errors import DataError
from regard.verbs.inputs import STDIN, GivenFiles, Images, SkipBad, Unknown, given_texts, tell_skipped
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    Changes,
    Device,
    Model,
    Without,
    refuse_given,
    refuse_model,
    refuse_several,
)
from regard.verbs.progress import Progress

if TYPE_CHECKING:
    from regard.families.loading import Pipeline
    from regard.search.pipeline import Labelled


@dataclass(kw_only=True)
class Verb:
    """What a model is asked to do. The options of every verb come after a verb's own."""

    abilities: ClassVar[tuple[str, ...]] = ()  # a pipeline of the catalog with one of these can do it
    method: ClassVar[str] = ""  # ... if it also has this method
    does: ClassVar[str] = ""  # the same in words: "detect objects"
    heads: ClassVar[tuple[str, ...]] = ()  # the heads of models that were trained for it; empty: the ability says it
    groups: ClassVar[Mapping[str, str]] = {}  # its options in `--help`: fields, apart by spaces, by title

    model: Model
    as_json: AsJson = False
    device: Device = "cpu"
    allow_pickle: AllowPickle = False

    def __call__(self) -> None:
        """Run the verb: check its options, load the model, answer."""
        self.check()
        with self.changed():
            self.run()

    def changed(self) -> AbstractContextManager[None]:
        """The model as it is to answer."""
        return nullcontext()

    def check(self) -> None:
        """Refuse wrong options and inputs, before the model is loaded."""

    def run(self) -> None:
        """Answer."""
        raise NotImplementedError

    @cached_property
    def pipeline(self) -> Pipeline:
        """The model that was named."""
        return self.load()

    def load(self) -> Pipeline:
        return load_able(self.abilities, self.method, self.does, self.model, **self.loading)

    @property
    def loading(self) -> dict[str, Any]:
        """How models are loaded."""
        return {"device": self.device, "allow_pickle": self.allow_pickle}

    def say(self, text: str, values: dict[str, Any], out: IO[str] | None = None) -> None:
        """Print an answer, as text or as JSON."""
        print(json.dumps(values, ensure_ascii=False) if self.as_json else text, file=out, flush=True)


@dataclass(kw_only=True)
class AttentionVerb(Verb):
    """A verb of models with attention, whose heads can be switched off or changed."""

    without: Without = field(default_factory=list)
    change: Changes = field(default_factory=list)

    def changed(self) -> AbstractContextManager[None]:
        from regard.look.interventions import changed, switched_off

        changes = switched_off(self.without) + self.change
        if not any(hasattr(self.pipeline, name) for name in ("model", "models")):
            refuse_given({"--without": self.without, "--change": self.change}, "is for models with attention")
        return changed(self.pipeline, changes) if changes else nullcontext()


@dataclass(kw_only=True)
class LineVerb(AttentionVerb):
    """A verb that prints an answer for each input.

    An input that cannot be read is an empty line (null in JSON) with a message on stderr, and the exit code is 1; with
    --skip-bad it is left out, counted and named.
    """

    at_once: ClassVar[int] = 512  # inputs that are answered together, unless they are typed
    unit: ClassVar[str] = "lines"
    refused_as: ClassVar[str] = "refused"

    skip_bad: SkipBad = False

    def inputs(self) -> Iterable[Any]:
        """What is answered, in order; a DataError in the place of an input says that it cannot be read."""
        raise NotImplementedError

    @property
    def total(self) -> int | None:
        """How many inputs there are, if that is known before they are read."""
        return None

    def answers(self, inputs: list[Any]) -> Iterable[Any]:
        """An answer for each input; a DataError in the place of an answer, or raised, says that it cannot be read."""
        raise NotImplementedError

    def as_text(self, given: Any, answer: Any) -> str:
        """An answer as it is printed."""
        raise NotImplementedError

    def as_values(self, given: Any, answer: Any) -> dict[str, Any]:
        """An answer as JSON."""
        raise NotImplementedError

    def line(self, given: Any, answer: Any) -> str | None:
        """What is printed for an input; None: nothing."""
        if answer is None:
            return "null" if self.as_json else ""
        if self.as_json:
            return json.dumps(self.as_values(given, answer), ensure_ascii=False)
        return self.as_text(given, answer)

    def output_stream(self) -> AbstractContextManager[IO[str]]:
        """Where the lines go."""
        return nullcontext(sys.stdout)

    def note(self, given: Any, answer: Any) -> None:
        """See an answer after it was printed."""

    def writes(self) -> bool:
        """Whether `finish` writes files, which it does only if all inputs can be read or are to be skipped."""
        return False

    def finish(self, answered: list[tuple[Any, Any]]) -> None:
        """Write files, after all inputs were answered."""

    def run(self) -> None:
        answered, refused, count = list[tuple[Any, Any]](), list[str](), 0
        with self.output_stream() as out, Progress(self.unit, wanted=not out.isatty()) as progress:
            progress.total = self.total if progress.shown else None
            for given, answer in self._answered():
                count += 1
                if answer is None:
                    refused.append(str(given))
                elif self.writes():
                    answered.append((given, answer))
                if not (answer is None and self.skip_bad):
                    line = self.line(given, answer)
                    if line is not None:
                        print(line, file=out, flush=True)
                self.note(given, answer)
                progress.advance()
        bad = bool(refused) and not self.skip_bad
        if not (bad and self.writes()):
            self.finish(answered)
        if self.skip_bad:
            tell_skipped(refused, count, self.unit)
        elif bad:
            raise typer.Exit(1)

    def _answered(self) -> Iterator[tuple[Any, Any]]:
        """Every input with its answer, or with None and a message on stderr."""
        inputs, number = iter(self.inputs()), 0
        while chunk := list(islice(inputs, 1 if sys.stdin.isatty() else self.at_once)):
            for given, answer in zip(chunk, self._each(chunk), strict=True):
                number += 1
                if isinstance(answer, DataError):
                    print(f"regard: {self.unit[:-1]} {number} is {self.refused_as}: {answer}", file=sys.stderr)
                yield given, None if isinstance(answer, DataError) else answer

    def _each(self, chunk: list[Any]) -> Iterator[Any]:
        """The answers of many inputs in one call; after an error, of each input by itself."""
        readable = [given for given in chunk if not isinstance(given, DataError)]
        try:
            answers = iter(self.answers(readable) if readable else ())
        except DataError:
            answers = map(self._alone, readable)
        for given in chunk:
            yield given if isinstance(given, DataError) else next(answers)

    def _alone(self, given: Any) -> Any:
        try:
            (answer,) = self.answers([given])
        except DataError as error:
            return error
        return answer


@dataclass(kw_only=True)
class TextVerb(LineVerb):
    """A verb on texts: those of the command line, or lines of standard input."""

    texts_of: ClassVar[str] = "text"  # the field with the texts

    def check(self) -> None:
        from regard.data.arguments import refuse_images

        refuse_images(self.typed)

    @property
    def typed(self) -> list[str]:
        """The texts of the command line."""
        return getattr(self, self.texts_of) or []

    def inputs(self) -> Iterable[Any]:
        return given_texts(self.typed)

    @property
    def total(self) -> int | None:
        return len(self.typed) if self.typed and self.typed != [STDIN] else None

    @cached_property
    def unknown(self) -> Unknown | None:
        """A report on unknown words; None where the model has none."""
        find = getattr(self.pipeline, "unknown_words", None)
        return Unknown(find, typed=bool(self.typed)) if find else None

    def load(self) -> Pipeline:
        pipeline = super().load()
        if hasattr(pipeline, "warns"):
            pipeline.warns = False  # unknown words are reported here
        return pipeline

    def note(self, given: Any, answer: Any) -> None:
        if self.unknown:
            self.unknown.note(given)

    def finish(self, answered: list[tuple[Any, Any]]) -> None:
        if self.unknown:
            self.unknown.tell()


@dataclass(kw_only=True)
class FileVerb(LineVerb):
    """A verb on files: by name, those of folders, or the content of standard input."""

    unit: ClassVar[str] = "files"
    files_of: ClassVar[str] = "image"  # the field with the files
    suffixes: ClassVar[Sequence[str]] = ()

    @cached_property
    def files(self) -> GivenFiles:
        return GivenFiles(getattr(self, self.files_of), self.suffixes)

    @cached_property
    def names(self) -> list[str]:
        return list(self.files.names())

    def read(self, source: str | bytes) -> Any:
        """Read a file, to see whether it can be read."""
        raise NotImplementedError

    def check(self) -> None:
        if self.writes() and not self.skip_bad:
            for name in self.names:
                self.read(self.files.source(name))

    def one_file(self, output: Path | None, of: str, otherwise: str = "") -> None:
        """Refuse several files where one is written."""
        if output is not None:
            refuse_several(output, len(self.names), of, otherwise)

    def inputs(self) -> Iterable[Any]:
        return self.names if self.writes() else self.files.names()

    @property
    def total(self) -> int | None:
        return len(self.names) if self.files.given or self.writes() else None


@dataclass(kw_only=True)
class ImageVerb(FileVerb):
    """A verb on images."""

    image: Images = None

    @property
    def suffixes(self) -> Sequence[str]:  # type: ignore[override]  # imported when it is needed
        from regard.data.images.files import SUFFIXES

        return SUFFIXES

    def read(self, source: str | bytes) -> Any:
        from regard.data.images.reading import read_image

        return read_image(source if isinstance(source, bytes) else Path(source))


def label_line(answer: Labelled) -> str:
    """A label with its probability, or the value that an input is rated with."""
    return f"{answer.label}\t{answer.probability:.4f}" if answer.labels else f"{answer.value:.4f}"


def label_values(answer: Labelled) -> dict[str, Any]:
    """The same with all labels, as JSON."""
    if not answer.labels:
        return {"value": answer.value}
    return {"label": answer.label, "probability": answer.probability, "labels": answer.labels}


def load_able(abilities: Sequence[str], method: str, does: str, *models: str, **loading: Any) -> Pipeline:
    """The pipeline of model folders, or of `hf:owner/name`, that has one of these abilities, and a method."""
    from regard.families.loading import entry_of, load_pipeline

    for name in models:
        entry = entry_of(name)
        if entry.ability not in abilities or (method and not hasattr(entry.load_class(), method)):
            refuse_model(name, entry, does)
    return load_pipeline(*models, **loading)

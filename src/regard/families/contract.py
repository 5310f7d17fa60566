"""What a family brings: models, tasks, pipelines, figures and verbs.

A family names its classes and functions as "module.name" inside its own package. Nothing of it is imported before it is
used, so that reading one recipe imports one family, and `regard --help` imports no model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import nn

    from regard.config import Config
    from regard.layers.example import Example
    from regard.training.recipe.base import Recipe
    from regard.training.task import Task
    from regard.verbs.progress import Progress

TEXT, IMAGE, HOUSE, AUDIO, PROTEIN, SCENE = "text", "image", "house", "audio", "protein", "scene"  # inputs of pipelines
FEATURES = "features"  # a dictionary reads another model, whatever that reads
TRANSLATOR = "translator"  # the pipeline of every folder with a tokenizer of sentence pairs
OURS = "regard.families."  # packages of the families of the catalog
ANY_HEAD = ""  # key of `uses` for models whose head has no line of its own
START, TRAIN, USE, MEASURE, INSIDE, LAB = GROUPS = (
    "Start",
    "Train",
    "Use",
    "Measure",
    "Look inside",
    "Lab",
)  # of verbs


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Something of a family; names are "module.name" in the package of the family, which the family fills in."""

    package: str = ""

    def load(self, name: str) -> Any:
        """Import what a name of this entry stands for."""
        module, _, attribute = name.rpartition(".")
        return getattr(import_module(f"{self.package}.{module}"), attribute)


@dataclass(frozen=True)
class ModelEntry(Entry):
    """One model: its classes, title and presets, the pipeline that runs it, and the tasks that train it."""

    class_name: str
    config_name: str
    title: str  # the usual name of the family
    pipeline: str  # key of the pipeline that runs it, unless its folder says otherwise
    tasks: tuple[str, ...] = ()  # names of the tasks that train it, the usual one first
    vocabulary: Mapping[str, int] = field(default_factory=dict)  # tokens of published models by preset; "": all others
    huggingface: str = ""  # key of the form that is its Hugging Face folder, if its name table alone does not write one

    @cached_property
    def model(self) -> type[nn.Module]:
        """The class of the model."""
        return self.load(self.class_name)

    @cached_property
    def config(self) -> type[Config]:
        """The class of its configuration."""
        return self.load(self.config_name)

    @cached_property
    def example(self) -> Example:
        """The pass that `regard plan` runs; it stands beside the configuration."""
        return self.load(f"{self.config_name.rpartition('.')[0]}.EXAMPLE")

    @cached_property
    def presets(self) -> dict[str, dict[str, Any]]:
        """The values of its named sizes; they stand beside the configuration."""
        return self.load(f"{self.config_name.rpartition('.')[0]}.PRESETS")


@dataclass(frozen=True)
class TaskEntry(Entry):
    """One kind of training: the recipe it reads, and the class that does it."""

    recipe_name: str
    class_name: str

    @cached_property
    def recipe(self) -> type[Recipe]:
        """The class of its recipe."""
        return self.load(self.recipe_name)

    @cached_property
    def task(self) -> type[Task[Any]]:
        """The task class."""
        return self.load(self.class_name)


@dataclass(frozen=True)
class FormEntry(Entry):
    """A form of other programs that `regard convert` writes, and the models that have it."""

    writer: str  # (Conversion, target: Path) -> None
    models: tuple[str, ...]


@dataclass(frozen=True)
class PipelineEntry(Entry):
    """One pipeline: its class, what can be done with it, and what commands, server and model cards say of it."""

    class_name: str
    ability: str  # what it does, as a verb: "translate", "detect", ...
    uses: Mapping[str, str]  # the line of a model card that runs the model, by the head of the model
    input: str = TEXT  # what one input is; anything but a text comes as a file
    takes_precision: bool = False  # whether it can run in int8, fp16 or bf16
    answers: bool = False  # whether it writes an answer to its prompt; other writers continue the prompt
    not_served: str = ""  # why the server does not serve it, as the end of a sentence; empty if it does
    text_label: str = ""  # for models that read a file and a text: what the text is
    for_images: str = ""  # the pipeline that takes its place where the model folder has image preprocessing
    make_images: str = ""  # of pipelines that generate images: what `regard generate` does
    view: str = ""  # of pipelines that read files: (pipeline, GivenInput) -> Inspected
    evaluate: str = ""  # (pipeline, data, EvaluationOptions) -> Evaluation
    evaluate_options: tuple[str, ...] = ()  # which of output, beam and samples its evaluation has a use for
    evaluation: str = ""  # in its place, a dataclass with options of `regard evaluate` of its own: an `OwnEvaluation`
    default_model: str = ""  # name -> the folder of a built-in model; without a name, of the one used by default
    built_in: str = ""  # a pipeline of all built-in models, which `regard.load()` gives
    reader: str = ""  # pipeline -> Reader, for dictionaries of features
    files: str = ""  # folder -> the names of files there that the pipeline reads beside weights and tokenizer
    examples: str = ""  # () -> built-in inputs that the page offers, as dictionaries of JSON values

    def load_class(self) -> Any:
        """Import the class."""
        return self.load(self.class_name)


@dataclass(frozen=True)
class VerbEntry(Entry):
    """One command, a dataclass declared with regard.verbs.verb, a function or a typer app; and its line in `--help`."""

    declared: str
    summary: str = ""  # without one, the first sentence of its help
    group: str = LAB

    @cached_property
    def verb(self) -> Any:
        """What was declared."""
        return self.load(self.declared)


@dataclass(frozen=True)
class Family:
    """A package with everything of one kind of model; FAMILY in its `__init__.py`."""

    package: str
    models: Mapping[str, ModelEntry] = field(default_factory=dict)
    tasks: Mapping[str, TaskEntry] = field(default_factory=dict)
    pipelines: Mapping[str, PipelineEntry] = field(default_factory=dict)
    forms: Mapping[str, FormEntry] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)  # draws a view of a report: (report, points) -> Figure
    views: Mapping[str, str] = field(default_factory=dict)  # JavaScript that shows a view of a report: a file
    page: str = ""  # JavaScript of the server's page, a file: a tab, how answers are shown
    # A verb "see/detect" is what `regard see` does with the models of this family, which has no command of its own.
    verbs: Mapping[str, VerbEntry] = field(default_factory=dict)  # a string stands for an entry without a summary

    def __post_init__(self) -> None:
        declared = {name: VerbEntry(verb) if isinstance(verb, str) else verb for name, verb in self.verbs.items()}
        object.__setattr__(self, "verbs", declared)
        for part in ("models", "tasks", "pipelines", "forms", "verbs"):
            entries = {name: replace(entry, package=self.package) for name, entry in getattr(self, part).items()}
            object.__setattr__(self, part, entries)
        figures = {name: f"{self.package}.{path}" for name, path in self.figures.items()}
        object.__setattr__(self, "figures", figures)
        object.__setattr__(self, "views", {name: self._module(file) for name, file in self.views.items()})
        object.__setattr__(self, "page", self.page and self._module(self.page))

    def _module(self, file: str) -> str:
        """The address of a JavaScript file below `/lens/`, by which the offline page finds it too."""
        return f"family/{self.package.removeprefix(OURS)}/{file}"


@dataclass(frozen=True)
class EvaluationOptions:
    """What the command line says about an evaluation; an evaluation reads the options that apply to it."""

    folder: Path  # of the model
    count: int  # how many built-in examples are drawn
    seed: int  # which draw of the built-in examples
    beam: int | None = None  # None: the model's own beam width
    output: Path | None = None  # a file for more than the scores: a detector's curves
    samples: int = 20  # futures of which the best counts
    progress: Progress | None = None  # shows how far the evaluation is

    def measured(self, count: int, total: int | None = None) -> None:
        """So many more examples are measured, of `total` where that is known."""
        if self.progress is not None:
            self.progress.total = total
            self.progress.advance(count)


class OwnEvaluation(Protocol):
    """Options of `regard evaluate` that one pipeline alone has, and its evaluation."""

    of: ClassVar[str]  # what the options are for, in words

    def measure(
        self, models: Sequence[str], data: str, options: EvaluationOptions, **loading: Any
    ) -> dict[str, object]:
        """The metrics of the models, which are loaded together."""
        ...


class Evaluation(NamedTuple):
    """Metrics by name, and a message for each example that could not be read."""

    scores: dict[str, object]
    unread: Sequence[str] = ()


Evaluate = Callable[[Any, str, EvaluationOptions], Evaluation]

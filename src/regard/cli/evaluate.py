"""regard evaluate: measure any model by the metrics of its kind."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError
from regard.families.catalog import PIPELINES
from regard.families.contract import TRANSLATOR, EvaluationOptions
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    DataRoot,
    Device,
    Models,
    Precision,
    located_file,
    options_given,
    refuse_given,
    refuse_model,
    use_data_root,
)
from regard.verbs.progress import Progress

if TYPE_CHECKING:
    from regard.families.contract import OwnEvaluation, PipelineEntry

LAYERS = "layers"  # key of the alignment error rates by layer
UNIT = "examples"
ON_ONE_LINE = 5  # numbers


@dataclass(kw_only=True)
class Evaluate:
    """Measure a translator on held-out pairs (BLEU, chrF, exact match) or its alignments against gold (AER), a language
    model on a text (perplexity), and any other model by the metrics of its kind: images, texts, captions, boxes,
    speech, paths, tracks, structures, pairs of proteins, dictionaries.

    Example: regard evaluate data:multi30k/test_2016_flickr -m runs/en-de --beam 5
    Example: regard evaluate data:glue/RTE/dev.tsv.gz -m runs/glue-rte-minilm
    """

    data: Annotated[
        str,
        typer.Argument(
            help="Held-out pairs, labelled texts or images: a path, data:NAME as in recipes, `phrasebook` or `scenes`."
        ),
    ] = ""
    model: Models = field(default_factory=list)
    beam: Annotated[int | None, typer.Option(help="Beam width. Default: the model's own.")] = None
    count: Annotated[
        int, typer.Option(min=1, help="Built-in data: how many; of the phrasebook, per target language.")
    ] = 500
    seed: Annotated[int, typer.Option(min=0, help="Built-in data: which draw.")] = 1
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Futures that a forecaster draws; the best is measured. Default: 20."),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the translations, or curves of precision (.png, .svg), here."),
    ] = None
    as_json: AsJson = False
    device: Device = "cpu"
    precision: Precision = "fp32"
    allow_pickle: AllowPickle = False
    data_root: DataRoot = ""

    def __call__(self) -> None:
        from regard.families.loading import entry_of

        use_data_root(self.data_root)
        self.data = located_file(self.data)
        entries = [entry_of(name) for name in self.model] or [PIPELINES[TRANSLATOR]]
        own = next((entry.load(entry.evaluation) for entry in entries if entry.evaluation), None)
        for kind in OWN:
            if kind is not own:
                refuse_given(options_given(self.of(kind)), f"is for {kind.of}")
        if own:
            refuse_given({"--samples": self.samples}, "is for models that forecast")
            with Progress(UNIT) as progress:
                options = self.options(Path(), progress)
                results = self.of(own).measure(self.model, self.data, options, **self.loading)
            self.say(results)
        else:
            self.evaluate_each(entries)

    def of(self, kind: type[OwnEvaluation]) -> OwnEvaluation:
        """The options of one kind of model."""
        group: OwnEvaluation = getattr(self, kind.__name__)
        return group

    @property
    def loading(self) -> dict[str, Any]:
        return {"device": self.device, "allow_pickle": self.allow_pickle, "precision": self.precision}

    def options(self, folder: Path, progress: Progress) -> EvaluationOptions:
        drawn = {} if self.samples is None else {"samples": self.samples}
        return EvaluationOptions(folder, self.count, self.seed, self.beam, self.output, progress=progress, **drawn)

    def evaluate_each(self, entries: Sequence[PipelineEntry]) -> None:
        """Measure models one by one, print their metrics, and name what could not be read."""
        import regard
        from regard.checkpoints.folder import local_folder, resolve

        results: dict[str, dict[str, object]] = {}
        unread: dict[str, None] = {}
        for model, entry in zip(self.model, entries, strict=True):
            if not entry.evaluate:
                refuse_model(model, entry, "have an evaluation")
            if not self.data:
                raise UsageError("say what to measure on: a file as in data.test, a table of labelled texts, `scenes`")
            takes = entry.evaluate_options
            if self.output and (len(entries) > 1 or "output" not in takes):
                raise UsageError("-o is for translations, or for the precision of one model that finds objects")
            others = {"--beam": "beam" not in takes and self.beam, "--samples": "samples" not in takes and self.samples}
            refuse_given(others, f"does not apply to {model}")
            pipeline = regard.load(model, **self.loading)
            with Progress(UNIT) as progress:
                options = self.options(resolve(local_folder(model)), progress)
                found = entry.load(entry.evaluate)(pipeline, self.data, options)
            results[model], unread = found.scores, unread | dict.fromkeys(found.unread)
        for message in unread:
            print(f"regard: {message}", file=sys.stderr)
        self.say(results if len(entries) > 1 else results[self.model[0]])
        if unread:
            raise typer.Exit(1)

    def say(self, results: Mapping[str, object]) -> None:
        from regard.data.tokenizers.unknown_words import MOSTLY

        share = results.get("unknown")
        if isinstance(share, float) and share >= MOSTLY:
            warnings.warn(f"{share:.0%} of what was measured on is unknown to this model", stacklevel=1)
        for line in [json.dumps(results, ensure_ascii=False)] if self.as_json else _lines(results):
            print(line)


def _lines(results: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Metrics as lines: a few numbers of one subject on one line, groups below their names."""
    for key, value in results.items():
        name = f"{indent}{key}"
        if not isinstance(value, dict):
            yield f"{name:32} {value:.4f}" if isinstance(value, float) else f"{name:32} {value}"
        elif key != LAYERS and len(value) <= ON_ONE_LINE and all(isinstance(each, float) for each in value.values()):
            yield f"{name:32} {'  '.join(f'{inner} {each:.4f}' for inner, each in value.items())}"
        else:
            yield f"{name}, alignment error rate" if key == LAYERS else name
            yield from _lines(value, f"{indent}  ")


OWN: list[type[OwnEvaluation]] = list(
    dict.fromkeys(entry.load(entry.evaluation) for entry in PIPELINES.values() if entry.evaluation)
)
groups = [(kind.__name__, kind) for kind in OWN]
evaluate = make_dataclass("evaluate", groups, bases=(Evaluate,), kw_only=True, namespace={"__doc__": Evaluate.__doc__})

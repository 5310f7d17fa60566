"""regard look: every layer and head of a model on one input."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError, with_article
from regard.verbs.inputs import GivenFiles, Unknown, title
from regard.verbs.options import (
    AllowPickle,
    Changes,
    Device,
    Models,
    To,
    Without,
    finite,
    input_of,
    options_given,
    refuse_given,
    settings_given,
)

if TYPE_CHECKING:
    from regard.families.loading import Pipeline
    from regard.look.panels import Point
    from regard.look.report import AttentionReport

LISTED = 10  # tokens of a prediction
OF_TEXTS = ("--target", "--to", "--max-tokens", "--top", "--temperature", "--top-k", "--top-p", "--seed")


@dataclass(kw_only=True)
class look:  # noqa: N801 - the name of the verb
    """Draw where a model looks: every layer and head, as one offline page, an image or JSON.

    Any model with attention: a translator with its translation, a BERT with a text or a pair, a GPT with a text and, if
    asked, its continuation, a T5 with its answer, an image model with an image. The page and JSON also hold what a
    BERT predicts for hidden words, and what a GPT or T5 predicts at every place.

    Example: regard look "The cat sat on the [MASK]." -m hf:google-bert/bert-base-uncased -o cat.html
    Example: regard look cat.jpg -m runs/cifar10-vit -o cat.png --at 0.5,0.4
    Example: regard look "we are eating bread" -m runs/en-es --without decoder.1.cross:3
    Example: regard look "Lily had a ball" -m runs/gpt --change decoder.2.residual@3=patch --from "Lily had a cat"
    Example: regard look "In a shocking finding," -m hf:openai-community/gpt2 --logit-lens -o gpt.json
    """

    text: Annotated[
        str, typer.Argument(help="The text to look at (for a BERT, hidden words as [MASK]), or the file of an image.")
    ]
    pair: Annotated[str, typer.Argument(help="The second text of a pair, or the text beside an image.")] = ""
    model: Models = field(default_factory=list)
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html, .svg, .png or .json.")] = Path("look.html")
    target: Annotated[str, typer.Option(help="Look at this translation or answer instead of the model's own.")] = ""
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Let a GPT write on for so many tokens. Default: none.")
    ] = None
    temperature: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="As for generate; 0: the most probable token.")
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens only.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the most probable tokens of this mass.")] = None
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None
    top: Annotated[int, typer.Option(min=1, help="How many tokens to list for each prediction.")] = LISTED
    layers: Annotated[str, typer.Option(help="Pattern of layers, such as 'decoder.*.cross'.")] = "*"
    head: Annotated[int | None, typer.Option(min=0, help="One head only, counted from 0.")] = None
    at: Annotated[
        list[str] | None, typer.Option(help="Images: the place that looks, as X,Y from 0,0 to 1,1. Repeatable.")
    ] = None
    without: Without = field(default_factory=list)
    change: Changes = field(default_factory=list)
    other: Annotated[
        str, typer.Option("--from", help="The input that `weights` and `patch` take from: a text, or a file.")
    ] = ""
    logit_lens: Annotated[
        bool, typer.Option("--logit-lens", help="Also what every layer would have said; printed, and in the file.")
    ] = False
    to: To = ""
    device: Device = "cpu"
    allow_pickle: AllowPickle = False

    def __call__(self) -> None:
        from regard.look.interventions import switched_off
        from regard.look.save import save

        self.changes = switched_off(self.without) + self.change
        points = [_point(each) for each in self.at or []]
        panels = None if self.layers == "*" else self.layers
        if len(self.model) == 1 and input_of(self.model[0]) != "text":
            given = {name: True for name in options_given(self) if name in OF_TEXTS}
            refuse_given(given, f"is for models that read texts, and {self.model[0]} reads a file")
            save(self.report_of_file(), self.output, panels=panels, head=self.head, points=points)
        else:
            refuse_given({"--at": bool(self.at)}, "names a place of an image, and this model reads texts")
            save(self.report_of_text(), self.output, panels=panels, head=self.head, view="heads")
        print(f"attention drawn to {self.output}", file=sys.stderr)

    @cached_property
    def pipeline(self) -> Pipeline:
        import regard

        loaded = regard.load(*self.model, device=self.device, allow_pickle=self.allow_pickle)
        if self.model:
            return loaded
        chosen, self.to = loaded.translator_for(self.text, self.to)
        return chosen

    def report_of_file(self) -> AttentionReport:
        """The attention of a model that reads files, some of them with a text."""
        from regard.look.inspection import GivenInput, inspect_input
        from regard.look.interventions import changed
        from regard.look.report import changed_facts, summary

        files, name, model = GivenFiles([self.text], ()), title(self.text), self.model[0]

        def inspected(read: str) -> AttentionReport:
            found = inspect_input(self.pipeline, GivenInput(files.source(read), name, self.pair))
            if found is None:
                kind = with_article(type(self.pipeline).__name__)
                raise UsageError(f"{model} is {kind}, whose attention cannot be drawn")
            if not found.report.panels and not found.report.shown_as:
                raise UsageError(f"{model} has no attention to look at, or says nothing about {name}")
            return found.report

        original = inspected(self.text) if self.changes else None
        with changed(self.pipeline, self.changes, (lambda: inspected(self.other)) if self.other else None):
            report = inspected(self.text)
        if original is not None:
            names = [each.removesuffix("=off") for each in self.changes]
            report.meta.update(changed_facts(names, summary(original), summary(report)))
        if self.logit_lens:
            if report.logit_lens is None:
                raise UsageError(f"{model} has no logit lens: its layers have no common way to its answer")
            print(report.logit_lens)
        return report

    def report_of_text(self) -> AttentionReport:
        """The attention of a model that reads texts."""
        from regard.data.arguments import refuse_images, refuse_missing_image
        from regard.data.tokenizers.base import well_formed
        from regard.look.inspection import LENS_TOP, TextInspection, inspect_text
        from regard.look.interventions import changed
        from regard.look.report import changed_facts

        refuse_images((self.text, self.pair, self.other))
        refuse_missing_image(self.text)
        text, pair, target, other = map(well_formed, (self.text, self.pair, self.target, self.other))
        generation: dict[str, Any] = settings_given(
            max_tokens=self.max_tokens, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, seed=self.seed
        )

        def inspected(read: str) -> TextInspection:
            return inspect_text(self.pipeline, read, pair=pair, to=self.to, target=target, **generation)

        original = inspected(text).says() if self.changes else ""
        with changed(self.pipeline, self.changes, (lambda: inspected(other).run()) if other else None):
            inspection = inspected(text)
            report = inspection.report(top=self.top)
            if self.logit_lens:
                report = replace(report, logit_lens=inspection.logit_lens(min(self.top, LENS_TOP)))
                print(report.logit_lens)
            if self.changes:
                report.meta.update(changed_facts([*self.without, *self.change], original, inspection.says()))
        Unknown(self.pipeline.unknown_words, typed=True).note(f"{text}\t{pair}" if pair else text)
        return report


def _point(text: str) -> Point:
    """Parse X,Y as a point of the image."""
    try:
        x, y = map(float, text.split(","))
        if 0 <= x <= 1 and 0 <= y <= 1:
            return x, y
    except ValueError:
        pass
    raise UsageError(f"--at {text!r} is not a place; write X,Y from 0,0 (top left) to 1,1 (bottom right)")

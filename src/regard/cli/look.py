"""regard look: every layer and head of a model on one input."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.families.images.verbs import look_at_file
from regard.verbs.answering import Unknown, refuse_images
from regard.verbs.options import (
    AllowPickle,
    Changes,
    Device,
    Models,
    To,
    Without,
    built_in,
    finite,
    input_of,
    refuse_given,
)

LISTED = 10  # tokens of a prediction


def look(
    text: Annotated[
        str, typer.Argument(help="The text to look at (for a BERT, hidden words as [MASK]), or the file of an image.")
    ],
    pair: Annotated[str, typer.Argument(help="The second text of a pair, or the text beside an image.")] = "",
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    output: Annotated[Path, typer.Option("-o", "--output", help="FILE.html, .svg, .png or .json.")] = Path("look.html"),
    target: Annotated[str, typer.Option(help="Look at this translation or answer instead of the model's own.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Let a GPT write on for so many tokens. Default: none.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, callback=finite, help="As for generate; 0: the most probable token.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the most probable tokens of this mass.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many tokens to list for each prediction.")] = LISTED,
    layers: Annotated[str, typer.Option(help="Pattern of layers, such as 'decoder.*.cross'.")] = "*",
    head: Annotated[int | None, typer.Option(min=0, help="One head only, counted from 0.")] = None,
    at: Annotated[
        list[str] | None, typer.Option(help="Images: the place that looks, as X,Y from 0,0 to 1,1. Repeatable.")
    ] = None,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    change: Changes = [],  # noqa: B006 - typer's way to say "none given"
    other: Annotated[
        str, typer.Option("--from", help="The input that `weights` and `patch` take from: a text, or a file.")
    ] = "",
    logit_lens: Annotated[
        bool, typer.Option("--logit-lens", help="Also what every layer would have said; printed, and in the file.")
    ] = False,
    to: To = "",
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
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
    if len(model) == 1 and input_of(model[0]) != "text":
        from regard.look.interventions import switched_off

        of_texts = {
            "--target": target, "--to": to, "--max-tokens": max_tokens is not None, "--top": top != LISTED,
            "--temperature": temperature is not None, "--top-k": top_k, "--top-p": top_p, "--seed": seed is not None,
        }  # fmt: skip
        refuse_given(of_texts, f"is for models that read texts, and {model[0]} reads a file")
        look_at_file(
            text, pair, model[0], output, layers, head, at or [], switched_off(without) + change, other, logit_lens,
            device, allow_pickle,
        )  # fmt: skip
        return
    refuse_images((text, pair, other))
    refuse_given({"--at": bool(at)}, "names a place of an image, and this model reads texts")
    import regard
    from regard.data.arguments import refuse_missing_image
    from regard.data.tokenizers.base import well_formed
    from regard.look.interventions import changed, switched_off
    from regard.look.report import changed_facts
    from regard.look.save import save
    from regard.look.text import LENS_TOP, TextInspection, inspect_text

    refuse_missing_image(text)
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    generation: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    pipeline = regard.load(*(model or [str(built_in())]), device=device, allow_pickle=allow_pickle)
    text, pair, target, other = map(well_formed, (text, pair, target, other))
    changes = switched_off(without) + change

    def inspected(read: str = text) -> TextInspection:
        return inspect_text(pipeline, read, pair=pair, to=to, target=target, **generation)

    original = inspected().says() if changes else ""
    with changed(pipeline, changes, (lambda: inspected(other).run()) if other else None):
        inspection = inspected()
        report = inspection.report(top=top)
        if logit_lens:
            report = replace(report, logit_lens=inspection.logit_lens(min(top, LENS_TOP)))
            print(report.logit_lens)
        if changes:
            report.meta.update(changed_facts([*without, *change], original, inspection.says()))
    Unknown(pipeline.unknown_words, typed=True).note(f"{text}\t{pair}" if pair else text)
    save(report, output, panels=None if layers == "*" else layers, head=head, view="heads")
    print(f"attention drawn to {output}", file=sys.stderr)

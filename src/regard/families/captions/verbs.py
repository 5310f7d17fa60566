"""regard see: what is in images, in words."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.verbs.inputs import title
from regard.verbs.options import Beam, refuse_given, settings_given
from regard.verbs.verb import ImageVerb

if TYPE_CHECKING:
    from regard.families.captions.pipeline import Caption


@dataclass(kw_only=True)
class CaptionVerb(ImageVerb):
    """Describe images: one line out for each image.

    A file that is not an image comes out as an empty line with a message on stderr, and the exit code is 1; with
    --skip-bad it is left out, counted and named.

    Example: regard see dog.jpg -m runs/flickr8k-captioner --beam 3 --attention dog.png
    """

    abilities, method, does = ("caption",), "caption", "describe images"

    beam: Beam = None
    n_best: Annotated[int, typer.Option(help="Above 1: so many lines per image, best first, score TAB text.")] = 1
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead of searching.")] = False
    temperature: Annotated[
        float | None, typer.Option(help="Sampling: below 1 keeps to probable words, above 1 varies.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Sampling: same seed, same captions.")] = None
    attention: Annotated[
        Path | None, typer.Option(help="Draw where it looked at every word: FILE.svg, .png, .html or .json.")
    ] = None

    def check(self) -> None:
        self.one_file(self.attention, "image")
        super().check()

    def writes(self) -> bool:
        return self.attention is not None

    def answers(self, inputs: list[str]) -> Any:
        given = settings_given(beam=self.beam, temperature=self.temperature, seed=self.seed, n_best=self.n_best)
        settings = self.pipeline.settings.replace(**given, **({"sample": True} if self.sample else {}))
        if not settings.sample:
            drawn = {"--temperature": self.temperature is not None, "--seed": self.seed is not None}
            refuse_given(drawn, "is for --sample, and this is a search")
        return self.pipeline.caption(self.files.sources(inputs), settings=settings)

    def as_text(self, given: str, answer: Caption) -> str:
        if not answer.alternatives:
            return answer.text
        return "\n".join(f"{each.score:.4f}\t{each.text}" for each in (answer, *answer.alternatives))

    def as_values(self, given: str, answer: Caption) -> dict[str, Any]:
        others = [each.to_json() for each in answer.alternatives]
        return {"image": given, **answer.to_json(), "alternatives": others}

    def finish(self, answered: list[tuple[str, Caption]]) -> None:
        if self.attention is None or not answered:
            return
        from regard.families.captions.view import caption_report
        from regard.look.save import save

        name, found = answered[0]
        if not found.text:
            print(f"the caption is empty: no word looks at {name}, and nothing is drawn", file=sys.stderr)
            return
        save(caption_report(self.pipeline, self.files.source(name), found, title(name)), self.attention)
        print(f"attention drawn to {self.attention}", file=sys.stderr)

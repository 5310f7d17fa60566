"""The options of `regard evaluate` that language models have: how well they predict a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from regard.errors import UsageError
from regard.verbs.options import located_file
from regard.verbs.verb import load_able

if TYPE_CHECKING:
    from regard.families.contract import EvaluationOptions

COUNTS = ("bits_per_byte", "tokens", "words", "bytes")


@dataclass(kw_only=True)
class TextEvaluation:
    """How language models are measured."""

    of: ClassVar[str] = "language models (-m MODEL --text FILE)"

    text: Annotated[str, typer.Option(help="A text file (also .gz): how well a language model predicts it.")] = ""
    stride: Annotated[
        int | None, typer.Option(min=1, help="With --text: tokens from one window to the next. Default: half a window.")
    ] = None

    def measure(
        self, models: Sequence[str], data: str, options: EvaluationOptions, **loading: Any
    ) -> dict[str, object]:
        """The perplexity of a text: per token, and per word and byte to compare tokenizers."""
        from regard.data.formats.lines import read_text
        from regard.families.language.language_models import LanguageModel

        if not self.text or data or len(models) != 1:
            raise UsageError("--text FILE measures one language model: give it with -m, and no other data")
        writer = load_able(("write",), "", "write texts", *models, **loading)
        if not isinstance(writer, LanguageModel):
            raise UsageError(f"{writer.name} answers prompts; only a language model predicts a whole text")
        text = "".join(line.text for line in read_text(Path(located_file(self.text)), "file"))
        found = writer.perplexity(text, self.stride)
        unknown: dict[str, object] = {"unknown": found.unknown / found.tokens} if found.unknown else {}
        perplexities = {
            "perplexity": found.per_token, "perplexity_per_word": found.per_word, "perplexity_per_byte": found.per_byte
        }  # fmt: skip
        return unknown | perplexities | {name: getattr(found, name) for name in COUNTS}

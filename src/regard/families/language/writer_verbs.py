"""regard generate, and the options of `regard evaluate` that language models have."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from regard.errors import UsageError
from regard.verbs.options import Precision, finite, located_file, refuse_given, settings_given
from regard.verbs.verb import TextVerb, load_able

if TYPE_CHECKING:
    from regard.families.contract import EvaluationOptions
    from regard.families.language.generator import Completion


@dataclass(kw_only=True)
class Generate(TextVerb):
    """Write on from a prompt (GPT-2, Llama), or answer it (T5); make images (SAGAN) or go on from half of one (iGPT).

    Answers to prompts of the command line are printed as they are. For lines of standard input one line comes out for
    each, with \\n for a line break inside an answer. A line that is too long for the model comes out empty with a
    message on stderr, and the exit code is 1.

    Example: regard generate "In a shocking finding," -m hf:openai-community/gpt2 --temperature 0.8 --best-of 10
    Example: regard generate boot.png -m runs/fashion-mnist-igpt -n 5 -o boots.png
    """

    abilities, does, texts_of = ("write", "generate_images"), "write texts or make images", "prompt"

    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts; without any, lines of stdin. Of models of images: files to go on from, classes."),
    ] = None
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Images: where to write them, a PNG.")] = None
    keep: Annotated[
        float,
        typer.Option(min=0, max=1, callback=finite, help="Images: the upper share of a given one that stays."),
    ] = 0.5
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer; else as its folder says, or 128.")
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=finite,
            help="0: always the most probable token; below 1 keeps to probable ones, above 1 varies.",
        ),
    ] = None
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens only.")] = None
    top_p: Annotated[float | None, typer.Option(help="Draw from the most probable tokens of this mass.")] = None
    min_p: Annotated[float | None, typer.Option(help="Draw from tokens with this share of the best one's.")] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: what was said before becomes less probable.")
    ] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken from the logits of tokens that the answer has already.")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Taken from them once for each time that it has them.")
    ] = None
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="TOKEN=VALUE: added to the logits of a token, by number. Repeatable.")
    ] = None
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat so many tokens in a row.")] = None
    beam: Annotated[int | None, typer.Option(help="Above 1: a beam search instead of drawing at random.")] = None
    n: Annotated[
        int, typer.Option("-n", min=1, help="Above 1: so many answers per prompt, best first, score TAB text.")
    ] = 1
    best_of: Annotated[
        int | None, typer.Option(min=1, help="Write so many and keep the most probable, by the mean per token.")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="End an answer before this text. Repeatable.")] = None
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None
    stream: Annotated[bool, typer.Option("--stream", help="Show an answer as it is written.")] = False
    precision: Precision = "fp32"

    def check(self) -> None:
        from regard.families.loading import entry_of

        if self.stream and (self.as_json or self.n > 1 or self.best_of):
            raise UsageError("--stream shows one answer as it comes; leave out --json, -n and --best-of")
        self.entry = entry_of(self.model)
        if not self.entry.make_images:
            refuse_given({"-o": self.output}, "is for models that make images; this one writes texts to stdout")
            super().check()
            return
        of_texts = {
            "--stream": self.stream, "--json": self.as_json, "--best-of": self.best_of, "--stop": self.stop,
            "--beam": self.beam, "--without": self.without, "--change": self.change,
            "--precision": self.precision != "fp32",
        }  # fmt: skip
        refuse_given(of_texts, "is for models that write texts; this one makes images")
        if self.output is None or self.output.suffix.lower() != ".png":
            raise UsageError("this model generates images; name the file to write them to: -o FILE.png")

    @property
    def loading(self) -> dict[str, Any]:
        return super().loading | ({"precision": self.precision} if self.precision != "fp32" else {})

    @property
    def search(self) -> dict[str, Any]:
        """The settings that were given."""
        return settings_given(
            temperature=self.temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p, beam=self.beam,
            seed=self.seed, repetition_penalty=self.repetition_penalty, no_repeat_ngram=self.no_repeat_ngram,
            presence_penalty=self.presence_penalty, frequency_penalty=self.frequency_penalty,
            logit_bias=_bias(self.logit_bias) if self.logit_bias else None,
        )  # fmt: skip

    def run(self) -> None:
        if self.entry.make_images:
            make = self.entry.load(self.entry.make_images)
            make(self.pipeline, self.typed, self.output, count=self.n, keep=self.keep, settings=self.search)
        elif self.stream:
            self._stream(self.inputs())
        else:
            super().run()

    def answers(self, inputs: list[str]) -> list[Completion]:
        limits = {"max_tokens": self.max_tokens, "stop": self.stop or []}
        found: list[Completion] = self.pipeline.generate(
            inputs, n=self.n, best_of=self.best_of, **self.search, **limits
        )
        return found

    def as_text(self, given: str, answer: Completion) -> str:
        texts = [self._printed(each.text) for each in (answer, *answer.alternatives)]
        if self.n == 1:
            return texts[0]
        scores = [each.score for each in (answer, *answer.alternatives)]
        return "\n".join(f"{score:.4f}\t{text}" for score, text in zip(scores, texts, strict=True))

    def as_values(self, given: str, answer: Completion) -> dict[str, Any]:
        unknown = [each.to_json() for each in answer.unknown]
        return _values(answer) | {"unknown": unknown, "alternatives": list(map(_values, answer.alternatives))}

    def _printed(self, text: str) -> str:
        """An answer to a prompt of the command line as it is; to a line of standard input as one line."""
        return text if self.prompt else text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")

    def _stream(self, prompts: Iterable[str]) -> None:
        for prompt in prompts:
            for chunk in self.pipeline.stream(prompt, max_tokens=self.max_tokens, stop=self.stop or [], **self.search):
                sys.stdout.write(self._printed(chunk.text))
                sys.stdout.flush()
            print(flush=True)
            self.note(prompt, None)
        self.finish([])


def _bias(given: list[str]) -> dict[int, float]:
    """The bias of each token, parsed from TOKEN=VALUE."""
    try:
        return {int(token): float(value) for token, _, value in (each.partition("=") for each in given)}
    except ValueError:
        raise UsageError(f"--logit-bias is {' '.join(given)!r}; expected TOKEN=VALUE, such as 50256=-100") from None


def _values(answer: Completion) -> dict[str, Any]:
    return {name: getattr(answer, name) for name in ("prompt", "text", "score", "reason", "tokens")}


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
            raise UsageError(
                "a language model is measured on a text: regard evaluate -m MODEL --text FILE, one model alone"
            )
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

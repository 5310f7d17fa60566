"""regard generate: continue prompts with a language model, answer them with a T5, or generate images."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.errors import UsageError
from regard.families.images.verbs import make_images
from regard.verbs.answering import Unknown, answer_lines, given_texts, refuse_images
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    Changes,
    Device,
    Model,
    Precision,
    Without,
    finite,
    generates_images,
    load_writer,
)

if TYPE_CHECKING:
    from regard.families.language.generator import Completion, TextGenerator


def generate(
    model: Model,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Prompts; without any, lines of stdin. Of models of images: files to go on from, classes."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Images: where to write them, a PNG.")] = None,
    keep: Annotated[
        float,
        typer.Option(min=0, max=1, callback=finite, help="Images: the upper share of a given one that stays."),
    ] = 0.5,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 128,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, callback=finite, help="0: always the most probable token; below 1 is bolder, above 1 wilder."
        ),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the k most probable tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the most probable tokens of this mass.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw from tokens with this share of the best one's.")] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 1: what was said before becomes less probable.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(help="Taken from the logits of tokens that the answer has already.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(help="Taken from them once for each time that it has them.")
    ] = None,
    logit_bias: Annotated[
        list[str] | None, typer.Option(help="TOKEN=VALUE: added to the logits of a token, by number. Repeatable.")
    ] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat so many tokens in a row.")] = None,
    beam: Annotated[int | None, typer.Option(help="Above 1: a beam search instead of drawing at random.")] = None,
    n: Annotated[
        int, typer.Option("-n", min=1, help="Above 1: so many answers per prompt, best first, score TAB text.")
    ] = 1,
    best_of: Annotated[
        int | None, typer.Option(min=1, help="Write so many and keep the most probable, by the mean per token.")
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End an answer before this text. Repeatable.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answer.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show an answer as it is written.")] = False,
    without: Without = [],  # noqa: B006 - typer's way to say "none given"
    change: Changes = [],  # noqa: B006 - typer's way to say "none given"
    as_json: AsJson = False,
    device: Device = "cpu",
    precision: Precision = "fp32",
    allow_pickle: AllowPickle = False,
) -> None:
    """Write on from a prompt (GPT-2, Llama), or answer it (T5); make images (SAGAN) or go on from half of one (iGPT).

    Answers to prompts of the command line are printed as they are. For lines of standard input one line comes out for
    each, with \\n for a line break inside an answer. A line that is too long for the model comes out empty with a
    message on stderr, and the exit code is 1.

    Example: regard generate "In a shocking finding," -m hf:openai-community/gpt2 --temperature 0.8 --best-of 10
    Example: regard generate boot.png -m runs/fashion-mnist-igpt -n 5 -o boots.png
    """
    if stream and (as_json or n > 1 or best_of):
        raise UsageError("--stream shows one answer as it comes; leave out --json, -n and --best-of")
    given = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "beam": beam, "seed": seed,
        "repetition_penalty": repetition_penalty, "no_repeat_ngram": no_repeat_ngram,
        "presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty,
        "logit_bias": _bias(logit_bias) if logit_bias else None,
    }  # fmt: skip
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if generates_images(model):
        if stream or as_json or best_of or stop or beam:
            raise UsageError("--stream, --json, --best-of, --stop and --beam are for texts; this model makes images")
        if without or change:
            raise UsageError("--without and --change are for models that write texts; this one makes images")
        if precision != "fp32":
            raise UsageError("--precision is for models that write texts; this one makes images, in fp32")
        make_images(prompt or [], model, output, count=n, keep=keep, settings=changes, device=device,
                      allow_pickle=allow_pickle)  # fmt: skip
        return
    if output is not None:
        raise UsageError("-o is for models that make images; this one writes texts to standard output")
    refuse_images(prompt or ())
    changes |= {"max_tokens": max_tokens, "stop": stop or []}
    writer = load_writer(model, device, allow_pickle, precision)
    from regard.look.interventions import changed, switched_off

    if stream:
        with changed(writer, switched_off(without) + change):
            _stream(writer, given_texts(prompt), changes, broken=bool(prompt))
        return

    def answer(lines: list[str]) -> list[Completion]:
        return writer.generate(lines, n=n, best_of=best_of, **changes)

    def show(line: str, found: Completion | None) -> str:
        if found is None:
            return "null" if as_json else ""
        if as_json:
            unknown, others = [each.to_json() for each in found.unknown], list(map(_as_json, found.alternatives))
            return json.dumps(_as_json(found) | {"unknown": unknown, "alternatives": others}, ensure_ascii=False)
        texts = [each.text if prompt else _one_line(each.text) for each in (found, *found.alternatives)]
        if n == 1:
            return texts[0]
        scores = [each.score for each in (found, *found.alternatives)]
        return "\n".join(f"{score:.4f}\t{text}" for score, text in zip(scores, texts, strict=True))

    with changed(writer, switched_off(without) + change):
        answer_lines(given_texts(prompt), answer, show, Unknown(writer.unknown_words, typed=bool(prompt)))


def _bias(given: list[str]) -> dict[int, float]:
    """The bias of each token, parsed from TOKEN=VALUE."""
    try:
        return {int(token): float(value) for token, _, value in (each.partition("=") for each in given)}
    except ValueError:
        raise UsageError(f"--logit-bias is {' '.join(given)!r}; expected TOKEN=VALUE, such as 50256=-100") from None


def _stream(writer: TextGenerator, prompts: Iterator[str], changes: dict[str, Any], *, broken: bool) -> None:
    unknown = Unknown(writer.unknown_words, typed=broken)
    for prompt in prompts:
        for chunk in writer.stream(prompt, **changes):
            sys.stdout.write(chunk.text if broken else _one_line(chunk.text))
            sys.stdout.flush()
        print(flush=True)
        unknown.note(prompt)
    unknown.tell()


def _one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _as_json(answer: Completion) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "text": answer.text,
        "score": answer.score,
        "reason": answer.reason,
        "tokens": answer.tokens,
    }

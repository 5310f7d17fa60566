"""regard translate: text, lines on standard input, or whole documents."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import AllowPickle, AsJson, Device, Models, To, existing, load_translator

if TYPE_CHECKING:
    from regard.inference.pipelines import Translation, Translator

LINES_AT_A_TIME = 512


def translate(
    text: Annotated[list[str] | None, typer.Argument(help="Texts to translate; without any, lines of stdin.")] = None,
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    to: To = "",
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 is greedy. Default: the model's own.")] = None,
    n_best: Annotated[int, typer.Option(help="How many translations of each text.")] = 1,
    align: Annotated[
        bool, typer.Option("--align", help="Add the word alignment, in Pharaoh format (0-0 1-2).")
    ] = False,
    attention: Annotated[
        Path | None, typer.Option(help="Draw where it looked: FILE.svg, .png, .html or .json.")
    ] = None,
    input_file: Annotated[
        str, typer.Option("-i", "--input", help="A file: txt, TSV, CSV, JSONL, TMX, PO or XLIFF.")
    ] = "",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Where to write; for documents, as --input.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Also replace translations a document has.")] = False,
    length_penalty: Annotated[float | None, typer.Option(help="0 prefers short, 1 is the mean per token.")] = None,
    min_length: Annotated[int | None, typer.Option(help="Fewest tokens of a translation.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Most tokens of a translation.")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(help="Never repeat so many tokens in a row.")] = None,
    prefix: Annotated[str, typer.Option(help="How every translation must begin.")] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Draw at random instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling: below 1 is bolder, above 1 wilder.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sampling: from the k most probable tokens only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sampling: from the most probable tokens of this mass.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: same seed, same answer.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Show the translation as it is produced.")] = False,
    as_json: AsJson = False,
    device: Device = "cpu",
    allow_pickle: AllowPickle = False,
) -> None:
    """Translate texts, lines or documents.

    Example: regard translate "we are eating bread" -m runs/en-es --beam 5 --align --attention bread.svg
    """
    from regard.errors import UsageError

    if input_file and text:
        raise UsageError("give texts or --input, not both")
    if attention and (not text or len(text) != 1):
        raise UsageError("--attention draws one sentence; give exactly one text")
    given = {
        "beam": beam, "length_penalty": length_penalty, "min_length": min_length, "max_length": max_length,
        "no_repeat_ngram": no_repeat_ngram, "temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed,
    }  # fmt: skip
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    changes |= {"n_best": n_best, "sample": sample}
    translator = load_translator(model, device, allow_pickle)
    if input_file and output:
        _document(translator, existing(input_file), output, to, overwrite, changes)
        return
    if stream:
        _stream(translator, text or list(_standard_input()), to, changes)
        return
    lines = iter(text) if text else _lines(input_file)
    with _writer(output) as out:
        while chunk := list(islice(lines, LINES_AT_A_TIME)):
            for answer in translator.translate(chunk, to=to, prefix=prefix, **changes):
                print(_line(answer, align=align, as_json=as_json), file=out, flush=True)
                if attention:
                    _draw(translator, answer, attention)


def _line(answer: Translation, *, align: bool, as_json: bool) -> str:
    from regard.inference.alignment import to_pharaoh

    answers = [answer, *answer.alternatives]
    if as_json:
        return json.dumps(
            _as_json(answer, align) | {"alternatives": [_as_json(a, align) for a in answers[1:]]}, ensure_ascii=False
        )
    if len(answers) > 1:
        return "\n".join(f"{each.score:.4f}\t{each.text}" for each in answers)
    return f"{answer.text}\t{to_pharaoh(answer.alignment)}" if align else answer.text


def _as_json(answer: Translation, align: bool) -> dict[str, Any]:
    values = {
        "source": answer.source,
        "text": answer.text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
    }
    return values | {"alignment": answer.alignment} if align else values


def _draw(translator: Translator, answer: Translation, file: Path) -> None:
    from regard.look.figures import save
    from regard.look.views import translation_sight

    save(translation_sight(translator, answer), file)
    print(f"attention drawn to {file}", file=sys.stderr)


def _stream(translator: Translator, texts: list[str], to: str, changes: dict[str, Any]) -> None:
    for text in texts:
        shown = ""
        for shown in translator.stream(text, to=to, **changes):
            if sys.stdout.isatty():
                print(f"\r\x1b[K{shown}", end="", flush=True)
        print(f"\r\x1b[K{shown}" if sys.stdout.isatty() else shown, flush=True)


def _document(
    translator: Translator, source: Path, target: Path, to: str, overwrite: bool, changes: dict[str, Any]
) -> None:
    from regard.data.documents import translate_document
    from regard.data.markup import Translated

    def answers(texts: list[str]) -> list[Translated]:
        found = translator.translate(texts, to=to, **changes)
        return [Translated(each.text, each.alignment if translator.alignment else ()) for each in found]

    tokenizer = translator.tokenizer
    translate_document(
        source, target, answers, tokenizer.source_language, to or tokenizer.target_languages[0], overwrite=overwrite
    )


def _lines(path: str) -> Iterator[str]:
    from regard.data.lines import read_lines

    return read_lines(existing(path)) if path else _standard_input()


def _standard_input() -> Iterator[str]:
    from regard.data.lines import read_lines

    return read_lines(sys.stdin.buffer)


def _writer(output: Path | None) -> Any:
    from contextlib import nullcontext

    return output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout)

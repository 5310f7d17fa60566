"""From a model and an input to a sight: what `regard look` and `--attention` draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.attention.record import attention_names
from regard.errors import UsageError
from regard.inference.attending import SIDES, kind_of
from regard.inference.pipelines import Translation, Translator
from regard.look.sight import Panel, Sight


def translation_sight(translator: Translator, answer: Translation, *, target: str = "") -> Sight:
    """Every layer and head while the model says its own answer, or the given `target`, and the word alignment."""
    source, ids = one_sentence(translator, answer)
    if target:
        return forced_sight(translator, source, target, to=answer.to)
    seen = forced_sight(translator, source, ids, to=answer.to, text=answer.text)
    return replace(seen, meta={**seen.meta, "score": f"{answer.score:.4f}"})


def forced_sight(
    translator: Translator, source: str, answer: str | Sequence[int], *, to: str = "", text: str = ""
) -> Sight:
    """Every layer and head while the model must say `answer`: a text, or the token ids of `text`."""
    text = answer if isinstance(answer, str) else text
    (seen,) = translator.passes([source], [answer], to=to, layers="*")
    tokens = tokens_of(translator, source, answer, to)
    panels = []
    for name, weights in seen.weights.items():
        queries, keys = SIDES[kind_of(name)]
        panels.append(Panel(name, kind_of(name), weights, tokens[queries], tokens[keys]))
    alignment = None
    if translator.alignment is not None and text:
        words = seen.words(translator.alignment)[None]
        alignment = Panel(translator.alignment.layer, "cross", words, text.split(), source.split())
    return Sight(title=source, model=translator.name, panels=panels, alignment=alignment, meta={"translation": text})


def tokens_of(translator: Translator, source: str, answer: str | Sequence[int], to: str) -> dict[str, list[str]]:
    """What the encoder reads, and what the decoder is fed at each step, as pieces."""
    tokenizer, target = translator.tokenizer, translator.tokenizer.target
    ids = target.encode([answer])[0] if isinstance(answer, str) else list(answer)
    return {
        "source": tokenizer.source.pieces(tokenizer.source_ids([source], to)[0]),
        "target": target.pieces([target.start, *ids]),
    }


def one_sentence(translator: Translator, answer: Translation) -> tuple[str, list[int]]:
    """The one sentence a sight shows, and the token ids of its translation."""
    if not attention_names(translator.models[0]):
        raise UsageError(f"{translator.name or 'this model'} has no attention to look at")
    if not answer.parts:
        raise UsageError("there is nothing to look at: the text is empty")
    if len(answer.parts) > 1:
        raise UsageError(
            f"the text is too long to look at as a whole: it was translated as {len(answer.parts)} sentences; "
            "look at one of them"
        )
    return answer.parts[0]

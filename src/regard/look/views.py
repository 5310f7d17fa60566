"""From a model and an input to a sight: what `regard look` and `--attention` draw."""

from __future__ import annotations

from regard.inference.attending import SIDES, kind_of
from regard.inference.pipelines import Translation, Translator
from regard.look.sight import Panel, Sight


def translation_sight(translator: Translator, answer: Translation, *, target: str = "") -> Sight:
    """Every layer and head while the model says its own answer, or the given `target`, and the word alignment."""
    tokenizer = translator.tokenizer
    ids = tokenizer.target.encode([target])[0] if target else [i for _, part in answer.parts for i in part]
    text = target or answer.text
    (seen,) = translator.passes([answer.source], [target or ids], to=answer.to, layers="*")
    source = tokenizer.source.pieces(tokenizer.source_ids([answer.source], answer.to)[0])
    spoken = tokenizer.target.pieces([tokenizer.target.start, *ids])  # what the decoder is fed at each step
    tokens = {"source": source, "target": spoken}
    panels = []
    for name, weights in seen.weights.items():
        queries, keys = SIDES[kind_of(name)]
        panels.append(Panel(name, kind_of(name), weights, tokens[queries], tokens[keys]))
    alignment = None
    if translator.alignment is not None:
        words = seen.words(translator.alignment)[None]
        alignment = Panel(translator.alignment.layer, "cross", words, text.split(), answer.source.split())
    meta = {"translation": text} if target else {"translation": text, "score": f"{answer.score:.4f}"}
    return Sight(title=answer.source, model=translator.name, panels=panels, alignment=alignment, meta=meta)

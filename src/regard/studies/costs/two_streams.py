"""The costs of models that read a text of `source` tokens and `target` regions of an image or steps of a path."""

from __future__ import annotations

from regard.families.vision_language.model import VilbertConfig
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Scored,
    activated,
    attention,
    calls,
    embedded,
    feed_forward,
    generator,
    linear,
    masked,
    norm,
    residual,
    streams,
)

HIDDEN = 0.15  # share of the tokens that pre-training masks


def two_streams(c: VilbertConfig, source: int, target: int, *, seen_as: str = "regions") -> Costs:
    """The two streams of `models/vilbert.py` on one text and one image or path."""

    def stream(rows: int, width: int, heads: int, hidden: int) -> Cost:
        layer = attention(rows, rows, width, heads, c.attention_dropout)
        return layer + feed_forward(rows, width, hidden, c.activation, 0.0) + 2 * residual(rows, width, c.dropout)

    def link(queries: int, keys: int, width: int, other: int, hidden: int) -> Cost:
        looked = attention(
            queries, keys, width, c.link_heads, c.attention_dropout,
            head_width=c.link_width // c.link_heads, kv_width=other,
        )  # fmt: skip
        return (
            looked + feed_forward(queries, width, hidden, c.activation, 0.0) + 2 * residual(queries, width, c.dropout)
        )

    words, regions = c.word_config(), (target, c.region_width)
    tokens = embedded(source, c.width, c.vocab, changes=2) + Cost(c.width * (words.max_length + words.segments))
    tokens += norm(source, c.width) + masked(source, c.width, c.dropout)
    seen = linear(target, c.region_features, c.region_width) + linear(target, c.region_places, c.region_width)
    seen += norm(*regions) + masked(*regions, c.dropout) + Cost(kept=target * (c.region_features + c.region_places))
    links = len(c.word_links) * c.co_attention
    both = link(source, target, c.width, c.region_width, c.ffn_width)
    both += link(target, source, c.region_width, c.width, c.region_ffn_width)
    pooled = linear(1, c.width, c.link_width) + linear(1, c.region_width, c.link_width)
    pooled += Cost(kept=c.width + c.region_width + 4 * c.link_width) + streams(c.link_width, 12) + calls(6)
    return Costs(
        parts={
            "embeddings": tokens + seen,
            "words": c.depth * stream(source, c.width, c.heads, c.ffn_width) + Cost(kept=source * c.width),
            "regions": c.region_depth * stream(*regions, c.region_heads, c.region_ffn_width)
            + Cost(kept=target * c.region_width),
            "links": links * both,
            "pooler": Cost() if c.head == "point" else pooled,
            "head": _head(c, source, target),
        },
        matrices=_matrices(c, source, target, links),
        sentence_cache=0,
        hypothesis_cache=0,
        scored=Scored(_hidden(source), c.width, c.vocab) if c.head == "pretraining" else None,
        tokens=1,
        reads=f"texts of {{source}} tokens with {{target}} {seen_as} each",
    )


def _matrices(c: VilbertConfig, source: int, target: int, links: int) -> list[Matrix]:
    found = [Matrix(f"words.encoder.{n}.attention", c.heads, source, source) for n in range(c.depth)]
    found += [Matrix(f"regions.{n}.attention", c.region_heads, target, target) for n in range(c.region_depth)]
    for n in range(links):
        found.append(Matrix(f"links.{n}.words.cross", c.link_heads, source, target))
        found.append(Matrix(f"links.{n}.regions.cross", c.link_heads, target, source))
    return found


def _head(c: VilbertConfig, source: int, target: int) -> Cost:
    match c.head:
        case "pretraining":
            width, outputs = c.region_width, c.region_classes if c.region_targets == "classes" else c.region_features
            words = linear(source, c.width, c.width) + norm(source, c.width) + activated(source * c.width, c.activation)
            words += generator(source, c.width, c.vocab, bias=True, tied=True, trained=_hidden(source))
            regions = linear(target, width, width) + norm(target, width) + activated(target * width, c.activation)
            regions += linear(target, width, outputs)
            kept = Cost(kept=2 * source * c.width + 2 * target * width)
            return words + regions + kept + linear(1, c.link_width, 2) + masked(1, 2 * c.link_width, c.head_dropout)
        case "point":
            dropped = masked(target, 2 * c.region_width, c.head_dropout)
            return linear(target, c.region_width, 1) + dropped
        case "score":
            return linear(1, c.link_width, 1) + masked(1, 2 * c.link_width, c.head_dropout)
        case "answer":
            answered = feed_forward(1, c.link_width, 2 * c.link_width, "relu", c.head_dropout, outputs=c.labels)
            return answered + masked(1, c.link_width, c.head_dropout)
    return Cost()


def _hidden(tokens: int) -> int:
    return max(1, round(HIDDEN * tokens))

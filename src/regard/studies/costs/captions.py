"""The costs of captioners: a body that yields a grid, and a decoder that looks at it."""

from __future__ import annotations

from dataclasses import replace

from regard.families.captions.model import CaptionerConfig
from regard.families.translation.seq2seq import Seq2SeqConfig
from regard.studies.costs.image_bodies import body_costs
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Scored,
    added,
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
from regard.studies.costs.recurrent import bridge, deep_output, recurrent_decoder, scores_of_steps, state_size, stepwise


def captioner(c: CaptionerConfig, source: int, target: int) -> Costs:
    """The captioner of `models/captioner.py` on one image and a caption of `target` words; `source` is not used."""
    body, matrices = body_costs(c)
    cells, inner = c.grid_side**2, c.body_config().map_widths()[-1 - c.level]
    grid = linear(cells, inner, c.width) + Cost(cells * c.width, kept=cells * inner) + norm(cells, c.width)
    grid += masked(cells, c.width, c.dropout) + added(cells * c.width)
    seen = cells if c.attention != "none" else 1
    described = (
        _caption_transformer(c, seen, target) if c.decoder == "transformer" else _caption_network(c, seen, target)
    )
    return replace(
        described, parts={"body": body, "grid": grid, **described.parts}, matrices=matrices + described.matrices
    )


def _caption_network(c: CaptionerConfig, cells: int, target: int) -> Costs:
    """A recurrent decoder is that of a translator whose source is the grid, with a gate for the context."""
    assert c.decoder != "transformer"
    attends = c.attention != "none"
    like = Seq2SeqConfig(
        source_vocab=1, target_vocab=c.vocab, embedding=c.embedding, width=c.width, decoder_depth=c.depth,
        cell=c.decoder, attention="additive" if attends else "none", bidirectional=False, dropout=c.dropout,
    )  # fmt: skip
    gate = stepwise(target, c.width, 1) + Cost(kept=target * (c.width + 2))
    gate += streams(target * c.width, 6) + calls(3 * target)
    looked = scores_of_steps(like, cells, target) + gate + Cost(kept=cells * c.width)
    words = embedded(target, c.embedding, c.vocab, changes=0) + masked(target, c.embedding, c.dropout)
    return Costs(
        parts={
            "embeddings": words + Cost(kept=c.width),
            "bridge": bridge(like),
            "attention": looked if attends else Cost(),
            "decoder": recurrent_decoder(like, target),
            "generator": deep_output(like, target),
        },
        matrices=[Matrix("decoder.cross", 1, target, cells)] if attends else [],
        sentence_cache=(2 * cells + 1 if attends else 1) * c.width,
        hypothesis_cache=state_size(like),
        scored=Scored(target, c.embedding, c.vocab),
        tokens=target,
    )


def _caption_transformer(c: CaptionerConfig, cells: int, target: int) -> Costs:
    """A Transformer decoder over the grid."""

    def look(keys: int) -> Cost:
        return attention(target, keys, c.width, c.heads, 0.0) + residual(target, c.width, c.dropout)

    think = feed_forward(target, c.width, c.ffn_width, "gelu", 0.0) + residual(target, c.width, c.dropout)
    words = embedded(target, c.width, c.vocab, changes=2) + masked(target, c.width, c.dropout)
    return Costs(
        parts={
            "embeddings": words,
            "decoder": c.depth * (look(target) + look(cells) + think) + norm(target, c.width)
            + Cost(kept=(target + cells) * c.width),
            "generator": generator(target, c.width, c.vocab, bias=True, tied=True),
        },
        matrices=[
            Matrix(f"decoder.decoder.{n}.{name}", c.heads, target, keys)
            for n in range(c.depth)
            for name, keys in (("attention", target), ("cross", cells))
        ],
        sentence_cache=2 * c.depth * cells * c.width,
        hypothesis_cache=2 * c.depth * target * c.width,
        scored=Scored(target, c.width, c.vocab),
        tokens=target,
        grows=True,
    )  # fmt: skip

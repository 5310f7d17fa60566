"""The costs of models of structures, for one chain of `source` residues and `target` rows of its alignment.

FLOPs and memory are those of one pass. Recycling repeats the pass without keeping anything for the backward pass. On a
CPU the weights of attention with a learned bias are written out, and those of triangle attention grow with the cube of
the length; fused kernels of a GPU do not keep them.
"""

from __future__ import annotations

from dataclasses import replace

from regard.families.folding.model import RECYCLED_EDGES, SYMBOLS, EvoformerConfig
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    activated,
    added,
    calls,
    curved,
    embedded,
    linear,
    masked,
    norm,
    scored,
    streams,
)


def evoformer(c: EvoformerConfig, source: int, target: int) -> Costs:
    """The model of `models/evoformer.py`."""
    residues, rows = source, target
    block = _alignment(c, residues, rows) + _to_pairs(c, residues, rows) + _triangles(c, residues)
    return Costs(
        parts={
            "embeddings": _embeddings(c, residues, rows),
            "blocks": c.depth * block,
            "structure": _structure(c, residues),
            "heads": _heads(c, residues, rows),
        },
        matrices=_matrices(c, residues, rows),
        sentence_cache=0,
        hypothesis_cache=0,
        tokens=1,
    )


def gated_attention(sequences: int, length: int, width: int, heads: int, head_width: int, *, biased: bool) -> Cost:
    """Attention within sequences. Kept: the normalised input, q, k, v, the result, the gate, their product, and the
    weights where there is a learned bias."""
    rows, inner = sequences * length, heads * head_width
    products = 3 * linear(rows, width, inner, bias=False) + linear(rows, width, inner) + linear(rows, inner, width)
    weights = sequences * heads * length**2 if biased else sequences * heads * length
    kept = Cost(flops=4 * rows * length * inner, kept=rows * (width + 6 * inner) + weights)
    work = scored(sequences, heads, length, length, head_width, "written" if biased else "attention")
    return products + kept + work + curved(rows * inner) + streams(rows * inner, 9) + calls(6)


def _embeddings(c: EvoformerConfig, residues: int, rows: int) -> Cost:
    pairs = residues**2
    tables = 2 * embedded(residues, c.pair_width, SYMBOLS) + embedded(pairs, c.pair_width, 2 * c.farthest + 1)
    tables += embedded(rows * residues, c.width, SYMBOLS) + embedded(residues, c.width, SYMBOLS)
    tables += embedded(pairs, c.pair_width, RECYCLED_EDGES[2] + 1) + Cost(2 * c.width + 2 * c.pair_width)
    given = linear(pairs, 1, c.pair_width) if c.couplings else Cost()
    return tables + given + Cost(kept=2 * pairs)  # which of the relative positions each pair has, in 64 bits


def _alignment(c: EvoformerConfig, residues: int, rows: int) -> Cost:
    """Attention along rows and columns, and the transition."""
    tokens, pairs = rows * residues, residues**2
    bias = (
        norm(pairs, c.pair_width) + linear(pairs, c.pair_width, c.heads, bias=False) + Cost(kept=pairs * c.pair_width)
    )
    row = norm(tokens, c.width) + gated_attention(rows, residues, c.width, c.heads, c.head_width, biased=True)
    looked = row + bias + masked(residues, c.width, c.dropout) + added(tokens * c.width)
    if c.columns:
        looked += norm(tokens, c.width) + added(tokens * c.width)
        looked += gated_attention(residues, rows, c.width, c.heads, c.head_width, biased=False)
    return looked + _transition(tokens, c.width, c.growth) + added(tokens * c.width)


def _transition(rows: int, width: int, growth: int) -> Cost:
    hidden = growth * width
    inside = linear(rows, width, hidden) + activated(rows * hidden, "relu") + linear(rows, hidden, width)
    return norm(rows, width) + inside + Cost(kept=rows * (width + hidden))


def _to_pairs(c: EvoformerConfig, residues: int, rows: int) -> Cost:
    tokens, pairs = rows * residues, residues**2
    if c.to_pairs == "products":
        half = c.pair_width // 2
        sides = (
            norm(residues, c.width) + 2 * linear(residues, c.width, half) + Cost(kept=residues * (c.width + 2 * half))
        )
        return sides + linear(pairs, 2 * half, c.pair_width) + Cost(kept=pairs * 2 * half) + added(pairs * c.pair_width)
    wide = c.outer_width**2
    sides = norm(tokens, c.width) + 2 * linear(tokens, c.width, c.outer_width)
    kept = tokens * (c.width + 2 * c.outer_width) + pairs * (wide + 1)
    product = Cost(flops=2 * tokens * residues * (wide + 1), kept=kept) + calls(12) + streams(pairs * wide, 6)
    return sides + product + linear(pairs, wide, c.pair_width) + added(pairs * c.pair_width)


def _triangles(c: EvoformerConfig, residues: int) -> Cost:
    """Both multiplications, both attentions, and the transition of pairs."""
    pairs, hidden, width = residues**2, c.triangle_width, c.pair_width
    multiplied = norm(pairs, width) + 4 * linear(pairs, width, hidden) + linear(pairs, width, width)
    multiplied += norm(pairs, hidden) + linear(pairs, hidden, width)
    multiplied += Cost(flops=2 * pairs * residues * hidden, kept=pairs * (9 * hidden + 4 * width + 1))
    multiplied += curved(pairs * (2 * hidden + width)) + streams(pairs * hidden, 24) + calls(16)
    looked = norm(pairs, width) + linear(pairs, width, c.pair_heads, bias=False)
    looked += gated_attention(residues, residues, width, c.pair_heads, c.pair_head_width, biased=True)
    each = 2 * (multiplied + looked + 2 * added(pairs * width) + 2 * masked(residues, width, c.pair_dropout))
    return each + _transition(pairs, width, c.growth) + added(pairs * width)


def _structure(c: EvoformerConfig, residues: int) -> Cost:
    """The structure module, whose weights all passes share."""
    pairs, width, heads = residues**2, c.single_width, c.point_heads
    plain, points, values = heads * c.point_head_width, 3 * heads * c.points, 3 * heads * c.value_points
    read = plain + 4 * heads * c.value_points + heads * c.pair_width
    look = 3 * linear(residues, width, plain) + 2 * linear(residues, width, points) + linear(residues, width, values)
    look += linear(pairs, c.pair_width, heads) + linear(residues, read, width) + Cost(heads)
    look += Cost(flops=2 * pairs * (2 * plain + points + values + heads * c.pair_width))
    kept = residues * (2 * width + read + 5 * plain + 5 * points + 5 * values) + 2 * heads * pairs
    moved = 3 * linear(residues, width, width) + linear(residues, width, 6) + 2 * norm(residues, width)
    single = (
        look
        + moved
        + Cost(kept=kept + residues * 4 * width)
        + calls(120)
        + 2 * masked(residues, width, c.structure_dropout)
    )
    passes = replace(c.passes * single, parameters=single.parameters)
    begin = norm(residues, width) + norm(pairs, c.pair_width) + linear(residues, width, width)
    begin += linear(residues, c.width, width) + Cost(kept=pairs * c.pair_width + residues * (2 * width + c.width))
    return begin + passes


def _heads(c: EvoformerConfig, residues: int, rows: int) -> Cost:
    width, pairs = c.single_width, residues**2
    known = norm(residues, width) + 2 * linear(residues, width, width) + linear(residues, width, c.confidence_bins)
    known += Cost(kept=3 * residues * width)
    distances = linear(pairs, c.pair_width, c.bins) + Cost(kept=pairs * c.pair_width) + added(pairs * c.bins)
    symbols = linear(rows * residues, c.width, SYMBOLS) + Cost(kept=rows * residues * c.width)
    # The losses keep log-probabilities of distances and letters.
    return known + distances + symbols + Cost(kept=pairs * c.bins + rows * residues * SYMBOLS)


def _matrices(c: EvoformerConfig, residues: int, rows: int) -> list[Matrix]:
    found = []
    for n in range(c.depth):
        found.append(Matrix(f"blocks.{n}.row.attention", c.heads, residues, residues, rows))
        if c.columns:
            found.append(Matrix(f"blocks.{n}.column.attention", c.heads, rows, rows, residues))
        for side in ("starting", "ending"):
            found.append(Matrix(f"blocks.{n}.{side}.attention", c.pair_heads, residues, residues, residues))
    return [*found, Matrix("structure.attention", c.point_heads, residues, residues, c.passes)]

"""The costs of models that read two proteins, of `source` and `target` residues."""

from __future__ import annotations

from regard.families.proteins.model import InteractorConfig
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    activated,
    attention,
    calls,
    embedded,
    feed_forward,
    linear,
    masked,
    norm,
    residual,
    streams,
)


def interactor(c: InteractorConfig, source: int, target: int) -> Costs:
    """The model of `models/interactor.py`; both proteins are padded to the longer, and read as two sequences."""
    residues = max(source, target)
    front, tokens = _front(c, residues)
    layer = attention(tokens, tokens, c.width, c.heads, 0.0)
    layer += feed_forward(tokens, c.width, c.ffn_width, "gelu", 0.0) + 2 * residual(tokens, c.width, c.dropout)
    rotary = streams(2 * tokens * c.width, 18) + calls(24)
    pooled = attention(1, tokens, c.width, c.heads, 0.0) + Cost(kept=2 * c.width) + masked(1, c.width, c.dropout)
    compared = Cost(kept=5 * c.width) + feed_forward(1, 3 * c.width, c.width, "gelu", c.dropout, outputs=1)
    ends = norm(tokens, c.width) + Cost(kept=tokens * c.width)
    return Costs(
        parts={
            "front": _twice(embedded(residues, c.front_width, c.symbols, changes=0) + front),
            "encoder": _twice(c.depth * (layer + rotary) + ends),
            "links": _twice(c.cross_depth * (layer + Cost(kept=tokens * c.width))),
            "pool": _twice(pooled) + Cost(c.width),
            "head": compared,
        },
        matrices=[
            Matrix(f"{name}.{side}", c.heads, queries, tokens)
            for name, queries in (
                *((f"encoder.{number}.attention", tokens) for number in range(c.depth)),
                *((f"links.{number}.cross", tokens) for number in range(c.cross_depth)),
                ("pool", 1),
            )
            for side in ("first", "second")
        ],
        sentence_cache=0,
        hypothesis_cache=0,
        reads="pairs of proteins of {source} and {target} residues",
    )


def _front(c: InteractorConfig, residues: int) -> tuple[Cost, int]:
    """The convolutions, and the number of tokens they leave; kept: the inputs of the convolution, of the norm, of the
    activation and of the maximum, and its result."""
    total, rows, inputs = Cost(), residues, c.front_width
    for number, pool in enumerate(c.pools):
        outputs = c.width if number == len(c.pools) - 1 else c.front_width
        stage = linear(rows, c.kernel * inputs, outputs) + norm(rows, outputs) + activated(rows * outputs, "gelu")
        padded = -(-rows // pool) * pool
        stage += Cost(kept=rows * (inputs + outputs) + padded * outputs) + streams(rows * (inputs + 2 * outputs), 6)
        rows, inputs = padded // pool, outputs
        total += stage + Cost(kept=rows * outputs) + masked(rows, outputs, c.dropout) + calls(12)
    return total, rows


def _twice(cost: Cost) -> Cost:
    """The same weights for both proteins."""
    return 2 * cost + Cost(-cost.parameters)

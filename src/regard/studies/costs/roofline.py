"""The roofline: a lower bound for the time of some work, from its FLOPs and the bytes it reads.

The numbers come from the formulas of `models.py`. Every weight is read once per step, every cached key and value once
per token; activations are assumed to stay in the CPU's caches. Computing and reading overlap, so the longer one counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from regard.studies.costs.models import COSTS
from regard.studies.costs.parts import FLOAT, Cost

ADAMW_TOUCHES = 10  # of a weight per training step: 2 reads, its gradient written, then 4 reads and 3 writes


@dataclass(frozen=True)
class LowerBound:
    """The least FLOPs and bytes of the work; `step_bytes` are the weights that every step reads."""

    flops: int
    nbytes: int
    step_bytes: int

    def seconds(self, flops_rate: float, bandwidth: float) -> float:
        """The least time on a machine with these rates per second."""
        return max(self.flops / flops_rate, self.nbytes / bandwidth)


def encoding(name: str, config: Any, batch: int, length: int) -> LowerBound:
    """One forward pass over a batch of texts."""
    costs = COSTS[name](config, length, length)
    read = FLOAT * (costs.total.parameters - costs.parts["embeddings"].parameters)
    return LowerBound(batch * costs.total.flops, read, read)


def training(name: str, config: Any, batch: int, length: int) -> LowerBound:
    """One training step: forward, backward, AdamW."""
    total = COSTS[name](config, length, length).total
    weights = FLOAT * total.parameters
    return LowerBound(3 * batch * total.flops, ADAMW_TOUCHES * weights, weights)


def decoding(name: str, config: Any, batch: int, beam: int, source: int, steps: int) -> LowerBound:
    """A search of `steps` steps. The source is read once, and projected once for all hypotheses of its sentence."""
    costs = COSTS[name](config, source, steps)
    decoder, generator = costs.parts["decoder"], costs.parts["generator"]
    read = max(1, source - 1)  # a language model starts its answer from the last token of its prompt
    first = costs.parts.get("encoder") or COSTS[name](config, source, read).parts["decoder"]
    projected = Cost(config.width * costs.sentence_cache // source, 2 * config.width * costs.sentence_cache)
    ahead = steps * costs.hypothesis_cache  # the half of the causal matrix that a search never computes
    each = decoder.flops - projected.flops - ahead + generator.flops  # FLOPs per hypothesis
    hypotheses = (1 + beam * (steps - 1)) / steps  # mean number of hypotheses: the first step has only one
    weights = decoder.parameters - projected.parameters + generator.flops // (2 * steps)
    looked_at = batch * (costs.sentence_cache + beam * costs.hypothesis_cache // 2)  # half, because it grows
    return LowerBound(
        flops=batch * (first.flops + projected.flops + round(hypotheses * each)),
        nbytes=FLOAT * (first.parameters + projected.parameters + steps * (weights + looked_at)),
        step_bytes=FLOAT * weights,
    )

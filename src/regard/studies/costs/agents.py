"""The costs of a model that forecasts tracks, for one scene of `source` agents."""

from __future__ import annotations

from dataclasses import replace

from regard.families.trajectories.model import AgentFormerConfig
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    attention,
    feed_forward,
    linear,
    masked,
    norm,
    residual,
)

SEARCHED, DECODED = 20, 2  # latent vectors that the best is found in, and that are decoded with gradients


def agents(c: AgentFormerConfig, source: int, target: int) -> Costs:
    """The first stage of `models/agentformer.py` on a scene; `target` is not used, since the future has a fixed length.

    The samples that the best is found in are decoded without gradients. They count for a third of their FLOPs, because
    a training step is planned as three forward passes.
    """
    past, future = source * c.past, source * c.future
    decoded, searched = (_decoded(c, count, future, past) for count in (DECODED, SEARCHED))
    sampler = Cost()
    if c.sampler:
        sampler = feed_forward(source, c.width, c.sampler_ffn_width, "relu", 0.0, outputs=c.sampler_width)
        sampler += 2 * linear(source, c.sampler_width, c.sampler * c.latent)
    return Costs(
        parts={
            "past encoder": _input(past, 4, c) + _stack(c, 1, past, 0),
            "future encoder": _input(future, 4, c) + _stack(c, 1, future, past),
            "latent": 2 * linear(source, c.width, 2 * c.latent) + sampler,
            "decoder": decoded,
            "samples": Cost(flops=searched.flops // 3),
        },
        matrices=_matrices(c, past, future),
        sentence_cache=0,
        hypothesis_cache=0,
        tokens=source,
        reads="scenes of {source} agents",
    )


def _decoded(c: AgentFormerConfig, samples: int, future: int, past: int) -> Cost:
    """The decoder on several latent vectors of each agent."""
    read = _input(samples * future, 2 + c.latent, c) + _stack(c, samples, future, past)
    return read + linear(samples * future, c.width, 2)


def _input(rows: int, features: int, c: AgentFormerConfig) -> Cost:
    """Features and steps, concatenated and mixed."""
    kept = Cost(kept=rows * (features + 2 * c.width))
    return (
        linear(rows, features, c.width) + linear(rows, 2 * c.width, c.width) + masked(rows, c.width, c.dropout) + kept
    )


def _stack(c: AgentFormerConfig, sequences: int, tokens: int, memory: int) -> Cost:
    """Layers over several sequences of tokens, which share a memory of so many tokens if there is one."""
    if c.body == "recurrent":
        rows = sequences * tokens
        start = linear(sequences * tokens // c.future if memory else 0, c.width, c.depth * c.width)
        return start + c.depth * (2 * linear(rows, c.width, 4 * c.width) + Cost(kept=6 * rows * c.width))
    layer = _several(_looked(c, tokens, tokens), sequences) + residual(sequences * tokens, c.width, c.dropout)
    if memory:
        layer += _looked(c, sequences * tokens, memory) + residual(sequences * tokens, c.width, c.dropout)
    layer += feed_forward(sequences * tokens, c.width, c.ffn_width, "relu", c.dropout)
    layer += residual(sequences * tokens, c.width, c.dropout)
    last = norm(sequences * tokens, c.width) if c.norm == "pre" else Cost()
    return c.depth * layer + last


def _looked(c: AgentFormerConfig, queries: int, keys: int) -> Cost:
    """Attention; with agent-awareness, a second query and key projection, whose scores and the first are written."""
    looked = attention(queries, keys, c.width, c.heads, c.dropout, written=c.agent_aware)
    if not c.agent_aware:
        return looked
    own = linear(queries, c.width, c.width) + linear(keys, c.width, c.width)
    scores = Cost(flops=4 * queries * keys * c.width, kept=2 * keys * c.width + queries * c.width)
    return looked + own + scores


def _several(cost: Cost, times: int) -> Cost:
    """The same layer for several sequences."""
    return replace(times * cost, parameters=cost.parameters)


def _matrices(c: AgentFormerConfig, past: int, future: int) -> list[Matrix]:
    if c.body == "recurrent":
        return []
    found = []
    for number in range(c.depth):
        found.append(Matrix(f"encoder.layers.{number}.attention", c.heads, past, past))
        for name in ("future_encoder", "decoder"):
            found.append(Matrix(f"{name}.layers.{number}.attention", c.heads, future, future))
            found.append(Matrix(f"{name}.layers.{number}.cross", c.heads, future, past))
    return found

"""Reports of models of proteins: attention within and between two proteins, in tokens of several residues."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from regard.data.proteins import Protein, given_proteins
from regard.errors import UsageError
from regard.families.proteins.pipeline import POOL, InteractionAttention, InteractionPredictor
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Kind, Panel, Tokens
from regard.look.report import AttentionReport

TWO = "give two proteins: a FASTA file of two, or two sequences"


def inspect_interaction(predictor: InteractionPredictor, given: GivenInput) -> Inspected:
    """Every layer and head while a model reads two proteins, and which of their residues it weighs.

    The file has both, or the text beside it is the second: a sequence, or another FASTA file.
    """
    one, other = _pair(given)
    (answer,) = predictor.interact(one.sequence, other.sequence)
    seen = predictor.attention(one.sequence, other.sequence)
    told = [f"{protein.name}: {each}" for protein in (one, other) for each in protein.told]
    said = f"{answer.probability:.1%}"
    report = AttentionReport(
        f"{one.name} and {other.name}", predictor.name, _panels(seen, (one.name, other.name)),
        meta={"binds": said} | ({"read": "; ".join(told)} if told else {}),
    )  # fmt: skip
    proteins = [
        {"name": protein.name, "sequence": sequence, "weights": weights.round(6).tolist()}
        for protein, sequence, weights in zip((one, other), seen.sequences, residue_weights(seen), strict=True)
    ]
    return Inspected(report, {"probability": answer.probability, "proteins": proteins, "told": told})


def residue_weights(seen: InteractionAttention) -> list[Float[np.ndarray, L]]:
    """How much the pooling query weighs each residue: its token's weight, shared by the token's residues, mean of
    heads."""
    shared = []
    for sequence, weights in zip(seen.sequences, seen.weights[POOL], strict=True):
        spread = np.repeat(weights.mean(axis=0)[0], seen.span)[: len(sequence)]
        counts = np.bincount(np.arange(len(sequence)) // seen.span)
        shared.append(spread / np.repeat(counts, seen.span)[: len(sequence)])
    return shared


def _pair(given: GivenInput) -> tuple[Protein, Protein]:
    found = given_proteins(given.file, given.title)
    if given.text.strip():
        found = [*found, *given_proteins(given.text.strip())]
    if len(found) != 2:
        raise UsageError(f"{len(found)} {'protein' if len(found) == 1 else 'proteins'} came; {TWO}")
    return found[0], found[1]


def _panels(seen: InteractionAttention, names: tuple[str, str]) -> list[Panel]:
    """Attention between the proteins first, then that of the pooling query, then that within each."""
    axes = [_axis(sequence, seen.span) for sequence in seen.sequences]
    order = sorted(seen.weights, key=lambda name: (not name.endswith("cross"), name != POOL))
    panels = []
    for name in order:
        kind: Kind = "cross" if name.endswith("cross") or name == POOL else "self"
        for side, weights in enumerate(seen.weights[name]):
            queries = Tokens([names[side]]) if name == POOL else axes[side]
            keys = axes[1 - side] if name.endswith("cross") else axes[side]
            neurons = seen.neurons[name][side]
            panels.append(Panel(f"{name}.{('first', 'second')[side]}", kind, weights, queries, keys, neurons))
    return panels


def _axis(sequence: str, span: int) -> Tokens:
    """Tokens by their first and last residue, such as M1-K16."""
    ends = [(start, min(start + span, len(sequence)) - 1) for start in range(0, len(sequence), span)]
    return Tokens([f"{sequence[first]}{first + 1}-{sequence[last]}{last + 1}" for first, last in ends])

"""Claims about costs and sizes, measured on random inputs in seconds."""

from __future__ import annotations

from dataclasses import asdict

import torch

from regard.studies.lectures.claim import ClaimOptions, Verdict, judge
from regard.studies.lectures.compare import rows_of, three_ways
from regard.studies.lectures.growth import attention_growth
from regard.studies.lectures.measurements import cost_of_heads, gradients_through_time, saturation
from regard.studies.lectures.superposition import superposition, superposition_rows

FAR = 50  # steps back at which gradients are compared


def gradient_flow(_: ClaimOptions) -> Verdict:
    """Gradients explode above a singular value of 1 and vanish below; the LSTM's cell keeps them."""
    rows = gradients_through_time([1, 10, FAR])
    far = {str(row["network"]): float(str(row["gradient"])) for row in rows if row["steps_back"] == FAR}
    growing, shrinking, cell = far.values()
    words = f"{FAR} steps back the gradient is {growing:.0e} (1.2), {shrinking:.0e} (0.8) and {cell:.2f} (LSTM cell)"
    return judge(growing > 100 and shrinking < 0.01 and 0.5 < cell < 2, words, rows)


def scaling(_: ClaimOptions) -> Verdict:
    """Without the division by √d, wide vectors saturate the softmax."""
    rows = saturation([4, 64, 1024])
    wide = rows[-1]
    words = (
        f"at width 1024 the heaviest of 64 keys gets {wide['unscaled']:.2f} unscaled and {wide['scaled']:.2f} scaled"
    )
    return judge(float(str(wide["unscaled"])) > 0.9 and float(str(wide["scaled"])) < 0.3, words, rows)


def heads_cost(_: ClaimOptions) -> Verdict:
    """All heads together cost about as much as one head of full width."""
    rows = cost_of_heads([1, 8])
    one, eight = (float(str(row["seconds"])) for row in rows)
    equal = len({row["parameters"] for row in rows}) == 1
    return judge(equal and eight < 1.5 * one, f"equal parameters; 8 heads take {eight / one:.2f} times the time", rows)


def three_ways_of_sequences(_: ClaimOptions) -> Verdict:
    """Recurrence is sequential, convolution needs depth to see far, attention connects all at once but needs memory."""
    ways = three_ways([64, 512])
    found = {(way.way.split()[0], way.length): way for way in ways}
    recurrence, convolution, attention = (found[name, 512] for name in ("recurrence", "convolution", "self-attention"))
    holds = (
        recurrence.sequential_steps == 512
        and attention.sequential_steps == convolution.sequential_steps == 1
        and attention.layers_to_connect == 1 < convolution.layers_to_connect
    )
    words = f"512 tokens: 512 steps, {convolution.layers_to_connect} layers to see all, or one layer at once"
    return judge(holds, words, rows_of(ways))


def windows(_: ClaimOptions) -> Verdict:
    """Attention in windows grows linearly with the number of tokens, attention between all of them quadratically."""
    sides = (64, 128)
    rows = attention_growth(sides, torch.device("cpu"))
    peaks = {row.way: [each.peak for each in rows if each.way == row.way] for row in rows}
    growth = {way: large / small for way, (small, large) in peaks.items() if small and large}
    factors = list(growth.values())
    words = "memory for 4 times the tokens: " + ", ".join(f"{way} {factor:.1f}x" for way, factor in growth.items())
    holds = len(factors) == 3 and factors[0] > 10 and factors[2] < 5
    return judge(holds, words, [asdict(row) for row in rows])


def more_features_than_neurons(_: ClaimOptions) -> Verdict:
    """Sparse features share neurons: more features than neurons are represented."""
    found = superposition([0.0, 0.97], importance=0.7, steps=2500)
    dense, sparse = found.represented
    words = f"two neurons represent {dense} dense features and {sparse} sparse ones of five"
    return judge(dense == 2 < sparse, words, superposition_rows(found))

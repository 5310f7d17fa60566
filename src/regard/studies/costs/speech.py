"""The costs of speech recognisers, for one recording of `source` frames and a text of `target` tokens."""

from __future__ import annotations

from dataclasses import replace

from regard.families.speech.conformer import ConformerConfig, subsampled
from regard.studies.costs.images import convolution, halved, rectified
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Piece,
    Scored,
    activated,
    attention,
    calls,
    curved,
    embedded,
    feed_forward,
    generator,
    linear,
    masked,
    norm,
    residual,
    streams,
)
from regard.studies.costs.spectrograms import READS


def conformer(c: ConformerConfig, source: int, target: int) -> Costs:
    """The Conformer of `models/conformer.py`; the sinusoids of distances are projected once per batch, and not
    counted."""
    frames, width = subsampled(source), c.width
    encoder = c.depth * _block(c, frames) + Cost(kept=frames * width)
    parts = {"subsampling": _subsampling(c, source), "encoder": encoder}
    matrices = [Matrix(f"encoder.{n}.attention", c.heads, frames, frames) for n in range(c.depth)]
    if c.ctc:
        parts["labels"] = linear(frames, width, c.vocab) + Cost(kept=frames * c.vocab) + curved(frames * c.vocab, 4)
    if not c.decoder_depth:
        return Costs(parts, matrices, sentence_cache=0, hypothesis_cache=0, tokens=target, reads=READS)
    parts |= _decoder(c, frames, target)
    matrices += [
        Matrix(f"decoder.decoder.{n}.{name}", c.heads, target, keys)
        for n in range(c.decoder_depth)
        for name, keys in (("attention", target), ("cross", frames))
    ]
    return Costs(
        parts,
        matrices,
        sentence_cache=2 * c.decoder_depth * frames * width,
        hypothesis_cache=2 * c.decoder_depth * target * width,
        scored=Scored(target, width, c.vocab),
        tokens=target,
        grows=True,
        reads=READS,
    )


def _subsampling(c: ConformerConfig, source: int) -> Cost:
    """Two convolutions over time and frequency, each a ReLU whose result is masked, and a linear layer over a copy."""
    first, second = halved(source) * halved(c.bands), subsampled(source) * subsampled(c.bands)
    seen = Cost(kept=source * c.bands) + streams(source * c.bands, 4)
    made = convolution(first, 1, c.width, 3, bias=True, stride=2) + rectified(first * c.width)
    made += Cost(kept=first * c.width) + streams(first * c.width, 5)  # zeros at padding
    made += convolution(second, c.width, c.width, 3, bias=True, stride=2) + rectified(second * c.width)
    frames = subsampled(source)
    flat = linear(frames, c.width * subsampled(c.bands), c.width) + Cost(kept=second * c.width)
    return seen + made + flat + streams(second * c.width, 4) + masked(frames, c.width, c.dropout)


def _block(c: ConformerConfig, frames: int) -> Cost:
    """Two halves of a feed-forward network, self-attention with a bias of distances, a convolution, and a norm."""
    width = c.width
    half = feed_forward(frames, width, c.ffn_width, "swish", c.dropout) + streams(frames * width, 4) + calls(1)
    return (
        2 * (half + residual(frames, width, c.dropout))
        + _looking(c, frames)
        + residual(frames, width, c.dropout)
        + _convolving(c, frames)
        + residual(frames, width, c.dropout)
        + norm(frames, width)
    )


def _looking(c: ConformerConfig, frames: int) -> Cost:
    """Self-attention, and scores of 2T distances for each query; kept: the queries with their bias, the weights."""
    width, distances = c.width, 2 * frames
    scores = Cost(width**2 + width, 2 * frames * distances * width, frames * (width + c.heads * frames))
    scores += Cost(work={Piece("product", (frames * c.heads, width // c.heads, distances)): 1})
    scores += streams(c.heads * frames * distances, 4) + streams(frames * width, 8) + calls(8)
    return attention(frames, frames, width, c.heads, 0.0, written=True) + scores


def _convolving(c: ConformerConfig, frames: int) -> Cost:
    """Kept: the input, both halves of the gate, and each tensor up to the last linear layer."""
    width = c.width
    inside = frames * width
    depthwise = Cost(width * (c.kernel + 1), 2 * inside * c.kernel)
    depthwise += streams(inside, 6 + c.kernel) + calls(4)
    even = Cost(2 * width) + streams(inside, 20) + calls(14)
    pointwise = linear(frames, width, 2 * width) + linear(frames, width, width)
    gate = curved(inside, 2) + streams(inside, 8) + calls(2)
    return pointwise + gate + depthwise + even + activated(inside, "swish") + Cost(kept=8 * inside)


def _decoder(c: ConformerConfig, frames: int, target: int) -> dict[str, Cost]:
    def look(keys: int) -> Cost:
        return attention(target, keys, c.width, c.heads, 0.0) + residual(target, c.width, c.dropout)

    think = feed_forward(target, c.width, c.ffn_width, "gelu", 0.0) + residual(target, c.width, c.dropout)
    words = embedded(target, c.width, c.vocab, changes=2) + masked(target, c.width, c.dropout)
    layers = c.decoder_depth * (look(target) + look(frames) + think) + norm(target, c.width)
    return {
        "embeddings": words,
        "decoder": replace(layers, kept=layers.kept + target * c.width),
        "generator": generator(target, c.width, c.vocab, bias=True, tied=True),
    }

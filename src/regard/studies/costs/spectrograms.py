"""The costs of a Transformer that reads spectrograms of `source` frames and writes texts of `target` tokens."""

from __future__ import annotations

from regard.families.speech.whisper import HALVED, WhisperConfig
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Piece,
    Scored,
    activated,
    attention,
    calls,
    embedded,
    feed_forward,
    generator,
    masked,
    norm,
    residual,
    streams,
)

KERNEL = 3  # frames that a convolution reads
READS = "recordings of {source} frames with {target} tokens"  # of a spectrogram


def whisper(c: WhisperConfig, source: int, target: int) -> Costs:
    """The model of `models/whisper.py`; keys have no bias."""
    frames = -(-source // HALVED)

    def look(queries: int, keys: int) -> Cost:
        looking = attention(queries, keys, c.width, c.heads, c.attention_dropout) + Cost(-c.width)
        return looking + residual(queries, c.width, c.dropout)

    def think(rows: int) -> Cost:
        thought = feed_forward(rows, c.width, c.ffn_width, c.activation, c.activation_dropout)
        return thought + residual(rows, c.width, c.dropout)

    def end(rows: int) -> Cost:
        return Cost(kept=rows * c.width) + norm(rows, c.width)

    words = embedded(target, c.width, c.vocab, changes=1) + masked(target, c.width, c.dropout)
    return Costs(
        parts={
            "convolutions": _stem(c, source, frames),
            "embeddings": words + Cost(c.max_length * c.width),
            "encoder": c.encoder_depth * (look(frames, frames) + think(frames)) + end(frames),
            "decoder": c.decoder_depth * (look(target, target) + look(target, frames) + think(target)) + end(target),
            "generator": generator(target, c.width, c.vocab, bias=False, tied=True),
        },
        matrices=[
            *(Matrix(f"encoder.{n}.attention", c.heads, frames, frames) for n in range(c.encoder_depth)),
            *(
                Matrix(f"decoder.{n}.{name}", c.heads, target, keys)
                for n in range(c.decoder_depth)
                for name, keys in (("attention", target), ("cross", frames))
            ),
        ],
        sentence_cache=2 * c.decoder_depth * frames * c.width,
        hypothesis_cache=2 * c.decoder_depth * target * c.width,
        scored=Scored(target, c.width, c.vocab),
        tokens=target,
        grows=True,
        reads=READS,
    )


def _stem(c: WhisperConfig, source: int, frames: int) -> Cost:
    """Two convolutions over time with a GELU after each; kept: their inputs and those of the activations."""
    first = _convolution(source, c.bands, c.width) + activated(source * c.width, "gelu")
    second = _convolution(frames, c.width, c.width) + activated(frames * c.width, "gelu")
    kept = Cost(kept=source * c.bands + 2 * source * c.width + frames * c.width)
    return first + second + kept + streams(frames * c.width, 4) + masked(frames, c.width, c.dropout)


def _convolution(frames: int, inputs: int, outputs: int) -> Cost:
    weights = KERNEL * inputs * outputs
    product = Piece("product", (frames, KERNEL * inputs, outputs))
    return Cost(weights + outputs, 2 * frames * weights, work={product: 1}) + calls(3)

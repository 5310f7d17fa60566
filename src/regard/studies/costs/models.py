"""The costs of models, computed by formulas from the configuration alone; no model is built.

Costs are counted for one sentence pair of S source and T target tokens, or for one image (`images.py`). A matrix
product of [n, k] by [k, m] takes 2nkm FLOPs (a multiplication and an addition each). Biases, norms, activations and
softmax are left out, as in torch's own counter, and causal attention counts its whole matrix. The backward pass takes
twice the FLOPs of the forward pass. `kept` counts the numbers that are stored for the backward pass, each tensor once:
the inputs of linear layers, the results of activations, the masks of dropout. This is what torch keeps in float32 on a
CPU; fused GPU kernels keep about the same, with dropout masks of one byte.

`work` is the same model as pieces whose time can be measured: products by size, attention by shape, tensors that are
read and written, random numbers, exponentials, and calls of operations. It is counted for a training step, forward and
backward, as torch runs it without a compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from regard.families.dictionaries.model import SparseAutoencoderConfig
from regard.families.language.bert import BertConfig
from regard.families.language.gpt import GptConfig
from regard.families.language.t5 import T5Config
from regard.families.language.word2vec import Word2VecConfig
from regard.families.translation.transformer import TransformerConfig
from regard.studies.costs import images
from regard.studies.costs.agents import agents
from regard.studies.costs.captions import captioner
from regard.studies.costs.folding import evoformer
from regard.studies.costs.image_bodies import detector, segmenter
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Scored,
    activated,
    attention,
    calls,
    convolution_layer,
    embedded,
    feed_forward,
    generator,
    linear,
    masked,
    norm,
    pair_embeddings,
    residual,
    rms_norm,
    streams,
)
from regard.studies.costs.protein_pairs import interactor
from regard.studies.costs.recurrent import elmo, lstm, path_lstm, seq2seq
from regard.studies.costs.spectrograms import whisper
from regard.studies.costs.speech import conformer
from regard.studies.costs.two_streams import two_streams

HIDDEN = 0.15  # share of the tokens that BERT masks (Devlin et al. 2019)


def transformer(c: TransformerConfig, source: int, target: int) -> Costs:
    """The Transformer of `models/transformer.py`; pre-norm and post-norm differ only by the two norms at the ends."""

    def look(queries: int, keys: int) -> Cost:
        looking = attention(queries, keys, c.width, c.heads, c.attention_dropout)
        return looking + residual(queries, c.width, c.dropout)

    def think(rows: int) -> Cost:
        thought = feed_forward(rows, c.width, c.ffn_width, c.activation, c.activation_dropout)
        return thought + residual(rows, c.width, c.dropout)

    def end(rows: int) -> Cost:
        return Cost(kept=rows * c.width) + (norm(rows, c.width) if c.norm == "pre" else Cost())

    attends = c.encoder == "attention"
    encoder_layer = (
        look(source, source) + think(source) if attends else convolution_layer(source, c.width, c.kernel, c.dropout)
    )
    decoder_layer = look(target, target) + look(target, source) + think(target)
    positions = {"learned": c.max_length * c.width, "linear": 2 * c.width}.get(c.positions, 0)
    tokens = pair_embeddings(c, source, target, c.width, changes=2) + Cost(2 * positions)
    if c.join_positions == "concatenate" and c.positions != "rotary":
        for rows in (source, target):
            tokens += linear(rows, 2 * c.width, c.width) + Cost(kept=rows * 2 * c.width)
    return Costs(
        parts={
            "embeddings": tokens,
            "encoder": c.encoder_depth * encoder_layer + end(source),
            "decoder": c.decoder_depth * decoder_layer + end(target),
            "generator": generator(target, c.width, c.target_vocab, bias=c.output_bias, tied=c.tie != "none"),
        },
        matrices=[
            *(Matrix(f"encoder.{n}.attention", c.heads, source, source) for n in range(c.encoder_depth * attends)),
            *(
                Matrix(f"decoder.{n}.{name}", c.heads, target, keys)
                for n in range(c.decoder_depth)
                for name, keys in (("attention", target), ("cross", source))
            ),
        ],
        sentence_cache=2 * c.decoder_depth * source * c.width,
        hypothesis_cache=2 * c.decoder_depth * target * c.width,
        scored=Scored(target, c.width, c.target_vocab),
        tokens=target,
        grows=True,
    )


def bert(c: BertConfig, source: int, target: int) -> Costs:
    """The encoder of `models/bert.py` on one text of `source` tokens; there is no target."""
    narrow = c.embedding_width or c.width
    layer = attention(source, source, c.width, c.heads, c.attention_dropout)
    layer += feed_forward(source, c.width, c.ffn_width, c.activation, 0.0)
    layer += 2 * residual(source, c.width, c.dropout)
    if c.positions == "rotary":
        layer += streams(2 * source * c.width, 18) + calls(24)
    layers = c.depth * layer + Cost(kept=source * c.width)
    layers += norm(source, c.width) if c.order == "pre" else Cost()
    positions = c.max_length if c.positions == "learned" else 0
    tokens = embedded(source, narrow, c.vocab, changes=2) + Cost(narrow * (positions + c.segments))
    tokens += (norm(source, narrow) if c.embedding_norm else Cost()) + masked(source, narrow, c.dropout)
    if c.embedding_width:
        tokens += linear(source, narrow, c.width) + Cost(kept=source * narrow)
    return Costs(
        parts={
            "embeddings": tokens,
            "encoder": replace(layers, parameters=layer.parameters) if c.shared_layers else layers,
            "pooler": linear(1, c.width, c.width) + Cost(kept=2 * c.width) + calls(3) if c.pooler else Cost(),
            "contacts": Cost(c.depth * c.heads + 1) if c.contacts else Cost(),
            "head": _text_head(c, source, narrow),
        },
        matrices=[Matrix(f"encoder.{n}.attention", c.heads, source, source) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=0,
        scored=Scored(_guessed(source), narrow, c.vocab) if c.head in ("masked", "pretraining") else None,
        tokens=source,
        reads="texts of {source} tokens",
    )


def gpt(c: GptConfig, source: int, target: int) -> Costs:
    """The language model of `models/gpt.py` on one text of `target` tokens; there is no source."""
    even = norm if c.norm == "layer" else rms_norm
    head_width, kv_heads = c.head_width or c.width // c.heads, c.kv_heads or c.heads
    layer = attention(
        target, target, c.width, c.heads, c.attention_dropout,
        head_width=head_width, kv_heads=kv_heads, bias=c.attention_bias,
    )  # fmt: skip
    layer += feed_forward(target, c.width, c.ffn_width, c.activation, 0.0, gated=c.gated, bias=c.ffn_bias)
    layer += 2 * residual(target, c.width, c.dropout, even)
    if c.positions == "rotary":
        layer += streams(target * (c.heads + kv_heads) * head_width, 18) + calls(24)
    positions = c.max_length * c.width if c.positions == "learned" else 0
    tokens = embedded(target, c.width, c.vocab) + Cost(positions) + masked(target, c.width, c.embedding_dropout)
    outputs = c.vocab - c.unpredicted
    return Costs(
        parts={
            "embeddings": tokens,
            "decoder": c.depth * layer + even(target, c.width) + Cost(kept=target * c.width),
            "generator": generator(target, c.width, outputs, bias=False, tied=c.tie),
        },
        matrices=[Matrix(f"decoder.{n}.attention", c.heads, target, target) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=2 * c.depth * target * kv_heads * head_width,
        scored=Scored(target, c.width, outputs),
        tokens=target,
        grows=True,
        reads="texts of {target} tokens",
    )


def word2vec(c: Word2VecConfig, source: int, target: int) -> Costs:
    """The word vectors of `models/word2vec.py` on `target` words of a text, each with a full window of neighbours."""
    around = 2 * c.window
    true = around if c.kind == "skipgram" else 1
    scored = true + c.negatives
    averaged = 3 * target * around if c.kind == "cbow" else 0  # ids of the neighbours; an int64 takes two float32
    return Costs(
        parts={
            "words": Cost(c.vocab * c.width, 0, averaged + target * c.width),
            "around": Cost(c.vocab * c.width, 2 * target * scored * c.width, target * scored * c.width),
            "loss": Cost(kept=4 * target * scored),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
        tokens=target,
        reads="texts of {target} tokens",
    )


def sparse_autoencoder(c: SparseAutoencoderConfig, source: int, target: int) -> Costs:
    """The dictionary of `models/sparse_autoencoder.py` on `target` vectors; the model that it reads is not counted.

    Kept are the centred vectors, the scores after their activation, and for `topk` the numbers of the largest, whose
    int64 takes two float32, and the features themselves.
    """
    chosen = target * (2 * c.k + c.features) if c.activation == "topk" else 0
    return Costs(
        parts={
            "encoder": linear(target, c.width, c.features) + Cost(kept=target * (c.width + c.features) + chosen),
            "decoder": linear(target, c.features, c.width),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
        tokens=target,
        reads="texts of {target} vectors",
    )


def t5(c: T5Config, source: int, target: int) -> Costs:
    """The encoder-decoder of `models/t5.py`."""

    def look(queries: int, keys: int) -> Cost:
        looking = attention(
            queries, keys, c.width, c.heads, c.dropout,
            head_width=c.head_width, bias=False, written=queries == keys,
        )  # fmt: skip
        return looking + residual(queries, c.width, c.dropout, rms_norm)

    def think(rows: int) -> Cost:
        thought = feed_forward(rows, c.width, c.ffn_width, c.activation, c.dropout, gated=c.gated, bias=False)
        return thought + residual(rows, c.width, c.dropout, rms_norm)

    def end(rows: int) -> Cost:
        buckets = rows * rows  # an id for each pair of tokens, from the table of distances
        evened = rms_norm(rows, c.width) + masked(rows, c.width, c.dropout)
        return evened + Cost(c.buckets * c.heads, 0, rows * c.width + buckets)

    inner = c.heads * c.head_width
    return Costs(
        parts={
            "embeddings": embedded(source, c.width, c.source_vocab, changes=0)
            + embedded(target, c.width, c.target_vocab, parameters=0, changes=0)
            + masked(source + target, c.width, c.dropout),
            "encoder": c.encoder_depth * (look(source, source) + think(source)) + end(source),
            "decoder": c.decoder_depth * (look(target, target) + look(target, source) + think(target)) + end(target),
            "generator": generator(target, c.width, c.target_vocab, bias=False, tied=c.tie),
        },
        matrices=[
            *(Matrix(f"encoder.{n}.attention", c.heads, source, source) for n in range(c.encoder_depth)),
            *(
                Matrix(f"decoder.{n}.{name}", c.heads, target, keys)
                for n in range(c.decoder_depth)
                for name, keys in (("attention", target), ("cross", source))
            ),
        ],
        sentence_cache=2 * c.decoder_depth * source * inner,
        hypothesis_cache=2 * c.decoder_depth * target * inner,
        scored=Scored(target, c.width, c.target_vocab),
        tokens=target,
        grows=True,
    )


def _text_head(c: BertConfig, source: int, narrow: int) -> Cost:
    match c.head:
        case "masked" | "pretraining":
            dense = linear(source, c.width, narrow) + norm(source, narrow) + Cost(kept=2 * source * narrow)
            dense += activated(source * narrow, c.activation)
            guessed = generator(source, narrow, c.vocab, bias=True, tied=True, trained=_guessed(source))
            return dense + guessed + (linear(1, c.width, 2) if c.head == "pretraining" else Cost())
        case "classify":
            return linear(1, c.width, c.labels) + masked(1, 2 * c.width, c.head_dropout)
        case "tags":
            return linear(source, c.width, c.labels) + masked(source, 2 * c.width, c.head_dropout)
        case "answer":
            return linear(source, c.width, 2)
    return Cost()


def _guessed(tokens: int) -> int:
    """The number of tokens that training masks."""
    return max(1, round(HIDDEN * tokens))


COSTS: dict[str, Callable[[Any, int, int], Costs]] = {
    "seq2seq": seq2seq,
    "transformer": transformer,
    "bert": bert,
    "gpt": gpt,
    "lstm": lstm,
    "word2vec": word2vec,
    "elmo": elmo,
    "t5": t5,
    "captioner": captioner,
    "segmenter": segmenter,
    "detector": detector,
    "conformer": conformer,
    "path_lstm": path_lstm,
    "agentformer": agents,
    "whisper": whisper,
    "vlnbert": partial(two_streams, seen_as="steps"),
    "vilbert": two_streams,
    "interactor": interactor,
    "evoformer": evoformer,
    "sparse_autoencoder": sparse_autoencoder,
    **images.COSTS,
}

"""What a model costs, from formulas over its configuration alone; nothing is built.

Everything is counted for one sentence pair of S source and T target tokens, or for one picture of the size the model
was made for. A matrix product of [n, k] by [k, m] takes
2nkm FLOPs (a multiplication and an addition each); biases, norms, activations and softmax are left out, as torch's own
counter leaves them out, and a causal attention counts its whole matrix. The backward pass multiplies twice where the
forward pass multiplied once. `kept` counts the numbers that wait for the backward pass, each tensor once: the inputs of
linear layers, the results of activations, the masks of dropout. They are what torch keeps in float32 on a CPU; fused
GPU kernels keep about the same, with dropout masks of a byte.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from regard.layers.recurrent import CELLS, Kind
from regard.models.bert import BertConfig
from regard.models.elmo import NOTHING, ElmoConfig
from regard.models.gpt import GptConfig
from regard.models.lstm import LstmConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.t5 import T5Config
from regard.models.transformer import TransformerConfig
from regard.models.word2vec import Word2VecConfig
from regard.studies import image_costs
from regard.studies.cost_parts import Cost, Costs, Matrix, attention, feed_forward, linear, masked, norm, rms_norm

KEPT_BY_CELL: dict[Kind, int] = {"rnn": 1, "gru": 7, "lstm": 7}  # vectors a step: its gates, sums and states


def convolution_layer(rows: int, width: int, kernel: int, dropout: float) -> Cost:
    """A gated convolution; kept: its input, and both halves before the gate."""
    return linear(rows, kernel * width, 2 * width) + Cost(kept=3 * rows * width) + masked(rows, width, dropout)


def recurrent_layer(rows: int, inputs: int, width: int, cell: Kind) -> Cost:
    """One layer in one direction: every gate has a matrix for the input and one for the state."""
    gates = CELLS[cell].gates * width
    products = linear(rows, inputs, gates) + linear(rows, width, gates)
    return products + Cost(kept=rows * KEPT_BY_CELL[cell] * width)


def transformer(c: TransformerConfig, source: int, target: int) -> Costs:
    """The Transformer of `models/transformer.py`; the order of norms changes nothing but the two at the ends."""

    def residual(rows: int) -> Cost:
        return norm(rows, c.width) + masked(rows, c.width, c.dropout)

    def look(queries: int, keys: int) -> Cost:
        return attention(queries, keys, c.width, c.heads, c.attention_dropout) + residual(queries)

    def think(rows: int) -> Cost:
        return feed_forward(rows, c.width, c.ffn_width, c.activation, c.activation_dropout) + residual(rows)

    def end(rows: int) -> Cost:
        return Cost(kept=rows * c.width) + (norm(rows, c.width) if c.norm == "pre" else Cost())

    attends = c.encoder == "attention"
    encoder_layer = (
        look(source, source) + think(source) if attends else convolution_layer(source, c.width, c.kernel, c.dropout)
    )
    decoder_layer = look(target, target) + look(target, source) + think(target)
    positions = {"learned": c.max_length * c.width, "linear": 2 * c.width}.get(c.positions, 0)
    embedded = Cost(_embeddings(c, c.width) + 2 * positions) + masked(source + target, c.width, c.dropout)
    if c.join_positions == "concatenate" and c.positions != "rotary":
        for rows in (source, target):
            embedded += linear(rows, 2 * c.width, c.width) + Cost(kept=rows * 2 * c.width)
    return Costs(
        parts={
            "embeddings": embedded,
            "encoder": c.encoder_depth * encoder_layer + end(source),
            "decoder": c.decoder_depth * decoder_layer + end(target),
            "generator": _generator(c, target, c.width, bias=c.output_bias),
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
    )


def seq2seq(c: Seq2SeqConfig, source: int, target: int) -> Costs:
    """The recurrent encoder-decoder of `models/seq2seq.py`."""
    attends, parts = c.attention != "none", CELLS[c.cell].parts
    states = parts * c.decoder_depth * c.width
    bridge = linear(1, c.width, states) + Cost(kept=c.width + states) + masked(1, c.width, c.dropout)
    deep = 2 * c.width + c.embedding
    output = linear(target, deep, c.embedding) + Cost(kept=target * (deep + c.embedding * (1 + bool(c.dropout))))
    output += masked(target, c.width + c.embedding, c.dropout)
    keys = source * c.width * (c.attention in ("additive", "general"))
    return Costs(
        parts={
            "embeddings": Cost(_embeddings(c, c.embedding)) + masked(source + target, c.embedding, c.dropout),
            "encoder": _recurrent_encoder(c, source) if c.encoder == "recurrent" else _convolution_encoder(c, source),
            "bridge": bridge,
            "attention": _scores(c, source, target) if attends else Cost(),
            "decoder": _recurrent_decoder(c, target),
            "generator": output + _generator(c, target, c.embedding, bias=True),
        },
        matrices=[Matrix("cross", 1, target, source)] if attends else [],
        sentence_cache=source * c.width + keys + c.width,
        hypothesis_cache=states,
    )


def bert(c: BertConfig, source: int, target: int) -> Costs:
    """The encoder of `models/bert.py`; a text has no target."""
    narrow = c.embedding_width or c.width
    residual = norm(source, c.width) + masked(source, c.width, c.dropout)
    layer = attention(source, source, c.width, c.heads, c.attention_dropout) + residual
    layer += feed_forward(source, c.width, c.ffn_width, c.activation, 0.0) + residual
    layers = c.depth * layer + Cost(kept=source * c.width)
    embedded = Cost(narrow * (c.vocab + c.max_length + c.segments)) + norm(source, narrow)
    embedded += masked(source, narrow, c.dropout)
    if c.embedding_width:
        embedded += linear(source, narrow, c.width) + Cost(kept=source * narrow)
    return Costs(
        parts={
            "embeddings": embedded,
            "encoder": Cost(layer.parameters, layers.flops, layers.kept) if c.shared_layers else layers,
            "pooler": linear(1, c.width, c.width) + Cost(kept=2 * c.width) if c.pooler else Cost(),
            "head": _text_head(c, source, narrow),
        },
        matrices=[Matrix(f"encoder.{n}.attention", c.heads, source, source) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=0,
    )


def gpt(c: GptConfig, source: int, target: int) -> Costs:
    """The language model of `models/gpt.py`, on one text of `target` tokens; it has no source."""
    even = norm if c.norm == "layer" else rms_norm
    head_width, kv_heads = c.head_width or c.width // c.heads, c.kv_heads or c.heads
    residual = even(target, c.width) + masked(target, c.width, c.dropout)
    layer = residual + attention(
        target, target, c.width, c.heads, c.attention_dropout,
        head_width=head_width, kv_heads=kv_heads, bias=c.attention_bias,
    )  # fmt: skip
    layer += residual + feed_forward(target, c.width, c.ffn_width, c.activation, 0.0, gated=c.gated, bias=c.ffn_bias)
    positions = c.max_length * c.width if c.positions == "learned" else 0
    outputs = c.vocab - c.unpredicted
    output = linear(target, c.width, outputs, bias=False)
    return Costs(
        parts={
            "embeddings": Cost(c.vocab * c.width + positions) + masked(target, c.width, c.embedding_dropout),
            "decoder": c.depth * layer + even(target, c.width) + Cost(kept=target * c.width),
            "generator": Cost(0 if c.tie else output.parameters, output.flops, target * outputs),
        },
        matrices=[Matrix(f"decoder.{n}.attention", c.heads, target, target) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=2 * c.depth * target * kv_heads * head_width,
    )


def lstm(c: LstmConfig, source: int, target: int) -> Costs:
    """The recurrent language model of `models/lstm.py`, on one text of `target` tokens; it has no source."""
    layers = [
        recurrent_layer(target, reads, says, "lstm") + Cost(kept=target * reads) for reads, says in pairwise(c.widths)
    ]
    output = linear(target, c.widths[-1], c.vocab)
    return Costs(
        parts={
            "embeddings": Cost(c.vocab * c.embedding),
            "decoder": sum(layers, Cost(kept=target * c.widths[-1])),
            "generator": Cost(c.vocab if c.tie else output.parameters, output.flops, target * c.vocab),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=CELLS["lstm"].parts * sum(c.widths[1:]),
    )


def elmo(c: ElmoConfig, source: int, target: int) -> Costs:
    """The two-way reader of `models/elmo.py` on one text of `source` tokens; a text has no target."""
    layer = 2 * (recurrent_layer(source, c.width, c.width, "lstm") + masked(source, c.width, c.dropout))
    kept = 2 * source * c.width  # what a layer reads, in both directions
    mix = Cost(c.depth + 2, kept=source * 2 * c.width * (c.depth + 2))
    rows, width, outputs = (2 * source, c.width, c.vocab) if c.head == "language" else (1, 2 * c.width, c.labels)
    head = linear(rows, width, outputs) + masked(rows, width, c.dropout) + Cost(kept=rows * width)
    return Costs(
        parts={
            "words": _characters(c, source),
            "readers": c.depth * (layer + Cost(kept=kept)),
            "mix": mix,
            "head": head + Cost(kept=rows * outputs if c.head == "language" else 0),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
    )


def _characters(c: ElmoConfig, words: int) -> Cost:
    """Of every filter all answers are kept, for the greatest of them."""
    total = sum(count for _, count in c.filters)
    found = Cost((NOTHING + 1) * c.character_width, kept=words * c.characters * c.character_width)
    for kernel, count in c.filters:
        places = c.characters - kernel + 1
        found += linear(words * places, kernel * c.character_width, count) + Cost(kept=words * count * (places + 2))
    highway = 2 * linear(words, total, total) + Cost(kept=3 * words * total)
    return found + c.highways * highway + linear(words, total, c.width) + Cost(kept=words * total)


def word2vec(c: Word2VecConfig, source: int, target: int) -> Costs:
    """The word vectors of `models/word2vec.py`, on `target` words of a text; every one has all its neighbours."""
    around = 2 * c.window
    true = around if c.kind == "skipgram" else 1
    scored = true + c.negatives
    averaged = 3 * target * around if c.kind == "cbow" else 0  # which words are around; a number of one takes two
    return Costs(
        parts={
            "words": Cost(c.vocab * c.width, 0, averaged + target * c.width),
            "around": Cost(c.vocab * c.width, 2 * target * scored * c.width, target * scored * c.width),
            "loss": Cost(kept=4 * target * scored),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
    )


def t5(c: T5Config, source: int, target: int) -> Costs:
    """The encoder-decoder of `models/t5.py`."""

    def look(queries: int, keys: int) -> Cost:
        looking = attention(queries, keys, c.width, c.heads, c.dropout, head_width=c.head_width, bias=False)
        return looking + residual(queries)

    def think(rows: int) -> Cost:
        thought = feed_forward(rows, c.width, c.ffn_width, c.activation, c.dropout, gated=c.gated, bias=False)
        return thought + residual(rows)

    def residual(rows: int) -> Cost:
        return rms_norm(rows, c.width) + masked(rows, c.width, c.dropout)

    def end(rows: int) -> Cost:
        buckets = rows * rows  # a number for each pair of tokens, from the table of distances
        return residual(rows) + Cost(c.buckets * c.heads, 0, rows * c.width + buckets)

    output = linear(target, c.width, c.target_vocab, bias=False)
    inner = c.heads * c.head_width
    return Costs(
        parts={
            "embeddings": Cost(c.source_vocab * c.width) + masked(source + target, c.width, c.dropout),
            "encoder": c.encoder_depth * (look(source, source) + think(source)) + end(source),
            "decoder": c.decoder_depth * (look(target, target) + look(target, source) + think(target)) + end(target),
            "generator": Cost(0 if c.tie else output.parameters, output.flops, target * c.target_vocab),
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
    )


def _text_head(c: BertConfig, source: int, narrow: int) -> Cost:
    match c.head:
        case "masked" | "pretraining":
            dense = linear(source, c.width, narrow) + norm(source, narrow) + Cost(kept=2 * source * narrow)
            whole = linear(source, narrow, c.vocab)
            guessed = Cost(c.vocab, whole.flops, source * c.vocab)  # the matrix is the embedding
            return dense + guessed + (linear(1, c.width, 2) if c.head == "pretraining" else Cost())
        case "classify":
            return linear(1, c.width, c.labels) + masked(1, 2 * c.width, c.head_dropout)
        case "tags":
            return linear(source, c.width, c.labels) + masked(source, 2 * c.width, c.head_dropout)
        case "answer":
            return linear(source, c.width, 2)
    return Cost()


def _recurrent_encoder(c: Seq2SeqConfig, source: int) -> Cost:
    directions = 2 if c.bidirectional else 1
    total = Cost(kept=source * c.width) + masked(source, c.width, c.dropout)  # the memory
    for inputs in (c.embedding, *[c.width] * (c.encoder_depth - 1)):
        total += directions * recurrent_layer(source, inputs, c.width // directions, c.cell)
        total += Cost(kept=source * inputs)
    return total + (c.encoder_depth - 1) * masked(source, c.width, c.dropout)


def _convolution_encoder(c: Seq2SeqConfig, source: int) -> Cost:
    widen = linear(source, c.embedding, c.width) + Cost(kept=source * c.embedding)
    memory = Cost(kept=source * c.width) + masked(source, c.width, c.dropout)
    return widen + c.encoder_depth * convolution_layer(source, c.width, c.kernel, c.dropout) + memory


def _scores(c: Seq2SeqConfig, source: int, target: int) -> Cost:
    """Kept: the weights of every step and, for the additive score, tanh(W1 memory + W2 query) of every pair."""
    reading = Cost(flops=2 * target * source * c.width, kept=target * source)
    match c.attention:
        case "additive":
            pairs = linear(target * source, c.width, 1, bias=False) + Cost(kept=target * source * c.width)
            return linear(source, c.width, c.width, bias=False) + linear(target, c.width, c.width) + pairs + reading
        case "general":
            projected = linear(source, c.width, c.width, bias=False) + Cost(kept=source * c.width)
            return projected + Cost(flops=reading.flops) + reading
        case _:
            return Cost(flops=reading.flops) + reading


def _recurrent_decoder(c: Seq2SeqConfig, target: int) -> Cost:
    bottom = recurrent_layer(target, c.embedding + c.width, c.width, c.cell)
    upper = recurrent_layer(target, c.width, c.width, c.cell) + masked(target, 2 * c.width, c.dropout)
    return bottom + Cost(kept=target * (c.embedding + c.width)) + (c.decoder_depth - 1) * upper


def _embeddings(c: TransformerConfig | Seq2SeqConfig, width: int) -> int:
    return width * (c.source_vocab + (0 if c.tie == "all" else c.target_vocab))


def _generator(c: TransformerConfig | Seq2SeqConfig, target: int, width: int, *, bias: bool) -> Cost:
    """The output matrix, which may be an embedding, and the loss, which keeps its gradient for every word."""
    whole = linear(target, width, c.target_vocab, bias=bias)
    own = whole.parameters - (0 if c.tie == "none" else width * c.target_vocab)
    return Cost(own, whole.flops, target * c.target_vocab)


COSTS: dict[str, Callable[[Any, int, int], Costs]] = {
    "seq2seq": seq2seq,
    "transformer": transformer,
    "bert": bert,
    "gpt": gpt,
    "lstm": lstm,
    "word2vec": word2vec,
    "elmo": elmo,
    "t5": t5,
    "resnet": image_costs.resnet,
    "vit": image_costs.vit,
    "swin": image_costs.swin,
    "mvit": image_costs.mvit,
    "segmenter": image_costs.segmenter,
    "sagan": image_costs.sagan,
}

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
from itertools import pairwise
from typing import Any

from regard.layers.recurrent import CELLS, Kind
from regard.models.bert import BertConfig
from regard.models.captioner import CaptionerConfig
from regard.models.elmo import NOTHING, ElmoConfig
from regard.models.gpt import GptConfig
from regard.models.lstm import LstmConfig
from regard.models.path_lstm import PathLstmConfig
from regard.models.seq2seq import Seq2SeqConfig
from regard.models.t5 import T5Config
from regard.models.transformer import TransformerConfig
from regard.models.word2vec import Word2VecConfig
from regard.studies.costs import images
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Piece,
    Scored,
    activated,
    added,
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
    rms_norm,
    streams,
    summed,
)
from regard.studies.costs.two_streams import two_streams

KEPT_BY_CELL: dict[Kind, int] = {"rnn": 1, "gru": 7, "lstm": 7}  # vectors per step: gates, sums and states
KEPT_BY_KERNEL = 17  # the same for oneDNN's LSTM kernel on a CPU: mostly its workspace
CURVES_BY_CELL: dict[Kind, int] = {"rnn": 1, "gru": 3, "lstm": 5}  # exponentials per step, in vectors
STREAMS_BY_CELL: dict[Kind, int] = {"rnn": 6, "gru": 72, "lstm": 74}  # vectors read or written per step, both passes
HIDDEN = 0.15  # share of the tokens that BERT masks (Devlin et al. 2019)
CALLS_BY_CELL: dict[Kind, int] = {"rnn": 3, "gru": 10, "lstm": 11}


def convolution_layer(rows: int, width: int, kernel: int, dropout: float) -> Cost:
    """A gated convolution; kept: its input, and both halves before the gate."""
    gate = Cost(kept=3 * rows * width) + curved(rows * width, 2) + streams(rows * width, 18) + calls(8)
    return linear(rows, kernel * width, 2 * width) + gate + masked(rows, width, dropout)


def stepwise(steps: int, inputs: int, outputs: int, *, bias: bool = True) -> Cost:
    """A linear layer that is called at every step: the gradient of its matrix is accumulated over the steps."""
    once = linear(1, inputs, outputs, bias=bias)
    product = Cost(0, once.flops, work={Piece("product", (1, inputs, outputs)): 1})
    return Cost(once.parameters) + steps * (product + summed(inputs * outputs, grows=False) + calls(3))


def recurrent_steps(rows: int, width: int, cell: Kind) -> Cost:
    """The sequential part of a recurrent cell: the product with the state, and the gates."""
    step = curved(width, CURVES_BY_CELL[cell]) + streams(width, STREAMS_BY_CELL[cell]) + calls(CALLS_BY_CELL[cell])
    kept = Cost(kept=rows * KEPT_BY_CELL[cell] * width)
    return stepwise(rows, width, CELLS[cell].gates * width) + rows * step + kept


def recurrent_layer(rows: int, inputs: int, width: int, cell: Kind, *, packed: bool = False) -> Cost:
    """One layer in one direction: every gate has a matrix for the input and one for the state.

    An LSTM without padding runs in one kernel. Everything else is a sequence of steps. With packed sequences, the
    gradient of each step is written into zeros as large as all steps, and these are summed.
    """
    gates = CELLS[cell].gates * width
    layer = linear(rows, inputs, gates) + recurrent_steps(rows, width, cell)
    if packed:
        return layer + streams(rows * gates, rows) + summed(rows * gates, rows)
    if cell == "lstm":
        return replace(layer, kept=rows * KEPT_BY_KERNEL * width, work=lstm_kernel(rows, inputs, width).work)
    return layer


def lstm_kernel(rows: int, inputs: int, width: int) -> Cost:
    """The work of an LSTM in one kernel."""
    return Cost(work={Piece("lstm", (1, rows, inputs, width)): 1}) + calls(20)


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
    tokens = _embeddings(c, source, target, c.width, changes=2) + Cost(2 * positions)
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


def seq2seq(c: Seq2SeqConfig, source: int, target: int) -> Costs:
    """The recurrent encoder-decoder of `models/seq2seq.py`."""
    attends, states = c.attention != "none", _states(c)
    keys = source * c.width * (c.attention in ("additive", "general"))
    return Costs(
        parts={
            "embeddings": _embeddings(c, source, target, c.embedding, changes=0),
            "encoder": _recurrent_encoder(c, source) if c.encoder == "recurrent" else _convolution_encoder(c, source),
            "bridge": _bridge(c) + masked(1, c.width, c.dropout),
            "attention": _scores(c, source, target) if attends else Cost(),
            "decoder": _recurrent_decoder(c, target),
            "generator": _deep_output(c, target),
        },
        matrices=[Matrix("cross", 1, target, source)] if attends else [],
        sentence_cache=source * c.width + keys + c.width,
        hypothesis_cache=states,
        scored=Scored(target, c.embedding, c.target_vocab),
        tokens=target,
    )


def captioner(c: CaptionerConfig, source: int, target: int) -> Costs:
    """The captioner of `models/captioner.py` on one image and a caption of `target` words; `source` is not used."""
    body, matrices = images.body_costs(c)
    cells, inner = c.grid_side**2, c.body_config().map_widths()[-1 - c.level]
    grid = linear(cells, inner, c.width) + Cost(cells * c.width, kept=cells * inner) + norm(cells, c.width)
    grid += masked(cells, c.width, c.dropout) + added(cells * c.width)
    seen = cells if c.attention != "none" else 1
    described = (
        _caption_transformer(c, seen, target) if c.decoder == "transformer" else _caption_network(c, seen, target)
    )
    return replace(
        described, parts={"body": body, "grid": grid, **described.parts}, matrices=matrices + described.matrices
    )


def _caption_network(c: CaptionerConfig, cells: int, target: int) -> Costs:
    """A recurrent decoder is that of a translator whose source is the grid, with a gate for the context."""
    assert c.decoder != "transformer"
    attends = c.attention != "none"
    like = Seq2SeqConfig(
        source_vocab=1, target_vocab=c.vocab, embedding=c.embedding, width=c.width, decoder_depth=c.depth,
        cell=c.decoder, attention="additive" if attends else "none", bidirectional=False, dropout=c.dropout,
    )  # fmt: skip
    gate = stepwise(target, c.width, 1) + Cost(kept=target * (c.width + 2))
    gate += streams(target * c.width, 6) + calls(3 * target)
    words = embedded(target, c.embedding, c.vocab, changes=0) + masked(target, c.embedding, c.dropout)
    return Costs(
        parts={
            "embeddings": words + Cost(kept=c.width),
            "bridge": _bridge(like),
            "attention": _scores(like, cells, target) + gate + Cost(kept=cells * c.width) if attends else Cost(),
            "decoder": _recurrent_decoder(like, target),
            "generator": _deep_output(like, target),
        },
        matrices=[Matrix("decoder.cross", 1, target, cells)] if attends else [],
        sentence_cache=(2 * cells + 1 if attends else 1) * c.width,
        hypothesis_cache=_states(like),
        scored=Scored(target, c.embedding, c.vocab),
        tokens=target,
    )


def _caption_transformer(c: CaptionerConfig, cells: int, target: int) -> Costs:
    """A Transformer decoder over the grid."""

    def look(keys: int) -> Cost:
        return attention(target, keys, c.width, c.heads, 0.0) + residual(target, c.width, c.dropout)

    think = feed_forward(target, c.width, c.ffn_width, "gelu", 0.0) + residual(target, c.width, c.dropout)
    words = embedded(target, c.width, c.vocab, changes=2) + masked(target, c.width, c.dropout)
    return Costs(
        parts={
            "embeddings": words,
            "decoder": c.depth * (look(target) + look(cells) + think) + norm(target, c.width)
            + Cost(kept=(target + cells) * c.width),
            "generator": generator(target, c.width, c.vocab, bias=True, tied=True),
        },
        matrices=[
            Matrix(f"decoder.decoder.{n}.{name}", c.heads, target, keys)
            for n in range(c.depth)
            for name, keys in (("attention", target), ("cross", cells))
        ],
        sentence_cache=2 * c.depth * cells * c.width,
        hypothesis_cache=2 * c.depth * target * c.width,
        scored=Scored(target, c.width, c.vocab),
        tokens=target,
        grows=True,
    )  # fmt: skip


def bert(c: BertConfig, source: int, target: int) -> Costs:
    """The encoder of `models/bert.py` on one text of `source` tokens; there is no target."""
    narrow = c.embedding_width or c.width
    layer = attention(source, source, c.width, c.heads, c.attention_dropout)
    layer += feed_forward(source, c.width, c.ffn_width, c.activation, 0.0)
    layer += 2 * residual(source, c.width, c.dropout)
    layers = c.depth * layer + Cost(kept=source * c.width)
    tokens = embedded(source, narrow, c.vocab, changes=2) + Cost(narrow * (c.max_length + c.segments))
    tokens += norm(source, narrow) + masked(source, narrow, c.dropout)
    if c.embedding_width:
        tokens += linear(source, narrow, c.width) + Cost(kept=source * narrow)
    return Costs(
        parts={
            "embeddings": tokens,
            "encoder": replace(layers, parameters=layer.parameters) if c.shared_layers else layers,
            "pooler": linear(1, c.width, c.width) + Cost(kept=2 * c.width) + calls(3) if c.pooler else Cost(),
            "head": _text_head(c, source, narrow),
        },
        matrices=[Matrix(f"encoder.{n}.attention", c.heads, source, source) for n in range(c.depth)],
        sentence_cache=0,
        hypothesis_cache=0,
        scored=Scored(_guessed(source), narrow, c.vocab) if c.head in ("masked", "pretraining") else None,
        tokens=source,
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
    )


def lstm(c: LstmConfig, source: int, target: int) -> Costs:
    """The recurrent language model of `models/lstm.py` on one text of `target` tokens; there is no source."""
    layers = [
        recurrent_layer(target, reads, says, "lstm") + Cost(kept=target * reads) for reads, says in pairwise(c.widths)
    ]
    return Costs(
        parts={
            "embeddings": embedded(target, c.embedding, c.vocab, changes=0),
            "decoder": sum(layers, Cost(kept=target * c.widths[-1])),
            "generator": generator(target, c.widths[-1], c.vocab, bias=True, tied=c.tie),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=CELLS["lstm"].parts * sum(c.widths[1:]),
        scored=Scored(target, c.widths[-1], c.vocab),
        tokens=target,
    )


def elmo(c: ElmoConfig, source: int, target: int) -> Costs:
    """The bidirectional encoder of `models/elmo.py` on one text of `source` tokens; there is no target."""
    layer = 2 * (recurrent_layer(source, c.width, c.width, "lstm") + masked(source, c.width, c.dropout))
    kept = 2 * source * c.width  # the input of a layer, in both directions
    mix = Cost(c.depth + 2, kept=source * 2 * c.width * (c.depth + 2))
    rows, width, outputs = (2 * source, c.width, c.vocab) if c.head == "language" else (1, 2 * c.width, c.labels)
    head = linear(rows, width, outputs) + masked(rows, width, c.dropout) + Cost(kept=rows * width)
    return Costs(
        parts={
            "words": _characters(c, source),
            "readers": c.depth * (layer + Cost(kept=kept)),
            "mix": mix,
            "head": head,
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
        scored=Scored(rows, width, outputs) if c.head == "language" else None,
        tokens=source,
    )


def path_lstm(c: PathLstmConfig, source: int, target: int) -> Costs:
    """The two recurrent networks of `models/path_lstm.py` on a text of `source` tokens and a path of `target` steps."""
    read = c.region_features + c.region_places
    words = 2 * recurrent_layer(source, c.embedding, c.width, "lstm", packed=True)
    steps = 2 * recurrent_layer(target, read, c.width, "lstm", packed=True)
    joint = 2 * (linear(1, 2 * c.width, c.width) + masked(1, 2 * c.width, c.dropout) + curved(c.width))
    return Costs(
        parts={
            "embeddings": embedded(source, c.embedding, c.vocab, changes=0) + masked(source, c.embedding, c.dropout),
            "words": words + Cost(kept=source * c.embedding),
            "steps": steps + Cost(kept=target * read),
            "joint": joint + Cost(kept=7 * c.width),
            "head": feed_forward(1, c.width, c.width, "relu", c.dropout, outputs=1),
        },
        matrices=[],
        sentence_cache=0,
        hypothesis_cache=0,
    )


def _characters(c: ElmoConfig, words: int) -> Cost:
    """All results of every filter are kept, because the maximum is taken over them."""
    total = sum(count for _, count in c.filters)
    found = Cost((NOTHING + 1) * c.character_width, kept=words * c.characters * c.character_width)
    for kernel, count in c.filters:
        places = c.characters - kernel + 1
        found += linear(words * places, kernel * c.character_width, count) + Cost(kept=words * count * (places + 2))
    highway = 2 * linear(words, total, total) + Cost(kept=3 * words * total)
    return found + c.highways * highway + linear(words, total, c.width) + Cost(kept=words * total)


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


def _states(c: Seq2SeqConfig) -> int:
    """The numbers in the state of a recurrent decoder."""
    return CELLS[c.cell].parts * c.decoder_depth * c.width


def _bridge(c: Seq2SeqConfig) -> Cost:
    """The first state of a recurrent decoder, from one vector."""
    return linear(1, c.width, _states(c)) + Cost(kept=c.width + _states(c))


def _deep_output(c: Seq2SeqConfig, target: int) -> Cost:
    """Bahdanau's deep output and the output matrix."""
    deep = 2 * c.width + c.embedding
    output = linear(target, deep, c.embedding) + Cost(kept=target * (deep + c.embedding * (1 + bool(c.dropout))))
    output += masked(target, c.width + c.embedding, c.dropout) + streams(target * deep, 4) + calls(2)
    output += curved(target * c.embedding) + streams(target * c.embedding, 3)
    return output + generator(target, c.embedding, c.target_vocab, bias=True, tied=c.tie != "none")


def _recurrent_encoder(c: Seq2SeqConfig, source: int) -> Cost:
    directions = 2 if c.bidirectional else 1
    total = Cost(kept=source * c.width) + masked(source, c.width, c.dropout)  # the encoder's output
    for inputs in (c.embedding, *[c.width] * (c.encoder_depth - 1)):
        total += directions * recurrent_layer(source, inputs, c.width // directions, c.cell, packed=True)
        total += Cost(kept=source * inputs)
    return total + (c.encoder_depth - 1) * masked(source, c.width, c.dropout)


def _convolution_encoder(c: Seq2SeqConfig, source: int) -> Cost:
    widen = linear(source, c.embedding, c.width) + Cost(kept=source * c.embedding)
    memory = Cost(kept=source * c.width) + masked(source, c.width, c.dropout)
    return widen + c.encoder_depth * convolution_layer(source, c.width, c.kernel, c.dropout) + memory


def _scores(c: Seq2SeqConfig, source: int, target: int) -> Cost:
    """Kept: the weights of every step and, for the additive score, tanh(W1 memory + W2 query) of every pair.

    Every step reads the whole memory, writes its gradient and adds it to that of the other steps.
    """
    memory = source * c.width
    reading = Cost(flops=2 * target * memory, kept=target * source) + streams(memory, 3 * target)
    reading += summed(memory, target) + calls(8 * target)
    match c.attention:
        case "additive":
            projected = linear(source, c.width, c.width, bias=False) + stepwise(target, c.width, c.width)
            pairs = replace(target * linear(source, c.width, 1, bias=False), parameters=c.width)
            pairs += (
                Cost(kept=target * memory)
                + curved(memory, target)
                + streams(memory, 6 * target)
                + summed(memory, target)
            )
            return projected + pairs + calls(6 * target) + reading
        case "general":
            projected = linear(source, c.width, c.width, bias=False) + Cost(kept=memory)
            return projected + replace(reading, kept=0) + reading
        case _:
            return replace(reading, kept=0) + reading


def _recurrent_decoder(c: Seq2SeqConfig, target: int) -> Cost:
    """With attention, the decoder runs step by step; only the tokens' input projections are computed at once."""
    gates, read = CELLS[c.cell].gates * c.width, c.embedding + c.width
    if c.attention == "none":
        bottom = recurrent_layer(target, read, c.width, c.cell)
        upper = recurrent_layer(target, c.width, c.width, c.cell)
    else:
        steps = recurrent_steps(target, c.width, c.cell)
        bottom = linear(target, c.embedding, gates) + stepwise(target, c.width, gates, bias=False) + steps
        upper = stepwise(target, c.width, gates) + steps
    upper += masked(target, 2 * c.width, c.dropout)
    return bottom + Cost(kept=target * read) + (c.decoder_depth - 1) * upper


def _embeddings(c: TransformerConfig | Seq2SeqConfig, source: int, target: int, width: int, changes: int) -> Cost:
    of_source = embedded(source, width, c.source_vocab, changes=changes)
    parameters = 0 if c.tie == "all" else None
    of_target = embedded(target, width, c.target_vocab, parameters=parameters, changes=changes)
    return of_source + of_target + masked(source + target, width, c.dropout)


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
    "path_lstm": path_lstm,
    "vlnbert": two_streams,
    "vilbert": two_streams,
    **images.COSTS,
}

"""The costs of recurrent models: networks that read and write texts, and what other models share with them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from regard.families.language.elmo import NOTHING, ElmoConfig
from regard.families.language.lstm import LstmConfig
from regard.families.navigation.path_lstm import PathLstmConfig
from regard.families.translation.seq2seq import Seq2SeqConfig
from regard.layers.recurrent import CELLS, Kind
from regard.studies.costs.parts import (
    Cost,
    Costs,
    Matrix,
    Piece,
    Scored,
    calls,
    convolution_layer,
    curved,
    embedded,
    feed_forward,
    generator,
    linear,
    masked,
    pair_embeddings,
    streams,
    summed,
)

KEPT_BY_CELL: dict[Kind, int] = {"rnn": 1, "gru": 7, "lstm": 7}  # vectors per step: gates, sums and states
KEPT_BY_KERNEL = 17  # the same for oneDNN's LSTM kernel on a CPU: mostly its workspace
CURVES_BY_CELL: dict[Kind, int] = {"rnn": 1, "gru": 3, "lstm": 5}  # exponentials per step, in vectors
STREAMS_BY_CELL: dict[Kind, int] = {"rnn": 6, "gru": 72, "lstm": 74}  # vectors read or written per step, both passes
CALLS_BY_CELL: dict[Kind, int] = {"rnn": 3, "gru": 10, "lstm": 11}


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


def seq2seq(c: Seq2SeqConfig, source: int, target: int) -> Costs:
    """The recurrent encoder-decoder of `models/seq2seq.py`."""
    attends, states = c.attention != "none", state_size(c)
    keys = source * {"additive": c.width, "general": c.query_width}.get(c.attention, 0)
    return Costs(
        parts={
            "embeddings": pair_embeddings(c, source, target, c.embedding, changes=0),
            "encoder": _recurrent_encoder(c, source) if c.encoder == "recurrent" else _convolution_encoder(c, source),
            "bridge": (c.first_state == "projected") * bridge(c) + masked(1, c.width, c.dropout),
            "attention": scores_of_steps(c, source, target) if attends else Cost(),
            "decoder": recurrent_decoder(c, target),
            "generator": deep_output(c, target),
        },
        matrices=[Matrix("cross", 1, target, source)] if attends else [],
        sentence_cache=source * c.width + keys + c.context_width,
        hypothesis_cache=states,
        scored=Scored(target, c.embedding, c.target_vocab),
        tokens=target,
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
        reads="texts of {target} tokens",
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
        reads="texts of {source} tokens",
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
        reads="texts of {source} tokens with paths of {target} steps",
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


def state_size(c: Seq2SeqConfig) -> int:
    """The numbers in the state of a recurrent decoder."""
    return CELLS[c.cell].parts * c.decoder_depth * c.width


def bridge(c: Seq2SeqConfig) -> Cost:
    """The first state of a recurrent decoder, from one vector."""
    return linear(1, c.width, state_size(c)) + Cost(kept=c.width + state_size(c))


def deep_output(c: Seq2SeqConfig, target: int) -> Cost:
    """Bahdanau's deep output and the output matrix."""
    deep = c.width + c.context_width + c.embedding
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


def scores_of_steps(c: Seq2SeqConfig, source: int, target: int) -> Cost:
    """Kept: the weights of every step and, for the additive score, tanh(W1 memory + W2 query) of every pair.

    Every step reads the whole memory, writes its gradient and adds it to that of the other steps.
    """
    memory = source * c.width
    reading = Cost(flops=2 * target * memory, kept=target * source) + streams(memory, 3 * target)
    reading += summed(memory, target) + calls(8 * target)
    query = Cost(kept=target * c.query_width) + calls(target) if c.token_query else Cost()  # state and token together
    match c.attention:
        case "additive":
            projected = linear(source, c.width, c.width, bias=False) + stepwise(target, c.query_width, c.width)
            pairs = replace(target * linear(source, c.width, 1, bias=False), parameters=c.width)
            pairs += (
                Cost(kept=target * memory)
                + curved(memory, target)
                + streams(memory, 6 * target)
                + summed(memory, target)
            )
            return projected + pairs + calls(6 * target) + query + reading
        case "general":
            keys = source * c.query_width
            projected = linear(source, c.width, c.query_width, bias=False) + Cost(kept=keys)
            scored = Cost(flops=2 * target * keys) + streams(keys, 3 * target) + summed(keys, target)
            return projected + scored + calls(8 * target) + query + reading
        case _:
            return replace(reading, kept=0) + reading


def recurrent_decoder(c: Seq2SeqConfig, target: int) -> Cost:
    """With attention, the decoder runs step by step; only the tokens' input projections are computed at once."""
    gates, read = CELLS[c.cell].gates * c.width, c.embedding + c.context_width
    if c.attention == "none":
        bottom = recurrent_layer(target, read, c.width, c.cell)
        upper = recurrent_layer(target, c.width, c.width, c.cell)
    else:
        steps = recurrent_steps(target, c.width, c.cell)
        bottom = linear(target, c.embedding, gates) + stepwise(target, c.width, gates, bias=False) + steps
        upper = stepwise(target, c.width, gates) + steps
    upper += masked(target, 2 * c.width, c.dropout)
    return bottom + Cost(kept=target * read) + (c.decoder_depth - 1) * upper

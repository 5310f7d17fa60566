"""A training step from formulas: its peak memory, and the work that takes its time.

The loop computes the loss while the gradients of the previous step still exist, and frees them before the backward
pass. So memory peaks during the loss: weights, gradients, the optimiser's two moments, the moving average if there is
one, everything kept for the backward pass, the gradients of the two factors of the logits, and the logits of one piece.
In the backward pass, every activation that is freed makes room for a smaller gradient. With accumulation the gradients
are never freed, and the largest of them exists twice for a moment: the new one, and the one that it is added to. If it
is that of the output matrix, it exists a third time, before it is scaled.

Everything is float32, as on a CPU and on a GPU without bf16. Compiled code keeps less, but materialises all logits.
"""

from __future__ import annotations

from math import ceil

from regard.studies.costs.parts import FLOAT, Costs, Kind, Piece, Scored
from regard.training.losses import AT_A_TIME, LEAST_ROWS
from regard.training.recipe.sections import AnswerTrainingSection, RDropTrainingSection, TrainingSection

MOMENTS = 2  # of AdamW, per weight
ADAMW, CLIP, AVERAGE = 7, 3, 3  # reads and writes per weight: 4 + 3, 2 + 1, 2 + 1
SCORES = 2  # tensors of the size of one piece's logits: the logits and their log-probabilities
LOSS_CURVES, LOSS_CALLS = 2, 12  # per piece: the softmax and its exponential
SMOOTHING = 3  # reads and writes of the logits for label smoothing
R_DROP_SCORES = 7  # tensors of one pass's logits: both log-probabilities, probabilities, differences; their product
R_DROP_CURVES, R_DROP_STREAMS = 6, 30  # the same, as work


def passes(training: TrainingSection) -> int:
    """The number of times that a batch goes through the model: twice with R-Drop."""
    return 2 if _r_drop(training) else 1


def memory(costs: Costs, batch: int, training: TrainingSection) -> dict[str, int]:
    """Bytes at the peak by part; they add up to the total."""
    weights = FLOAT * costs.total.parameters
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": MOMENTS * weights,
        **({"average": weights} if training.ema else {}),
        "activations": FLOAT * batch * passes(training) * costs.total.kept,
        "logits": FLOAT * _alive(costs, batch, training),
    }


def _alive(costs: Costs, batch: int, training: TrainingSection) -> int:
    """Numbers that are alive only while the loss is computed."""
    twice = largest_matrix(costs) if training.accumulate > 1 else 0
    if costs.scored is None:
        return twice
    tokens, width, vocabulary = costs.scored
    matrix, vectors = width * vocabulary, batch * passes(training) * tokens * width
    scores = SCORES * passes(training) + (R_DROP_SCORES if _r_drop(training) else 0)
    chosen = vectors * (2 if _r_drop(training) else 1)  # with R-Drop also both passes' before selection
    made = matrix + vectors + chosen + scores * _pieces(costs.scored, batch)[0] * vocabulary
    return max(made, 2 * matrix + 2 * vectors if twice else 0)


def _pieces(scored: Scored, batch: int) -> tuple[int, int]:
    """The rows of logits that are computed at a time on a CPU, and the number of such pieces."""
    rows = max(1, batch * scored.tokens)
    at_a_time = min(rows, max(LEAST_ROWS, AT_A_TIME["cpu"] // scored.vocabulary))
    return at_a_time, ceil(rows / at_a_time)


def largest_matrix(costs: Costs) -> int:
    """The number of elements of the largest weight matrix."""
    sizes = (piece.size[1] * piece.size[2] for piece in costs.total.work if piece.kind == "product")
    return max(sizes, default=0)


def work(costs: Costs, batch: int, training: TrainingSection) -> dict[Piece, int]:
    """All pieces of a step: every batch forward and backward, then clipping, AdamW and averaging."""
    pieces: dict[Piece, int] = {}

    def add(piece: Piece, times: int) -> None:
        pieces[piece] = pieces.get(piece, 0) + times

    for piece, times in costs.total.work.items():
        add(piece.of_batch(batch * passes(training)), training.accumulate * times)
    if costs.scored is not None:
        rows, times = _pieces(costs.scored, batch)
        logits, times = rows * costs.scored.vocabulary, training.accumulate * times
        add(Piece("call"), LOSS_CALLS * times)
        add(Piece("curve", (logits,), False), passes(training) * LOSS_CURVES * times)
        if isinstance(training, AnswerTrainingSection) and training.label_smoothing:
            add(Piece("update", (logits,), False), passes(training) * SMOOTHING * times)
        if _r_drop(training):
            add(Piece("curve", (logits,), False), R_DROP_CURVES * times)
            add(Piece("stream", (logits,), False), R_DROP_STREAMS * times)
    touched = ADAMW + CLIP + (AVERAGE if training.ema else 0)
    add(Piece("update", (costs.total.parameters,), False), touched)
    return pieces


def seconds(pieces: dict[Piece, int], each: dict[Piece, float], overlapping: bool) -> dict[Kind, float]:
    """The time of a step by kind of work. A GPU computes while calls are issued, so only the excess of the calls
    counts."""
    kinds: dict[Kind, float] = {}
    for piece, times in pieces.items():
        kinds[piece.kind] = kinds.get(piece.kind, 0.0) + times * each[piece]
    if overlapping:
        computing = sum(value for kind, value in kinds.items() if kind != "call")
        kinds["call"] = max(0.0, kinds["call"] - computing)
    return kinds


def _r_drop(training: TrainingSection) -> bool:
    return isinstance(training, RDropTrainingSection) and training.r_drop > 0

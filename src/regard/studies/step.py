"""A training step from formulas: what lives in memory when it is fullest, and the work that takes its time.

The loop computes the loss while the gradients of the step before are still there, and frees them before it goes
backward. So memory is fullest when the loss has just been made: weights, gradients, the optimiser's two moments, the
moving average where there is one, all that waits for the backward pass, and the logits, which die with the loss. Going
backward, every activation that is freed makes room for a gradient that is smaller. Where batches are accumulated the
gradients are never freed, and the largest of them exists twice for a moment: the new one, and the one it is added to.

Everything is float32, as on a CPU and on a GPU without bf16; compiled code keeps less.
"""

from __future__ import annotations

from regard.studies.cost_parts import FLOAT, Costs, Kind, Piece
from regard.training.sections import LoopSection, TrainingSection, WritingSection

MOMENTS = 2  # that AdamW remembers of every weight
ADAMW, CLIP, AVERAGE = 7, 3, 3  # times a weight's numbers are read or written: 4 read, 3 written; 2 and 1; 2 and 1
SMOOTHING = 3  # times the logits are read or written for it
R_DROP_KEPT = 6  # tensors of one pass's logits: both log-probabilities, both probabilities, both differences
R_DROP_ALIVE = 1  # and their product
R_DROP_CURVES, R_DROP_STREAMS = 6, 30  # the same, as work


def passes(training: LoopSection) -> int:
    """How often a batch goes through the model: twice under R-Drop."""
    return 2 if _r_drop(training) else 1


def memory(costs: Costs, batch: int, training: LoopSection) -> dict[str, int]:
    """Bytes at the fullest moment, part by part; they add up."""
    weights = FLOAT * costs.total.parameters
    logits = FLOAT * batch * costs.logits
    kept, alive = FLOAT * batch * passes(training) * costs.total.kept, passes(training) * logits
    if _r_drop(training):
        kept, alive = kept + R_DROP_KEPT * logits, alive + R_DROP_ALIVE * logits
    if training.accumulate > 1:
        alive += FLOAT * largest_matrix(costs)
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": MOMENTS * weights,
        **({"average": weights} if training.ema else {}),
        "activations": kept,
        "logits": alive,
    }


def largest_matrix(costs: Costs) -> int:
    """Numbers in the largest matrix that is multiplied with."""
    sizes = (piece.size[1] * piece.size[2] for piece in costs.total.work if piece.kind == "product")
    return max(sizes, default=0)


def work(costs: Costs, batch: int, training: LoopSection) -> dict[Piece, int]:
    """All pieces of a step at their sizes: every batch forward and backward, then clipping, AdamW and averaging."""
    pieces: dict[Piece, int] = {}

    def add(piece: Piece, times: int) -> None:
        pieces[piece] = pieces.get(piece, 0) + times

    for piece, times in costs.total.work.items():
        add(piece.of_batch(batch * passes(training)), training.accumulate * times)
    logits = batch * costs.logits
    if isinstance(training, WritingSection) and training.label_smoothing:
        add(Piece("update", (passes(training) * logits,), False), training.accumulate * SMOOTHING)
    if _r_drop(training):
        add(Piece("curve", (logits,), False), training.accumulate * R_DROP_CURVES)
        add(Piece("stream", (logits,), False), training.accumulate * R_DROP_STREAMS)
    touched = ADAMW + CLIP + (AVERAGE if training.ema else 0)
    add(Piece("update", (costs.total.parameters,), False), touched)
    return pieces


def seconds(pieces: dict[Piece, int], each: dict[Piece, float], overlapping: bool) -> dict[Kind, float]:
    """The time of a step by kinds of work. On a GPU, calls are made while it computes: only their surplus counts."""
    kinds: dict[Kind, float] = {}
    for piece, times in pieces.items():
        kinds[piece.kind] = kinds.get(piece.kind, 0.0) + times * each[piece]
    if overlapping:
        computing = sum(value for kind, value in kinds.items() if kind != "call")
        kinds["call"] = max(0.0, kinds["call"] - computing)
    return kinds


def _r_drop(training: LoopSection) -> bool:
    return isinstance(training, TrainingSection) and training.r_drop > 0

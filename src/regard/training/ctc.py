"""CTC's loss (Graves et al. 2006) by tensor operations alone, for steps that are captured as CUDA graphs.

torch's own loss reads the lengths on the host, which a captured step cannot do. Here the frames are walked through by
the same four operations each. The walk from the end is that from the beginning of the reversed labels through the
reversed frames, so both are one walk with twice the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NEVER = float("-inf")  # the logarithm of no chance


class Reading(NamedTuple):
    """Labels with a blank before, between and behind them, and how they are read from the end: `S` = 2 L + 1."""

    tokens: Int[Tensor, "B S"]
    frames: Int[Tensor, "B T"]  # of the reversed frames: which frame each was; padding reads the first
    places: Int[Tensor, "B S"]  # of the reversed labels: which place each was; padding reads the first
    padding: Bool[Tensor, "B S"]  # places behind the last blank
    said: Float[Tensor, "B T S"]  # the log-probability of each place at each frame; NEVER at padding


def ctc_loss(
    logs: Float[Tensor, "B T V"],
    lengths: Int[Tensor, B],
    labels: Int[Tensor, "B L"],
    label_lengths: Int[Tensor, B],
    blank: int,
) -> Float[Tensor, B]:
    """The negative log-probability of the labels of every row over all its paths; infinite where no path is left."""
    found: Float[Tensor, B] = _Ctc.apply(logs, lengths, labels, label_lengths, blank)
    return found


class _Ctc(torch.autograd.Function):
    """The loss and its gradient, which follows from the paths through every place at every frame."""

    @staticmethod
    def forward(
        ctx: Any,
        logs: Float[Tensor, "B T V"],
        lengths: Int[Tensor, B],
        labels: Int[Tensor, "B L"],
        label_lengths: Int[Tensor, B],
        blank: int,
    ) -> Float[Tensor, B]:
        size = 2 * labels.shape[1] + 1
        tokens = labels.new_full((len(labels), size), blank)
        tokens[:, 1::2] = labels
        at, behind = torch.arange(size, device=labels.device), 2 * label_lengths[:, None]
        frames = (lengths[:, None] - 1 - torch.arange(logs.shape[1], device=logs.device)).clamp(min=0)
        said = logs.gather(2, tokens[:, None].expand(-1, logs.shape[1], -1)).masked_fill((at > behind)[:, None], NEVER)
        reading = Reading(tokens, frames, (behind - at).clamp(min=0), at > behind, said)
        walked = _walk(reading, blank)
        rows = torch.arange(len(logs), device=logs.device)
        ended = walked[(lengths - 1).clamp(min=0), rows]  # [B S+2]
        last = torch.stack([2 * label_lengths + 1, 2 * label_lengths + 2], dim=1)  # the last label, or the blank behind
        total = ended.gather(1, last).logsumexp(dim=1)
        nothing = torch.where(label_lengths == 0, 0.0, NEVER).to(total.dtype)  # without frames
        total = torch.where(lengths > 0, total, nothing)
        ctx.save_for_backward(*reading, walked, total, lengths)
        ctx.size = logs.shape[2]
        return -total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        *parts, walked, total, lengths = ctx.saved_tensors
        tokens, frames, places, _, said = Reading(*parts)
        count, time = said.shape[:2]
        begun, ended = walked[:, :count, 2:].transpose(0, 1), walked[:, count:, 2:].transpose(0, 1)
        ended = _reversed(ended, frames, places)
        share = (begun + ended - said - total[:, None, None]).exp()  # of all paths, those through a place at a frame
        real = torch.arange(time, device=said.device) < lengths[:, None]
        share = torch.where((said == NEVER) & (total > NEVER)[:, None, None] | ~real[..., None], 0.0, share)
        share = share * upstream[0][:, None, None]
        gradient = said.new_zeros(count, time, ctx.size)
        # Half of the places are blanks: added one by one to the same number, they would wait for each other.
        gradient.scatter_(2, tokens[:, None, :1].expand(-1, time, -1), -share[..., 0::2].sum(dim=2, keepdim=True))
        gradient.scatter_add_(2, tokens[:, None, 1::2].expand(-1, time, -1), -share[..., 1::2])
        return gradient, None, None, None, None


def _reversed(
    values: Float[Tensor, "B T S"], frames: Int[Tensor, "B T"], places: Int[Tensor, "B S"]
) -> Float[Tensor, "B T S"]:
    values = values.gather(1, frames[..., None].expand_as(values))
    return values.gather(2, places[:, None].expand_as(values))


def _walk(reading: Reading, blank: int) -> Float[Tensor, "T N R"]:
    """The log-probability of all ways to be at a place at a frame, from the beginning and, behind these rows, from the
    end; before the places are two at which nothing ever is (R = S + 2)."""
    tokens, frames, places, padding, said = reading
    back = _reversed(said, frames, places).masked_fill(padding[:, None], NEVER)
    said = torch.cat([said, back]).transpose(0, 1).contiguous()
    tokens = torch.cat([tokens, tokens.gather(1, places)])
    jumps = torch.zeros_like(said[0])  # over a blank, unless the labels around it are the same
    jumps[:, 2:].masked_fill_((tokens[:, 2:] == blank) | (tokens[:, 2:] == tokens[:, :-2]), NEVER)
    walked = said.new_full((said.shape[0], said.shape[1], said.shape[2] + 2), NEVER)
    walked[0, :, 2:4] = said[0, :, :2]
    for before, now, here in zip(walked[:-1], walked[1:], said[1:], strict=True):
        ways = torch.logaddexp(before[:, 2:], before[:, 1:-1])
        torch.add(torch.logaddexp(ways, before[:, :-2] + jumps), here, out=now[:, 2:])
    return walked

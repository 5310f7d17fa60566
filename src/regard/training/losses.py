"""Training losses. Each is summed over tokens, so that the loop can divide by the token count of all batches."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.layers.blocks import Factors, even
from regard.training import fused_loss
from regard.training.ctc import ctc_loss

PIECE = 1 << 24  # half-precision logits that are converted to single precision at once
# Logits computed at once from hidden states and the output matrix: on a CPU as many as fit its cache, on other devices
# PIECE. With fewer than LEAST_ROWS rows, reading the output matrix and writing its gradient would dominate.
AT_A_TIME, LEAST_ROWS = {"cpu": 1 << 21}, 256
IN_PLACE = 1 << 30  # logits computed at once if the gradient overwrites them: 2 GB in half precision


class Loss(NamedTuple):
    """A loss summed over target tokens, and the number of these tokens; both stay on the device."""

    total: Float[Tensor, ""]
    tokens: Int[Tensor, ""]

    @classmethod
    def of(cls, total: Float[Tensor, ""], examples: int) -> "Loss":
        """A loss summed over so many examples."""
        return cls(total, torch.full((), examples, device=total.device))


class _SmoothedCrossEntropy(torch.autograd.Function):
    """Cross-entropy whose forward pass also computes the gradient, in the buffer of the log-probabilities.

    On a CPU it is twice as fast as torch's cross-entropy with label smoothing, with one [N, V] buffer instead of three.
    Half-precision logits are converted piece by piece, so that no single-precision copy of all of them exists. Without
    a mask every row counts.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Float[Tensor, "N V"],
        labels: Int[Tensor, "N"],
        mask: Bool[Tensor, "N"] | None,
        smoothing: float,
    ) -> Float[Tensor, ""]:
        wanted = ctx.needs_input_grad[0]
        if logits.dtype.itemsize >= torch.float32.itemsize:
            total, gradient = _loss_and_gradient(logits, labels, mask, wanted, smoothing)
        else:
            total, gradient = logits.new_zeros((), dtype=torch.float32), torch.empty_like(logits) if wanted else None
            rows = max(1, PIECE // logits.shape[1])
            for some in (slice(first, first + rows) for first in range(0, len(logits), rows)):
                where = None if mask is None else mask[some]
                more, piece = _loss_and_gradient(logits[some], labels[some], where, wanted, smoothing)
                total += more
                if gradient is not None and piece is not None:
                    gradient[some] = piece
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0].to(gradient.dtype), None, None, None


def _loss_and_gradient(
    logits: Float[Tensor, "N V"],
    labels: Int[Tensor, "N"],
    mask: Bool[Tensor, "N"] | None,
    wanted: bool,
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N V"] | None]:
    """The summed loss and, if `wanted`, its gradient, in single precision at least."""
    log_p = torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    index = labels.unsqueeze(-1)
    loss = -(1 - smoothing) * log_p.gather(-1, index).squeeze(-1)
    if smoothing:
        loss = loss - smoothing * log_p.mean(dim=-1)
    total = (loss if mask is None else loss.masked_fill(~mask, 0.0)).sum()
    if not wanted:
        return total, None
    gradient = log_p.exp_()
    if smoothing:
        gradient.sub_(smoothing / logits.shape[-1])
    gradient.scatter_add_(-1, index, gradient.new_full(index.shape, smoothing - 1))
    return total, gradient if mask is None else gradient.masked_fill_(~mask.unsqueeze(-1), 0.0)


def _in_place(
    logits: Float[Tensor, "N V2"],
    labels: Int[Tensor, "N"],
    mask: Bool[Tensor, "N"] | None,
    wanted: bool,
    vocabulary: int,
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N V2"] | None]:
    """`_loss_and_gradient` in one GPU kernel, which overwrites the logits with the gradient."""
    losses = fused_loss.judge_in_place(logits, labels, mask, vocabulary=vocabulary, smoothing=smoothing, wanted=wanted)
    return losses.sum(), logits if wanted else None


# (logits of some rows, their labels, mask of the rows that count or None for all, whether the gradient is wanted)
# -> the summed loss of these rows, and its gradient
Criterion = Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor | None]]


class _InPieces(torch.autograd.Function):
    """A criterion summed over all rows, a group of rows at a time.

    The logits of a group are computed, scored, turned into gradients of hidden states, weight and bias, and freed. Only
    these gradients are kept for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Float[Tensor, "N *K D"],
        weight: Float[Tensor, "V D"],
        bias: Float[Tensor, "V"] | None,
        labels: Int[Tensor, "N"],
        mask: Bool[Tensor, "N"] | None,
        criterion: Criterion,
        wanted: bool,
        at_a_time: int,
        padded: bool,
    ) -> Float[Tensor, ""]:
        kind = _product_type(weight)
        factor, offset = weight.to(kind), None if bias is None else bias.to(kind)
        if padded:
            factor, offset = even(factor, offset)
        gradients = [
            None if like is None or not wanted else torch.zeros_like(like, dtype=of.dtype)
            for like, of in ((hidden, hidden), (factor, weight), (offset, weight))
        ]

        def judge(some: slice) -> Tensor:
            part = hidden[some].to(kind)
            logits = functional.linear(part, factor, offset)
            loss, gradient = criterion(logits, labels[some], None if mask is None else mask[some], wanted)
            if gradient is not None:
                _add_gradients(gradients, gradient.to(kind), some, part, factor)
            return loss

        rows = max(LEAST_ROWS, at_a_time // len(weight))
        total = weight.new_zeros((), dtype=torch.promote_types(weight.dtype, torch.float32))
        for first in range(0, len(hidden), rows):
            total += judge(slice(first, first + rows))
        of_hidden, *of_factors = gradients
        ctx.save_for_backward(of_hidden, *(None if each is None else each[: len(weight)] for each in of_factors))
        return total

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (None if each is None else each * outer[0].to(each.dtype) for each in ctx.saved_tensors)
        return *gradients, None, None, None, None, None, None


def _product_type(weight: Tensor) -> torch.dtype:
    """The data type in which a product with a weight is computed."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _add_gradients(
    gradients: list[Tensor | None],
    gradient: Float[Tensor, "N *K V"],
    some: slice,
    part: Float[Tensor, "N *K D"],
    factor: Float[Tensor, "V D"],
) -> None:
    """Add the gradients of hidden vectors, weight and bias that follow from the gradient of some rows' logits."""
    of_hidden, of_weight, of_bias = gradients
    assert of_hidden is not None and of_weight is not None
    of_hidden[some] = gradient @ factor
    gradient, part = gradient.flatten(0, -2), part.flatten(0, -2)
    if of_weight.dtype == part.dtype:
        of_weight.addmm_(gradient.t(), part)
    elif part.is_cuda:  # multiply in half precision, accumulate in single precision without rounding in between
        torch.addmm(of_weight, gradient.t(), part, out_dtype=of_weight.dtype, out=of_weight)
    else:
        of_weight += gradient.t() @ part
    if of_bias is not None:
        of_bias += gradient.sum(0)


def _judged(
    factors: Factors,
    labels: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    criterion: Criterion,
    at_a_time: int | None = None,
    *,
    padded: bool = False,
) -> Float[Tensor, ""]:
    """A criterion summed where `mask` is True; the logits are computed piece by piece and never exist all at once.

    With `padded`, the criterion also gets columns beyond the vocabulary, and their gradient is dropped. On a CPU,
    masked rows are left out of the product. On a GPU, counting them would force a sync.
    """
    hidden, labels, mask = factors.hidden.flatten(0, 1), labels.flatten(), mask.flatten()
    where: Tensor | None = mask
    if hidden.device.type == "cpu":
        counted = mask.nonzero().squeeze(1)
        hidden, labels, where = hidden.index_select(0, counted), labels[counted], None
    wanted, at_a_time = torch.is_grad_enabled(), at_a_time or AT_A_TIME.get(hidden.device.type, PIECE)
    return _InPieces.apply(hidden, factors.weight, factors.bias, labels, where, criterion, wanted, at_a_time, padded)


def cross_entropy(
    logits: Float[Tensor, "B T V"] | Factors,
    labels: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """Label-smoothed cross-entropy (Szegedy 2016), summed where `mask` is True: (1-ε)(-log p_y) + ε·mean(-log p)."""
    if isinstance(logits, Factors):
        if fused_loss.applies(logits.hidden.device.type):
            in_place = partial(_in_place, vocabulary=len(logits.weight), smoothing=smoothing)
            return _judged(logits, labels, mask, in_place, IN_PLACE, padded=True)
        return _judged(logits, labels, mask, partial(_loss_and_gradient, smoothing=smoothing))
    if torch.compiler.is_compiling():  # a compiler fuses the plain formula, but not a custom autograd function
        return _fusible_cross_entropy(logits, labels, mask, smoothing)
    return _SmoothedCrossEntropy.apply(logits.flatten(0, 1), labels.flatten(), mask.flatten(), smoothing)


def _fusible_cross_entropy(
    logits: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], smoothing: float
) -> Float[Tensor, ""]:
    """Cross-entropy as log Σ exp x - (1-ε) x_y - ε·mean(x), whose gradient is elementwise in the logits.

    `x_y` is not gathered: the gradient of a gather is a scatter into zeros of the logits' size, which is never fused.
    """
    x = logits.to(torch.promote_types(logits.dtype, torch.float32))
    right = torch.arange(x.shape[-1], device=x.device) == labels[..., None]
    chosen = torch.where(right, x, 0.0).sum(dim=-1)
    loss = torch.logsumexp(x, dim=-1) - (1 - smoothing) * chosen - smoothing * x.mean(dim=-1)
    return loss.masked_fill(~mask, 0.0).sum()


def soft_cross_entropy(logits: Float[Tensor, "B N"], targets: Float[Tensor, "B N"]) -> Float[Tensor, ""]:
    """Cross-entropy against probabilities instead of labels, summed over the batch."""
    return -(targets * torch.log_softmax(logits, dim=-1, dtype=torch.float32)).sum()


def negative_sampling(
    true: Float[Tensor, "B P"],
    true_weight: Float[Tensor, "B P"],
    noise: Float[Tensor, "B K"],
    noise_weight: Float[Tensor, "B K"],
) -> Float[Tensor, ""]:
    """-log σ(s) of true scores and -log σ(-s) of noise (Mikolov 2013b, eq. 4), weighted and summed."""
    return (functional.softplus(-true) * true_weight).sum() + (functional.softplus(noise) * noise_weight).sum()


def guidance(
    scores: Float[Tensor, "B T S"], links: Bool[Tensor, "B T S"], source_mask: Bool[Tensor, "B S"]
) -> Float[Tensor, ""]:
    """Guided attention (Chen et al. 2016, Garg et al. 2019): -Σ log a_ts over linked s, shared among the links of a t.

    `scores` are those before the softmax; target tokens without a link do not contribute.
    """
    log_a = scores.float().masked_fill(~source_mask[:, None], -math.inf).log_softmax(dim=-1)
    share = links / links.sum(dim=-1, keepdim=True).clamp_min(1)
    return -(share * log_a.masked_fill(~links, 0.0)).sum()


def doubly_stochastic(weights: Float[Tensor, "B T S"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Σ_i (1 - Σ_t a_ti)², summed over texts: every place should be looked at, about once (Xu 2015, equation 14)."""
    return (1 - (weights.float() * mask[..., None]).sum(dim=1)).square().sum()


def symmetric_divergence(
    first: Float[Tensor, "*B V"], second: Float[Tensor, "*B V"], mask: Bool[Tensor, "*B"] | None
) -> Float[Tensor, ""]:
    """½·(KL(p‖q) + KL(q‖p)) = ½·Σ (p - q)(log p - log q), summed where `mask` is True, or over all rows without one."""
    kind = torch.promote_types(first.dtype, torch.float32)
    log_p, log_q = (torch.log_softmax(each, dim=-1, dtype=kind) for each in (first, second))
    divergence = ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)
    return 0.5 * (divergence if mask is None else divergence.masked_fill(~mask, 0.0)).sum()


def divergence(
    logits: Float[Tensor, "*B N"], targets: Float[Tensor, "*B N"], mask: Bool[Tensor, "*B"]
) -> Float[Tensor, ""]:
    """KL(targets‖softmax(logits)), summed over the rows where `mask` is True; targets are probabilities."""
    kind = torch.promote_types(logits.dtype, torch.float32)
    log_q, p = torch.log_softmax(logits, dim=-1, dtype=kind), targets.to(kind)
    each = (torch.special.xlogy(p, p) - p * log_q).sum(dim=-1)
    return each.masked_fill(~mask, 0.0).sum()


def _r_drop_and_gradient(
    logits: Float[Tensor, "N 2 V"],
    labels: Int[Tensor, "N"],
    mask: Bool[Tensor, "N"] | None,
    wanted: bool,
    weight: float,
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "N 2 V"] | None]:
    """The summed loss of two passes and, if `wanted`, its gradient."""
    logits = logits.detach().requires_grad_(wanted)
    with torch.set_grad_enabled(wanted):
        first, second = logits.unbind(1)
        both = (_SmoothedCrossEntropy.apply(each, labels, mask, smoothing) for each in (first, second))
        total = 0.5 * (sum(both) + weight * symmetric_divergence(first, second, mask))
    return total.detach(), torch.autograd.grad(total, logits)[0] if wanted else None


def r_drop(
    first: Float[Tensor, "B T V"] | Factors,
    second: Float[Tensor, "B T V"] | Factors,
    labels: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    *,
    weight: float,
    smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """R-Drop (Liang 2021, eq. 4) over two passes with different dropout; halved, so it compares with one pass."""
    if isinstance(first, Factors) and isinstance(second, Factors):
        twice = first._replace(hidden=torch.stack([first.hidden, second.hidden], dim=2))
        return _judged(twice, labels, mask, partial(_r_drop_and_gradient, weight=weight, smoothing=smoothing))
    assert isinstance(first, Tensor) and isinstance(second, Tensor)
    both = cross_entropy(first, labels, mask, smoothing) + cross_entropy(second, labels, mask, smoothing)
    return 0.5 * (both + weight * symmetric_divergence(first, second, mask))


def squared_distance(model: nn.Module, anchors: Mapping[str, Tensor]) -> Float[Tensor, ""]:
    """Σ (w - w₀)² over the parameters that have an anchor w₀ (L2-SP of Li et al. 2018; for translators Barone 2017)."""
    parameters = dict(model.named_parameters())
    return torch.stack([(parameters[name] - anchor).square().sum() for name, anchor in anchors.items()]).sum()


def hinge_critic(real: Float[Tensor, "B"], fake: Float[Tensor, "B"]) -> Float[Tensor, ""]:
    """The hinge loss of a critic: Σ max(0, 1 - real) + Σ max(0, 1 + fake) over images (Lim & Ye 2017)."""
    return torch.relu(1 - real.float()).sum() + torch.relu(1 + fake.float()).sum()


def hinge_generator(fake: Float[Tensor, "B"]) -> Float[Tensor, ""]:
    """The hinge loss of a generator: minus the critic's scores of its images, summed (Lim & Ye 2017)."""
    return -fake.float().sum()


def ctc(
    frames: Float[Tensor, "B T V"],
    lengths: Int[Tensor, "B"],
    labels: Int[Tensor, "B L"],
    label_lengths: Int[Tensor, "B"],
    blank: int,
) -> Float[Tensor, ""]:
    """The negative log-probability of labels over all paths through the frames (Graves 2006), summed.

    A step that is being captured as a CUDA graph cannot read lengths on the host, as torch's loss does.
    """
    logs = frames.float().log_softmax(dim=-1)
    if _captures(logs):
        return ctc_loss(logs, lengths, labels, label_lengths, blank).sum()
    return functional.ctc_loss(logs.transpose(0, 1), labels, lengths, label_lengths, blank=blank, reduction="sum")


def _captures(x: Tensor) -> bool:
    """Whether the work of this tensor is being captured as a CUDA graph."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()

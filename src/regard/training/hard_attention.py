"""The loss of drawn attention: REINFORCE (Williams 1992) as Xu et al. 2015 train hard attention, section 4.2.

A place s_t is drawn for every token. The gradient of the expected log-probability of a text y is that of log p(y | s),
which the cross-entropy has, plus E[(R_t - b) ∇ log p(s_t)] for every draw, which this loss has. R_t is what the draw
can change: the log-probability of the tokens from t on. (The paper uses that of the whole text. The expectation is the
same, since earlier tokens do not depend on the draw, and the variance is smaller.) The baseline b does not depend on
the draw, so it leaves the expectation as it is: the moving average of a token's log-probability, times the number of
these tokens.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.attention.scores import Attended
from regard.layers.blocks import Factors

BASELINE = "baseline"  # its name in the state that a task carries from step to step
MEMORY = 0.9  # of the moving average


def draws_loss(
    seen: Attended,
    log_probabilities: Float[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    baseline: Float[Tensor, ""] | float = 0.0,
    *,
    reward: float = 1.0,
    entropy: float = 0.0,
) -> Float[Tensor, ""]:
    """-Σ (λ_r (R_t - b_t) log p(s_t) + λ_e H_t), summed where `mask` is True.

    `log_probabilities` are those of the true tokens, `baseline` is one for a token. With λ_r (`reward`) = 1 and λ_e
    (`entropy`) = 0 the gradient, with that of the cross-entropy, is unbiased. Sequences that read the expectation draw
    nothing, so they only get the bonus for entropy.
    """
    real = mask.float()
    drawn = real if seen.drawn is None else real * seen.drawn[:, None]
    gained = (log_probabilities.detach().float() - baseline) * real
    advantage = gained.flip(1).cumsum(1).flip(1)
    return -(reward * drawn * advantage * seen.log_probability + entropy * real * seen.entropy).sum()


@torch.no_grad()
def moved_baseline(
    baseline: Float[Tensor, ""], log_probabilities: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """The moving average after another batch; a batch that is not finite leaves it as it is."""
    mean = (log_probabilities.float() * mask).sum() / mask.sum().clamp_min(1)
    moved = MEMORY * baseline + (1 - MEMORY) * mean
    return torch.where(moved.isfinite(), moved, baseline)


@torch.no_grad()
def true_log_probabilities(
    logits: Float[Tensor, "B T V"] | Factors, labels: Int[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The log-probability of every true token."""
    whole = functional.linear(*logits) if isinstance(logits, Factors) else logits
    return whole.float().log_softmax(dim=-1).gather(-1, labels[..., None]).squeeze(-1)


class DrawsLoss:
    """`draws_loss` in training. The baseline is part of the state that a task carries, so that runs resume exactly."""

    def __init__(
        self, carried: MutableMapping[str, Tensor], device: torch.device, *, reward: float, entropy: float
    ) -> None:
        self.carried, self.reward, self.entropy = carried, reward, entropy
        carried[BASELINE] = torch.zeros((), device=device)

    def __call__(
        self,
        seen: Attended,
        logits: Float[Tensor, "B T V"] | Factors,
        labels: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch, whose value is 0, since only its gradient means something. Moves the baseline, in place,
        since a captured step reads it from a fixed address."""
        known, baseline = true_log_probabilities(logits, labels), self.carried[BASELINE]
        loss = draws_loss(seen, known, mask, baseline, reward=self.reward, entropy=self.entropy)
        baseline.copy_(moved_baseline(baseline, known, mask))
        return loss - loss.detach()

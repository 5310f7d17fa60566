"""How claims train small networks: one optimiser and one schedule for every side, on batches drawn in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn

from regard.training.optim import cosine

Example = TypeVar("Example")
WARM_UP, CLIP = 0.1, 1.0  # the share of the steps in which the learning rate rises, and the largest gradient norm


def fit(
    model: nn.Module,
    examples: Iterable[Example],
    loss: Callable[[Example], Tensor],
    *,
    steps: int,
    rate: float,
) -> None:
    """Train with Adam; the learning rate rises to `rate` and falls to zero."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.98), fused=True)
    warm_up = max(1, round(WARM_UP * steps))
    model.train()
    for step, example in enumerate(islice(examples, steps), start=1):
        optimiser.param_groups[0]["lr"] = cosine(step, lr=rate, warmup=warm_up, steps=steps)
        optimiser.zero_grad()
        loss(example).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
    model.eval()

"""Attention masks: which keys each query may attend to. A mask is bool, True allows, and masks combine with `and`."""

import torch
from jaxtyping import Bool
from torch import Tensor


def padding(real: Bool[Tensor, "B T"]) -> Bool[Tensor, "B 1 1 T"]:
    """Every query of a sequence may attend to its real tokens, but not to padding."""
    return real[:, None, None, :]


def causal(queries: int, keys: int, device: torch.device | None = None) -> Bool[Tensor, "1 1 Tq Tk"]:
    """No query attends to later keys. The last query sees the last key, so cached keys before the first are visible."""
    ones = torch.ones(queries, keys, dtype=torch.bool, device=device)
    return ones.tril(diagonal=keys - queries)[None, None]


def combine(*parts: Bool[Tensor, "#B #H #Tq #Tk"] | None) -> Bool[Tensor, "#B #H #Tq #Tk"] | None:
    """Attend only where every given mask allows it; None allows everything."""
    allowed = None
    for part in parts:
        if part is not None:
            allowed = part if allowed is None else allowed & part
    return allowed

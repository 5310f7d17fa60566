"""Which residues of a protein touch, by all attention weights of a language model of proteins (Rao 2021)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


def contact_probabilities(weights: Float[Tensor, "N L L"], layer: nn.Linear) -> Float[Tensor, "L L"]:
    """A logistic regression on the attention between residues in all N heads, each made symmetrical and corrected by
    the average product of its rows and columns."""
    both = weights + weights.transpose(1, 2)
    rows, columns = both.sum(dim=2, keepdim=True), both.sum(dim=1, keepdim=True)
    corrected = both - rows * columns / both.sum(dim=(1, 2), keepdim=True)
    return torch.sigmoid(layer(corrected.permute(1, 2, 0))[..., 0])

"""Initial weights that several models share."""

from torch import nn


def xavier_weights(model: nn.Module, embedding: float) -> None:
    """Linear layers after Glorot and Bengio 2010, without biases; embeddings with this standard deviation."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=embedding)

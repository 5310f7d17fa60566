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


def closed(layer: nn.Linear) -> nn.Linear:
    """The layer with zeros: the branch that ends with it adds nothing at first."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def opened(layer: nn.Linear) -> nn.Linear:
    """The layer as a gate that is open at first, whatever its input."""
    nn.init.zeros_(layer.weight)
    nn.init.ones_(layer.bias)
    return layer

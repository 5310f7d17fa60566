"""How far back trained recurrent networks remember: recall the first symbol of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.claims.contest import Scores, fit
from regard.layers.recurrent import Kind, Recurrent

SYMBOLS, BATCH, TESTED = 8, 32, 256
Sequences = Int[Tensor, "B T"]


@dataclass(frozen=True)
class Recall:
    """A recurrent network that learns, for each distance anew, to say which symbol came so many steps before."""

    kind: Kind
    distances: tuple[int, ...]
    width: int = 32
    rate: float = 1e-2

    def __call__(self, seed: int, steps: int) -> Scores:
        """Train with a seed for some steps, and measure recall, and how much of the gradient arrives at the symbol."""
        found: Scores = {}
        for distance in self.distances:
            torch.manual_seed(seed)
            model = _Network(self.kind, self.width)
            generator = torch.Generator().manual_seed(seed)
            fit(model, _sequences(generator, BATCH, distance), partial(_loss, model),
                steps=steps, rate=self.rate)  # fmt: skip
            x = next(_sequences(torch.Generator().manual_seed(0), TESTED, distance))
            found[f"recalled, {distance} steps"] = float((model(x).argmax(dim=1) == x[:, 0]).float().mean())
            found[f"gradient, {distance} steps"] = _arriving(model, x)
        return found


class _Network(nn.Module):
    def __init__(self, kind: Kind, width: int):
        super().__init__()
        self.embedding = nn.Embedding(2 * SYMBOLS, width)  # what is to be recalled, and what comes between
        self.recurrent = Recurrent(kind, width, width)
        self.output = nn.Linear(width, SYMBOLS)

    def forward(self, x: Sequences) -> Float[Tensor, "B symbols"]:
        return self.read(self.embedding(x))

    def read(self, vectors: Float[Tensor, "B T D"]) -> Float[Tensor, "B symbols"]:
        outputs, _ = self.recurrent(vectors)
        answer: Tensor = self.output(outputs[:, -1])
        return answer


def _sequences(generator: torch.Generator, size: int, distance: int) -> Iterator[Sequences]:
    while True:
        first = torch.randint(0, SYMBOLS, (size, 1), generator=generator)
        yield torch.cat([first, torch.randint(SYMBOLS, 2 * SYMBOLS, (size, distance), generator=generator)], dim=1)


def _loss(model: _Network, x: Sequences) -> Tensor:
    return functional.cross_entropy(model(x), x[:, 0])


def _arriving(model: _Network, x: Sequences) -> float:
    """The gradient of the answers with respect to the first vector, relative to that of the last."""
    vectors = model.embedding(x).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.read(vectors).square().sum(), vectors)
    norms = gradient.norm(dim=(0, 2))
    return float(norms[0] / norms[-1])

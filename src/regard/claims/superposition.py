"""A toy model of superposition: more features than neurons (Elhage 2022).

x̂ = ReLU(WᵀWx + b) squeezes n features through m < n neurons. Each feature is present with probability 1 - sparsity and
is then uniform in [0, 1]; its squared error counts with an importance that falls from feature to feature. Dense
features get a neuron each, and the least important none; sparse ones share neurons, in directions that interfere
little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional

from regard.look.figures import COLOURS, check_name, save_chart

REPRESENTED = 0.5  # a feature with a direction at least this long is represented
WARM_UP, RATE = 0.1, 0.03  # the share of the steps in which the learning rate rises, and what it rises to


@dataclass(frozen=True)
class Superposition:
    """Trained models, one for each sparsity: their directions, one column a feature, and their losses."""

    sparsities: list[float]
    directions: Float[Tensor, "S m n"]
    losses: list[float]

    @property
    def lengths(self) -> Float[Tensor, "S n"]:
        """‖W_i‖ of every feature: about 1 if it is represented, about 0 if it is not."""
        return self.directions.norm(dim=1)

    @property
    def represented(self) -> list[int]:
        """The number of features that each model represents."""
        return (self.lengths > REPRESENTED).sum(dim=1).tolist()

    @property
    def dimensionality(self) -> Float[Tensor, "S n"]:
        """‖W_i‖² / Σ_j (Ŵ_i · W_j)²: the share of a dimension that a feature has for itself."""
        unit = functional.normalize(self.directions, dim=1)
        overlap = (unit.transpose(1, 2) @ self.directions).square().sum(dim=2)
        return torch.where(self.lengths > REPRESENTED, self.lengths.square() / overlap, 0.0)


def superposition(
    sparsities: Sequence[float],
    *,
    features: int = 5,
    neurons: int = 2,
    importance: float = 0.7,
    steps: int = 4000,
    batch: int = 256,
    seed: int = 0,
) -> Superposition:
    """Train one model for each sparsity, all of them at once."""
    generator = torch.Generator().manual_seed(seed)
    count = len(sparsities)
    weight = torch.randn(count, neurons, features, generator=generator).div(math.sqrt(neurons)).requires_grad_()
    bias = torch.zeros(count, 1, features, requires_grad=True)
    present = 1 - torch.tensor(sparsities)[:, None, None]
    importances = importance ** torch.arange(features)
    optimiser = torch.optim.Adam([weight, bias], lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=steps, pct_start=WARM_UP)
    losses = torch.zeros(count)
    for _ in range(steps):
        x = torch.rand(count, batch, features, generator=generator)
        x = x * (torch.rand(x.shape, generator=generator) < present)
        guess = functional.relu(x @ weight.transpose(1, 2) @ weight + bias)
        losses = (importances * (x - guess).square()).sum(dim=2).mean(dim=1)
        optimiser.zero_grad()
        # Sparse inputs have small errors; divided by their size, every model learns at the same rate.
        (losses / present.flatten()).sum().backward()
        optimiser.step()
        schedule.step()
    return Superposition(list(sparsities), weight.detach(), losses.detach().tolist())


def superposition_rows(found: Superposition) -> list[dict[str, object]]:
    """A row for each sparsity, for tables and JSON."""
    return [
        {
            "sparsity": sparsity,
            "features represented": found.represented[number],
            "neurons": found.directions.shape[1],
            "mean dimensionality": float(found.dimensionality[number].sum() / max(found.represented[number], 1)),
            "loss": found.losses[number],
        }
        for number, sparsity in enumerate(found.sparsities)
    ]


def draw_superposition(path: Path, found: Superposition) -> Path:
    """A column for each sparsity: WᵀW above, and below it the directions, or their lengths where m is not 2."""
    check_name(path)
    columns = len(found.sparsities)
    figure = Figure(figsize=(2.2 * columns, 4.8), layout="constrained")
    axes = figure.subplots(2, columns, squeeze=False)
    for column, (sparsity, directions) in enumerate(zip(found.sparsities, found.directions, strict=True)):
        top, bottom = axes[0, column], axes[1, column]
        top.imshow((directions.T @ directions).numpy(), cmap="RdBu", vmin=-1, vmax=1)
        top.set_title(f"sparsity {sparsity:g}\n{found.represented[column]} features", fontsize=9)
        top.set_xticks([])
        top.set_yticks([])
        if len(directions) == 2:
            _draw_directions(bottom, directions)
        else:
            bottom.bar(range(directions.shape[1]), found.lengths[column].numpy(), color=COLOURS[0])
            bottom.set_ylim(0, 1.3)
    axes[0, 0].set_ylabel("WᵀW")
    axes[1, 0].set_ylabel("directions" if found.directions.shape[1] == 2 else "length of each direction")
    return save_chart(figure, path)


def _draw_directions(axes: Axes, directions: Float[Tensor, "2 n"]) -> None:
    for number, (x, y) in enumerate(directions.T.tolist()):
        axes.plot([0, x], [0, y], color=COLOURS[number % len(COLOURS)], marker="o", markevery=[1], linewidth=2)
    axes.set_xlim(-1.4, 1.4)
    axes.set_ylim(-1.4, 1.4)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])

"""The effect of every head as a heat map: a row for each layer, a column for each head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

COOL_WARM = "RdBu_r"  # heads that help are red, heads that harm are blue
NUMBERS_UP_TO = 16  # heads of a layer that get numbers


def draw_effects(effects: Mapping[str, Sequence[float]], *, title: str, note: str) -> Figure:
    """`effects` has for each layer what the model loses without each of its heads."""
    widest = max(len(row) for row in effects.values())
    table = np.full((len(effects), widest), np.nan)
    for number, row in enumerate(effects.values()):
        table[number, : len(row)] = row
    figure = Figure(figsize=(2.2 + 0.62 * widest + 1.2, 1.3 + 0.42 * len(effects)), layout="constrained")
    axes = figure.subplots()
    reach = max(float(np.nanmax(np.abs(table))), 1e-9)
    drawn = axes.imshow(table, cmap=COOL_WARM, vmin=-reach, vmax=reach, aspect="auto")
    axes.set_xticks(range(widest), labels=[str(head) for head in range(widest)])
    axes.set_yticks(range(len(effects)), labels=list(effects))
    axes.set_xlabel("head")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    if widest <= NUMBERS_UP_TO:
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = "white" if abs(value) > 0.6 * reach else "black"
                axes.text(column, row, f"{value:+.2f}", ha="center", va="center", fontsize=7, color=colour)
    axes.set_title(title, loc="left", fontweight="bold", parse_math=False)
    figure.colorbar(drawn, ax=axes, label=note, shrink=0.9)
    return figure

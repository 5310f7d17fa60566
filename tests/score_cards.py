"""The card of a page that shows a score dimension by dimension, compared with the neurons of a layer."""

import numpy as np
from jaxtyping import Float
from playwright.sync_api import Page, expect

from regard.look.neurons import LayerNeurons


def check_score(
    page: Page, neurons: LayerNeurons, weights: Float[np.ndarray, "H Tq Tk"], place: tuple[int, int]
) -> None:
    """The score on the card is that of a head, a query, and a key that it looks at most, as far as bytes tell."""
    card, row = page.locator(".neuron-card"), weights[place]
    expect(card).to_be_visible()
    scores = [found.score for key in np.flatnonzero(row >= row.max() - 0.02) if (found := neurons.at(*place, int(key)))]
    dimensions = neurons.queries.shape[-1]
    expect(card.locator(".hint").first).to_contain_text(f"the {dimensions} dimensions add up to")
    told = float(card.locator(".hint").first.inner_text().split()[-1].replace("−", "-"))
    assert min(abs(told - score) for score in scores) < 0.01

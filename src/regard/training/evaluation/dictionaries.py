"""What a dictionary of features is worth: how sparse and exact it is, and what its model loses by it.

Loss recovered: (ablated - replaced) / (ablated - whole), where `whole` is the model's loss, `replaced` its loss with
the reconstruction in place of the activation, and `ablated` its loss with zeros there, or with the mean of all vectors.
The mean leaves what is the same for every input, so it is often the harder baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.attention.intervene import intervene
from regard.inference.pipelines.reading.base import Example, Reader, Site, observe
from regard.models.sparse_autoencoder import SparseAutoencoder
from regard.training.safeguards import Poll

WINDOW = 512  # examples that are sorted by length together


class VectorSums:
    """Running sums over vectors and their reconstructions, for L0, explained variance and dead features."""

    def __init__(self, dictionary: SparseAutoencoder) -> None:
        self.dictionary, device = dictionary, dictionary.mean.device
        self.count, self.active = 0, torch.zeros((), dtype=torch.float64, device=device)
        self.error, self.square, self.price = (torch.zeros_like(self.active) for _ in range(3))
        self.total = torch.zeros(dictionary.config.width, dtype=torch.float64, device=device)
        self.alive = torch.zeros(dictionary.config.features, dtype=torch.bool, device=device)

    def add(self, vectors: Tensor) -> None:
        """Count some vectors [N D]; the sums are those of vectors from which the training mean is subtracted."""
        coded = self.dictionary(vectors)
        active = coded.features > 0
        self.count += len(vectors)
        self.active += active.sum()
        self.alive |= active.any(dim=0)
        self.price += coded.features.double().sum()
        self.error += (vectors - coded.vectors).double().square().sum()
        centred = (vectors - self.dictionary.mean).double()
        self.square += centred.square().sum()
        self.total += centred.sum(dim=0)

    def values(self, l1: float) -> dict[str, float]:
        """The metrics of all vectors so far; the loss is the one that training lowers."""
        variance = self.square - self.total.square().sum() / self.count
        width, scale = self.dictionary.config.width, float(self.dictionary.scale)
        loss = (self.error / scale**2 + l1 * self.price) / (width * self.count)
        return {
            "loss": float(loss),
            "l0": float(self.active) / self.count,
            "explained_variance": 1 - float(self.error / variance.clamp(min=1e-30)),
            "dead": 1 - float(self.alive.double().mean()),
        }


@torch.inference_mode()
def measure_dictionary(
    reader: Reader[Any],
    site: Site,
    dictionary: SparseAutoencoder,
    examples: Sequence[Example],
    *,
    l1: float = 0.0,
    poll: Poll = lambda: None,
) -> dict[str, float]:
    """Every metric of a dictionary on examples that its model reads."""
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "replaced": lambda vectors: dictionary(vectors.flatten(0, -2)).vectors.view_as(vectors),
        "zero": torch.zeros_like,
        "mean": lambda vectors: dictionary.mean.expand_as(vectors),
    }
    sums, answers = VectorSums(dictionary), 0
    losses = dict.fromkeys(("whole", *changes), 0.0)
    for first in range(0, len(examples), WINDOW):
        some = [examples[number] for number in range(first, min(first + WINDOW, len(examples)))]
        for batch in reader.batches(some):
            poll()
            chosen = [some[each] for each in batch]
            seen = observe(reader, site, chosen, loss=True)
            sums.add(seen.rows)
            losses["whole"] += seen.loss
            answers += seen.answers
            for name, change in changes.items() if site.changeable else ():
                with intervene(site.model, site.replaced(change)):
                    losses[name] += reader.loss(reader.batch(chosen))[0]
    values = sums.values(l1)
    if not site.changeable:
        return values | {"loss_recovered": float("nan"), "loss_recovered_mean": float("nan")}
    whole, replaced, zero, mean = (losses[name] / max(answers, 1) for name in ("whole", "replaced", "zero", "mean"))
    return values | {
        "loss_recovered": recovered(whole, replaced, zero),
        "loss_recovered_mean": recovered(whole, replaced, mean),
        "loss_whole": whole,
        "loss_replaced": replaced,
        "loss_zero": zero,
        "loss_mean": mean,
    }


def recovered(whole: float, replaced: float, ablated: float) -> float:
    """The share of the loss that ablation costs and the reconstruction does not."""
    return (ablated - replaced) / (ablated - whole) if ablated != whole else float("nan")

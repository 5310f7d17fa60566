"""Retrieval: the image of a caption and the captions of an image, learnt as a choice among pairs (Lu et al. 2019)."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from regard.data.batch import RegionTextBatch
from regard.data.vision_language.batches import ChoiceMaker
from regard.data.vision_language.store import RegionTexts
from regard.training.evaluation.scores import recalls
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values
from regard.training.tasks.region_text_base import RegionTextTask
from regard.training.tasks.vision_language_recipe import RetrievalRecipe

VALIDATION_SEED = 0


class RetrievalTask(RegionTextTask):
    """Captions and images; the model scores how well the two fit."""

    head = "score"
    recipe: RetrievalRecipe

    def maker(self) -> ChoiceMaker:
        """Right pairs of the training texts, each with wrong ones."""
        return self._choices(self.corpus.train, self.recipe.seed)

    def _choices(self, store: RegionTexts, seed: int) -> ChoiceMaker:
        return ChoiceMaker(self.pairs(store), self.recipe.data.choices, seed)

    def loss(self, model: Forward, batch: RegionTextBatch) -> Loss:
        """Cross-entropy of the right pair among the choices."""
        scores = self.output(model, batch).score.float().view(len(batch.targets), -1)
        total = functional.cross_entropy(scores, batch.targets, reduction="sum")
        return Loss(total, torch.full((), len(scores), device=self.device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """The loss, and how often the right one is among the best 1, 5 and 10 of a pool, in both directions."""
        choices, error = self._choices(store, VALIDATION_SEED), 0.0
        for rows in self.in_order(store):
            poll()
            error += self.loss(model, choices(rows, (0, 0)).to(self.device)).total.item()
        images = pool(store, self.recipe.data.pool)
        texts = store.texts_of(images)
        scores, makes = np.empty((len(texts), len(images)), dtype=np.float32), self.pairs(store)
        features, places, real = (each.to(self.device) for each in makes.regions(images))  # once for all texts
        for number, text in enumerate(texts.tolist()):
            poll()
            ids, mask = (each.expand(len(images), -1).to(self.device) for each in makes.padded([store.texts[text]]))
            batch = RegionTextBatch(ids, mask, features, places, real, torch.from_numpy(images))
            scores[number] = self.output(model, batch).score.float().cpu().numpy()
        right = store.images[texts][:, None] == images[None]
        found = {"caption_to_image": recalls(scores, right), "image_to_caption": recalls(scores.T, right.T)}
        named = {f"{way}_{count}": value for way, shares in found.items() for count, value in shares.items()}
        both = (named["caption_to_image_1"] + named["image_to_caption_1"]) / 2
        return {"loss": error / len(store), "recall": both, **named}


def pool(store: RegionTexts, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The first `size` images, leaving out those with a text that an earlier one has: nobody could tell them apart."""
    chosen: list[int] = []
    seen: set[bytes] = set()
    texts: dict[int, set[bytes]] = {}
    for text, image in enumerate(store.images.tolist()):
        texts.setdefault(image, set()).add(store.texts[text].tobytes())
    for image, said in texts.items():
        if len(chosen) < size and not said & seen:
            chosen.append(image)
            seen |= said
    return np.array(chosen, dtype=np.int64)

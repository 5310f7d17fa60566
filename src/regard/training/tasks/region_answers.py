"""Pointing at the region that a phrase means, and answering questions: one right place or answer for each text."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from regard.data.batch import RegionTextBatch
from regard.data.synthetic.scene_texts import ANSWERS
from regard.data.vision_language.batches import PairMaker
from regard.data.vision_language.store import RegionTexts
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values
from regard.training.tasks.region_text_base import RegionTextTask


class TargetTask(RegionTextTask):
    """Texts that have one right target among the outputs of the model."""

    def maker(self) -> PairMaker:
        """The training texts with their images."""
        return self.pairs(self.corpus.train)

    def loss(self, model: Forward, batch: RegionTextBatch) -> Loss:
        """Cross-entropy of the right target."""
        logits = self.output(model, batch).logits
        assert logits is not None
        total = functional.cross_entropy(logits.float(), batch.targets, reduction="sum")
        return Loss(total, torch.full((), len(batch.targets), device=self.device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """The loss, and the share of right targets."""
        pairs, error, right = self.pairs(store), 0.0, 0
        for rows in self.in_order(store):
            poll()
            batch = pairs(rows).to(self.device)
            logits = self.output(model, batch).logits
            assert logits is not None
            error += functional.cross_entropy(logits.float(), batch.targets, reduction="sum").item()
            right += int((logits.argmax(-1) == batch.targets).sum())
        return {"loss": error / len(store), "accuracy": right / len(store)}


class PointingTask(TargetTask):
    """Phrases, each of which means one region."""

    kind = "phrases"
    head = "point"


class QuestionsTask(TargetTask):
    """Questions, each of which has one of the known answers."""

    kind = "questions"
    head = "answer"

    @property
    def head_values(self) -> dict[str, Any]:
        return {"labels": len(ANSWERS), "label_names": ANSWERS}

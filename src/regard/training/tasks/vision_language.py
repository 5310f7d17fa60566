"""Pre-training on images and captions: masked words, masked regions, and whether the two match (Lu et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import RegionTextBatch
from regard.data.text.masking import Masking
from regard.data.vision_language.batches import MaskedPairMaker
from regard.data.vision_language.store import RegionTexts
from regard.models.vilbert import VilbertOutput
from regard.training.losses import Loss, cross_entropy, divergence
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values
from regard.training.tasks.region_text_base import RegionTextTask
from regard.training.tasks.vision_language_recipe import VisionLanguageRecipe

VALIDATION_SEED = 0  # of the masks of every validation, the same for every run


class VisionLanguageTask(RegionTextTask):
    """Captions with their images or with others, both partly masked; the three losses have the weight 1."""

    head = "pretraining"
    recipe: VisionLanguageRecipe

    def maker(self) -> MaskedPairMaker:
        """Masked pairs of the training texts."""
        return self._masked(self.corpus.train, self.recipe.seed)

    def _masked(self, store: RegionTexts, seed: int) -> MaskedPairMaker:
        data = self.recipe.data
        return MaskedPairMaker(self.pairs(store), Masking(self.tokenizer, data.share), data.region_share, seed)

    def loss(self, model: Forward, batch: RegionTextBatch) -> Loss:
        """The sum of the three mean losses, times the number of pairs."""
        words, regions, match = self._losses(self.output(model, batch), batch)
        count = torch.full((), len(batch.targets), device=self.device)
        return Loss(count * (words + regions + match), count)

    def _losses(self, output: VilbertOutput, batch: RegionTextBatch) -> tuple[Tensor, Tensor, Tensor]:
        assert output.word_logits is not None and output.region_logits is not None and output.match is not None
        assert batch.labels is not None and batch.labels_mask is not None
        assert batch.region_targets is not None and batch.region_labels_mask is not None
        masked, chosen = batch.labels_mask, batch.region_labels_mask
        words = cross_entropy(output.word_logits, batch.labels, masked) / masked.sum().clamp(min=1)
        if self.corpus.train.classes is None:
            errors = (output.region_logits.float() - batch.region_targets.float()).square().mean(dim=-1)
            regions = errors.masked_fill(~chosen, 0.0).sum()
        else:
            regions = divergence(output.region_logits, batch.region_targets.float(), chosen)
        match = functional.cross_entropy(output.match.float(), batch.targets)
        return words, regions / chosen.sum().clamp(min=1), match

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """All losses, the accuracy of masked words and of the classes of masked regions, and of matches without masks.

        For matches every second text is exchanged for one of another image.
        """
        masked, sums = self._masked(store, VALIDATION_SEED), torch.zeros(9, dtype=torch.float64)
        for rows in self.in_order(store):
            poll()
            batch = masked(rows, (0, 0)).to(self.device)
            sums[:8] += self._counted(self.output(model, batch), batch).cpu()
            shown = masked.exchanged(rows).to(self.device)
            sums[8] += (self.output(model, shown).score > 0).eq(shown.targets == 0).sum().cpu()
        words, regions, match, pairs, word_count, words_right, region_count, regions_right, matched = sums.tolist()
        word_count, region_count = max(1, word_count), max(1, region_count)
        words, regions = words / word_count, regions / region_count
        values = {"loss": words + regions + match / pairs, "words_loss": words, "regions_loss": regions}
        values |= {"accuracy": words_right / word_count, "match": matched / pairs}
        if store.classes is not None:
            values["regions"] = regions_right / region_count
        return values

    def _counted(self, output: VilbertOutput, batch: RegionTextBatch) -> Tensor:
        """The losses summed over what they are means of, so that no figure depends on the size of batches; the pairs;
        and how many masked words and regions there are and are right."""
        assert output.region_logits is not None and isinstance(output.word_logits, Tensor)
        assert batch.labels_mask is not None and batch.region_labels_mask is not None
        assert batch.region_targets is not None
        pairs, masked, chosen = len(batch.targets), batch.labels_mask, batch.region_labels_mask
        words = (output.word_logits.argmax(-1) == batch.labels) & masked
        regions = (output.region_logits.argmax(-1) == batch.region_targets.argmax(-1)) & chosen
        counts = [masked.sum(), words.sum(), chosen.sum(), regions.sum()]
        words_loss, regions_loss, match = (each.double() for each in self._losses(output, batch))
        losses = [words_loss * counts[0], regions_loss * counts[2], match * pairs]
        return torch.stack([*losses, losses[0].new_tensor(pairs), *(each.double() for each in counts)])

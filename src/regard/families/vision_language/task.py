"""Losses and metrics of texts and regions: pre-training, retrieval, pointing and questions; and `regard evaluate`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints.models import identify
from regard.config import Config
from regard.data.batch import RegionTextBatch
from regard.data.loader import Loader, Rows, in_batches
from regard.data.sources import Part
from regard.data.synthetic.scene_texts import ANSWERS
from regard.data.text.masking import Masking
from regard.errors import ConfigError, DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.vision_language.data import (
    ChoiceMaker,
    MaskedPairMaker,
    PairMaker,
    RegionTextCorpus,
    RegionTexts,
    prepare,
)
from regard.families.vision_language.model import Head, VilbertOutput, build_two_streams
from regard.families.vision_language.recipe import RegionTextRecipe, RetrievalRecipe, VisionLanguageRecipe
from regard.families.vision_language.regions import PLACES, Described, FinderConfig, TextKind, describe, save_finder
from regard.training.initial_model import initial_folder
from regard.training.losses import Loss, cross_entropy, divergence
from regard.training.recipe.files import SCENES
from regard.training.safeguards import Poll
from regard.training.scores import recalls
from regard.training.task import Forward, SupervisedTask, Values, loader_options

if TYPE_CHECKING:
    from regard.families.vision_language.pipeline import VisionLanguageModel

T = TypeVar("T")
KINDS: dict[Head, TextKind] = {"point": "phrases", "answer": "questions"}  # texts of each head; others read captions
VALIDATION_SEED = 0  # of the masks of every validation, the same for every run
POOL = 100  # images of `regard evaluate scenes` among which a caption's is searched


class RegionTextTask(SupervisedTask[RegionTextBatch]):
    """Texts and images as regions; the tokenizer and the way regions are found are saved beside the weights."""

    head: ClassVar[Head]  # of the model
    recipe: RegionTextRecipe

    @classmethod
    def prepare(cls, recipe: RegionTextRecipe, folder: Path, poll: Poll) -> None:
        """Find the regions of all images and encode the texts."""
        init = recipe.model.init
        if init and not _same(FinderConfig.load(initial_folder(init)), recipe.data.regions):
            raise ConfigError(f"{init} was trained with other regions; set [data.regions] as its regions.json says")
        prepare(recipe, KINDS.get(cls.head, "captions"), _longest(recipe), folder, poll)

    def __init__(self, recipe: RegionTextRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = RegionTextCorpus.open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError(
                "there is no text about an image for validation; give data.valid, or switch validation off with "
                "training.validate_every = 0"
            )
        self.loader = Loader(self._plan, self.maker(), **loader_options(recipe.training, device))

    def pairs(self, store: RegionTexts) -> PairMaker:
        """Batches of the texts of a store with their images."""
        return PairMaker(store, self.tokenizer.pad, _longest(self.recipe))

    @abstractmethod
    def maker(self) -> Any:
        """What makes training batches of the numbers of texts."""

    def build(self) -> nn.Module:
        """A model with the head of the task, for regions of the size that was prepared."""
        features, classes = self.corpus.train.features.shape[2], self.corpus.train.classes
        changes: dict[str, Any] = {"head": self.head}
        if self.head == "answer":
            changes |= {"labels": len(ANSWERS), "label_names": ANSWERS}
        if not self.recipe.model.init:
            changes |= {"region_features": features, "region_places": PLACES}
            changes |= {"region_targets": "features"} if classes is None else {"region_classes": classes.shape[2]}
        model = build_two_streams(self.recipe.model, self.recipe.words.init, self.tokenizer, **changes)
        if (expected := model.config.region_features) != features:  # type: ignore[union-attr]
            raise ConfigError(
                f"a region has {features} numbers, but the model of model.init reads {expected}; "
                "set data.regions as there"
            )
        return model

    @staticmethod
    def output(model: Forward, batch: RegionTextBatch) -> VilbertOutput:
        """The output of the model for a batch."""
        return model(batch.inputs, batch.mask, batch.features.float(), batch.places, batch.region_mask)

    def loss(self, model: Forward, batch: RegionTextBatch) -> Loss:
        """Cross-entropy of the right target."""
        return Loss.of(target_loss(self.output(model, batch), batch.targets), len(batch.targets))

    def in_order(self, store: RegionTexts) -> list[Rows]:
        """All texts in batches."""
        return in_batches(np.arange(len(store)), self.recipe.training.batch)

    def held_out(self, part: Part) -> RegionTexts:
        return getattr(self.corpus, part)

    def save(self, folder: Path) -> None:
        self.tokenizer.save(folder)
        save_finder(self.recipe.data.regions, folder)

    def _plan(self, epoch: int) -> list[Rows]:
        order = np.random.default_rng([self.recipe.seed, epoch]).permutation(len(self.corpus.train))
        batch = min(self.recipe.training.batch, len(order))
        return np.split(order[: len(order) // batch * batch], len(order) // batch)


def _same(first: FinderConfig, second: FinderConfig) -> bool:
    """Whether regions are found in the same way; a copy of the model that finds them is in another folder."""
    return bool(first.model) == bool(second.model) and first.at(second.model) == second


def _longest(recipe: RegionTextRecipe) -> int:
    """The most tokens of a text."""
    if init := recipe.model.init or recipe.words.init:
        config: Config = identify(initial_folder(init))[1]
    else:
        config = recipe.model.config(source_vocab=8, target_vocab=8, pad=0)
    return min(recipe.data.longest, config.longest)  # type: ignore[attr-defined]


def target_loss(output: VilbertOutput, targets: Tensor) -> Tensor:
    """The summed cross-entropy of the right region or answer, or of the right one of several pairs."""
    assert output.logits is not None
    return functional.cross_entropy(output.logits.float().view(len(targets), -1), targets, reduction="sum")


class VisionLanguageTask(RegionTextTask):
    """Captions with their images or with others, both partly masked; the three losses have the weight 1."""

    head = "pretraining"
    recipe: VisionLanguageRecipe

    def maker(self) -> MaskedPairMaker:
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
        words_loss, regions_loss, match = (loss.double() for loss in self._losses(output, batch))
        losses = [words_loss * counts[0], regions_loss * counts[2], match * pairs]
        return torch.stack([*losses, losses[0].new_tensor(pairs), *(count.double() for count in counts)])


class RetrievalTask(RegionTextTask):
    """Captions and images; the model scores how well the two fit."""

    head = "score"
    recipe: RetrievalRecipe

    def maker(self) -> ChoiceMaker:
        return self._choices(self.corpus.train, self.recipe.seed)

    def _choices(self, store: RegionTexts, seed: int) -> ChoiceMaker:
        return ChoiceMaker(self.pairs(store), self.recipe.data.choices, seed)

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """The loss, and how often the right one is among the best 1, 5 and 10 of a pool, in both directions."""
        choices, error = self._choices(store, VALIDATION_SEED), 0.0
        for rows in self.in_order(store):
            poll()
            error += self.loss(model, choices(rows, (0, 0)).to(self.device)).total.item()
        images = _pool(store, self.recipe.data.pool)
        texts = np.flatnonzero(np.isin(store.images, images))
        scores, makes = np.empty((len(texts), len(images)), dtype=np.float32), self.pairs(store)
        features, places, real = (tensor.to(self.device) for tensor in makes.regions(images))  # once for all texts
        for number, text in enumerate(texts.tolist()):
            poll()
            words = makes.padded([store.texts[text]])
            ids, mask = (tensor.expand(len(images), -1).to(self.device) for tensor in words)
            batch = RegionTextBatch(ids, mask, features, places, real, torch.from_numpy(images))
            scores[number] = self.output(model, batch).score.float().cpu().numpy()
        shares = recalls_both_ways(scores.T, images[:, None] == store.images[texts][None])
        named = {f"{way}_{count}": share for way, by_count in shares.items() for count, share in by_count.items()}
        both = (named["caption_to_image_1"] + named["image_to_caption_1"]) / 2
        return {"loss": error / len(store), "recall": both, **named}


def _pool(store: RegionTexts, size: int) -> NDArray[np.int64]:
    """The first images of a store that can be told apart."""
    texts: dict[int, set[bytes]] = {}
    for text, image in enumerate(store.images.tolist()):
        texts.setdefault(image, set()).add(store.texts[text].tobytes())
    return np.array(list(islice(distinct(texts.items()), size)), dtype=np.int64)


def distinct(items: Iterable[tuple[T, Set[Any]]]) -> Iterator[T]:
    """Those with no text that an earlier one has: nobody could tell the two apart."""
    seen: set[Any] = set()
    for item, texts in items:
        if not texts & seen:
            seen |= texts
            yield item


def recalls_both_ways(scores: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, dict[int, float]]:
    """How often the right one is among the best 1, 5 and 10, by scores [images, texts]."""
    return {"caption_to_image": recalls(scores.T, right.T), "image_to_caption": recalls(scores, right)}


class TargetTask(RegionTextTask):
    """Texts that have one right target among the outputs of the model."""

    def maker(self) -> PairMaker:
        return self.pairs(self.corpus.train)

    @torch.inference_mode()
    def measured(self, model: nn.Module, store: RegionTexts, poll: Poll) -> Values:
        """The loss, and the share of right targets."""
        pairs, error, right = self.pairs(store), 0.0, 0
        for rows in self.in_order(store):
            poll()
            batch = pairs(rows).to(self.device)
            output = self.output(model, batch)
            assert output.logits is not None
            error += target_loss(output, batch.targets).item()
            right += int((output.logits.argmax(-1) == batch.targets).sum())
        return {"loss": error / len(store), "accuracy": right / len(store)}


class PointingTask(TargetTask):
    """Phrases, each of which means one region."""

    head = "point"


class QuestionsTask(TargetTask):
    """Questions, each of which has one of the known answers."""

    head = "answer"


def evaluate_regions(reader: VisionLanguageModel, data: str, options: EvaluationOptions) -> Evaluation:
    """What the head of the model was trained for, on built-in scenes; regions are found in the pixels.

    Of a file of captions, all images and all captions are compared, beside what chance finds.
    """
    head, skipped = reader.config.head, list[str]()
    kind = KINDS.get(head, "captions")
    described = describe(
        data, kind, reader.finder, part="test", count=options.count, seed=options.seed, labels=reader.labels,
        keep_missed=True, skipped=skipped,
    )  # fmt: skip
    if kind != "captions":
        return Evaluation(_target_scores(reader, list(described)))
    if data == SCENES:
        described = islice(distinct((each, {about.text for about in each.texts}) for each in described), POOL)
    images = list(described)
    if not images:
        raise DataError(f"{data} has no image that can be read")
    texts = [(number, about.text) for number, each in enumerate(images) for about in each.texts]
    right = np.arange(len(images))[:, None] == np.array([number for number, _ in texts])[None]
    scores = reader.scores([each.regions for each in images], [text for _, text in texts])
    values: dict[str, object] = {"images": len(images), "texts": len(texts)}
    if head == "pretraining":  # yes and no are weighted equally
        values["match"] = float(((scores > 0)[right].mean() + (scores <= 0)[~right].mean()) / 2)
    values |= _named_recalls(scores, right)
    if data != SCENES:
        chance = _named_recalls(np.random.default_rng(0).random(right.shape), right)
        values |= {f"chance, {name}": share for name, share in chance.items()}
    return Evaluation(values, skipped)


def _named_recalls(scores: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, float]:
    return {
        f"{way.replace('_', ' ')}, recall@{count}": share
        for way, shares in recalls_both_ways(scores, right).items()
        for count, share in shares.items()
    }


def _target_scores(reader: VisionLanguageModel, images: list[Described]) -> dict[str, object]:
    """The share of phrases whose region is found, or of questions that are answered; by kind too."""
    about = [(number, text) for number, each in enumerate(images) for text in each.texts]
    texts, of = [text.text for _, text in about], [number for number, _ in about]
    shares = reader.probabilities([each.regions for each in images], texts, of)
    right = np.array([int(np.argmax(row)) == text.target for row, (_, text) in zip(shares, about, strict=True)])
    kinds = np.array([text.kind for _, text in about])
    by_kind = {f"accuracy of {kind}": float(right[kinds == kind].mean()) for kind in sorted(set(kinds.tolist()))}
    return {"images": len(images), "texts": len(texts), "accuracy": float(right.mean()), **by_kind}

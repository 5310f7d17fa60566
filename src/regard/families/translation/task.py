"""Translation: sentence pairs in one or several target languages, learnt by teacher forcing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from regard.attention import record
from regard.checkpoints import load_model
from regard.checkpoints.models import bare, identify
from regard.config import Config
from regard.data.batch import Batch
from regard.data.formats.filters import dropped_pairs
from regard.data.formats.pairs import Pair
from regard.data.text.pair_loader import PairLoader, RowGroup
from regard.data.tokenizers.bpe_dropout import PairSampler
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import ConfigError, DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.translation.metrics import Compared, PairEvaluation, flat, table
from regard.families.translation.prepare import BASE, HELD_OUT, PairPreparation
from regard.families.translation.recipe import TranslationRecipe
from regard.families.translation.seq2seq import draws
from regard.look.forced_pass import (
    ALIGNMENT,
    AlignmentSettings,
    Pass,
    aligning_layers,
    choose_alignment,
    forced_passes,
    guided_alignment,
)
from regard.training.hard_attention import DrawsLoss
from regard.training.initial_model import started_from
from regard.training.losses import Loss, cross_entropy, guidance, r_drop, squared_distance
from regard.training.safeguards import Poll
from regard.training.task import Forward, Sample, SupervisedTask, Values, loader_options

MOST_UNKNOWN = 0.2  # the share of unknown tokens above which a tokenizer does not fit
MOST_COMPARED = 500  # sentences of each domain that are translated before and after an adaptation
FREEZES = {"embeddings": "embedding", "encoder": ".encoder", "decoder": ".decoder"}  # in the names of parameters
ALIGNED_PAIRS = 300  # validation pairs that choose the layer and head that align words


class TranslationTask(SupervisedTask[Batch]):
    """Sentence pairs in one or several target languages."""

    recipe: TranslationRecipe

    @classmethod
    def prepare(cls, recipe: TranslationRecipe, folder: Path, poll: Poll) -> None:
        """Sort the pairs into files, learn the vocabulary, encode the training pairs and align them."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: TranslationRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, training = recipe, device, recipe.training
        self.corpus, self.base = _preparation(recipe).open(folder), folder / BASE
        tokenizer = self.corpus.tokenizer
        shares = self.corpus.train.shares(tokenizer.source.unknown, tokenizer.target.unknown)
        self._refuse_unusable(shares)
        self.summary = _summary(recipe, self.corpus.report) + unknown_tokens(shares)
        self.valid = self._evaluation(self.corpus.valid, decoded=training.validate_sentences)
        self.guided: AlignmentSettings | None = None
        self.factored = training.factored(device.type)
        self._cross_entropy, self._r_drop = cross_entropy, r_drop
        if training.compiles(device.type) and not self.factored:  # uncompiled, a loss takes as long as a small model
            self._cross_entropy, self._r_drop = torch.compile(cross_entropy), torch.compile(r_drop)
        self.draws: DrawsLoss | None = None
        self._anchored: dict[str, Tensor] = {}
        self._compared = dict[str, Compared]()
        if draws(self._config()):
            self.divisible = False  # every process would have a baseline of its own
            reward, entropy = training.draw_reward, training.draw_entropy
            self.draws = DrawsLoss(self.carried, device, reward=reward, entropy=entropy)

    @cached_property
    def loader(self) -> PairLoader:  # type: ignore[override]
        """The loader, created when training first asks for batches: with BPE dropout it first samples the corpus."""
        tokenizer, training, seed = self.corpus.tokenizer, self.recipe.training, self.recipe.seed
        dropout = self.recipe.tokenizer.dropout
        return PairLoader(
            self.corpus.train,
            pad=tokenizer.target.pad,
            start=tokenizer.target.start,
            batch_tokens=training.batch_tokens,
            seed=seed,
            buckets=training.lengths(self.device.type),
            sampler=PairSampler(tokenizer, dropout, seed) if dropout else None,
            groups=self._groups(),
            **loader_options(training, self.device),
        )

    def _groups(self) -> list[RowGroup]:
        """The training corpora and the old pairs, with what is drawn of each per epoch; none if that is all, once."""
        report, sizes, share = self.corpus.report, self.corpus.sizes, self.recipe.data.old_share
        ends = list(accumulate(sizes))
        drawn = self.recipe.data.drawn(sizes) if len(sizes) > 1 or self.recipe.data.is_mixture else sizes
        groups = [
            RowGroup(end - size, end, None if count == size else count)
            for end, size, count in zip(ends, sizes, drawn, strict=True)
        ]
        if old := report.get("old", 0):
            taken = min(old, round(sum(drawn) * share / (1 - share)))
            return [*groups, RowGroup(ends[-1], ends[-1] + old, taken)]
        return groups if list(drawn) != sizes else []

    def _refuse_unusable(self, unknown: dict[str, float]) -> None:
        if self.recipe.model.init and max(unknown.values()) > MOST_UNKNOWN:
            side = max(unknown, key=unknown.__getitem__)
            raise DataError(
                f"the tokenizer of {self.recipe.model.init} does not fit these pairs: {unknown[side]:.0%} of the "
                f"{side} tokens are unknown to it; choose another model, or train a new one"
            )
        if self.recipe.training.validate_every and not self.corpus.valid:
            raise DataError(
                "there is no validation pair; give data.valid, set more aside with data.split, "
                "or switch validation off with training.validate_every = 0"
            )
        if self.recipe.training.guide and not self.corpus.train.has_links:
            raise UsageError(
                "this run was begun without training.guide, so its words were never aligned; begin a new one"
            )

    def build(self) -> nn.Module:
        """A new model with the vocabulary of the tokenizer, or one with the weights of `model.init`."""
        model = self._adapted() if self.recipe.model.init else MODELS[self.recipe.model.name].model(self._config())
        if self.recipe.training.guide:
            self.guided = guided_alignment(model)
            if self.guided is None:
                raise ConfigError("training.guide teaches attention where to look; this model has none: set it to 0")
        return model

    def _config(self) -> Config:
        tokenizer, section = self.corpus.tokenizer, self.recipe.model
        if section.init:
            return identify(self.base)[1].replace(**section.overrides)
        return section.config(
            source_vocab=tokenizer.source.size, target_vocab=tokenizer.target.size, pad=tokenizer.target.pad
        )

    def _adapted(self) -> nn.Module:
        """The translator that training starts from, with its frozen parts."""
        model, training = started_from(load_model(self.base), self.recipe.model, {}), self.recipe.training
        for part in training.freeze:
            for name, parameter in model.named_parameters(remove_duplicate=False):  # a tied one has several names
                if FREEZES[part] in f".{name}":
                    parameter.requires_grad_(False)
        if training.anchor:
            trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
            self._anchored = {name: each.detach().clone().to(self.device) for name, each in trained.items()}
        return model

    def loss(self, model: Forward, batch: Batch) -> Loss:
        """The translation loss, plus those of the guided attention head and of the anchor if the recipe has them."""
        tokens, training = batch.labels_mask.sum(), self.recipe.training
        if self.guided is None:
            total = self._translation_loss(model, batch)
        else:
            assert isinstance(model, nn.Module)
            with record(bare(model), self.guided.layer, scores=True, gradients=True) as looks:
                total = self._translation_loss(model, batch)
            total = total + training.guide * _guide_loss(looks[self.guided.layer], batch, self.guided)
        if self._anchored:
            assert isinstance(model, nn.Module)
            # times the tokens, since the loop divides by those of all batches of a step
            total = total + training.anchor * tokens * squared_distance(bare(model), self._anchored)
        return Loss(total, tokens)

    def _translation_loss(self, model: Forward, batch: Batch) -> Tensor:
        """Label-smoothed cross-entropy and, if the model draws, the loss of its draws; or R-Drop over two passes."""
        smoothing, weight = self.recipe.training.label_smoothing, self.recipe.training.r_drop
        labels, mask = batch.labels, batch.labels_mask
        if weight:
            twice = (tensor.repeat(2, 1) for tensor in (batch.source, batch.source_mask, batch.inputs, mask))
            first, second = model(*twice, factored=self.factored).chunk(2)
            return self._r_drop(first, second, labels, mask, weight=weight, smoothing=smoothing)
        given = batch.source, batch.source_mask, batch.inputs, mask
        if self.draws is None:
            return self._cross_entropy(model(*given, factored=self.factored), labels, mask, smoothing)
        logits, seen = model(*given, factored=self.factored, attended=True)
        return self._cross_entropy(logits, labels, mask, smoothing) + self.draws(seen, logits, labels, mask)

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss, perplexity and, on a sample, BLEU, chrF and exact match."""
        return self.valid(model, poll)

    def samples(self) -> Sequence[Sample]:
        """Some of the translations that were measured."""
        return self.valid.samples

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the whole test set, if the recipe has one; of an adaptation also BLEU and chrF of both domains,
        before and after."""
        pairs = self.corpus.test
        values = self._evaluation(pairs, decoded=len(pairs))(model, poll) if pairs else {}
        if self.recipe.model.init:
            self._compared = self._compare(model, poll)
            values |= flat(self._compared)
        return values

    @property
    def conclusion(self) -> str:
        """The table of both domains before and after an adaptation."""
        return table(self._compared) if self._compared else ""

    def _compare(self, model: nn.Module, poll: Poll) -> dict[str, Compared]:
        """The base and the adapted model on held-out pairs of the new domain and, if there are any, of the old one."""
        domains = {"new": self.corpus.test or self.corpus.valid, "old": self.corpus.old_valid}
        base = load_model(self.base, self.device).model
        return {
            name: Compared(*(self._evaluation(pairs, MOST_COMPARED).scores(each, poll) for each in (base, model)))
            for name, pairs in domains.items()
            if pairs
        }

    def save(self, folder: Path) -> None:
        """Write the tokenizer beside the weights."""
        self.corpus.tokenizer.save(folder)

    def finish(self, model: nn.Module, folder: Path) -> None:
        """Write which attention head aligns words: the guided one, or the best one on validation pairs."""
        alignment = self.guided or self._best_alignment(model)
        if alignment is not None:
            (folder / ALIGNMENT).write_text(alignment.model_dump_json(), encoding="utf-8")

    def _best_alignment(self, model: nn.Module) -> AlignmentSettings | None:
        pairs = [pair for pair in self.corpus.valid if pair.source.split() and pair.target.split()][:ALIGNED_PAIRS]
        passes = [self._pass(model, pair) for pair in pairs] if aligning_layers(model) else []
        return choose_alignment(passes, pairs)

    def _pass(self, model: nn.Module, pair: Pair) -> Pass:
        tokenizer = self.corpus.tokenizer
        ids, words = tokenizer.target.encode([pair.target]), tokenizer.target.words_in(pair.target)
        return forced_passes(model, tokenizer, [pair.source], ids, [words], to=pair.to)[0]

    def _evaluation(self, pairs: list[Pair], decoded: int) -> PairEvaluation:
        return PairEvaluation(
            pairs,
            self.corpus.tokenizer,
            decoding=self.recipe.decoding,
            decoded=decoded,
            batch_tokens=self.recipe.training.batch_tokens,
            device=self.device,
        )


def _guide_loss(scores: Tensor, batch: Batch, guided: AlignmentSettings) -> Tensor:
    """The loss of the guided head's scores [B H T S] against the links; the mean of both passes under R-Drop."""
    assert batch.links is not None
    passes = len(scores) // len(batch.links)
    scores, links = scores[:, guided.head], batch.links.repeat(passes, 1, 1)
    if guided.shift:  # the head attends to a word one step after the word was written
        scores, links = scores[:, 1:], links[:, :-1]
    return guidance(scores, links, batch.source_mask.repeat(passes, 1)) / passes


def _preparation(recipe: TranslationRecipe) -> PairPreparation:
    training = recipe.training
    frozen, align = "embeddings" in training.freeze, training.guide > 0
    return PairPreparation(recipe.data, recipe.tokenizer, recipe.seed, recipe.model.init, frozen, align)


def _summary(recipe: TranslationRecipe, report: dict[str, int]) -> str:
    data = recipe.data
    dropped = dropped_pairs(report)
    named = dict.fromkeys(file for corpus in data.corpora("train") for file in (corpus.lines, corpus.path) if file)
    text = (
        f"{report['train']:,} sentence pairs {', '.join(data.sources)} → {', '.join(data.targets)} "
        f"from {', '.join(named)}; "
        f"{report['valid']:,}{'' if data.valid else ' held out'} for validation, "
        f"{report['test']:,} for testing"
    )
    if recipe.training.validate_every and not data.valid and report["valid"] < HELD_OUT:
        text += (
            f"; so few sentences for validation tell large differences only, and {HELD_OUT} are better: give "
            "data.valid or raise data.split"
        )
    if recipe.model.init:
        text += f"; from {recipe.model.init}, with {report['old']:,} old pairs and {report['old_valid']:,} to test on"
    return f"{text}; dropped: {dropped}" if dropped else text

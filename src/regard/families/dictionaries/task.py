"""Dictionary learning: activations of a model as sums of few features out of many.

`relu` is trained with an L1 penalty, and dead features are put on vectors that are badly reconstructed (Bricken et al.
2023). `topk` needs no penalty; dead features learn from the error that the others leave (Gao et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.attention.intervene import intervene
from regard.checkpoints.models import bare
from regard.data.batch import VectorBatch
from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.dictionaries.data import (
    ActivationStream,
    open_examples,
    open_reader,
    prepare_examples,
    read_examples,
)
from regard.families.dictionaries.model import Coded, SparseAutoencoder, SparseAutoencoderConfig
from regard.families.dictionaries.pipeline import FeatureDictionary, Subject, find_contexts, fingerprint
from regard.families.dictionaries.recipe import DictionaryRecipe
from regard.look.reader import Example, Reader, Site, Source, observe
from regard.training.initial_model import planned_config
from regard.training.losses import Loss
from regard.training.recipe.load import trained_recipe
from regard.training.run_state import LoaderPlace
from regard.training.safeguards import Poll
from regard.training.task import Forward, Optimizers, SupervisedTask, Values

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
            chosen = [some[place] for place in batch]
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


def evaluate_dictionary(dictionary: FeatureDictionary, data: str, options: EvaluationOptions) -> Evaluation:
    """L0, explained variance, dead share and loss recovered, against zeros and against the mean.

    `count` is the most examples that are read; texts are cut as in training.
    """
    source, recipe = Source(data, "test", count=options.count, seed=options.seed), trained_recipe(options.folder)
    if isinstance(recipe, DictionaryRecipe):
        cut = recipe.data
        source = replace(source, block=cut.block, documents=cut.documents, to=cut.to)
    examples = list(islice(read_examples(dictionary.reader, source), options.count))
    if not examples:
        raise DataError(f"{data} has nothing to read; give data as in training")
    values = measure_dictionary(dictionary.reader, dictionary.site, dictionary.model, examples)
    names = {"dead": "dead (of these examples)", "loss": "mean square error"}
    return Evaluation({"examples": len(examples), **{names.get(key, key): value for key, value in values.items()}})


IDLE = "idle"  # how many vectors there were since each feature was last active


class DictionaryTask(SupervisedTask[VectorBatch]):
    """Vectors of one place of a model, streamed while the model reads."""

    recipe: DictionaryRecipe
    divisible, capturable = False, False  # one process reads the model, and some steps change dead features

    @classmethod
    def prepare(cls, recipe: DictionaryRecipe, folder: Path, poll: Poll) -> None:
        """Store the examples that the model will read; its activations are never stored."""
        prepare_examples(recipe.data, recipe.seed, folder, poll)

    def __init__(self, recipe: DictionaryRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device, data = recipe, device, recipe.data
        self.reader = open_reader(data, device.type)
        self.site = Site(self.reader.model, data.place)
        self.train, self.valid = open_examples(data, folder)
        self.stream = ActivationStream(
            self.reader, self.site, self.train, batch=recipe.training.batch, buffer=data.buffer, seed=recipe.seed
        )
        self.summary = (
            f"{self.site.name} of {data.model}, {self.stream.probe.shape[1]} wide, while it reads {len(self.train):,} "
            f"examples of {data.train}; {len(self.valid):,} for validation"
        )

    @property
    def config(self) -> SparseAutoencoderConfig:
        """The configuration of the dictionary, with the width of its place."""
        return planned_config(self.recipe.model, SparseAutoencoderConfig).replace(width=self.stream.probe.shape[1])

    @cached_property
    def carried(self) -> dict[str, Tensor]:
        """How long every feature was not active."""
        return {IDLE: torch.zeros(self.config.features, dtype=torch.long, device=self.device)}

    def build(self) -> nn.Module:
        """A dictionary whose directions lead from the mean of some vectors to these."""
        model = SparseAutoencoder(self.config)
        model.initialise(self.stream.probe.cpu())
        return model

    def batches(self, place: LoaderPlace) -> Iterator[tuple[LoaderPlace, VectorBatch]]:
        return self.stream.onward(place)

    def loss(self, model: Forward, batch: VectorBatch) -> Loss:
        """The mean square error of vectors in units of their spread, and what their activation needs beside it."""
        coded: Coded = model(batch.vectors)
        assert isinstance(model, nn.Module)
        dictionary, training = bare(model), self.recipe.training
        assert isinstance(dictionary, SparseAutoencoder)
        self._count(coded.features > 0)
        error = (batch.vectors - coded.vectors) / dictionary.scale
        total = error.square().sum()
        if dictionary.config.activation == "relu":
            total = total + training.l1 * coded.features.sum()
        elif training.dead_weight:
            total = total + training.dead_weight * self._left_to_dead(dictionary, coded, error.detach())
        return Loss.of(total / dictionary.config.width, len(error))

    def _count(self, active: Bool[Tensor, "N F"]) -> None:
        idle = self.carried[IDLE]
        idle += len(active)
        idle[active.any(dim=0)] = 0

    @property
    def dead(self) -> Bool[Tensor, F]:
        """The features that were not active for long."""
        return self.carried[IDLE] >= self.recipe.training.dead_after

    def _left_to_dead(self, dictionary: SparseAutoencoder, coded: Coded, error: Float[Tensor, "N D"]) -> Tensor:
        """The square error that remains if the largest dead features reconstruct what the others left.

        Their scores count even if they are negative: those of a dead feature mostly are, and it would learn nothing
        from zeros. While few are dead, the error counts less.
        """
        dead, most = int(self.dead.sum()), max(1, dictionary.config.width // 2)
        if not dead:
            return error.new_zeros(())
        scores, where = coded.scores.masked_fill(~self.dead, -torch.inf).topk(min(most, dead), dim=-1, sorted=False)
        features = torch.zeros_like(coded.scores).scatter(-1, where, scores)
        return min(1.0, dead / most) * (error - features @ dictionary.directions).square().sum()

    @torch.no_grad()
    def after_step(self, step: int, model: nn.Module, batch: VectorBatch, optimizers: Optimizers) -> None:
        """Reset dead features of a `relu` autoencoder to vectors that are badly reconstructed."""
        training = self.recipe.training
        due = training.resample_every and step % training.resample_every == 0
        assert isinstance(model, SparseAutoencoder)
        if model.config.activation != "relu" or not due or step > training.resample_until * training.steps:
            return
        dead = self.dead.nonzero()[:, 0]
        if len(dead):
            random = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + step)
            resample(model, batch.vectors, dead, random, training.resample_gain)
            _forget(optimizers["model"], model, dead)
            self.carried[IDLE][dead] = 0

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Sparsity, exactness, and the loss of the model that reads the reconstruction."""
        assert isinstance(model, SparseAutoencoder)
        price = self.recipe.training.l1 if model.config.activation == "relu" else 0.0
        return measure_dictionary(self.reader, self.site, model, self.valid, l1=price, poll=poll)

    def save(self, folder: Path) -> None:
        model = self.recipe.data.model
        lasting = model if model.startswith("hf:") else str(Path(model).resolve())  # valid in any working folder
        Subject(model=lasting, place=self.site.name, weights=fingerprint(self.reader.model)).save(folder)

    def finish(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, SparseAutoencoder)
        find_contexts(self.reader, self.site, model, self.train[: self.recipe.data.contexts]).save(folder)


@torch.no_grad()
def resample(
    dictionary: SparseAutoencoder,
    vectors: Float[Tensor, "N D"],
    dead: Tensor,
    random: torch.Generator,
    gain: float,
) -> None:
    """Point dead features at vectors drawn with the square of their loss as weight (Bricken et al. 2023).

    The encoder of such a feature has `gain` times the mean length of the others', so that it disturbs little.
    """
    losses = (vectors - dictionary(vectors).vectors).square().sum(dim=-1)
    weights = losses.square().cpu() + 1e-12
    chosen = torch.multinomial(weights, len(dead), replacement=len(dead) > len(weights), generator=random)
    new = vectors[chosen.to(vectors.device)] / dictionary.scale - dictionary.bias
    new = nn.functional.normalize(new, dim=-1)
    alive = torch.ones(dictionary.config.features, dtype=torch.bool, device=new.device)
    alive[dead] = False
    lengths = dictionary.encoder.weight.norm(dim=-1)
    usual = lengths[alive].mean() if bool(alive.any()) else lengths.mean()
    dictionary.atoms[dead] = new
    dictionary.encoder.weight[dead] = new * usual * gain
    dictionary.encoder.bias[dead] = 0.0


def _forget(optimizer: torch.optim.Optimizer, dictionary: SparseAutoencoder, features: Tensor) -> None:
    """Set Adam's moments of the parameters of some features to zero."""
    for parameter in (dictionary.atoms, dictionary.encoder.weight, dictionary.encoder.bias):
        for name in ("exp_avg", "exp_avg_sq"):
            if name in optimizer.state[parameter]:
                optimizer.state[parameter][name][features] = 0.0

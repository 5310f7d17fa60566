"""A dictionary of features, beside one that sae-lens trains on the same activations.

python bench/dictionary.py [--recipe stories260k-dictionary] [--set KEY=VALUE ...] [--rates 3e-3,1e-3] [--out FOLDER]

Ours is the recipe, by the loop of `regard train`. Theirs is `TopKTrainingSAE`, trained by `SAETrainer` on the same
stream of vectors in the same order: as many features, the same k, batch, steps and warmup, its own loss of dead
features with the same patience, the vectors divided by the same number, and its decoder bias begun at their mean, as
ours; its rate falls to zero over the last fifth of the steps, as its documentation has it. The weights that sae-lens
ends with are then written in the form of our model, which must give the same vectors back, and both are measured by the
same code on the same held-out examples. Where sae-lens is not installed, ours alone. Times are of training, reading of
the model included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

import regard
from regard.families.dictionaries.model import SparseAutoencoder
from regard.families.dictionaries.recipe import DictionaryRecipe
from regard.families.dictionaries.task import DictionaryTask, measure_dictionary
from regard.training.loop import train
from regard.training.recipe.load import load_recipe

SHOWN = ("l0", "explained_variance", "loss_recovered", "loss_recovered_mean", "dead")
CHECKED = 2000  # vectors on which the two forms of one dictionary are compared


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="stories260k-dictionary")
    parser.add_argument("--set", action="append", default=[], dest="changes")
    parser.add_argument("--rates", default="3e-3,1e-3,3e-4", help="learning rates of sae-lens")
    parser.add_argument("--out", type=Path, help="where our run is kept")
    given = parser.parse_args()
    recipe = load_recipe(given.recipe, ["training.device=cpu", "data.contexts=1", *given.changes])
    assert isinstance(recipe, DictionaryRecipe)
    with tempfile.TemporaryDirectory() as temporary:
        out = given.out or Path(temporary) / "run"
        began = time.perf_counter()
        train(recipe, out)
        seconds = time.perf_counter() - began
        task = DictionaryTask.open(recipe, out / "data", torch.device("cpu"))
        ours = regard.load(out).model
        show("regard", recipe.training.lr, seconds, task, ours)
        for rate in map(float, given.rates.split(",")) if find_spec("sae_lens") else ():
            began = time.perf_counter()
            theirs = train_theirs(task, rate)
            show("sae-lens", rate, time.perf_counter() - began, task, theirs)


def show(name: str, rate: float, seconds: float, task: DictionaryTask, dictionary: SparseAutoencoder) -> None:
    """Print the metrics of a dictionary on the held-out examples as a line of JSON."""
    found = measure_dictionary(task.reader, task.site, dictionary, task.valid)
    row = {"trainer": name, "rate": rate, "seconds": round(seconds, 1)}
    print(json.dumps(row | {key: round(found[key], 4) for key in SHOWN}), flush=True)


def train_theirs(task: DictionaryTask, rate: float) -> SparseAutoencoder:
    """The dictionary of sae-lens after as many steps, in our form."""
    from sae_lens.config import SAETrainerConfig
    from sae_lens.saes.topk_sae import TopKTrainingSAE, TopKTrainingSAEConfig
    from sae_lens.training.sae_trainer import SAETrainer

    training, built = task.recipe.training, task.build()
    assert isinstance(built, SparseAutoencoder)
    config, steps = built.config, training.steps
    torch.manual_seed(task.recipe.seed)
    sae = TopKTrainingSAE(TopKTrainingSAEConfig(d_in=config.width, d_sae=config.features, k=config.k))
    with torch.no_grad():
        sae.b_dec.copy_(built.bias)
    settings = SAETrainerConfig(
        total_training_samples=steps * training.batch,
        train_batch_size_samples=training.batch,
        lr=rate,
        lr_warm_up_steps=training.warmup,
        lr_decay_steps=steps // 5,
        lr_end=0.0,
        dead_feature_window=training.dead_after // training.batch,
    )
    SAETrainer(settings, sae, scaled(task, built.scale)).fit()
    return in_our_form(sae, built, task.stream.probe[:CHECKED])


def scaled(task: DictionaryTask, scale: Tensor) -> Iterator[Tensor]:
    """The stream of vectors in units of their spread."""
    for _, batch in task.batches({}):
        yield batch.vectors / scale


@torch.no_grad()
def in_our_form(sae: torch.nn.Module, built: SparseAutoencoder, vectors: Tensor) -> SparseAutoencoder:
    """The weights of sae-lens with directions of length 1; both forms give the same vectors back."""
    lengths = sae.W_dec.norm(dim=-1)
    built.atoms.copy_(sae.W_dec)
    built.encoder.weight.copy_((sae.W_enc * lengths).T)
    bias = sae.b_enc if sae.cfg.apply_b_dec_to_input else sae.b_enc + sae.b_dec @ sae.W_enc
    built.encoder.bias.copy_(bias * lengths)
    built.bias.copy_(sae.b_dec)
    theirs = sae.decode(sae.encode_with_hidden_pre(vectors / built.scale)[0]) * built.scale
    torch.testing.assert_close(built(vectors).vectors, theirs, rtol=1e-3, atol=1e-3)
    return built.eval()


if __name__ == "__main__":
    main()

"""Training a model of structures: losses, validation, resuming, and what is refused."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from regard.errors import ConfigError, DataError
from regard.families.folding.data import built_in_chain, contact_prior, examples_of
from regard.families.folding.metrics import (
    baselines,
    confidence_loss,
    interval,
    long_range_precision,
    rmsd,
    superposed,
)
from regard.families.folding.structures import write_pdb
from regard.training.loop import train
from regard.training.recipe.load import load_recipe, open_task

MODEL = (
    'model={name="evoformer",preset="tiny",width=8,heads=2,head_width=4,pair_width=8,pair_heads=2,pair_head_width=4,'
    "depth=1,outer_width=2,triangle_width=8,single_width=8,passes=2,point_heads=2,point_head_width=4,value_points=2,"
    "dropout=0.1,pair_dropout=0.1,structure_dropout=0.1}"
)
SMALL = [
    "training.device=cpu", "data.chains.count=5", "data.held_out=2", "data.chains.shortest=10",
    "data.chains.longest=14", "training.batch=2", "training.validate_every=0", "training.warmup=2", MODEL,
]  # fmt: skip


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    sets = [*SMALL, "training.schedule=constant", "training.checkpoint_every=2"]
    first, whole = (load_recipe("chains-evoformer", [*sets, f"training.steps={steps}"]) for steps in (4, 6))
    train(first, tmp_path / "parts")
    ours = _weights(train(whole, tmp_path / "parts", resume=True))
    theirs = _weights(train(whole, tmp_path / "straight"))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def _weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_validation_measures_chains_that_were_held_out(tmp_path):
    recipe = load_recipe("chains-evoformer", [*SMALL, "training.steps=2", "training.validate_every=2"])
    out = train(recipe, tmp_path / "run")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    (valid,) = [row for row in rows if "lddt" in str(row)]
    text = json.dumps(valid)
    assert "rmsd" in text and "confidence" in text and "precision" not in text  # no chain is long enough
    settings = json.loads((out / "folding.json").read_text())
    assert len(settings["trained"]) == 3 and len(settings["validated"]) == 2
    assert not set(settings["trained"]) & set(settings["validated"])


def test_other_folds_hold_out_other_chains(tmp_path):
    found = []
    for fold in range(2):
        recipe = load_recipe("chains-evoformer", [*SMALL, f"data.fold={fold}"])
        task = open_task(recipe, tmp_path / str(fold), torch.device("cpu"), lambda: None)
        found.append(set(task.corpus.settings.validated))
    assert not found[0] & found[1]
    with pytest.raises(DataError, match="leaves none to train or to validate on"):
        open_task(
            load_recipe("chains-evoformer", [*SMALL, "data.fold=7"]), tmp_path / "7", torch.device("cpu"), lambda: None
        )


def test_chains_of_one_name_are_held_out_together(tmp_path):
    pytest.importorskip("gemmi")
    (tmp_path / "files").mkdir()
    for number in range(3):
        for suffix in ("pdb", "ent"):  # the same entry, twice
            write_pdb(tmp_path / "files" / f"x{number}.{suffix}", [built_in_chain(1, number, (20, 20))])

    def opened(count):
        sets = [*SMALL, f"data.train={tmp_path / 'files'}", f"data.held_out={count}"]
        recipe = load_recipe("chains-evoformer", sets)
        return open_task(recipe, tmp_path / str(count), torch.device("cpu"), lambda: None).corpus.settings

    for count, kept in ((1, 4), (2, 2)):
        found = opened(count)
        assert (len(found.trained), len(found.validated)) == (kept, 6 - kept)
        assert not set(found.trained) & set(found.validated)
    with pytest.raises(DataError, match=r"has 3 chains, of which fold 0 of data.held_out = 3 leaves none to train"):
        opened(3)


def test_what_is_not_known_does_not_count(tmp_path):
    recipe = load_recipe("chains-evoformer", SMALL)
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    model = task.build().eval()
    _, batch = next(iter(task.batches({})))
    before = task.loss(model, batch).total
    batch.backbone_mask[0, 3:], batch.points_mask[0, 3:] = False, False
    masked = task.loss(model, batch).total
    batch.backbone[0, 3:], batch.points[0, 3:] = torch.randn(3, 3), 5.0
    assert torch.equal(masked, task.loss(model, batch).total) and not torch.equal(before, masked)


def test_the_losses_fall(tmp_path):
    recipe = load_recipe("chains-evoformer", [*SMALL, "training.lr=0.01"])
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    torch.manual_seed(0)
    model = task.build().train()
    _, batch = next(iter(task.batches({})))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=0.01), []
    for _ in range(25):
        torch.manual_seed(0)
        loss = task.loss(model, batch).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.75 * losses[0]


def test_a_step_uses_its_device_alone(tmp_path, monkeypatch):
    """A step that copied a tensor from the host could not be captured as a CUDA graph."""
    recipe = load_recipe("chains-evoformer", SMALL)
    task = open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)
    _, batch = next(iter(task.batches({})))
    elsewhere = batch._map(lambda tensor: torch.empty_like(tensor, device="meta"))
    with torch.device("meta"):
        model = task.build().train()
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # there is none for this device
    with _HostTensors() as host:
        task.loss(model, elsewhere).total.backward()
    assert not host.seen


class _HostTensors(TorchDispatchMode):
    """Notes operations on tensors of the host."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if isinstance(each, torch.Tensor)]
        if any(each.device.type == "cpu" for each in tensors):
            self.seen.append(str(operation))
        return result


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.rows=4", "there are no alignments"),
        ("data.alignments=families.jsonl", "have no families"),
        ("data.chains.shortest=99", "is more than longest"),
        ("training.metric=bleu", "does not measure"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        load_recipe("chains-evoformer", [change])


def test_a_metric_that_no_chain_has_is_refused(tmp_path):
    recipe = load_recipe("chains-evoformer", [*SMALL, "training.metric=precision"])
    with pytest.raises(DataError, match="no chain to validate on has more than 24"):
        open_task(recipe, tmp_path / "data", torch.device("cpu"), lambda: None)


# --- measures ---


def test_precision_counts_the_best_pairs_and_shares_ties():
    points = np.zeros((30, 3))
    points[:, 0] = 100 * np.arange(30)
    points[29] = points[2] + 1  # one contact at a separation of 27
    known, scores = np.ones(30, dtype=bool), np.zeros((30, 30))
    pairs = sum(1 for i in range(30) for j in range(i + 24, 30))
    assert long_range_precision(scores, points, known) == pytest.approx(1 / pairs)
    scores[2, 29] = 1
    assert long_range_precision(scores, points, known, share=30) == 1
    assert long_range_precision(scores, points, known) == pytest.approx((1 + 0) / 6)
    assert np.isnan(long_range_precision(scores[:9, :9], points[:9], known[:9]))


def test_superposition_undoes_turns_and_moves_and_keeps_mirrors():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(12, 3)) * 5
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    turn *= np.sign(np.linalg.det(turn))
    known = np.arange(12) < 10
    np.testing.assert_allclose(superposed(points @ turn + 7, points, known), points, atol=1e-8)
    assert rmsd(points @ turn + 7, points, known) < 1e-8
    assert rmsd(points * [1, 1, -1], points, known) > 1


def test_baselines_and_intervals():
    chains = [built_in_chain(1, number, (50, 60)) for number in range(4)]
    examples, prior = list(examples_of(chains, {}, coupled=False)), contact_prior(chains)
    assert prior[1] == 1.0 and len(prior) == max(len(each.given) for each in examples)
    found = baselines(examples[0], prior)
    assert set(found) == {"random", "separation prior"}
    low, high = interval([0.1, 0.2, 0.3, float("nan")])
    assert 0.1 <= low < 0.2 < high <= 0.3


def test_the_confidence_is_trained_on_bins_of_lddt():
    logits = torch.full((1, 2, 50), -20.0)
    logits[0, 0, 49], logits[0, 1, 0] = 20.0, 20.0
    scores, mask = torch.tensor([[1.0, 0.5]]), torch.tensor([[True, False]])
    assert confidence_loss(logits, scores, mask).item() < 1e-3
    assert confidence_loss(logits, scores, torch.tensor([[True, True]])).item() > 10

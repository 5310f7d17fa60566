"""Training on tracks: both stages, their losses, and exact continuation."""

import json

import pytest
import torch

from regard.checkpoints import load_model
from regard.cli.main import run
from regard.errors import ConfigError, DataError
from regard.families.trajectories.task import likeness, path_errors
from regard.families.trajectories.tracks import SceneSettings
from regard.training.loop import train
from regard.training.recipe.load import load_recipe, open_task

CPU = torch.device("cpu")
SMALL = [
    "model.width=16", "model.latent=4", "model.ffn_width=16", "data.walkers.count=4", "data.walkers.valid_count=1",
    "data.walkers.test_count=1", "data.stride=6", "training.batch=24", "training.samples=3", "training.device=cpu",
    "training.steps=5", "training.warmup=1", "training.validate_every=5", "training.checkpoint_every=3",
]  # fmt: skip
STAGE_TWO = [each for each in SMALL if not each.startswith("model.")]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A run of the first stage."""
    out = tmp_path_factory.mktemp("forecasting") / "first"
    train(load_recipe("walkers-agentformer", SMALL), out)
    return out


def test_a_run_measures_errors_and_knows_its_scenes(first):
    rows = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    for kind in ("valid", "test"):
        found = next(row for row in rows if kind in row.values())
        assert {"loss", "ade", "fde", "likeliest_ade", "likeliest_fde"} <= found.keys()
        assert 0 < found["ade"] < found["fde"]
    assert SceneSettings.load(first).trained == tuple(f"walkers-1-{number:03d}" for number in range(4))


def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path):
    sets = [
        *SMALL,
        "training.schedule=constant",
        "training.validate_every=0",
        "training.steps=4",
        "data.walkers.count=2",
    ]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(load_recipe("walkers-agentformer", sets), whole)
    train(load_recipe("walkers-agentformer", [*sets, "training.steps=2"]), stopped)
    train(load_recipe("walkers-agentformer", sets), stopped, resume=True)
    resumed = load_model(stopped).model.state_dict()
    for name, tensor in load_model(whole).model.state_dict().items():
        assert torch.equal(resumed[name], tensor), name


def test_the_second_stage_changes_the_sampler_alone(first, tmp_path):
    recipe = load_recipe("walkers-agentformer-sampler", [*STAGE_TWO, f"model.init={first}", "model.sampler=4"])
    train(recipe, tmp_path / "second")
    before, after = load_model(first).model.state_dict(), load_model(tmp_path / "second").model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    task = open_task(recipe, tmp_path / "data", CPU, lambda: None)
    fresh = {name for name in after if name.startswith("sampler.")}
    assert fresh == set(after) - set(before) and load_model(tmp_path / "second").config.sampler == 4
    trained = {name for name, parameter in task.build().named_parameters() if parameter.requires_grad}
    assert trained == fresh


def test_mistakes_are_one_line(tmp_path, capsys):
    assert run(["train", "walkers-agentformer-sampler", "-o", str(tmp_path / "a")]) in (1, 2)
    assert "model.init is empty" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="second stage"):
        load_recipe("walkers-agentformer", ["model.sampler=5"])
    with pytest.raises(ConfigError, match="the scenes are eth, hotel"):
        load_recipe("eth-ucy-agentformer", ["data.leave_out=paris"])
    with pytest.raises(ConfigError, match="parts of their own"):
        load_recipe("walkers-agentformer", ["data.valid=x.csv"])
    (tmp_path / "short.csv").write_text("frame,agent,x,y\n0,1,0,0\n1,1,1,0\n")
    recipe = load_recipe("walkers-agentformer", [*SMALL, f"data.train={tmp_path / 'short.csv'}"])
    with pytest.raises(DataError, match="no window of 8"):
        open_task(recipe, tmp_path / "data", CPU, lambda: None)
    assert not (tmp_path / "data").exists()


def test_files_are_trained_on_and_wrong_rows_named(tmp_path):
    lines = [f"{t},{agent},{0.4 * t + agent},{agent}" for t in range(24) for agent in range(3)]
    (tmp_path / "scene.csv").write_text("\n".join([*lines, "30,1,x,2"]))
    sets = [*SMALL, f"data.train={tmp_path / 'scene.csv'}", f"data.valid={tmp_path / 'scene.csv'}"]
    with pytest.raises(DataError, match="line 73: 'x' is not a number"):
        open_task(load_recipe("walkers-agentformer", sets), tmp_path / "data", CPU, lambda: None)
    recipe = load_recipe("walkers-agentformer", [*sets, "data.skip_bad=true", "data.stride=1"])
    task = open_task(recipe, tmp_path / "data", CPU, lambda: None)
    assert len(task.corpus.stores["train"]) == 5 and "rows left out, the first: " in task.summary


def test_losses_are_their_formulas():
    samples, future = torch.randn(2, 5, 3, 4, 2), torch.randn(2, 3, 4, 2)
    known = torch.ones(2, 3, 4, dtype=torch.bool)
    known[0, 1, 2:] = False
    found = path_errors(samples[:, 0], future, known, "squared")
    assert found[0, 1] == pytest.approx(((samples[0, 0, 1, :2] - future[0, 1, :2]) ** 2).sum().item(), rel=1e-5)
    away = path_errors(samples[:, 0], future, known, "distance")
    assert away[1, 2] == pytest.approx((samples[1, 0, 2] - future[1, 2]).norm(dim=-1).sum().item(), rel=1e-4)
    rows = samples[1, :, 2].flatten(1)
    expected = (-(torch.pdist(rows) ** 2) / 5.0).exp().mean()
    assert likeness(samples, 5.0)[1, 2] == pytest.approx(expected.item(), rel=1e-3)


def test_likeness_is_exact_far_from_the_origin_in_half_precision():
    torch.manual_seed(0)
    samples = 20 + torch.randn(1, 6, 2, 12, 2) / 4
    rows = samples[0, :, 1].flatten(1).double()
    expected = (-(torch.pdist(rows) ** 2) / 5.0).exp().mean()
    with torch.autocast("cpu", torch.bfloat16):  # as the loss of a recipe with precision = "bf16"
        assert likeness(samples, 5.0)[0, 1] == pytest.approx(expected.item(), rel=1e-3)


def test_the_validation_loss_does_not_depend_on_earlier_draws(tmp_path):
    task = open_task(load_recipe("walkers-agentformer", SMALL), tmp_path / "data", CPU, lambda: None)
    model = task.build().eval()
    torch.manual_seed(1)
    first = task.validate(model, lambda: None)
    torch.randn(3)
    assert task.validate(model, lambda: None) == first


def test_a_batch_is_learnt(tmp_path):
    task = open_task(load_recipe("walkers-agentformer", SMALL), tmp_path / "data", CPU, lambda: None)
    torch.manual_seed(0)
    model, (_, batch) = task.build().train(), next(iter(task.batches({"epoch": 0, "index": 0})))
    optimizer, losses = torch.optim.Adam(model.parameters(), 1e-2), []
    for _ in range(25):
        loss = task.loss(model, batch)
        losses.append(loss.total.item() / batch.tokens)
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


def test_the_likeliest_future_has_a_term_of_its_own(tmp_path):
    """The term is the path error of the prior's mean, times its weight; without dropout nothing else changes."""

    def loss(weight: float) -> float:
        recipe = load_recipe("walkers-agentformer", [*SMALL, "model.dropout=0", f"training.likeliest={weight}"])
        task = open_task(recipe, tmp_path / "data", CPU, lambda: None)
        torch.manual_seed(0)
        return task.loss(model, batch).total.item()

    task = open_task(load_recipe("walkers-agentformer", [*SMALL, "model.dropout=0"]), tmp_path / "data", CPU, list)
    model, (_, batch) = task.build().eval(), next(iter(task.batches({"epoch": 0, "index": 0})))
    noise = torch.zeros(len(batch.past), 1, batch.past.shape[1], model.config.latent)
    single = model.forecast(batch.past, batch.seen, noise)[1]
    expected = path_errors(single, batch.future, batch.known, task.recipe.training.error).sum().item()
    assert loss(0.5) - loss(0.0) == pytest.approx(0.5 * expected, rel=1e-4)

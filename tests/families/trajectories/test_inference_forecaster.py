"""The forecaster: samples that depend on each scene alone, its verb, evaluation, images, costs and mistakes."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import regard
from regard.cli.main import run
from regard.errors import DataError, UsageError
from regard.families.trajectories.data import built_in_walkers
from regard.families.trajectories.model import PRESETS, AgentFormer, AgentFormerConfig
from regard.families.trajectories.view import between_agents
from regard.look.inspection import GivenInput, inspect_input
from regard.look.report import from_json, to_json
from regard.plan.measure import measure_step
from regard.training.recipe.sections import TrainingSection

SCENE = "builtin:walkers#1"


@pytest.fixture(scope="module")
def folder(make_forecaster):
    return make_forecaster(width=16, outputs="velocity")


@pytest.fixture(scope="module")
def forecaster(folder):
    return regard.load(folder)


@pytest.fixture(scope="module")
def answer(forecaster):
    return forecaster.forecast(SCENE, at=200.0, samples=3)[0]


def test_the_agents_of_a_frame_are_forecast_beside_what_happened(answer):
    tracks = built_in_walkers(1, 1)
    now = {tracks.agents[agent] for time, agent in zip(tracks.times, tracks.rows, strict=True) if time == 20}
    assert set(answer.agents) == now and answer.frame == 200 and answer.samples.shape == (3, len(now), 12, 2)
    place = tracks.positions[(tracks.times == 20) & (tracks.rows == tracks.agents.index(answer.agents[0]))][0]
    np.testing.assert_allclose(answer.past[0, -1], place, atol=1e-5)
    later = tracks.positions[(tracks.times == 22) & (tracks.rows == tracks.agents.index(answer.agents[0]))]
    assert len(later) == (not np.isnan(answer.truth[0, 1, 0]))
    assert np.abs(answer.samples[0] - answer.samples[1]).max() > 1e-3 and np.isfinite(answer.samples).all()


def test_the_order_of_rows_the_file_and_other_scenes_change_nothing(forecaster, answer, tmp_path):
    rows = built_in_walkers(1, 1).to_csv().splitlines()
    mixed = [rows[0], *np.random.default_rng(0).permutation(rows[1:])]
    (tmp_path / "walkers-1-001.csv").write_text("\n".join(mixed))
    alone, again = (forecaster.forecast(tmp_path / "walkers-1-001.csv", at=200.0, samples=3)[0] for _ in range(2))
    np.testing.assert_array_equal(alone.samples, again.samples)
    np.testing.assert_allclose(
        alone.samples, answer.samples, atol=5e-3
    )  # positions are written in tenths of a millimetre
    one, two = forecaster.forecast([SCENE, "builtin:walkers#2"], at=200.0, samples=3)
    np.testing.assert_array_equal(one.samples, answer.samples)
    assert two.name != one.name
    other = forecaster.forecast(SCENE, at=200.0, samples=3, seed=1)[0]
    np.testing.assert_allclose(other.likeliest, answer.likeliest, atol=1e-5)
    assert np.abs(other.samples - answer.samples).max() > 1e-3


def test_tracks_with_gaps_one_agent_and_one_row_work(forecaster):
    rows = [(t, "a", 0.4 * t, 0.0) for t in (0, 1, 3, 4)]
    (found,) = forecaster.forecast("\n".join(",".join(map(str, row)) for row in rows).encode(), samples=2)
    assert found.agents == ["a"] and np.isnan(found.past[0, :, 0]).tolist() == [True] * 3 + [
        False,
        False,
        True,
        False,
        False,
    ]
    (single,) = forecaster.forecast(b"0 1 5.0 6.0", samples=2)
    assert np.isfinite(single.samples).all() and np.abs(single.likeliest - [5, 6]).max() < 20


def test_coordinates_of_maps_give_the_same_future(forecaster):
    rows = [(time, agent, 0.35 * time, 0.123 * agent + 0.01 * time) for time in range(8) for agent in (1, 2)]
    near, far = (
        "\n".join(f"{time} {agent} {x + shift:.3f} {y + shift:.3f}" for time, agent, x, y in rows).encode()
        for shift in (0.0, 5_400_000.0)
    )
    (here,), (there,) = (forecaster.forecast(scene, samples=2) for scene in (near, far))
    np.testing.assert_allclose(there.samples - 5_400_000, here.samples, atol=1e-3)
    np.testing.assert_allclose(there.past - 5_400_000, here.past, atol=1e-6)
    for mine, theirs in zip(*(forecaster.attention(each).weights.values() for each in (here, there)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-4)


@pytest.mark.parametrize("decoder", ["parallel", "autoregressive"])
def test_attention_is_between_agents_at_steps(make_forecaster, decoder):
    forecaster = regard.load(make_forecaster(width=16, decoder=decoder))
    (answer,) = forecaster.forecast(SCENE, at=200.0, samples=2)
    agents = len(answer.agents)
    seen = forecaster.attention(answer, 1)
    for name, weights in seen.weights.items():
        queries, keys = ({"past": 8, "future": 12}[side] * agents for side in seen.sides[name])
        assert weights.shape == (2, queries, keys)
        sums = weights.sum(-1)
        assert np.allclose(sums[sums > 0], 1.0, atol=1e-5)
    own = seen.weights["decoder.layers.0.attention"].reshape(2, agents, 12, agents, 12)
    later = np.triu(np.ones((12, 12), bool), 1)
    assert (np.abs(own.transpose(0, 1, 3, 2, 4)[..., later]).max() == 0) == (decoder == "autoregressive")
    with pytest.raises(UsageError, match="samples 0 to 1"):
        forecaster.attention(answer, 2)


def test_a_frame_is_found_by_the_seconds_that_a_file_has(forecaster):
    rows = "".join(f"{1.7e9 + 0.4 * time:.1f},1,{time},0\n" for time in range(12)).encode()
    (answer,) = forecaster.forecast(rows, at=1_700_000_003.6, samples=1)
    assert answer.past[0, -1].tolist() == [9, 0] and answer.truth[0, :2].tolist() == [[10, 0], [11, 0]]
    with pytest.raises(DataError, match=r"no frame 1700000003.4; they go from 1700000000 to 1700000004.4 in steps of"):
        forecaster.forecast(rows, at=1_700_000_003.4)


def test_mistakes_are_explained(forecaster, tmp_path):
    with pytest.raises(DataError, match="has no frame 205; they go from 0 to 390 in steps of 10"):
        forecaster.forecast(SCENE, at=205.0)
    with pytest.raises(DataError, match="no agent is seen in frame 10"):
        forecaster.forecast(b"0 1 2 3\n20 1 2 3\n30 1 2 3\n40 1 1 1", at=10.0)
    with pytest.raises(UsageError, match="write builtin:walkers#NUMBER"):
        forecaster.forecast("builtin:walkers#one")
    with pytest.raises(UsageError, match="at least 1"):
        forecaster.forecast(SCENE, samples=0)


def test_the_verb_writes_rows_pictures_and_json(folder, answer, tmp_path, capsys):
    options = [SCENE, "-m", str(folder), "--samples", "3", "--at", "200"]
    assert run(["forecast", *options]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 4 * len(answer.agents) * 12 and rows[0]["frame"] == "210"
    last = next(row for row in rows if row["sample"] == "likeliest" and row["agent"] == answer.agents[1])
    assert [float(last[axis]) for axis in "xy"] == pytest.approx(answer.likeliest[1, 0].tolist(), abs=2e-3)
    assert run(["forecast", *options, "--json", "-o", str(tmp_path / "scene.csv")]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agents"] == answer.agents and np.shape(told["samples"]) == (3, len(answer.agents), 12, 2)
    assert len((tmp_path / "scene.csv").read_text().splitlines()) == 1 + len(rows)
    for suffix in ("svg", "html", "json"):
        assert run(["forecast", *options, "-o", str(tmp_path / f"scene.{suffix}")]) == 0
    assert "whom each agent looks at" in (tmp_path / "scene.svg").read_text()
    assert from_json(json.loads((tmp_path / "scene.json").read_text())).view == "agents"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere.csv"], "is not a file"),
        ([SCENE, "--at", "7"], "has no frame 7"),
        ([SCENE, "-o", "scene.txt"], "cannot write attention as 'scene.txt'"),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(folder, words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["forecast", *words, "-m", str(folder)]) in (1, 2)
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_look_shows_a_scene_at_a_frame_and_a_sample(forecaster, answer, tmp_path):
    options = {"sample": "1", "samples": "3"}
    found = inspect_input(forecaster, GivenInput(f"{SCENE}@200", "walkers", options=options))
    assert found.report.view == "agents" and found.report.details["sample"] == 1
    assert found.answer == {"agents": len(answer.agents), "frame": 200.0, "first": 0.0, "last": 390.0, "step": 10.0}
    assert to_json(from_json(to_json(found.report))) == to_json(found.report)
    weights = between_agents(found.report.panels[-1])
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, atol=1e-5)


def test_a_model_without_attention_is_drawn_all_the_same(make_forecaster, tmp_path):
    folder = make_forecaster(width=16, agent_aware=False, social="none", body="recurrent")
    assert run(["forecast", SCENE, "-m", str(folder), "--samples", "2", "-o", str(tmp_path / "scene.svg")]) == 0
    forecaster = regard.load(folder)
    (answer,) = forecaster.forecast(SCENE, samples=1)
    with pytest.raises(UsageError, match="no attention"):
        forecaster.attention(answer)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--beam", "3"], "--beam does not apply to"),
        (["--to", "es"], "--to is for models that translate"),
        (["--quality"], "--quality is for models that translate"),
        (["--gold", "links.tsv"], "--gold is for models that translate"),
        (["--stride", "3"], "--stride is for language models"),
        (["--max-words", "9"], "--max-words is for models that translate"),
    ],
)
def test_evaluate_refuses_options_that_would_do_nothing(folder, option, words, capsys):
    assert run(["evaluate", "builtin:walkers", "-m", str(folder), "--count", "40", *option]) == 2
    assert words in capsys.readouterr().err


def test_evaluate_prints_what_was_measured_on_and_baselines(folder, tmp_path, capsys):
    (tmp_path / "one.csv").write_text("\n".join(f"{t},1,{0.3 * t},0" for t in range(25)))
    assert run(["evaluate", str(tmp_path / "one.csv"), "-m", str(folder), "--samples", "2"]) == 0
    told = capsys.readouterr().out
    for words in (
        "one.csv",
        "windows",
        "k = 2",
        "1 agents or more",
        "best of 2",
        "all agents together",
        "straight line",
    ):
        assert words in told, words
    assert run(["evaluate", "builtin:walkers", "-m", str(folder), "--count", "40", "--samples", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best of 2"]["ade"] <= found["best of 2, all agents together"]["ade"] <= found["mean of 2"]["ade"]
    (tmp_path / "a.txt").write_text((tmp_path / "one.csv").read_text())  # the model was trained on a_train
    assert run(["evaluate", str(tmp_path / "a.txt"), "-m", str(folder), "--samples", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["note"] == "the model was trained on a"
    (tmp_path / "short.csv").write_text("0,1,0,0\n1,1,1,1")
    assert run(["evaluate", str(tmp_path / "short.csv"), "-m", str(folder)]) == 1
    assert "seen for 20 steps without a gap" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre"},
        {"agent_aware": False},
        {"sampler": 3},
        {"body": "recurrent", "social": "none", "agent_aware": False},
    ],
)
def test_costs_are_those_of_the_model(changes):
    config = AgentFormerConfig.parse({**PRESETS["tiny"], **changes})
    model, measured = AgentFormer(config).train(), measure_step("agentformer", config, 2, 3, 3, TrainingSection())
    assert measured.parameters == sum(parameter.numel() for parameter in model.parameters())
    past, future = torch.randn(2, 3, 20, 2).split([8, 12], dim=2)
    seen, known = (torch.ones(each.shape[:3], dtype=torch.bool) for each in (past, future))
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with torch.no_grad(), unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        model(past, seen, future, known, 20)
    assert counter.get_total_flops() == pytest.approx(measured.flops, rel=0.03)


def test_plans_and_lists_know_it(capsys):
    assert run(["plan", "walkers-agentformer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(
        p.numel() for p in AgentFormer(AgentFormerConfig.parse({**PRESETS["tiny"], "norm": "pre"})).parameters()
    )
    assert run(["models"]) == 0
    assert "agentformer" in capsys.readouterr().out

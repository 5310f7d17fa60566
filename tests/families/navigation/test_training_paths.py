"""Tasks on paths: metrics by hand, what is held out, stages that build on each other, exact resume."""

import json

import numpy as np
import pytest
import torch

from regard.checkpoints import load_model
from regard.cli.main import run
from regard.families.language.data import lines
from regard.families.navigation.data import LengthPrior, PathSettings, PathStore, length_prior
from regard.families.navigation.houses import held_out
from regard.families.navigation.synthetic import built_in_houses, built_in_routes
from regard.families.navigation.task import baselines, expected_scores, one_hot, prior_scores
from regard.training.loop import train
from regard.training.recipe.load import load_recipe, open_task

CPU = torch.device("cpu")
SMALL = [
    "data.houses.count=9", "data.houses.routes=3", "data.houses.seen_routes=1", "data.held_out=2", "data.tested=1",
    "data.candidates.count=8", "data.candidates.walks=2", "training.batch=8", "training.steps=6", "training.warmup=2",
    "training.validate_every=3", "training.checkpoint_every=3", "training.log_every=2", "training.device=cpu",
]  # fmt: skip
TINY = (
    'model={name="vlnbert",width=16,heads=2,depth=2,ffn_width=24,max_length=64,region_width=16,region_heads=2,'
    "region_depth=1,region_ffn_width=24,link_width=16,link_heads=2,word_links=[1],region_links=[0]}"
)


def store(errors, lengths, shortest, direct=None, sizes=None) -> PathStore:
    """Routes of which only the measures matter."""
    errors, lengths = np.array(errors, dtype=np.float32), np.array(lengths, dtype=np.float32)
    routes = len(errors)
    sizes = np.where(np.isfinite(errors), 3, 0) if sizes is None else np.array(sizes)
    candidates = np.where(np.arange(5) < sizes[..., None], np.arange(5), -1)
    paths = np.tile([0, 0, 0, 0, -1], (routes, 1))
    told = np.ones_like(errors, dtype=bool) if direct is None else np.array(direct)
    numbers = np.arange(routes)
    return PathStore(
        paths, np.zeros(routes), candidates, errors, lengths, told, np.array(shortest, dtype=np.float32), numbers,
        [f"text {number}" for number in range(routes)],
    )  # fmt: skip


def test_success_error_and_spl_by_hand():
    """Two paths succeed, one of them with a detour of 25 %; one ends just outside of 3 m."""
    found = store([[0.0, 9.0], [2.9, 0.0], [3.0, 1.0]], [[10.0, 5.0], [12.5, 9.0], [7.0, 7.0]], [10.0, 10.0, 7.0])
    scores = expected_scores(found, one_hot(np.array([0, 0, 0]), 2))
    assert scores["success"] == pytest.approx(2 / 3)
    assert scores["error"] == pytest.approx((0.0 + 2.9 + 3.0) / 3)
    assert scores["spl"] == pytest.approx((1.0 + 10.0 / 12.5 + 0.0) / 3)


def test_spl_never_rewards_a_path_shorter_than_the_shortest():
    """A path that ends 2 m before the goal is shorter than the way to the goal."""
    assert expected_scores(store([[2.0]], [[8.0]], [10.0]), one_hot(np.array([0]), 1))["spl"] == pytest.approx(1.0)


def test_baselines_are_expected_values():
    found = store(
        [[0.0, 1.0, 9.0, np.inf], [6.0, 5.0, 4.0, 2.0]], [[10.0, 20.0, 9.0, 0.0], [5.0, 6.0, 7.0, 8.0]], [10.0, 8.0],
        direct=[[True, False, True, False], [False] * 4], sizes=[[3, 4, 3, 0], [2, 3, 4, 5]],
    )  # fmt: skip
    prior = LengthPrior(viewpoints={4: 0.75, 3: 0.25}, mean=7.5, deviation=2.0)
    rows = baselines(found, prior)
    assert rows["random"]["success"] == pytest.approx((2 / 3 + 1 / 4) / 2)
    assert rows["random"]["error"] == pytest.approx((10 / 3 + 17 / 4) / 2)
    assert rows["random"]["spl"] == pytest.approx(((1 + 0.5) / 3 + 1 / 4) / 2)
    assert rows["shortest to each end"]["success"] == pytest.approx((1 / 2 + 1 / 4) / 2)  # any path where none is
    assert rows["best candidate"]["success"] == 1.0
    scores = prior_scores(found, prior)
    assert scores[0, 1] == pytest.approx(np.log(0.75) - 0.5 * (12.5 / 2) ** 2)
    assert scores[1].argmax() == 2 and scores[0].argmax() == 2
    assert rows["length prior"]["success"] == 0.0


def test_the_length_prior_is_that_of_the_paths():
    found = store([[0.0], [0.0]], [[4.0], [8.0]], [4.0, 8.0])
    prior = length_prior(found)
    assert prior.viewpoints == {4: 1.0} and (prior.mean, prior.deviation) == (6.0, 2.0)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """A run of the ranking task."""
    out = tmp_path_factory.mktemp("ranked") / "run"
    train(load_recipe("houses-vlnbert", [TINY, *SMALL]), out)
    return out


def test_no_house_is_in_two_parts(tmp_path):
    recipe = load_recipe("houses-vlnbert", [TINY, *SMALL])
    task = open_task(recipe, tmp_path / "data", CPU, lambda: None)
    settings, geometry = task.corpus.settings, task.corpus.geometry
    assert not set(settings.trained) & {*settings.validated, *settings.tested}
    assert len(settings.trained) == 6 and len(settings.validated) == 2 and len(settings.tested) == 1
    ends = np.append(geometry.offsets[1:], len(geometry.positions))
    for part, scans in (("train", settings.trained), ("valid", settings.validated), ("seen", settings.trained)):
        starts = task.rows[part].store.paths[:, 0]
        assert {geometry.scans[int(np.searchsorted(ends, each, side="right"))] for each in starts} <= set(scans)
    again = open_task(load_recipe("houses-vlnbert", [TINY, *SMALL, "seed=1"]), tmp_path / "again", CPU, lambda: None)
    assert again.corpus.settings == settings


def test_a_run_measures_both_kinds_of_houses_and_writes_what_its_pipeline_needs(ranked):
    rows = [json.loads(line) for line in (ranked / "metrics.jsonl").read_text().splitlines()]
    valid = next(row for row in rows if "seen_success" in row)
    assert {"success", "spl", "error", "seen_spl", "seen_error", "loss"} <= valid.keys()
    assert 0 <= valid["spl"] <= valid["success"] <= 1
    assert PathSettings.load(ranked).candidates.count == 8 and (ranked / "tokenizer.json").is_file()
    assert "no images" in (ranked / "README.md").read_text()


@pytest.mark.parametrize("task", ["houses-vlnbert", "houses-vlnbert-pairs"])
def test_a_stopped_run_goes_on_to_the_same_bits(tmp_path, task):
    # Words: the library numbers the pieces of a WordPiece vocabulary differently each time it learns one.
    sets = [TINY, *SMALL, "training.schedule=constant", "training.metric=loss", "tokenizer.kind=word"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(load_recipe(task, sets), whole)
    train(load_recipe(task, [*sets, "training.steps=3"]), stopped)
    train(load_recipe(task, sets), stopped, resume=True)
    resumed = load_model(stopped).model.state_dict()
    for name, tensor in load_model(whole).model.state_dict().items():
        assert torch.equal(resumed[name], tensor), name


def test_pairs_that_all_do_not_match_are_learnt_from(tmp_path):
    recipe = load_recipe("houses-vlnbert-pairs", [TINY, *SMALL, "training.batch=1"])
    task = open_task(recipe, tmp_path / "data", CPU, lambda: None)
    batches = (batch for _, batch in task.batches({"epoch": 0, "index": 0}))
    batch, model = next(each for each in batches if each.mismatched.all()), task.build().eval()
    loss = task.loss(model, batch)
    assert not batch.labels_mask.any() and loss.tokens == batch.tokens == 1
    read = model(batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask)
    wanted = torch.nn.functional.cross_entropy(read.match, batch.mismatched)
    assert loss.total.item() == pytest.approx(wanted.item())  # nothing else is known of them
    (loss.total / batch.tokens).backward()
    assert all(torch.isfinite(each.grad).all() for each in model.parameters() if each.grad is not None)


def test_files_are_read_and_bad_paths_are_counted_and_named(tmp_path, capsys):
    houses = list(built_in_houses(1, 4))
    (tmp_path / "connectivity").mkdir()
    entries = []
    for house in houses:
        (tmp_path / "connectivity" / f"{house.scan}_connectivity.json").write_text(json.dumps(house.to_json()))
        entries += [
            {
                "scan": house.scan, "path": [house.viewpoints[number] for number in route.path],
                "heading": route.heading, "instructions": list(route.instructions),
            }
            for route in built_in_routes(house, 1, 4)
        ]  # fmt: skip
    entries[3]["path"] = [entries[3]["path"][0], entries[3]["path"][-1]]
    (tmp_path / "paths.json").write_text(json.dumps(entries))
    sets = [TINY, *SMALL, "data.held_out=1", "data.tested=1", f"data.train={tmp_path / 'paths.json'}"]
    task = open_task(load_recipe("houses-vlnbert", [*sets, "data.skip_bad=true"]), tmp_path / "data", CPU, lambda: None)
    assert len(task.corpus.skipped) == 1 and "1 paths left out, the first: " in task.summary
    assert sum(len(task.rows[part].store) for part in ("train", "valid", "test")) == 3 * (len(entries) - 1)
    arguments = [word for each in sets for word in ("--set", each)]
    assert run(["train", "houses-vlnbert", *arguments, "-o", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "path 4: house" in error and "the path jumps" in error and error.count("\n") == 1
    assert not (tmp_path / "out" / "data").exists()


def test_stages_start_from_one_another(tmp_path):
    """Words of a BERT, then pairs, then ranking: every stage has the weights of the one before at its beginning."""
    shape = 'model={name="bert",width=16,heads=2,depth=2,ffn_width=24,max_length=64}'
    quick = ["training.steps=2", "training.validate_every=0", "training.device=cpu", "training.warmup=1"]
    train(load_recipe("houses-bert", [shape, *quick]), tmp_path / "bert")
    words = f"words.init={tmp_path / 'bert'}"
    pairs = load_recipe("houses-vlnbert-pairs", [TINY, *SMALL, *quick, words])
    task = open_task(pairs, tmp_path / "data", CPU, lambda: None)
    bert, model = load_model(tmp_path / "bert").model.state_dict(), task.build().state_dict()
    for name in ("embedding.weight", "encoder.1.attention.query.weight"):
        assert torch.equal(model[f"words.{name}"], bert[name])
    train(pairs, tmp_path / "pairs")
    sets = [each for each in SMALL if not each.startswith("model")]
    ranking = load_recipe("houses-vlnbert", ["model.preset=", f"model.init={tmp_path / 'pairs'}", *sets, *quick])
    started = open_task(ranking, tmp_path / "ranking", CPU, lambda: None).build()
    trained = load_model(tmp_path / "pairs").model.state_dict()
    shared = [name for name in started.state_dict() if name in trained]
    assert len(shared) > 30 and all(torch.equal(started.state_dict()[name], trained[name]) for name in shared)
    assert started.config.head == "score"


def test_the_first_stage_reads_of_no_house_that_later_ones_hold_out(tmp_path):
    data = load_recipe("houses-bert").data
    texts = {part: {line.text.strip() for line in lines(data, part)} for part in ("train", "valid")}
    houses = {house.scan: house for house in built_in_houses(1, 40)}
    aside = held_out(houses, 12)
    told = {text for scan in aside for route in built_in_routes(houses[scan], 1, 30) for text in route.instructions}
    assert texts["valid"] == told and len(texts["train"]) > 2000


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["data.held_out=9", "data.houses.count=9"], "leave none to train on"),
        (["data.longest=100", "model.max_length=64"], "the model reads 64 tokens"),
        (["data.graphs=x"], "graphs and parts of their own"),
        (["data.train=absent.json"], "no connectivity files beside absent.json"),
        (["words.init=absent"], "is not a folder"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(tmp_path, monkeypatch, capsys, sets, message):
    monkeypatch.chdir(tmp_path)
    arguments = [word for each in [*SMALL, *sets] for word in ("--set", each)]
    assert run(["train", "houses-vlnbert", *arguments, "-o", "out"]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1

"""The navigator: ranked paths, the same alone and together; its verb, evaluation, images and mistakes."""

import json
import math

import numpy as np
import pytest

import regard
from regard.cli.main import run
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.navigation.features import candidate_paths, shortest_paths
from regard.families.navigation.pipeline import Navigator, find_house
from regard.families.navigation.synthetic import built_in_house
from regard.look.inspection import GivenInput, inspect_input
from regard.look.report import from_json, to_json
from regard.look.save import save

START = "house-1-000-003"
TEXTS = ["Turn left and walk 5 metres.", "Go up the stairs and stop there", "turn around, then walk 2 metres and wait"]


def a_path(house, start):
    """The longest of the shortest paths from a start."""
    path = max(shortest_paths(house, start), key=lambda row: (row >= 0).sum())
    return tuple(path[path >= 0].tolist())


@pytest.fixture(scope="module")
def folder(make_navigator):
    return make_navigator("vlnbert")


@pytest.fixture(scope="module")
def navigator(folder):
    found = regard.load(folder)
    assert isinstance(found, Navigator)
    return found


def test_paths_are_the_candidates_in_the_order_of_their_probabilities(navigator):
    (answer,) = navigator.navigate(TEXTS[0], "builtin:houses#0", START, heading=0.4)
    house = built_in_house(1, 0)
    expected = candidate_paths(house, 3, navigator.settings.candidates)
    assert {path.numbers for path in answer.paths} == set(expected)
    shares = [path.probability for path in answer.paths]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1.0)
    assert answer.best.viewpoints[0] == START and answer.best.length == pytest.approx(house.length(answer.best.numbers))


@pytest.mark.parametrize("name", ["vlnbert", "path_lstm"])
def test_instructions_together_are_answered_as_alone(make_navigator, name):
    navigator = regard.load(make_navigator(name))
    house = built_in_house(1, 0)
    together = navigator.navigate(TEXTS, house, START)
    for text, answer in zip(TEXTS, together, strict=True):
        (alone,) = navigator.navigate(text, house, START)
        assert [path.numbers for path in alone.paths] == [path.numbers for path in answer.paths]
        np.testing.assert_allclose(
            [path.probability for path in alone.paths], [path.probability for path in answer.paths], rtol=1e-4
        )


def test_the_heading_matters_and_is_an_angle(navigator):
    house = built_in_house(1, 0)
    a, b, c = (navigator.navigate(TEXTS[0], house, START, heading=each)[0] for each in (0.3, 1.5, 0.3 + 2 * math.pi))
    assert a.best.probability == pytest.approx(c.best.probability, rel=1e-4)
    assert a.best.probability != pytest.approx(b.best.probability, rel=1e-6)


def test_attention_has_a_side_for_words_and_one_for_steps(navigator):
    house = built_in_house(1, 0)
    path = a_path(house, 3)
    seen = navigator.attention(TEXTS[0], house, path)
    sizes = {"words": len(seen.pieces), "steps": 1 + len(path)}
    assert seen.sides["links.0.words.cross"] == ("words", "steps") and len(seen.weights) == 9
    assert (
        seen.sides["links.0.regions.cross"] == ("steps", "words")
        and seen.sides["regions.0.attention"] == ("steps",) * 2
    )
    for name, weights in seen.weights.items():
        assert weights.shape[1:] == tuple(sizes[side] for side in seen.sides[name])
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-4)


def test_mistakes_are_explained(navigator, folder, tmp_path):
    house = built_in_house(1, 0)
    with pytest.raises(DataError, match="instruction is empty"):
        navigator.navigate(" ", house, START)
    with pytest.raises(DataError, match="has no viewpoint 'nowhere'"):
        navigator.navigate("go", house, "nowhere")
    with pytest.raises(DataError, match="this model reads at most 128"):
        navigator.navigate("turn left " * 100, house, START)
    with pytest.raises(UsageError, match="is not a built-in house"):
        find_house("builtin:houses#kitchen")
    (folder / "paths.json").rename(tmp_path / "paths.json")
    try:
        with pytest.raises(CheckpointError, match=r"manifest|paths\.json"):
            Navigator.load(folder)
    finally:
        (tmp_path / "paths.json").rename(folder / "paths.json")


def graph_file(tmp_path):
    """The graph of a built-in house as a file."""
    house = built_in_house(1, 2)
    path = tmp_path / "home_connectivity.json"
    path.write_text(json.dumps(house.to_json()))
    return path, house


def test_the_verb_prints_ranked_paths_and_draws_the_house(folder, tmp_path, capsys):
    path, house = graph_file(tmp_path)
    options = ["--scan", str(path), "--start", house.viewpoints[0], "-m", str(folder)]
    assert run(["navigate", TEXTS[0], *options, "--top", "3", "-o", str(tmp_path / "house.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and all(line.split("\t")[2].startswith(house.viewpoints[0]) for line in lines)
    assert "what words look at" in (tmp_path / "house.svg").read_text()
    assert run(["navigate", *TEXTS, *options, "--json", "--heading", "90"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["instruction"] for each in found] == TEXTS and len(found[0]["paths"]) == 5
    assert found[0]["images"] is False


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["go", "--scan", "absent.json", "--start", "a"], 1, "absent.json: no such file"),
        (["go", "--scan", "builtin:houses#0", "--start", "a"], 1, "has no viewpoint 'a'"),
        (["go", "stop", "--scan", "builtin:houses#0", "--start", START, "-o", "x.png"], 2, "give one instruction"),
        (["go", "--scan", "builtin:houses#0", "--start", START, "-o", "x.gif"], 2, "cannot write attention as"),
        (["go", "--scan", "builtin:houses#0", "--start", START, "--heading", "nan"], 2, "not a finite number"),
    ],
)
def test_mistakes_of_the_verb_are_one_line(folder, tmp_path, monkeypatch, capsys, words, code, message):
    monkeypatch.chdir(tmp_path)
    assert run(["navigate", *words, "-m", str(folder)]) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_look_draws_every_form_and_another_rank(navigator, folder, tmp_path, capsys):
    given = GivenInput(f"builtin:houses#0@{START}", "house", TEXTS[0], {"rank": "1"})
    found = inspect_input(navigator, given)
    assert found.report.view == "house" and found.report.details["rank"] == 1
    assert found.answer["paths"][1]["viewpoints"] == list(found.report.panels[-1].keys.viewpoints or ())
    assert to_json(from_json(json.loads(json.dumps(to_json(found.report))))) == to_json(found.report)
    for suffix in ("png", "svg", "html", "json"):
        assert save(found.report, tmp_path / f"look.{suffix}").stat().st_size > 3000
    assert run(["look", f"builtin:houses#0@{START}", TEXTS[0], "-m", str(folder), "-o", str(tmp_path / "a.html")]) == 0
    assert 'registerView("house"' in (tmp_path / "a.html").read_text()
    assert run(["look", "builtin:houses#0", TEXTS[0], "-m", str(folder), "-o", str(tmp_path / "b.html")]) == 2
    assert "say where the path starts" in capsys.readouterr().err and not (tmp_path / "b.html").exists()


def test_evaluate_prints_the_baselines_beside_the_model(folder, make_navigator, capsys):
    assert run(["evaluate", "builtin:houses", "-m", str(folder), "--count", "10", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "no images" in found.pop("note")
    ((title, rows),) = found.items()
    assert title.startswith("other houses: 2 houses, 10 paths, 30 instructions")
    assert rows.keys() == {
        "this model", "with other instructions", "random", "shortest to each end", "length prior", "best candidate",
    }  # fmt: skip
    for row in rows.values():
        assert 0 <= row["spl"] <= row["success"] <= rows["best candidate"]["success"] and row["error"] >= 0
    other = make_navigator("path_lstm")
    assert run(["evaluate", "builtin:houses", "-m", str(folder), "-m", str(other), "--count", "5"]) == 0
    printed = capsys.readouterr().out
    assert str(other) in printed and printed.count("length prior") == 2


def test_evaluate_names_bad_paths(folder, tmp_path, capsys):
    path, house = graph_file(tmp_path)
    (tmp_path / "connectivity").mkdir()
    path.rename(tmp_path / "connectivity" / path.name)
    names = [house.viewpoints[number] for number in a_path(house, 0)]
    entry = {"scan": "home", "path": names, "heading": 0.0, "instructions": ["go there"]}
    (tmp_path / "paths.json").write_text(json.dumps([entry, {**entry, "path": [names[0], names[-1]]}]))
    assert run(["evaluate", str(tmp_path / "paths.json"), "-m", str(folder), "--json"]) == 1
    captured = capsys.readouterr()
    assert "path 2: house home: the path jumps" in captured.err and "1 paths, 1 instructions" in captured.out
    (tmp_path / "paths.json").write_text(json.dumps([{**entry, "scan": "nowhere"}, {**entry, "instructions": [""]}]))
    assert run(["evaluate", str(tmp_path / "paths.json"), "-m", str(folder)]) == 1
    told = capsys.readouterr().err
    assert "no path to measure on; 2 are left out, the first because" in told and "there is no house 'nowhere'" in told


def test_plan_and_models_know_them(capsys):
    assert run(["plan", "r2r-vlnbert", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["batch"] == 32 and any(each["name"] == "links.0.words.cross" for each in planned["attention"])
    assert run(["models"]) == 0
    assert "r2r-vlnbert" in capsys.readouterr().out

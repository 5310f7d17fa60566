"""The claims of the lectures: their outcomes, and the rule by which trained sides are compared."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from regard.attention.core import attention_weights
from regard.cli.main import app, run
from regard.studies.lectures import trained_claims
from regard.studies.lectures.claim import ClaimOptions
from regard.studies.lectures.claims import CLAIMS, find_claim
from regard.studies.lectures.trained_claims import Contest, Side
from regard.training.metrics_log import METRICS

EXPECTED = {
    "gradient-flow": "holds",
    "gru-unrolled": "holds",
    "attention-is-unsupervised": "holds",
    "worked-example": "does not hold",  # a slip of the slides
    "permutation": "holds",
    "mask-by-a-number": "holds",
    "scaling": "holds",
    "similarity-search": "does not hold",
    "layer-by-layer": "does not hold",
    "crossing": "depends",
    "memory-of-pixels": "holds",
    "patch-is-convolution": "holds",
    "feed-forward-is-convolution": "holds",
    "windows": "holds",
}
TIMED = {"heads-cost", "three-ways", "superposition"}  # measured times decide, or tested elsewhere


@pytest.mark.parametrize("name", EXPECTED)
def test_what_random_numbers_decide(name):
    verdict = find_claim(name).test(ClaimOptions())
    assert verdict.outcome == EXPECTED[name] and verdict.words and verdict.rows


def test_every_claim_is_tested_somewhere():
    assert {claim.name for claim in CLAIMS if not claim.trains} == EXPECTED.keys() | TIMED
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)


def test_attention_between_tokens_costs_what_is_said():
    q = torch.randn(1, 1, 32, 64)
    with FlopCounterMode(display=False) as counter:
        attention_weights(q, q) @ q
    row = find_claim("crossing").test(ClaimOptions()).rows[0]
    assert row["n"] == 32 and row["between tokens"] == counter.get_total_flops()


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ({"a": [3.0, 3.2, 3.1], "b": [1.0, 1.1, 0.9]}, "holds"),
        ({"a": [1.0, 1.1, 0.9], "b": [3.0, 3.2, 3.1]}, "does not hold"),
        ({"a": [3.0, 1.0, 2.0], "b": [1.9, 2.9, 1.0]}, "depends"),  # within the spread of the seeds
        ({"a": [3.0, 3.2, 3.1], "b": [1.0, 1.1, 0.9], "c": [3.1, 3.1, 3.2]}, "depends"),
    ],
)
def test_sides_are_told_apart_beyond_the_spread_of_their_seeds(scores, outcome, monkeypatch):
    monkeypatch.setattr(Contest, "_score", lambda self, name, seed, options: scores[name][seed - 1])
    verdict = Contest({name: Side("x") for name in scores}, "a", "bleu", (), 10)(ClaimOptions())
    assert verdict.outcome == outcome
    assert [row["side"] for row in verdict.rows] == list(scores) and verdict.rows[0]["seeds"] == 3


def test_a_claim_that_trains_uses_complete_runs_again(tmp_path, monkeypatch):
    trained = []

    def pretend(recipe, out, resume):
        trained.append(out)
        out.mkdir()
        (out / METRICS).write_text(json.dumps({"step": 1, "bleu": float(recipe.seed)}) + "\n")

    monkeypatch.setattr(trained_claims, "train", pretend)
    monkeypatch.setattr(trained_claims, "is_sealed", lambda out: out in trained)
    options = ClaimOptions(seeds=2, steps=2, runs=tmp_path)
    first = find_claim("many-heads").test(options)
    assert len(trained) == len(set(trained)) == 4  # two sides, two seeds
    assert find_claim("many-heads").test(options) == first and len(trained) == 4
    assert [(row["bleu"], row["seeds"]) for row in first.rows] == [(1.5, 2), (1.5, 2)] and first.outcome == "depends"


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.trains], ids=lambda claim: claim.name)
def test_the_recipes_of_trained_claims_are_valid(claim, tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(trained_claims, "train", lambda recipe, out, resume: read.append(recipe))
    monkeypatch.setattr(trained_claims, "read_metrics", lambda path: [{"bleu": 1.0, "accuracy": 1.0}])
    claim.test(ClaimOptions(seeds=1, runs=tmp_path))
    assert len(read) >= 2 and all(recipe.training.steps == read[0].training.steps for recipe in read)


def test_the_command_lists_and_tests():
    listed = CliRunner().invoke(app, ["claims"]).stdout
    assert all(claim.name in listed and claim.statement in listed for claim in CLAIMS)
    told = json.loads(CliRunner().invoke(app, ["claims", "permutation", "worked-example", "--json"]).stdout)
    assert [each["outcome"] for each in told] == ["holds", "does not hold"]
    shown = CliRunner().invoke(app, ["claims", "scaling", "--figures"]).stdout
    assert "holds" in shown and "width 1024" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["nonsense"], "no claim 'nonsense'"), (["scaling", "--all"], "not both"), (["--quick"], "goes with --all")],
)
def test_wrong_use_is_one_line(arguments, words, capsys):
    assert run(["claims", *arguments]) != 0
    assert words in capsys.readouterr().err

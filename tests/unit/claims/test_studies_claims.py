"""The claims of the lectures: their outcomes, and the rule by which trained sides are compared."""

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from regard.attention.core import attention_weights
from regard.claims import sides
from regard.claims.claims import CLAIMS, ClaimOptions, find_claim
from regard.claims.contest import Contest, Found, Longer
from regard.claims.sides import RESNET, SWIN, VIT, Acceptability, Pictures, Recall
from regard.cli.main import app, run

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
    "one-weighted-sum": "holds",
    "content-or-location": "holds",
    "hierarchical": "holds",
    "layer-norm": "does not hold",  # a slip of the slides
}
TIMED = {"heads-cost", "three-ways", "superposition", "equal-flops"}  # measured times decide, or tested elsewhere


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
        ({"a": [1.01, 1.01, 1.01], "b": [1.0, 1.0, 1.0]}, "depends"),  # less than the margin
    ],
)
def test_sides_are_told_apart_beyond_the_spread_of_their_seeds(scores, outcome):
    found = Found({name: [{"bleu": value} for value in values] for name, values in scores.items()})
    assert found.outcome("a", "bleu", margin=0.02) == outcome
    assert [row["side"] for row in found.rows] == list(scores) and found.rows[0]["seeds"] == 3
    assert found.rows[0]["spread"] == pytest.approx(float(np.std(scores["a"], ddof=1)))


def test_runs_are_kept_and_shared(tmp_path):
    trained = []

    @dataclass(frozen=True)
    class Side:
        width: int

        def __call__(self, seed, steps):
            trained.append((self.width, seed, steps))
            return {"share": seed / 10}

    options = ClaimOptions(seeds=2, runs=tmp_path / "runs")
    first = Contest({"narrow": Side(1), "wide": Side(2)}, 5).run(options)
    assert trained == [(1, 1, 5), (1, 2, 5), (2, 1, 5), (2, 2, 5)] and first.values("wide", "share") == [0.1, 0.2]
    assert Contest({"another name": Side(2)}, 5).run(options).scores["another name"] == first.scores["wide"]
    assert len(trained) == 4
    Contest({"wide": Side(2)}, 5).run(replace(options, steps=6))
    Contest({"wider": Side(3)}, 5).run(options)  # other steps and other settings are other runs
    assert trained[4:] == [(2, 1, 6), (2, 2, 6), (3, 1, 5), (3, 2, 5)]


class _Measured(dict):
    """The same value for whatever is asked."""

    def __init__(self, value):
        self.value = value

    def __missing__(self, name):
        return self.value


BETTER = {  # for each claim that trains: the sides that are better if it is true
    "gradient-flow-trained": {"GRU", "LSTM"},
    "fixed-context": {"attention", "attention (backwards)"},
    "alignment": {"not guided (twice the steps)"},
    "soft-or-hard": {"soft"},
    "scaling-trained": {"divided by √d"},
    "many-heads": {"4 heads"},
    "positions": {"sinusoidal"},
    "three-ways-trained": {"attention"},
    "pretraining": {"BERT (pre-trained)", "GPT (pre-trained)"},
    "little-data": {"ResNet"},
    "swin-or-vit": {"Swin"},
}


@pytest.mark.parametrize("name", BETTER)
def test_a_claim_that_is_false_comes_out_as_such(name, monkeypatch):
    def verdict(good, bad):
        monkeypatch.setattr(Contest, "_scores", lambda self, side, *_: _Measured(good if side in BETTER[name] else bad))
        return find_claim(name).test(ClaimOptions())

    true, false, same = verdict(0.95, 0.4), verdict(0.4, 0.95), verdict(0.4, 0.4)
    assert (true.outcome, false.outcome) == ("holds", "does not hold")
    assert same.outcome == ("does not hold" if name == "alignment" else "depends")
    assert same.words.startswith("undecided at this budget") == (same.outcome == "depends")
    assert true.chart.only and "0.95" in true.words


@pytest.mark.parametrize(
    ("guided", "free", "longer", "outcome", "words"),
    [
        (0.9, 0.9, 0.9, "holds", ""),
        (0.6, 0.9, 0.9, "holds", ""),
        (0.9, 0.6, 0.9, "depends", "on the budget"),
        (0.9, 0.6, 0.6, "depends", "undecided"),
        (0.1, 0.1, 0.1, "depends", "undecided"),  # nobody has learnt anything
    ],
)
def test_supervision_is_judged_by_whether_it_was_needed(guided, free, longer, outcome, words, monkeypatch):
    scores = {"guided": guided, "not guided": free, "not guided (twice the steps)": longer}
    monkeypatch.setattr(Contest, "_scores", lambda self, side, *_: _Measured(scores[side]))
    verdict = find_claim("do-not-supervise").test(ClaimOptions())
    assert verdict.outcome == outcome and verdict.words.startswith(words)


def test_a_longer_training_has_more_steps():
    assert Longer(lambda seed, steps: {"seed": seed, "steps": steps}, 3)(2, 5) == {"seed": 2, "steps": 15}


def test_every_claim_that_trains_has_a_judgement_tested():
    assert {claim.name for claim in CLAIMS if claim.trains} == BETTER.keys() | {"do-not-supervise"}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_labelled_sentence_is_both_learnt_and_tested(seed, monkeypatch):
    drawn, draw = [], sides._sentences

    def spied(*args):
        drawn.append(draw(*args))
        return drawn[-1]

    monkeypatch.setattr(sides, "_sentences", spied)
    Acceptability("gpt", pretrained=False)(seed, 1)
    (learnt, _), (tested, _) = drawn
    assert not {tuple(row) for row in learnt.tolist()} & {tuple(row) for row in tested.tolist()}


@pytest.mark.parametrize(
    "side",
    [
        Recall("gru", (3,), width=4),
        Pictures("vit", VIT, (8,)),
        Pictures("swin", SWIN, (8,)),
        Pictures("resnet", RESNET, (8,)),
        Acceptability("bert", pretrained=True),
        Acceptability("gpt", pretrained=True),
    ],
    ids=lambda side: f"{type(side).__name__} {getattr(side, 'model', '')}",
)
def test_the_same_seed_measures_the_same(side):
    shares = [{name: value for name, value in side(1, 2).items() if not name.startswith("seconds")} for _ in range(2)]
    assert shares[0] == shares[1] and all(math.isfinite(value) for value in shares[0].values())


def test_the_command_lists_and_tests():
    listed = CliRunner().invoke(app, ["claims"]).stdout
    assert all(claim.name in listed and claim.statement in listed for claim in CLAIMS)
    told = json.loads(CliRunner().invoke(app, ["claims", "permutation", "worked-example", "--json"]).stdout)
    assert [each["outcome"] for each in told] == ["holds", "does not hold"]
    shown = CliRunner().invoke(app, ["claims", "scaling", "--figures"]).stdout
    assert "holds" in shown and "width 1024" in shown


def test_figures_are_drawn_with_their_spread(tmp_path, monkeypatch):
    shares = {"soft": [0.9, 0.8, 1.0], "hard": [0.4, 0.2, 0.3]}
    monkeypatch.setattr(
        Contest, "_scores", lambda self, side, seed, _: dict.fromkeys(["exact, 5-8 words"], shares[side][seed - 1])
    )
    picture = tmp_path / "hard.svg"
    assert run(["claims", "soft-or-hard", "-o", str(picture)]) == 0
    drawn = picture.read_text()
    assert "soft" in drawn and "exact, 5-8 words" in drawn
    chart = (verdict := find_claim("soft-or-hard").test(ClaimOptions())).chart
    assert chart.spread == "spread"
    assert [row["spread"] for row in verdict.rows] == [pytest.approx(0.1)] * len(shares)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "no claim 'nonsense'"),
        (["scaling", "--all"], "not both"),
        (["--quick"], "goes with --all"),
        (["--all", "-o", "x.svg"], "name one"),
        (["scaling", "-o", "x.gif"], ".svg or .png"),
        (["permutation", "-o", "x.svg"], "--figures"),
    ],
)
def test_wrong_use_is_one_line(arguments, words, capsys):
    assert run(["claims", *arguments]) != 0
    assert words in capsys.readouterr().err

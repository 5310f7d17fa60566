"""Plans of a model of structures."""

import pytest

from regard.cli.main import run
from regard.plan.measured_step import measured_peak
from regard.training.recipe.load import load_recipe


def test_the_memory_of_a_training_step_is_planned():
    """The real loop, task, loader and optimiser."""
    sets = ["training.device=cpu", "data.chains.count=4", "data.held_out=0", "training.batch=2", "model.recycles=0"]
    plan, peak = measured_peak(load_recipe("chains-evoformer", sets))
    assert (plan.batch, plan.target_length) == (2, 1)
    assert sum(plan.memory.values()) == pytest.approx(peak, rel=0.1)


def test_a_plan_names_residues_and_rows(capsys):
    assert run(["plan", "evoformer:small", "--batch", "4", "--source-length", "128", "--target-length", "64"]) == 0
    out = capsys.readouterr().out
    assert "4 chains of 128 residues, with 64 rows of an alignment" in out
    assert run(["plan", "pfam-evoformer", "--json"]) == 0
    assert '"source_length": 96, "target_length": 64' in capsys.readouterr().out
    assert "blocks.3.ending.attention\t128 windows, 4 x 128 x 128" in out

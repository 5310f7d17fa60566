"""The toy model of superposition, against what Elhage 2022 reports for five features and two neurons."""

import json

import pytest
import torch
from typer.testing import CliRunner

from regard.claims.superposition import Superposition, superposition, superposition_rows
from regard.cli.main import app


@pytest.fixture(scope="module")
def found():
    return superposition([0.75, 0.97], importance=0.9, steps=1200)


def test_dense_features_get_a_neuron_each():
    dense = superposition([0.0], importance=0.5, steps=1200)
    assert dense.represented == [2]
    assert dense.lengths[0, :2].min() > 0.9 and dense.lengths[0, 2:].max() < 0.3  # the two most important ones
    assert dense.dimensionality[0, :2] == pytest.approx([1, 1], abs=0.1)


def test_sparse_features_share_neurons_as_opposite_pairs_and_then_as_a_pentagon(found):
    assert found.represented == [4, 5]
    assert found.dimensionality[0].sort().values == pytest.approx([0, 0.5, 0.5, 0.5, 0.5], abs=0.03)
    assert found.dimensionality[1] == pytest.approx([0.4] * 5, abs=0.03)
    x, y = found.directions[1]
    angles = torch.rad2deg(torch.atan2(y, x)).sort().values
    gaps = torch.diff(angles, append=angles[:1] + 360)
    assert gaps == pytest.approx([72.0] * 5, abs=4)


def test_dimensionality_is_the_formula():
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(3, 4, generator=generator) + 1
    told = Superposition([0.0], w[None], [0.0]).dimensionality[0]
    for i in range(4):
        unit = w[:, i] / w[:, i].norm()
        overlap = sum(float(unit @ w[:, j]) ** 2 for j in range(4))
        assert told[i] == pytest.approx(float(w[:, i] @ w[:, i]) / overlap, rel=1e-5)


def test_the_command_prints_and_draws(found, tmp_path, monkeypatch):
    monkeypatch.setattr("regard.claims.superposition.superposition", lambda sparsities: found)
    arguments = ["claims", "superposition", "--sizes", "0,99", "--json", "-o", str(tmp_path / "s.png")]
    run = CliRunner().invoke(app, arguments)
    assert json.loads(run.stdout) == superposition_rows(found)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")

"""The costs of a model of structures beside what torch counts and keeps."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.cli.main import run
from regard.families.catalog import MODELS
from regard.studies.costs.measured_step import measured_peak
from regard.studies.costs.models import COSTS
from regard.training.recipe.load import load_recipe

BATCH, RESIDUES, ROWS = 2, 26, 5
CASES = [
    {},
    {"couplings": True, "dropout": 0.1, "pair_dropout": 0.2, "structure_dropout": 0.1},
    {"to_pairs": "products", "columns": False},
    {"pair_width": 48, "triangle_width": 20, "depth": 3, "pair_heads": 2},
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case.values())))
def case(request):
    """A model, a function that computes a loss, and the planned costs."""
    entry = MODELS["evoformer"]
    config = entry.config.parse({**entry.presets["tiny"], **request.param})
    torch.manual_seed(0)
    model = entry.model(config).train()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape)
    sequence, rows = torch.randint(20, (BATCH, RESIDUES)), torch.randint(20, (BATCH, ROWS, RESIDUES))
    mask = torch.ones(BATCH, RESIDUES, dtype=torch.bool)
    couplings = torch.randn(BATCH, RESIDUES, RESIDUES) if config.couplings else None

    def loss():
        answer = model(sequence, mask, rows, None, None, couplings, recycles=0)
        letters = answer.symbols.log_softmax(-1)[..., 0].sum() + answer.confidence.sum()
        return letters + answer.distances.log_softmax(-1)[..., 0].sum() + answer.frames.translation.sum()

    return model, loss, COSTS["evoformer"](config, RESIDUES, ROWS)


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_are_those_torch_counts(case):
    _, loss, costs = case
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        loss()
    assert BATCH * costs.total.flops == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_activations_are_those_autograd_keeps(case):
    """The weights of triangle attention, cubic in the length, are among them."""
    model, loss, costs = case
    weights, kept = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}, {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss()
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_are_those_the_recorder_sees(case):
    model, loss, costs = case
    with record(model) as looks, torch.no_grad():
        loss()
    planned = {matrix.name: BATCH * matrix.entries for matrix in costs.matrices}
    assert planned == {name: weights.numel() for name, weights in looks.items()}


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

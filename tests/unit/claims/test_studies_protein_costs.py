"""Costs of models of protein pairs against real modules: parameters and FLOPs exactly, memory as autograd keeps it."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.families.proteins.model import Interactor, InteractorConfig
from regard.studies.costs.models import COSTS

BATCH, SOURCE, TARGET = 3, 90, 71


@pytest.fixture(params=[{}, {"depth": 0, "dropout": 0.0}, {"pools": (2, 3, 2), "kernel": 5, "cross_depth": 2}], ids=str)
def case(request):
    torch.manual_seed(0)
    config = InteractorConfig(**{"front_width": 12, "width": 24, "heads": 3, "ffn_width": 40, **request.param})
    first, second = (torch.randint(21, (BATCH, length)) for length in (SOURCE, TARGET))
    batch = first, torch.ones_like(first, dtype=torch.bool), second, torch.ones_like(second, dtype=torch.bool)
    return Interactor(config).train(), batch, COSTS["interactor"](config, SOURCE, TARGET)


def test_parameters_and_flops_are_exact(case):
    model, batch, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        model(*batch)
    assert BATCH * costs.total.flops == counter.get_total_flops()


def test_activations_are_those_autograd_keeps(case):
    model, batch, costs = case
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(*batch).score.sum()
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_are_those_the_recorder_sees(case):
    model, batch, costs = case
    with record(model) as looks, torch.no_grad():
        model.eval()(*batch)
    planned = {matrix.name: (matrix.heads, matrix.queries, matrix.keys) for matrix in costs.matrices}
    seen = {f"{name}.{side}": tuple(found.shape[1:]) for name, found in looks.items() for side in ("first", "second")}
    assert planned == seen and all(len(found) == 2 * BATCH for found in looks.values())

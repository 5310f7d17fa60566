"""The formulas for BERT against the module itself: parameters and FLOPs exactly, activations as autograd keeps them."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.models.bert import Bert, BertConfig
from regard.studies.costs import bert
from regard.studies.plan import make_plan

BATCH, LENGTH = 3, 17
CASES = [
    {"head": "masked"},
    {"head": "masked", "embedding_width": 12, "shared_layers": True, "activation": "gelu_new", "dropout": 0.0},
    {"head": "classify", "labels": 5, "attention_dropout": 0.0},
    {"head": "tags", "segments": 0, "pooler": False},
    {"head": "answer", "activation": "relu", "pooler": False},
]


@pytest.fixture(params=CASES, ids=lambda case: "-".join(map(str, case.values())))
def case(request):
    """A model, its batch, and its planned costs."""
    config = BertConfig(vocab=53, width=32, heads=4, depth=3, ffn_width=80, max_length=40, **request.param)
    torch.manual_seed(0)
    batch = torch.randint(53, (BATCH, LENGTH)), torch.ones(BATCH, LENGTH, dtype=torch.bool)
    return Bert(config).train(), batch, bert(config, LENGTH, LENGTH)


def answer(model, batch):
    """The sum of the probabilities' logarithms of some label, as losses have it."""
    return model(*batch).logits.log_softmax(-1)[..., 0].sum()


def test_parameters_and_matrices_are_exact(case):
    model, batch, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())
    with record(model) as looks, torch.no_grad():
        model.eval()(*batch)
    planned = {matrix.name: (BATCH, matrix.heads, matrix.queries, matrix.keys) for matrix in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}


def test_flops_are_those_torch_counts(case):
    model, batch, costs = case
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        answer(model, batch)
    assert BATCH * costs.total.flops == counter.get_total_flops()


def test_activations_are_those_autograd_keeps(case):
    model, batch, costs = case
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), hooks:
        answer(model, batch)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_a_folder_can_be_planned(make_encoder):
    folder = make_encoder("masked")
    plan = make_plan(str(folder), batch=2, source_length=8)
    assert plan.name == "bert" and plan.parameters > 0

"""The costs of Conformers against real modules; the cost of one recording is the difference of two batches."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.cli.main import run
from regard.families.speech.conformer import Conformer, ConformerConfig
from regard.studies.costs.models import COSTS
from regard.studies.costs.plan import make_plan

SIZES = {"vocab": 29, "bands": 18, "width": 24, "heads": 4, "depth": 2, "ffn_width": 40, "kernel": 5}
CASES = [{}, {"decoder_depth": 2}, {"decoder_depth": 1, "ctc": False, "dropout": 0.0}]
BATCHES, SOURCE, TARGET = (2, 5), 43, 9


@pytest.fixture(params=CASES, ids=str)
def case(request):
    torch.manual_seed(0)
    config = ConformerConfig(**SIZES, **request.param)
    model = Conformer(config).train()

    def call(count, factored=False):
        features, words = torch.randn(count, SOURCE, 18, requires_grad=True), torch.randint(29, (count, TARGET))
        heard = model(features, torch.ones(count, SOURCE, dtype=torch.bool), words, factored=factored)
        parts = [] if heard.frames is None else [heard.frames.log_softmax(-1)[..., 0].sum()]
        if heard.taught is not None:
            parts.append((heard.taught.hidden**2).sum() if factored else heard.taught.log_softmax(-1)[..., 0].sum())
        return sum(parts)

    return model, call, COSTS["conformer"](config, SOURCE, TARGET)


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_of_one_more_recording_are_those_torch_counts(case):
    _, call, costs = case
    counts = []
    for count in BATCHES:
        unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
        with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
            call(count)
        counts.append(counter.get_total_flops())
    assert costs.total.flops == (counts[1] - counts[0]) / (BATCHES[1] - BATCHES[0])


def test_activations_of_one_more_recording_are_those_autograd_keeps(case):
    model, call, costs = case
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes = []
    for count in BATCHES:
        kept = {}  # by storage; the tensor keeps its address from being reused

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            call(count, factored=True)
        sizes.append(sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in owned))
    measured = (sizes[1] - sizes[0]) / (BATCHES[1] - BATCHES[0])
    assert 4 * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_are_those_that_are_recorded(case):
    model, _, costs = case
    with torch.inference_mode(), record(model.eval()) as looks:
        model(torch.randn(3, SOURCE, 18), None, torch.ones(3, TARGET, dtype=torch.long))
    planned = {m.name: (3, m.heads, m.queries, m.keys) for m in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}


def test_a_preset_is_planned_for_ten_seconds(capsys):
    plan = make_plan("conformer:small")
    assert plan.source_length == 1000 and plan.parameters == pytest.approx(8.86e6, rel=0.01)
    assert run(["plan", "conformer:large"]) == 0
    assert "encoder.0.attention" in capsys.readouterr().out

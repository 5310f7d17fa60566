"""What language models and T5s cost, by formula and as torch counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.models.catalog import MODELS
from regard.models.gpt import LLAMA
from regard.models.t5 import V1_1
from regard.studies.costs import COSTS
from regard.training.objectives import cross_entropy

GPT = {"vocab": 61, "width": 32, "heads": 4, "depth": 3, "max_length": 40}
T5 = {"source_vocab": 61, "target_vocab": 61, "width": 32, "heads": 4, "head_width": 8, "ffn_width": 80,
      "encoder_depth": 2, "decoder_depth": 3, "buckets": 8, "max_distance": 20}  # fmt: skip
CASES = [
    ("gpt", GPT),
    ("gpt", {**GPT, "dropout": 0.0, "embedding_dropout": 0.0, "tie": False, "ffn_width": 50, "activation": "relu"}),
    ("gpt", {**GPT, "attention_dropout": 0.1}),
    ("gpt", {**GPT, **LLAMA}),
    ("gpt", {**GPT, **LLAMA, "kv_heads": 2, "head_width": 10, "attention_bias": True, "ffn_width": 70}),
    ("t5", {**T5, "dropout": 0.0}),
    ("t5", {**T5, **V1_1, "dropout": 0.0, "head_width": 6}),
    ("t5", {**T5}),
    ("t5", {**T5, **V1_1}),
]
BATCH, SOURCE, TARGET = 3, 17, 13


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{len(case[1])}")
def case(request):
    name, values = request.param
    torch.manual_seed(0)
    config = MODELS[name].config(**values)
    text, source = torch.randint(61, (BATCH, TARGET)), torch.randint(61, (BATCH, SOURCE))
    batch = (text,) if name == "gpt" else (source, torch.ones_like(source, dtype=torch.bool), text)
    return MODELS[name].model(config).train(), batch, COSTS[name](config, SOURCE, TARGET)


def loss(model, batch):
    labels = batch[-1]
    return cross_entropy(model(*batch), labels, torch.ones_like(labels, dtype=torch.bool))


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_are_those_torch_counts(case):
    model, batch, costs = case
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        loss(model, batch)
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
        loss(model, batch)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_and_caches_are_real(case):
    model, batch, costs = case
    model.eval()
    with record(model) as looks, torch.no_grad():
        model(*batch)
    planned = {matrix.name: (BATCH, matrix.heads, matrix.queries, matrix.keys) for matrix in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}
    with torch.inference_mode():
        source = torch.ones(1, 1 if len(batch) == 1 else SOURCE, dtype=torch.long)
        state = model.start(source, source > 0)
        for _ in range(TARGET):
            model.step(torch.ones(1, 1, dtype=torch.long), state)
    assert costs.hypothesis_cache == sum(2 * cache.k[:, :, : cache.length].numel() for cache in state.caches)
    memories = getattr(state, "memories", [])
    assert costs.sentence_cache == sum(memory.k.numel() + memory.v.numel() for memory in memories)

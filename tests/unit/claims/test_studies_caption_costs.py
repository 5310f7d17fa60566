"""The costs of captioners against real modules; the cost of one image is the difference of two batches."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.families.catalog import MODELS
from regard.studies.costs.models import COSTS

BODY = {"stem_width": 8, "widths": (8, 16), "depths": (1, 1), "stem": "small", "block": "basic"}
SIZES = {
    "vocab": 53, "image_size": 12, "body": "resnet", "body_values": BODY, "embedding": 24, "width": 32, "heads": 4,
    "ffn_width": 48,
}  # fmt: skip
CASES = [
    {},
    {"attention": "none", "decoder": "gru"},
    {"decoder": "gru", "depth": 2, "dropout": 0.0, "level": 1},
    {"decoder": "transformer", "depth": 2},
    {"decoder": "transformer", "attention": "none"},
    {"attention": "hard"},
]
BATCHES, TARGET = (2, 5), 9


@pytest.fixture(params=CASES, ids=str)
def case(request):
    """A model, a function that runs it on a number of images, and its planned costs."""
    torch.manual_seed(0)
    config = MODELS["captioner"].config(**SIZES, **request.param)
    model = MODELS["captioner"].model(config).train()

    def call(count, factored=False):
        images, words = torch.randn(count, 3, 12, 12), torch.randint(53, (count, TARGET))
        logits, _ = model(images, words, factored=factored)
        return (logits.hidden**2).sum() if factored else logits.log_softmax(-1)[..., 0].sum()

    return model, call, COSTS["captioner"](config, 0, TARGET)


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_of_one_more_image_are_those_torch_counts(case):
    _, call, costs = case
    counts = []
    for images in BATCHES:
        unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
        with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
            call(images)
        counts.append(counter.get_total_flops())
    assert costs.total.flops == (counts[1] - counts[0]) / (BATCHES[1] - BATCHES[0])


def test_activations_of_one_more_image_are_those_autograd_keeps(case):
    model, call, costs = case
    owned = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    sizes = []
    for images in BATCHES:
        kept = {}  # by storage; the tensor keeps its address from being reused

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            call(images, factored=True)
        sizes.append(sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in owned))
    measured = (sizes[1] - sizes[0]) / (BATCHES[1] - BATCHES[0])
    assert 4 * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_and_caches_are_those_of_a_decoding(case):
    model, _, costs = case
    model.eval()
    with torch.inference_mode():
        if costs.matrices:
            with record(model) as looks:
                model(torch.randn(3, 3, 12, 12), torch.ones(3, TARGET, dtype=torch.long))
            planned = {m.name: (3, m.heads, m.queries, m.keys) for m in costs.matrices}
            assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}
        state = model.start(torch.randn(1, 3, 12, 12))
        for _ in range(TARGET):
            model.step(torch.ones(1, 1, dtype=torch.long), state)
    if hasattr(state, "caches"):
        sentence = sum(memory.k.numel() + memory.v.numel() for memory in state.memories)
        hypothesis = sum(2 * cache.k[:, :, : cache.length].numel() for cache in state.caches)
    else:
        held = (state.source.memory, state.source.keys, state.source.summary)
        kept = {each.untyped_storage().data_ptr(): each.numel() for each in held}  # without attention all are the mean
        sentence, hypothesis = sum(kept.values()), state.hidden.numel()
    assert (costs.sentence_cache, costs.hypothesis_cache) == (sentence, hypothesis)

"""The formulas of `regard plan` against real modules: parameters exactly, FLOPs and memory as torch itself counts."""

import json

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.checkpoints import save_model
from regard.cli.main import run
from regard.errors import ConfigError, UsageError
from regard.models.catalog import MODELS
from regard.studies.costs import COSTS
from regard.studies.plan import LECTURES, make_plan
from regard.training.objectives import cross_entropy

SIZES = {
    "transformer": {"width": 32, "heads": 4, "encoder_depth": 2, "decoder_depth": 3, "ffn_width": 80},
    "seq2seq": {"embedding": 24, "width": 32},
}
CASES = [
    ("transformer", {}),
    ("transformer", {"dropout": 0.0, "norm": "pre", "activation": "gelu", "tie": "none"}),
    ("transformer", {"activation": "swish", "activation_dropout": 0.1, "positions": "learned", "output_bias": True}),
    ("transformer", {"attention_dropout": 0.1, "positions": "rotary"}),
    ("transformer", {"positions": "linear", "join_positions": "concatenate"}),
    ("transformer", {"encoder": "convolution", "kernel": 5}),
    ("seq2seq", {}),
    ("seq2seq", {"cell": "gru", "attention": "none", "bidirectional": False}),
    ("seq2seq", {"cell": "gru", "attention": "general", "encoder_depth": 2, "decoder_depth": 2}),
    ("seq2seq", {"cell": "rnn", "attention": "dot", "encoder_depth": 3, "tie": "none", "bidirectional": False}),
    ("seq2seq", {"encoder": "convolution", "attention": "scaled_dot", "dropout": 0.0, "encoder_depth": 2}),
    ("seq2seq", {"attention": "none", "encoder_depth": 2, "decoder_depth": 2, "reverse_source": True}),
]
BATCH, SOURCE, TARGET = 3, 17, 13


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    """A model, its batch, and its planned costs."""
    name, changes = request.param
    config = MODELS[name].config(source_vocab=53, target_vocab=61, **SIZES[name], **changes)
    torch.manual_seed(0)
    batch = (
        torch.randint(53, (BATCH, SOURCE)),
        torch.ones(BATCH, SOURCE, dtype=torch.bool),
        torch.randint(61, (BATCH, TARGET)),
    )
    return MODELS[name].model(config).train(), batch, COSTS[name](config, SOURCE, TARGET)


def loss(model, batch):
    labels = batch[2]
    return cross_entropy(model(*batch), labels, torch.ones_like(labels, dtype=torch.bool))


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_are_those_torch_counts(case):
    model, batch, costs = case
    # torch's counter does not know the fused kernels of CPUs
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        value = loss(model, batch)
        forward = counter.get_total_flops()
        value.backward()
    assert BATCH * costs.total.flops == forward
    assert 3 * BATCH * costs.total.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_activations_are_those_autograd_keeps(case):
    model, batch, costs = case
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}  # by storage, so that views of one tensor count once; the tensor keeps its address from being reused

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    # oneDNN's LSTM keeps a workspace of its own design
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), hooks:
        loss(model, batch)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.1)


def test_matrices_are_those_the_recorder_sees(case):
    model, batch, costs = case
    if not costs.matrices:
        assert model.cross is None
        return
    with record(model) as looks, torch.no_grad():
        model.eval()(*batch)
    planned = {matrix.name: (BATCH, matrix.heads, matrix.queries, matrix.keys) for matrix in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}
    assert all(matrix.entries == looks[matrix.name][0].numel() for matrix in costs.matrices)


@pytest.mark.parametrize("name", SIZES)
def test_the_cache_is_what_the_decoder_state_holds(name):
    config = MODELS[name].config(source_vocab=9, target_vocab=9, **SIZES[name])
    model, costs = MODELS[name].model(config).eval(), COSTS[name](config, SOURCE, TARGET)
    with torch.inference_mode():
        state = model.start(torch.ones(1, SOURCE, dtype=torch.long), torch.ones(1, SOURCE, dtype=torch.bool))
        for _ in range(TARGET):
            model.step(torch.ones(1, 1, dtype=torch.long), state)
    if name == "transformer":
        source = sum(memory.k.numel() + memory.v.numel() for memory in state.memories)
        target = sum(cache.k[:, :, : cache.length].numel() * 2 for cache in state.caches)
    else:
        source = sum(part.numel() for part in (state.source.memory, state.source.keys, state.source.summary))
        target = state.hidden.numel()
    assert (costs.sentence_cache, costs.hypothesis_cache) == (source, target)


def test_every_model_of_the_catalogue_has_formulas():
    assert COSTS.keys() == MODELS.keys()


def test_the_paper_base_model_has_65_million_parameters():
    # Vaswani 2017, table 3: 65 million with a shared vocabulary of about 37,000
    plan = make_plan("transformer:base", sets=["tokenizer.size=37000", "model.tie=all"])
    assert plan.parameters == pytest.approx(65e6, rel=0.04)


def test_memory_counts_weights_gradients_and_two_moments():
    plan = make_plan("transformer:tiny", batch=2, source_length=5, target_length=6)
    weights = 4 * plan.parameters
    assert plan.memory == {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights,
        "activations": 4 * 2 * plan.costs.total.kept,
    }


def test_a_recipe_a_preset_and_a_folder_can_be_planned(tmp_path):
    from_recipe = make_plan("phrasebook", sets=["tokenizer.size=500", "training.batch_tokens=640"])
    assert (from_recipe.config.source_vocab, from_recipe.batch) == (500, 20)
    assert make_plan("seq2seq:small").config.width == MODELS["seq2seq"].presets["small"]["width"]

    model = MODELS["transformer"].model(from_recipe.config)
    save_model(tmp_path / "model", "transformer", model)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"never read")
    assert make_plan(str(tmp_path / "model")).config == from_recipe.config


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(UsageError, match="batch is 0"):
        make_plan("transformer:tiny", batch=0)
    with pytest.raises(ConfigError, match="'smal' is not one of transformer; did you mean 'small'"):
        make_plan("transformer:smal")
    with pytest.raises(UsageError, match="trained model"):
        make_plan(str(tmp_path), sets=["model.width=8"])


def test_the_lectures_figures():
    pixels, patches_16, patches_14, full, windows = LECTURES
    assert (pixels.entries, pixels.nbytes, pixels.total_bytes) == (128**4, 2**30, 768 * 2**30)
    assert patches_16.entries == 14**4 == 38_416
    assert round(patches_16.nbytes / 2**10) == 150
    assert int(patches_16.total_bytes / 2**20) == 112
    assert (patches_14.entries, patches_14.nbytes, patches_14.total_bytes) == (65_536, 256 * 2**10, 192 * 2**20)
    assert full.entries == 56**4 == 9_834_496
    assert windows.entries == 7**2 * 56 * 56
    assert full.entries == 64 * windows.entries


def test_the_command_prints_text_and_json(capsys):
    assert run(["plan", "transformer:tiny", "--json", "--batch", "2"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["memory"]["total"] == sum(v for k, v in planned["memory"].items() if k != "total")
    assert planned["parameters"] == sum(part["parameters"] for part in planned["parts"].values())

    assert run(["plan", "transformer:tiny"]) == 0
    assert f"{planned['parameters']:,} parameters" in capsys.readouterr().out
    assert run(["plan", "lectures"]) == 0
    text = capsys.readouterr().out
    assert all(figure in text for figure in ("768 GB", "38,416", "150.1 KB", "112.5 MB", "192 MB", "9,834,496"))

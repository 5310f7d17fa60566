"""What is measured on fake tensors, beside closed forms and beside the same step on real tensors."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.families.catalog import MODELS
from regard.families.language.lstm import LstmConfig
from regard.families.translation.recipe import TranslationTrainingSection
from regard.layers.blocks import Factors
from regard.plan.measure import measure_model, measure_step, tensors_in
from regard.plan.plan import make_plan
from regard.training.recipe.sections import TrainingSection

STEP = TrainingSection()
SOURCE = {"conformer": 41, "whisper": 41, "evoformer": 12, "agentformer": 3, "interactor": 40}
ROWS = {"lstm": 16}  # the workspace of its kernel is rounded up, which few rows would show
VOCAB = {"vocab": 50, "source_vocab": 50, "target_vocab": 50}
SMALL = {"evoformer": {"depth": 1}, "detector": {"image_size": 64, "classes": 3}, "elmo": {"vocab": 300}}


def tiny(name):
    entry = MODELS[name]
    fields = entry.config.model_fields.keys()
    values = {**entry.presets["tiny"], **{key: VOCAB[key] for key in VOCAB if key in fields}, **SMALL.get(name, {})}
    return entry.config.parse(values)


def transformer_layer(tokens, keys, width, hidden):
    """The FLOPs of self-attention (or of attention to `keys`) and of a feed-forward network of `hidden`."""
    projections = 2 * width**2 * (2 * tokens + 2 * keys)
    return projections + 4 * tokens * keys * width + 4 * tokens * width * hidden


def test_gpt2_small_costs_what_its_sizes_say():
    rows, tokens, width = 2, 64, 768
    plan = make_plan("gpt:gpt2", batch=rows, target_length=tokens)
    assert plan.parameters == 124_439_808
    forward = rows * (12 * transformer_layer(tokens, tokens, width, 4 * width) + 2 * tokens * width * 50_257)
    assert plan.forward_flops == forward
    assert plan.training_flops == 3 * forward  # the gradient of the tokens' vectors is looked up, not multiplied
    assert plan.cache == {"sentence": 0, "hypothesis": 4 * 2 * 12 * tokens * width}


def test_vit_b_16_costs_what_its_sizes_say():
    tokens, width = 197, 768
    plan = make_plan("vit:b-16", batch=1)
    patches, head = 2 * 196 * (16 * 16 * 3) * width, 2 * width * 1000
    assert plan.parameters == 86_567_656
    assert plan.forward_flops == 12 * transformer_layer(tokens, tokens, width, 4 * width) + patches + head
    assert plan.training_flops == 3 * plan.forward_flops - patches  # nobody needs the gradient of the pixels
    assert {(m.heads, m.queries, m.keys, m.windows) for m in plan.measured.matrices} == {(12, tokens, tokens, 1)}


def test_the_base_transformer_costs_what_its_sizes_say():
    rows, source, target, width, words = 3, 20, 16, 512, 1000
    sets = [f"tokenizer.size={words}", "model.tie=all"]
    plan = make_plan("transformer:base", sets=sets, batch=rows, source_length=source, target_length=target)
    encoder = 6 * transformer_layer(source, source, width, 2048)
    decoder = 6 * (transformer_layer(target, target, width, 2048) + transformer_layer(target, source, width, 0))
    assert plan.forward_flops == rows * (encoder + decoder + 2 * target * width * words)
    attention, thinking, norm = 4 * width * (width + 1), width * 2048 * 2 + 2048 + width, 2 * width
    layers = 6 * (attention + thinking + 2 * norm) + 6 * (2 * attention + thinking + 3 * norm)
    assert plan.parameters == layers + words * width  # and no norms at the ends: post-norm
    assert plan.cache["sentence"] == 4 * 2 * 6 * source * width


def test_an_lstm_costs_what_its_sizes_say():
    rows, tokens, words, width, hidden = 2, 9, 70, 12, 20
    config = LstmConfig(vocab=words, embedding=width, width=hidden, depth=2, tie=False)
    measured = measure_step("lstm", config, rows, tokens, tokens, STEP)
    layers = [(inputs, outputs) for inputs, outputs in zip(config.widths, config.widths[1:], strict=False)]
    weights = sum(4 * outputs * (inputs + outputs) for inputs, outputs in layers)
    biases = sum(8 * outputs for _, outputs in layers)
    assert measured.parameters == weights + biases + words * width + (config.widths[-1] + 1) * words
    assert measured.flops == 2 * rows * tokens * (weights + config.widths[-1] * words)


@pytest.mark.parametrize("name", MODELS)
def test_fake_tensors_cost_what_real_ones_do(name):
    config, rows, source, target = tiny(name), ROWS.get(name, 2), SOURCE.get(name, 7), 6
    fake = measure_step(name, config, rows, source, target, STEP)
    torch.manual_seed(0)
    model = MODELS[name].model(config).train()
    real = measure_model(model, MODELS[name].example, rows, source, target, STEP)
    assert fake.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (fake.flops, fake.step_flops, fake.matrices) == (real.flops, real.step_flops, real.matrices)
    assert fake.activations == pytest.approx(real.activations, rel=0.05)
    assert fake.forward_peak == pytest.approx(real.forward_peak, rel=0.05)
    assert fake.backward_peak == pytest.approx(real.backward_peak, rel=0.05)


@pytest.mark.parametrize("name", ["transformer", "gpt", "bert", "swin", "mvit", "evoformer", "conformer", "t5"])
def test_forward_flops_are_those_torch_counts(name):
    config, source = tiny(name), SOURCE.get(name, 7)
    model = MODELS[name].model(config).train()
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        outputs = MODELS[name].example.run(model, 2, source, 6)
    measured = measure_step(name, config, 2, source, 6, STEP)
    factors = [each for each in tensors_in(outputs) if isinstance(each, Factors)]  # the loss multiplies them
    logits = sum(2 * each.hidden.numel() * len(each.weight) for each in factors)
    assert counter.get_total_flops() == measured.flops - logits


@pytest.mark.parametrize("name", ["transformer", "swin", "evoformer", "mvit"])
def test_matrices_are_those_the_recorder_sees(name):
    config, source = tiny(name), SOURCE.get(name, 7)
    model = MODELS[name].model(config).train()
    with record(model) as looks, torch.no_grad():
        MODELS[name].example.run(model, 2, source, 6)
    measured = measure_step(name, config, 2, source, 6, STEP)
    assert {m.name: 2 * m.entries for m in measured.matrices} == {n: looks[n].numel() for n in looks}


def test_r_drop_is_two_passes():
    config = tiny("transformer")
    once = measure_step("transformer", config, 4, 7, 6, TranslationTrainingSection())
    twice = measure_step("transformer", config, 2, 7, 6, TranslationTrainingSection(r_drop=1.0))
    assert (twice.step_flops, twice.activations) == (once.step_flops, once.activations)
    assert twice.flops == once.flops // 2


def test_logits_are_computed_for_masked_tokens_alone():
    config = tiny("bert").replace(head="masked")
    measured = measure_step("bert", config, 2, 40, 40, STEP)
    assert measured.logits == 12 * config.vocab  # 15 % of 80 tokens
    assert measured.parts["output"].flops == 2 * 80 * config.width * config.vocab


def test_a_large_model_is_measured_without_its_memory():
    """27 GB of weights would not fit into this machine twice."""
    plan = make_plan("gpt:llama-7b", batch=1, target_length=128)
    assert plan.parameters == 6_738_415_616
    assert plan.memory["weights"] == 4 * plan.parameters
    assert sum(plan.memory.values()) > 16 * plan.parameters

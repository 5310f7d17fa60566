"""Rotary positions of Llama folders in every spelling and scaling that transformers reads: the same logits, in one pass
and step by step, or a refusal."""

import json
import random

import pytest
import torch

from regard.checkpoints import export_model, load_model
from regard.errors import CheckpointError
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.runtime.convert import fast_model

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8}
SPELLINGS = [
    {},
    {"rope_theta": 500.0},
    {"rope_theta": 500, "rope_scaling": None},
    {"rope_parameters": {"rope_theta": 500.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_parameters": {"type": "default"}, "rope_theta": 500.0},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_theta": 500.0},
    {"rope_scaling": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_scaling": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": 7.0},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_theta": 500.0}},
    {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 2}},
    {"rope_parameters": {"type": "linear", "factor": 4.0}},
    {"rope_parameters": {"type": "linear", "rope_type": "default", "factor": 4.0}},
    {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 500.0},
    {"rope_scaling": {"type": "dynamic", "factor": 1.5, "original_max_position_embeddings": 8}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "original_max_position_embeddings": 16},
    {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 0.5, "high_freq_factor": 2}},
    {"rope_scaling": {"type": "yarn", **YARN, "finetuned": True}},
    {"rope_scaling": {"rope_type": "yarn", **YARN, "truncate": False, "beta_fast": 4, "beta_slow": 0.5}},
    {"rope_scaling": {"rope_type": "yarn", **YARN, "attention_factor": 0.7}},
    {"rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 0.5, "mscale_all_dim": 2.0}},
    {"rope_scaling": {"rope_type": "yarn", **YARN, "mscale": 0.5}},
    {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": None}, "original_max_position_embeddings": 16},
    {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}, "rope_theta": 1e6},
]


def saved(folder, changes, seed=0):
    """A Llama saved by transformers, with `changes` to the description of its rotary positions."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": 24,
    }  # fmt: skip
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes.pop("sizes", {})})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.15)
    model.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text())
    del values["rope_parameters"]
    (folder / "config.json").write_text(json.dumps({**values, **changes}))
    return theirs_in(folder)


def theirs_in(folder):
    """A new model for every text, because a model of theirs remembers the longest text that it has read."""
    return transformers.LlamaForCausalLM.from_pretrained(folder).eval()


@torch.inference_mode()
def assert_same_logits(folder, ours, tokens):
    torch.testing.assert_close(ours(tokens), theirs_in(folder)(tokens).logits, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")  # transformers warns about some of the spellings
@pytest.mark.parametrize("changes", SPELLINGS, ids=str)
def test_every_spelling_means_what_it_means_to_transformers(changes, tmp_path):
    saved(tmp_path, dict(changes))
    ours = load_model(tmp_path).model
    for length in (9, 24, 40):
        assert_same_logits(tmp_path, ours, torch.randint(31, (2, length)))


def drawn(seed):
    """A random shape with a random scaling."""
    chance = random.Random(seed)
    heads, groups, width = chance.choice([(4, 4, 8), (4, 2, 8), (6, 3, 4), (4, 1, 12), (2, 2, 16)])
    sizes = {"hidden_size": heads * 8, "num_attention_heads": heads, "num_key_value_heads": groups, "head_dim": width}
    factor, original = chance.choice([1.0, 1.5, 4.0, 16.0]), chance.choice([8, 13, 24])
    kind = ("linear", "dynamic", "llama3", "yarn")[seed % 4]
    values = {
        "linear": {},
        "dynamic": {},
        "llama3": {
            "original_max_position_embeddings": original, "low_freq_factor": chance.choice([0.25, 1.0]),
            "high_freq_factor": chance.choice([1.5, 4.0]),
        },
        "yarn": {
            "original_max_position_embeddings": original, "beta_fast": chance.choice([2.0, 32.0]),
            "truncate": chance.choice([True, False]),
        },
    }[kind]  # fmt: skip
    theta = chance.choice([100.0, 1e4, 5e5])
    return {"sizes": sizes, "rope_theta": theta, "rope_scaling": {"rope_type": kind, "factor": factor, **values}}


@torch.inference_mode()
def stepped(model, tokens, prompt):
    """The logits after the last token of the prompt and after each further token, step by step."""
    state = model.start(tokens[:, :prompt], torch.ones(len(tokens), prompt, dtype=torch.bool))
    return torch.cat([model.step(tokens[:, at, None], state) for at in range(prompt - 1, tokens.shape[1])], dim=1)


@torch.inference_mode()
def stepped_by_them(model, tokens, prompt):
    first = model(tokens[:, :prompt], use_cache=True)
    logits, cache = [first.logits[:, -1:]], first.past_key_values
    for at in range(prompt, tokens.shape[1]):
        logits.append(model(tokens[:, at : at + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(logits, dim=1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(n, marks=pytest.mark.full) for n in range(6, 16))])
def test_random_shapes_agree_in_one_pass_by_steps_and_after_export(seed, tmp_path):
    saved(tmp_path / "theirs", drawn(seed), seed)
    ours = load_model(tmp_path / "theirs").model
    tokens = torch.randint(31, (2, 33))
    assert_same_logits(tmp_path / "theirs", ours, tokens)
    for prompt in (5, 27):  # shorter and longer than the 24 tokens of the config
        expected = stepped_by_them(theirs_in(tmp_path / "theirs"), tokens, prompt)
        torch.testing.assert_close(stepped(ours, tokens, prompt), expected, atol=1e-5, rtol=0)
        torch.testing.assert_close(stepped(fast_model(ours), tokens, prompt), expected, atol=1e-5, rtol=0)

    export_model("gpt", ours, tmp_path / "back")
    assert_same_logits(tmp_path / "back", ours, tokens)
    assert load_model(tmp_path / "back").config == ours.config


def test_the_longest_text_of_a_batch_decides_for_all_as_with_transformers(tmp_path):
    saved(tmp_path, {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    ours, tokens = load_model(tmp_path).model, torch.randint(31, (3, 40))
    real = torch.arange(40) < torch.tensor([40, 30, 9])[:, None]
    for mask in (real, real.flip(1)):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        with torch.inference_mode():
            theirs = theirs_in(tmp_path)(tokens, attention_mask=mask.long(), position_ids=positions).logits
            torch.testing.assert_close(ours(tokens, mask)[mask], theirs[mask], atol=1e-5, rtol=0)


@torch.inference_mode()
def test_tokens_added_together_are_as_if_added_one_by_one():
    """Speculative decoding reads several guesses at once."""
    torch.manual_seed(0)
    sizes = {"vocab": 31, "width": 16, "heads": 2, "depth": 2, "max_length": 8}
    model = Gpt(GptConfig(**sizes, **LLAMA, rotary_scaling={"kind": "dynamic", "factor": 3.0})).eval()
    tokens = torch.randint(31, (1, 16))
    state = model.start(tokens[:, :6], torch.ones(1, 6, dtype=torch.bool))
    together = model.extend(tokens[:, 5:], state)
    torch.testing.assert_close(together, stepped(model, tokens, 6), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}}, "'longrope'"),
        ({"rope_scaling": {"rope_type": "proportional", "factor": 2.0}}, "'proportional'; known are .*yarn"),
        ({"rope_parameters": {"rope_type": None}}, "rope_type None"),
        ({"rope_scaling": {"type": "linear"}}, "None for factor"),
        ({"rope_scaling": {"type": "linear", "factor": "2"}}, "'2' for factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.0}}, "factor = 0.0"),
        ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, "None for low_freq_factor"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "high_freq_factor": 0.5}}, "fast = 0.5: must be above slow = 1"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_theta": None}, "None for rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "one object of numbers"),
        ({"rope_scaling": [2.0]}, "one object of numbers"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(changes, named, tmp_path):
    saved_config(tmp_path, changes)
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def saved_config(folder, changes):
    """A folder with a config only: it is refused before any weight is read."""
    sizes = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    values = {"model_type": "llama", **sizes, "intermediate_size": 40, **changes}
    (folder / "config.json").write_text(json.dumps(values))

"""Folders of Hugging Face whose types are variants of others: the same answers as transformers', and exact round trips.

Decoders are also compared step by step, with cached keys and with texts of several lengths in one batch.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

TEXT = {
    "vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 32,
}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2}
DECODERS = [  # type, config values, and the type that it is exported as, if another one can hold it
    ("mistral", {"sliding_window": None}, "llama"),
    ("mistral", {"sliding_window": 3, "head_dim": 6}, "mistral"),
    ("mistral", {"sliding_window": 40, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0}},
     "mistral"),
    ("qwen2", {"tie_word_embeddings": True}, "qwen2"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 2, "max_window_layers": 1}, "qwen2"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}, "qwen2"),
    ("qwen3", {"head_dim": 8, "rms_norm_eps": 1e-3}, "qwen3"),
    ("qwen3", {"head_dim": 6, "attention_bias": True, "use_sliding_window": True, "sliding_window": 2,
               "max_window_layers": 0}, "qwen3"),
    ("gemma", {"head_dim": 8}, "gemma"),
    ("gemma", {"head_dim": 6, "num_key_value_heads": 1, "hidden_act": "gelu", "attention_bias": True}, "gemma"),
]  # fmt: skip
NAMES = {
    "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "xlm-roberta": "XLMRoberta",
    "mt5": "MT5", "vit": "ViT", "deit": "DeiT", "dinov2": "Dinov2", "dinov2_with_registers": "Dinov2WithRegisters",
}  # fmt: skip


def made(kind, head, values, seed=0):
    """A small model of theirs with random weights."""
    torch.manual_seed(seed)
    model = getattr(transformers, NAMES[kind] + head)(CONFIG_MAPPING[kind](**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # the initial weights are too small to reveal a mistake, and biases are 0
            parameter.normal_(1.0 if parameter.dim() == 1 and kind != "gemma" else 0.0, std=0.2)
    return model


def loaded_and_back(theirs, folder, kind):
    """Our model of their folder, which was exported again as this type with every bit."""
    theirs.save_pretrained(folder / "theirs")
    loaded = load_model(folder / "theirs")
    export_model(loaded.name, loaded.model, folder / "back")
    before, after = (load_file(folder / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert json.loads((folder / "back" / "config.json").read_text())["model_type"] == kind
    return loaded.model


@pytest.mark.parametrize("seed", range(len(DECODERS)))
@torch.inference_mode()
def test_a_decoder_in_one_pass_and_step_by_step(seed, tmp_path):
    kind, changes, written = DECODERS[seed]
    theirs = made(kind, "ForCausalLM", {**GROUPED, **changes}, seed)
    ours = loaded_and_back(theirs, tmp_path, written)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back").eval()
    tokens, lengths = torch.randint(31, (3, 12)), (12, 7, 1)
    for side in ("right", "left"):
        real = torch.arange(12) < torch.tensor(lengths)[:, None]
        mask = real if side == "right" else real.flip(1)
        found = ours(tokens, mask)
        for row in range(3):  # each text alone, since their window counts padding
            alone = tokens[row : row + 1][:, mask[row]]
            expected = theirs(input_ids=alone).logits[0]
            torch.testing.assert_close(found[row, mask[row]], expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(again(input_ids=alone).logits[0], expected, atol=1e-5, rtol=0)

    prompt = tokens[:, :5]
    mask = torch.arange(5) < torch.tensor([5, 3, 1])[:, None]
    state = ours.start(prompt, mask)
    texts = [row[real].tolist() for row, real in zip(prompt, mask, strict=True)]
    newest = torch.tensor([[text[-1]] for text in texts])
    caches = [theirs(input_ids=torch.tensor([text[:-1]])).past_key_values if text[1:] else None for text in texts]
    for step in range(8):
        found = ours.step(newest, state)[:, 0]
        for row, token in enumerate(newest):
            answer = theirs(input_ids=token[None], past_key_values=caches[row], use_cache=True)
            caches[row] = answer.past_key_values
            torch.testing.assert_close(found[row], answer.logits[0, -1], atol=1e-5, rtol=0)
        newest = tokens[:, step + 4 : step + 5]


@pytest.mark.parametrize(
    "head",
    ["Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"],
)
@torch.inference_mode()
def test_xlm_roberta(head, tmp_path):
    values = {**TEXT, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "num_labels": 2 if "Question" in head else 3}
    theirs = made("xlm-roberta", head, values)
    ours = loaded_and_back(theirs, tmp_path, "roberta")
    tokens = torch.randint(2, 31, (3, 9))
    real = torch.arange(9) < torch.tensor([9, 4, 1])[:, None]
    tokens = tokens.masked_fill(~real, 1)
    answer, found = theirs(input_ids=tokens, attention_mask=real.long()), ours(tokens, real)
    if head == "Model":
        torch.testing.assert_close(found.hidden[real], answer.last_hidden_state[real], atol=1e-5, rtol=0)
        torch.testing.assert_close(found.pooled, answer.pooler_output, atol=1e-5, rtol=0)
    elif head == "ForSequenceClassification":
        torch.testing.assert_close(found.logits, answer.logits, atol=1e-5, rtol=0)
    else:
        scores = torch.stack([answer.start_logits, answer.end_logits], 2) if "start_logits" in answer else answer.logits
        torch.testing.assert_close(found.logits[real], scores[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize("tied", [True, False])
@torch.inference_mode()
def test_mt5(tied, tmp_path):
    sizes = {"vocab_size": 31, "d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 4}
    theirs = made("mt5", "ForConditionalGeneration", {**sizes, "num_decoder_layers": 3})
    if not tied:  # as published: an output matrix of its own, which their library loads although its config ties it
        theirs.lm_head.weight = torch.nn.Parameter(torch.randn(31, 16))
    ours = loaded_and_back(theirs, tmp_path, "t5")
    assert ours.config.tie == tied
    source, inputs, mask = torch.randint(31, (3, 9)), torch.randint(31, (3, 6)), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    expected = theirs(input_ids=source, attention_mask=mask.long(), decoder_input_ids=inputs).logits
    torch.testing.assert_close(ours(source, mask, inputs), expected, atol=1e-5, rtol=0)
    state = ours.start(source, mask)
    for step in range(6):
        found = ours.step(inputs[:, step : step + 1], state)[:, 0]
        torch.testing.assert_close(found, expected[:, step], atol=1e-5, rtol=0)


PATCHES = {
    "image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip
VIT = {**PATCHES, "intermediate_size": 40}
IMAGES = [
    ("vit", "Model", VIT),
    ("vit", "Model", {**VIT, "hidden_act": "relu", "qkv_bias": False}),
    ("deit", "Model", VIT),
    ("deit", "ForImageClassification", {**VIT, "num_labels": 5}),
    ("deit", "ForImageClassificationWithTeacher", {**VIT, "id2label": {0: "cat", 1: "dog", 2: "newt"}}),
    ("dinov2", "Model", {**PATCHES, "mlp_ratio": 3}),
    ("dinov2", "Model", {**PATCHES, "use_mask_token": False, "use_swiglu_ffn": True}),
    ("dinov2", "ForImageClassification", {**PATCHES, "num_labels": 3, "hidden_act": "gelu_new"}),
    ("dinov2_with_registers", "Model", PATCHES),
    ("dinov2_with_registers", "ForImageClassification", {**PATCHES, "num_register_tokens": 2, "use_swiglu_ffn": True}),
]


@pytest.mark.parametrize("seed", range(len(IMAGES)))
@torch.inference_mode()
def test_an_image_model_at_every_size(seed, tmp_path):
    kind, head, values = IMAGES[seed]
    theirs = made(kind, head, values, seed)
    ours = loaded_and_back(theirs, tmp_path, kind)
    again = type(theirs).from_pretrained(tmp_path / "back").eval()
    for height, width in ((16, 16), (35, 21), (8, 16), (15, 17)):
        images = torch.randn(2, 3, height, width)
        # the others interpolate without being asked
        options = {"interpolate_pos_encoding": (height, width) != (16, 16)} if kind in ("vit", "deit") else {}
        answer, once_more = theirs(images, **options), again(images, **options)
        if head == "Model":
            torch.testing.assert_close(ours.tokens(images), answer.last_hidden_state, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(ours(images), answer.pooler_output, atol=1e-5, rtol=1e-5)
            assert torch.equal(answer.last_hidden_state, once_more.last_hidden_state)
        else:
            torch.testing.assert_close(ours(images), answer.logits, atol=1e-5, rtol=1e-5)
            assert torch.equal(answer.logits, once_more.logits)
    if head == "Model" and ours.mask_token is not None:
        images, hidden = torch.randn(2, 3, 16, 16), torch.rand(2, 16) < 0.5
        expected = theirs(images, bool_masked_pos=hidden).last_hidden_state
        torch.testing.assert_close(ours.tokens(images, hidden), expected, atol=1e-5, rtol=1e-5)

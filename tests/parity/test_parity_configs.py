"""Configs of Hugging Face with aliases, contradictions and unusual values: read as by transformers, or refused."""

import contextlib
import json
import random

import pytest
import torch

from regard.checkpoints import load_model
from regard.checkpoints.tables import FOREIGN, TABLES, read_table
from regard.errors import CheckpointError

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

ENCODER = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 20}
PICTURE = {"image_size": 16, "patch_size": 4, "num_channels": 3}
GPT = {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24}
GROUPED = {"vocab_size": 31, "max_position_embeddings": 24, "num_key_value_heads": 1, **ENCODER}
T5 = {
    "vocab_size": 31, "d_model": 16, "d_kv": 6, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
}  # fmt: skip
DINO = {**PICTURE, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
SWIN = {**PICTURE, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 2}
SIZES = {
    "bert": ("BertForMaskedLM", {"vocab_size": 31, "max_position_embeddings": 24, **ENCODER}),
    "roberta": ("RobertaForMaskedLM", {"vocab_size": 31, "max_position_embeddings": 24, **ENCODER}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {"vocab_size": 31, "max_position_embeddings": 24, **ENCODER}),
    "distilbert": (
        "DistilBertForMaskedLM",
        {"vocab_size": 31, "max_position_embeddings": 24, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 20},
    ),
    "albert": (
        "AlbertForMaskedLM",
        {"vocab_size": 31, "max_position_embeddings": 24, "embedding_size": 8, **ENCODER},
    ),
    "esm": (
        "EsmForMaskedLM",
        {
            "vocab_size": 31, "max_position_embeddings": 24, "pad_token_id": 1, "mask_token_id": 30,
            "position_embedding_type": "rotary", "token_dropout": True, **ENCODER,
        },
    ),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "imagegpt": ("ImageGPTForCausalImageModeling", GPT),
    "llama": ("LlamaForCausalLM", {"vocab_size": 31, "max_position_embeddings": 24, **ENCODER}),
    "mistral": ("MistralForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 6}),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 6}),
    "t5": ("T5ForConditionalGeneration", T5),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "marian": (
        "MarianMTModel",
        {
            "vocab_size": 31, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "pad_token_id": 30,
            "decoder_start_token_id": 30, "max_position_embeddings": 24,
        },
    ),
    "whisper": (
        "WhisperForConditionalGeneration",
        {
            "vocab_size": 31, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
            "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "pad_token_id": 30,
            "decoder_start_token_id": 30, "eos_token_id": 29, "bos_token_id": 29, "max_source_positions": 12,
            "max_target_positions": 24, "num_mel_bins": 8, "suppress_tokens": None, "begin_suppress_tokens": None,
        },
    ),
    "vit": ("ViTForImageClassification", {**PICTURE, **ENCODER}),
    "deit": ("DeiTForImageClassificationWithTeacher", {**PICTURE, **ENCODER}),
    "dinov2": ("Dinov2ForImageClassification", DINO),
    "dinov2_with_registers": ("Dinov2WithRegistersForImageClassification", DINO),
    "swin": ("SwinForImageClassification", SWIN),
    "swinv2": ("Swinv2ForImageClassification", SWIN),
    "resnet": (
        "ResNetForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
    "bit": (
        "BitForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4},
    ),
}  # fmt: skip
ALIASES = [(kind, alias) for kind in TABLES for alias in CONFIG_MAPPING[kind].attribute_map]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a small model of theirs with some config values; each is made once."""
    made = {}

    def save(kind, **changes):
        key = kind, json.dumps(changes)
        if key not in made:
            torch.manual_seed(0)
            name, sizes = SIZES[kind]
            model = getattr(transformers, name)(CONFIG_MAPPING[kind](**sizes, **changes))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.15)
            made[key] = tmp_path_factory.mktemp(kind) / "folder"
            model.save_pretrained(made[key])
        return made[key]

    return save


def changed(folder, target, change):
    """A copy of a folder with another config."""
    target.mkdir()
    (target / "model.safetensors").hardlink_to(folder / "model.safetensors")
    (target / "config.json").write_text(json.dumps(change(json.loads((folder / "config.json").read_text()))))
    return target


@torch.inference_mode()
def assert_same_logits(folder, kind):
    theirs, ours = getattr(transformers, SIZES[kind][0]).from_pretrained(folder).eval(), load_model(folder).model
    torch.manual_seed(1)
    tokens = torch.randint(2, 29, (2, 9))
    mask = torch.ones_like(tokens, dtype=torch.bool)
    if "Image" in SIZES[kind][0] and kind != "imagegpt":
        pixels = torch.randn(2, 3, 16, 16)
        pair = ours(pixels), theirs(pixel_values=pixels).logits
    elif kind in ("t5", "mt5", "marian"):
        pair = ours(tokens, mask, tokens[:, :5]), theirs(input_ids=tokens, decoder_input_ids=tokens[:, :5]).logits
    elif kind == "whisper":
        sounds = torch.randn(2, 24, 8)
        theirs_logits = theirs(input_features=sounds.transpose(1, 2), decoder_input_ids=tokens[:, :5]).logits
        pair = ours(sounds, tokens[:, :5]), theirs_logits
    elif load_model(folder).name == "gpt":
        pair = ours(tokens), theirs(input_ids=tokens).logits
    else:
        pair = ours(tokens, mask).logits, theirs(input_ids=tokens).logits
    torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)


WINDOW_SIZES = {"sliding_window": 4096}  # their default, which they keep only if windows are in use


@pytest.mark.parametrize("kind", TABLES)
def test_every_alias_of_theirs_is_known_and_every_default_is_theirs(kind):
    config = read_table(kind).config
    assert config.aliases == CONFIG_MAPPING[kind].attribute_map
    values = CONFIG_MAPPING[kind]().to_dict() | WINDOW_SIZES
    for key, value in config.defaults.items():
        if key in values and key != "architectures":
            assert value == values[key] or tuple(value) == tuple(values[key]), key


HARMLESS = {  # keys of theirs that no pass of our models depends on
    # tokens and settings of generation, which the search reads
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_eos_token_id",
    "suppress_tokens", "begin_suppress_tokens", "use_cache", "median_filter_width",
    # initial weights and what only training does
    "initializer_range", "initializer_factor", "init_std", "layerscale_value", "drop_path_rate", "encoder_layerdrop",
    "decoder_layerdrop", "apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks",
    "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "qa_dropout", "classifier_dropout",
    # heads and outputs that no table reads
    "out_features", "out_indices", "stage_names", "apply_layernorm", "reshape_hidden_states", "encoder_stride",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "classifier_proj_size", "use_weighted_layer_sum", "esmfold_config", "vocab_list", "is_decoder",
    "add_cross_attention",
    # numbers in other words, and sizes that the tensors contradict
    "hidden_size", "num_layers", "pooler_output_size", "sinusoidal_pos_embds",
    # how the same is computed
    "reorder_and_upcast_attn", "pretraining_tp",
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_every_key_of_theirs_is_read_refused_or_harmless(kind):
    """A key that a later version adds fails here, before it changes an answer in silence."""
    config = read_table(kind).config
    choices = {key for group in config.choices for each in group for key in (*each.theirs, *each.implied)}
    read = {*config.same.values(), *config.optional.values(), *config.defaults, *config.required, *config.fallbacks}
    read |= {*config.copies, *config.aliases, *choices, config.ffn_ratio, *(["rope_parameters"] if config.rope else [])}
    common = transformers.PreTrainedConfig().to_dict()
    assert {*CONFIG_MAPPING[kind]().to_dict()} - common.keys() - read - FOREIGN - {*config.written} <= HARMLESS


@pytest.mark.parametrize(("kind", "alias"), ALIASES)
def test_an_alias_alone_means_what_its_name_does(kind, alias, saved, tmp_path):
    name = CONFIG_MAPPING[kind].attribute_map[alias]

    def rename(values):
        return {alias if key == name else key: value for key, value in values.items()}

    assert_same_logits(changed(saved(kind), tmp_path / "alias", rename), kind)


@pytest.mark.parametrize(("kind", "alias"), ALIASES)
def test_an_alias_that_contradicts_its_name_is_refused(kind, alias, saved, tmp_path):
    name = CONFIG_MAPPING[kind].attribute_map[alias]
    folder = changed(saved(kind), tmp_path / "alias", lambda values: {**values, name: 4, alias: 8})
    with pytest.raises(CheckpointError, match=f"has {alias} 8 but {name} 4, which are two names of one value"):
        load_model(folder)


ACTS = ["gelu", "gelu_new", "relu", "silu", "swish", "gelu_pytorch_tanh", "quick_gelu", "gelu_fast", "mish", "tanh"]
WINDOWS = {
    "hidden_act": ACTS, "use_sliding_window": [True], "sliding_window": [2, 3], "max_window_layers": [0, 1],
    "layer_types": [["sliding_attention", "full_attention"], ["chunked_attention"] * 2, ["full_attention"], None],
    "attention_bias": [True], "mlp_bias": [True],
}  # fmt: skip
CHANGES = {  # values that may be supported or refused, but never ignored
    "bert": {"hidden_act": ACTS, "layer_norm_eps": [1e-5, 1e-2], "is_decoder": [True], "tie_word_embeddings": [False]},
    "roberta": {"hidden_act": ACTS, "layer_norm_eps": [1e-2], "is_decoder": [True], "pad_token_id": [0, 5]},
    "xlm-roberta": {
        "hidden_act": ACTS, "is_decoder": [True], "pad_token_id": [0, 5], "position_embedding_type": ["relative_key"],
    },
    "distilbert": {"activation": ACTS, "sinusoidal_pos_embds": [True], "tie_word_embeddings": [False]},
    "albert": {"hidden_act": ACTS, "num_hidden_groups": [2], "inner_group_num": [2], "layer_norm_eps": [1e-2]},
    "esm": {
        "layer_norm_eps": [1e-2], "is_decoder": [True], "rope_theta": [50.0], "token_dropout": [False],
        "tie_word_embeddings": [False], "is_folding_model": [True], "mask_token_id": [7],
    },
    "gpt2": {
        "activation_function": ACTS, "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True],
        "reorder_and_upcast_attn": [True], "layer_norm_epsilon": [1e-2], "add_cross_attention": [True],
    },
    "imagegpt": {
        "activation_function": ACTS, "scale_attn_weights": [False], "scale_attn_by_inverse_layer_idx": [True],
        "reorder_and_upcast_attn": [True], "layer_norm_epsilon": [1e-2],
    },
    "llama": {
        "hidden_act": ACTS, "rms_norm_eps": [1e-2], "rope_theta": [50.0], "pretraining_tp": [2], "head_dim": [8],
        "sliding_window": [3], "layer_types": [["sliding_attention"] * 2], "partial_rotary_factor": [0.5],
    },
    "mistral": {
        "hidden_act": ACTS, "sliding_window": [2, 4, 40, None], "layer_types": [["full_attention"] * 2],
        "attention_bias": [True], "num_key_value_heads": [2], "rope_theta": [50.0], "partial_rotary_factor": [0.5],
        "use_sliding_window": [False, True], "max_window_layers": [1],
    },
    "qwen2": WINDOWS,
    "qwen3": {**WINDOWS, "head_dim": [8], "rms_norm_eps": [1e-2]},
    "gemma": {
        "hidden_act": ACTS, "hidden_activation": ["relu"], "use_bidirectional_attention": [True], "head_dim": [8],
        "sliding_window": [3], "final_logit_softcapping": [2.0], "query_pre_attn_scalar": [9], "rope_theta": [50.0],
    },
    "mt5": {
        "feed_forward_proj": ["gelu", "silu", "mish"], "dense_act_fn": ["silu"], "scale_decoder_outputs": [True],
        "tie_word_embeddings": [False], "relative_attention_max_distance": [20], "is_gated_act": [False],
    },
    "t5": {
        "feed_forward_proj": ["gelu", "silu", "mish"], "dense_act_fn": ["silu"], "scale_decoder_outputs": [False],
        "tie_word_embeddings": [False], "relative_attention_max_distance": [20], "layer_norm_epsilon": [1e-2],
        "is_gated_act": [True],
    },
    "marian": {
        "activation_function": ACTS, "scale_embedding": [True], "normalize_before": [True],
        "add_final_layer_norm": [True], "static_position_embeddings": [False], "normalize_embedding": [True],
    },
    "whisper": {
        "activation_function": ACTS, "scale_embedding": [True], "tie_word_embeddings": [False],
        "is_encoder_decoder": [False],
    },
    "vit": {"hidden_act": ACTS, "layer_norm_eps": [1e-2], "pooler_act": ["relu"]},
    "deit": {"hidden_act": ACTS, "layer_norm_eps": [1e-2], "architectures": [["DeiTForMaskedImageModeling"]]},
    "dinov2": {
        "hidden_act": ACTS, "layer_norm_eps": [1e-2], "mlp_ratio": [4], "use_mask_token": [False],
        "use_swiglu_ffn": [True], "apply_layernorm": [False], "layerscale_value": [0.1],
    },
    "dinov2_with_registers": {"hidden_act": ACTS, "use_mask_token": [False], "num_register_tokens": [0, 2]},
    "swin": {"hidden_act": ACTS, "layer_norm_eps": [1e-2], "num_layers": [7], "mlp_ratio": [4]},
    "swinv2": {"hidden_act": ACTS, "layer_norm_eps": [1e-2], "pretrained_window_sizes": [[4, 4]]},
    "resnet": {"hidden_act": ["gelu"], "downsample_in_first_stage": [True]},
    "bit": {
        "hidden_act": ["gelu"], "global_padding": ["SAME"], "num_groups": [2], "embedding_dynamic_padding": [True],
        "output_stride": [8], "layer_type": ["bottleneck"], "width_factor": [2],
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 3))])
@pytest.mark.parametrize("kind", TABLES)
def test_no_value_of_a_config_is_ignored(kind, seed, saved, tmp_path):
    """Config values that differ from those of the weights: the logits equal theirs, or the folder is refused."""
    chance = random.Random(seed)
    keys = chance.sample(list(CHANGES[kind]), min(len(CHANGES[kind]), chance.choice([1, 1, 2])))
    change = {key: chance.choice(CHANGES[kind][key]) for key in keys}
    folder = changed(saved(kind), tmp_path / "changed", lambda values: {**values, **change})
    with contextlib.suppress(CheckpointError):
        load_model(folder)
        assert_same_logits(folder, kind)


@pytest.mark.parametrize(
    ("kind", "change", "named"),
    [
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn 'silu', but .*relu"),
        ("t5", {"tie_word_embeddings": False, "scale_decoder_outputs": True},
         "tie_word_embeddings False beside scale_decoder_outputs True; expected tie_word_embeddings True"),
        ("bert", {"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, "num_labels 3 but names 2 labels"),
        ("bert", {"quantization_config": {"bits": 8}}, "quantization_config"),
        ("gpt2", {"per_layer_config": {"0": {"n_head": 4}}}, "per_layer_config"),
        ("bert", {"position_embedding_type": "relative_key"},
         "it has position_embedding_type 'relative_key'; expected position_embedding_type 'absolute'$"),
        ("bert", {"hidden_act": "mish"}, "it has hidden_act 'mish'; expected hidden_act 'gelu' or 'relu' or"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False}, "no sliding_window in use"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 2}, "chunked_attention"),
        ("gemma", {"model_type": "gemma2"}, "model_type 'gemma2'"),
        ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)  # fmt: skip
def test_contradictions_and_foreign_keys_are_refused(kind, change, named, saved, tmp_path):
    with pytest.raises(CheckpointError, match=named):
        load_model(changed(saved(kind), tmp_path / "changed", lambda values: {**values, **change}))


@pytest.mark.parametrize("head", ["RobertaModel", "RobertaForMaskedLM"])
def test_roberta_counts_real_tokens_wherever_padding_stands(head, tmp_path):
    torch.manual_seed(0)
    model = getattr(transformers, head)(transformers.RobertaConfig(**SIZES["roberta"][1])).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    model.save_pretrained(tmp_path)
    ours = load_model(tmp_path).model
    tokens = torch.tensor([[1, 1, 1, 5, 6, 7, 8], [5, 6, 1, 7, 1, 1, 8], [5, 6, 7, 8, 9, 1, 1], [5, 6, 7, 8, 9, 2, 3]])
    mask = tokens != 1
    with torch.inference_mode():
        theirs = model(input_ids=tokens, attention_mask=mask.long())
        found = ours(tokens, mask)
    expected = theirs.logits if "logits" in theirs else theirs.last_hidden_state
    torch.testing.assert_close(
        (found.hidden if found.logits is None else found.logits)[mask], expected[mask], atol=1e-5, rtol=0
    )

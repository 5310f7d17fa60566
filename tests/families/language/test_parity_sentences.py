"""Folders of sentence-transformers: vectors by transformers and the formulas of the modules, or a refusal."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import regard
from regard.cli.main import app
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.conversion import convert

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

WIDTH, LETTERS = 16, "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "A", ":"]
TEXTS = ["we eat", "x", "zebras cross the road", "A", ""]
OLD, NEW = "sentence_transformers.models", "sentence_transformers.base.modules.part"
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLD_KEYS = {
    "cls": "pooling_mode_cls_token", "max": "pooling_mode_max_tokens", "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens", "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}  # fmt: skip


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A small BERT of transformers, whose tokenizer keeps capitals."""
    folder = tmp_path_factory.mktemp("sentences") / "bert"
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "max_position_embeddings": 40}
    model = transformers.BertModel(transformers.BertConfig(vocab_size=len(WORDS), hidden_size=WIDTH, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    write(folder / "tokenizer_config.json", {"do_lower_case": False, "tokenizer_class": "BertTokenizer"})
    return folder


def write(file, values):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))


@pytest.fixture
def made(bert, tmp_path):
    """Folders of the library: `made(pooling, *(kind, config, tensors))`."""

    def make(pooling, *others, package=OLD):
        folder = shutil.copytree(bert, tmp_path / "made")
        listed = [("Transformer", None, None), ("Pooling", pooling, None), *others]
        entries = []
        for number, (kind, config, tensors) in enumerate(listed):
            path = f"{number}_{kind}" if number else ""
            entries.append({"idx": number, "name": str(number), "path": path, "type": f"{package}.{kind}"})
            if config is not None:
                write(folder / path / "config.json", config)
            if tensors:
                save_file(tensors, folder / path / "model.safetensors")
        write(folder / "modules.json", entries)
        return folder

    return make


def hidden_states(folder, text, most=40):
    """The vectors of a text's tokens, by transformers."""
    ids = transformers.AutoTokenizer.from_pretrained(folder)(text, truncation=True, max_length=most)["input_ids"]
    with torch.inference_mode():
        return transformers.AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]


def pooled(states, mode, skipped=0):
    """The pooled vector of the tokens, as the library's documentation defines it."""
    kept = states[skipped:]
    numbers = torch.arange(skipped + 1, len(states) + 1).float()[:, None]
    return {
        "cls": kept[0],
        "max": kept.max(dim=0).values,
        "mean": kept.mean(dim=0),
        "mean_sqrt_len_tokens": kept.sum(dim=0) / len(kept) ** 0.5,
        "weightedmean": (kept * numbers).sum(dim=0) / numbers.sum(),
        "lasttoken": kept[-1],
    }[mode]


def assert_vectors(folder, expected, **options):
    found = regard.load(folder).embed(TEXTS, normalise=False, **options)
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("modes", [*((mode,) for mode in MODES), ("mean", "cls"), ("lasttoken", "max", "weightedmean")])
@pytest.mark.parametrize("spelling", ["old", "new"])
def test_every_pooling_and_several_side_by_side(modes, spelling, made, bert):
    if spelling == "old":  # the order is that of the library, not of the keys
        pooling = {"word_embedding_dimension": WIDTH, **{OLD_KEYS[mode]: mode in modes for mode in MODES}}
        modes = [mode for mode in MODES if mode in modes]
        folder = made(pooling)
    else:
        folder = made({"embedding_dimension": WIDTH, "pooling_mode": list(modes), "include_prompt": True}, package=NEW)
    assert_vectors(folder, [torch.cat([pooled(hidden_states(bert, text), mode) for mode in modes]) for text in TEXTS])
    assert regard.load(folder).width == WIDTH * len(modes)


MEAN = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}


def dense(inputs, outputs, activation="torch.nn.modules.activation.Tanh", **values):
    tensors = {"linear.weight": torch.randn(outputs, inputs), "linear.bias": torch.randn(outputs)}
    config = {"in_features": inputs, "out_features": outputs, "bias": True, "activation_function": activation}
    return "Dense", {**config, **values}, tensors


def test_layers_after_the_pooling(made, bert, tmp_path):
    torch.manual_seed(1)
    first, second = dense(WIDTH, 10), dense(10, 10, "torch.nn.modules.linear.Identity", use_residual=True)
    norm = ("LayerNorm", {"dimension": 10}, {"norm.weight": torch.randn(10), "norm.bias": torch.randn(10)})
    folder = made(MEAN, first, ("Dropout", {"dropout": 0.5}, None), second, norm, ("Normalize", None, None))
    expected = []
    for text in TEXTS:
        x = functional.linear(hidden_states(bert, text).mean(dim=0), *first[2].values()).tanh()
        x = x + functional.linear(x, *second[2].values())
        x = functional.layer_norm(x, (10,), *norm[2].values())
        expected.append(x / x.norm())
    assert_vectors(folder, expected)
    convert(folder, tmp_path / "ours", "regard")
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    assert_vectors(tmp_path / "ours", expected)
    assert_vectors(tmp_path / "back", expected)


def test_without_modules_vectors_are_means(bert):
    assert_vectors(bert, [hidden_states(bert, text).mean(dim=0) for text in TEXTS])


def test_a_pooling_that_is_asked_for_takes_the_place_of_the_modules(made, bert):
    folder = made(MEAN, dense(WIDTH, 3))
    assert_vectors(folder, [hidden_states(bert, text)[0] for text in TEXTS], pooling="cls")
    with pytest.raises(UsageError, match="pooling is 'median'; known are cls, max"):
        regard.load(folder).embed(TEXTS, pooling="median")


@pytest.mark.parametrize("pools_prompt", [True, False])
def test_prompts_go_before_texts(pools_prompt, made, bert):
    folder = made({**MEAN, "include_prompt": pools_prompt})
    prompts = {"query": "ask me: ", "plain": "", "document": None}
    write(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": "query"})
    skipped = 0 if pools_prompt else 7  # [CLS] a ##s ##k m ##e :
    assert_vectors(folder, [pooled(hidden_states(bert, f"ask me: {text}"), "mean", skipped) for text in TEXTS])
    assert_vectors(folder, [hidden_states(bert, text).mean(dim=0) for text in TEXTS], prompt="plain")
    encoder = regard.load(folder)
    assert encoder.lengths(["x"]) == [9]
    with pytest.raises(UsageError, match="no prompt called 'passage'; it has: query, plain, document"):
        encoder.embed(TEXTS, prompt="passage")


@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 6, "do_lower_case": False}),
        ("sentence_roberta_config.json", {"max_seq_length": 6}),
        ("tokenizer_config.json", {"do_lower_case": False, "tokenizer_class": "BertTokenizer", "model_max_length": 6}),
    ],
)
def test_a_text_has_as_many_tokens_as_the_folder_says(file, values, made, bert):
    folder = made(MEAN)
    write(folder / file, values)
    assert_vectors(folder, [hidden_states(bert, text, 6).mean(dim=0) for text in TEXTS], truncate=True)
    with pytest.raises(DataError, match="this model reads at most 6"):
        regard.load(folder).embed(TEXTS)


def test_texts_are_lowercased_where_the_folder_says_so(made, bert):
    folder = made(MEAN)
    write(folder / "sentence_bert_config.json", {"max_seq_length": None, "do_lower_case": True})
    assert_vectors(folder, [hidden_states(bert, text.lower()).mean(dim=0) for text in TEXTS])


@pytest.mark.parametrize("lower", [True, False])
def test_settings_of_a_tokenizer_count_before_its_own_file(lower, bert, tmp_path):
    folder = shutil.copytree(bert, tmp_path / "both")
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["normalizer"]["lowercase"] = not lower
    write(folder / "tokenizer.json", whole)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    write(folder / "tokenizer_config.json", {**settings, "do_lower_case": lower})
    assert_vectors(folder, [hidden_states(folder, text).mean(dim=0) for text in TEXTS])


def test_the_command_and_the_folder_agree(made, capsys):
    folder = made(MEAN, dense(WIDTH, 3))
    write(folder / "config_sentence_transformers.json", {"prompts": {"query": "ask: "}})
    with pytest.raises(SystemExit) as ended:
        app(["embed", "we eat", "-m", str(folder), "--raw", "--json", "--prompt", "query"])
    assert not ended.value.code
    expected = regard.load(folder).embed("we eat", prompt="query", normalise=False)[0]
    assert json.loads(capsys.readouterr().out)["embedding"] == pytest.approx(expected.tolist(), abs=1e-6)


def refused(folder, named):
    with pytest.raises(CheckpointError, match=named):
        regard.load(folder)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (("WeightedLayerPooling", {}, None), "2_WeightedLayerPooling has type WeightedLayerPooling of sentence"),
        (("CNN", {}, None), "has type CNN of sentence-transformers, which is not supported"),
        (dense(WIDTH, 3, "my.own.Activation"), r"activation my\.own\.Activation; known are Tanh"),
        (dense(WIDTH, 3, "torch.nn.modules.activation.MultiheadAttention"), "activation torch"),
        (dense(WIDTH + 1, 3), r"2_Dense/config\.json makes 3 numbers of 17; what comes has 16"),
        (dense(WIDTH, 3, module_input_name="token_embeddings"), "module_input_name 'token_embeddings'"),
        (dense(WIDTH, 3, dropout=0.5), "has dropout, which is not known here"),
        ((*dense(WIDTH, 3)[:2], {"linear.weight": torch.ones(3, WIDTH)}), r"lacks the tensor linear\.bias"),
        ((*dense(WIDTH, 3)[:2], None), "holds no weights"),
        (("Normalize", {"module_input_name": "token_embeddings"}, None), "module_input_name"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_modules_that_are_not_understood_are_refused_by_name(module, named, made):
    refused(made(MEAN, module), named)


@pytest.mark.parametrize(
    ("pooling", "named"),
    [
        ({"pooling_mode": "median"}, "pooling 'median'; known are cls, max, mean"),
        ({"pooling_mode_median": True}, "pooling_mode_median"),
        ({**MEAN, "word_embedding_dimension": 384}, "vectors of 384 numbers, but the model's have 16"),
    ],
)
def test_poolings_that_are_not_understood_are_refused(pooling, named, made):
    refused(made(pooling), named)


@pytest.mark.parametrize(
    ("file", "values", "named"),
    [
        ("modules.json", [], "lists nothing; expected a Transformer"),
        ("modules.json", {"type": 3}, "expected a type, and a path inside the folder"),
        ("modules.json", [{"type": f"{OLD}.Transformer", "path": "../.."}], "a path inside the folder"),
        ("modules.json", [{"type": "custom.Transformer", "path": ""}], r"module custom\.Transformer, which is code"),
        ("modules.json", [{"type": f"{OLD}.StaticEmbedding", "path": ""}], "lists StaticEmbedding; expected"),
        ("modules.json", [{"type": f"{OLD}.Transformer", "path": ""}], "lists Transformer; expected"),
        ("sentence_bert_config.json", {"max_seq_length": "long"}, "max_seq_length 'long'"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "transformer_task 'fill-mask'"),
        ("sentence_bert_config.json", {"model_args": {"dtype": "float16"}}, "model_args"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default prompt 'query'"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "the prompts"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder"),
    ],
    ids=str,
)
def test_settings_that_are_not_understood_are_refused(file, values, named, made):
    folder = made(MEAN)
    write(folder / file, values)
    refused(folder, named)

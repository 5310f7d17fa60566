"""Marian folders of Hugging Face: the same logits, and exact round trips."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.checkpoints import load_model, save_model
from regard.checkpoints.models import own_tensors
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import PairTokenizer, TokenizerConfig, train_pair_tokenizer
from regard.errors import CheckpointError
from regard.families.conversion import convert
from regard.families.translation.marian import export_marian
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_source

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SHAPES = [
    {"share_encoder_decoder_embeddings": True, "activation_function": "swish", "scale_embedding": True},
    {"share_encoder_decoder_embeddings": True, "activation_function": "relu", "encoder_layers": 3},
    {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 41, "activation_function": "gelu"},
    {
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "decoder_vocab_size": 23,
        "activation_function": "silu",
    },
    {"share_encoder_decoder_embeddings": True, "d_model": 24, "encoder_attention_heads": 6, "decoder_layers": 3},
    {"share_encoder_decoder_embeddings": True, "encoder_ffn_dim": 17, "scale_embedding": True, "decoder_layers": 1},
]


def marian(changes, seed):
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 31,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 32,
        "max_position_embeddings": 64,
        "activation_function": "relu",
        "pad_token_id": 22,
        "decoder_start_token_id": 22,
        **changes,
    }
    sizes["decoder_attention_heads"], sizes["decoder_ffn_dim"] = (
        sizes["encoder_attention_heads"],
        sizes["encoder_ffn_dim"],
    )
    model = transformers.MarianMTModel(transformers.MarianConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # the initial weights are too small to reveal a mistake, and biases are 0
                parameter.normal_(std=0.2)
        model.final_logits_bias.normal_()
    return model


def batch(source_vocab, target_vocab, pad):
    source = torch.randint(source_vocab, (3, 7))
    source_mask = torch.arange(7) < torch.tensor([7, 4, 2])[:, None]
    return source.masked_fill(~source_mask, pad), source_mask, torch.randint(target_vocab, (3, 5))


def greatest_difference(ours, theirs):
    config = ours.config
    source, source_mask, inputs = batch(config.source_vocab, config.target_vocab, config.pad)
    with torch.inference_mode():
        expected = theirs(input_ids=source, attention_mask=source_mask.long(), decoder_input_ids=inputs).logits
        return (ours(source, source_mask, inputs) - expected).abs().max().item()


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = marian(SHAPES[seed], seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert greatest_difference(loaded.model, theirs) <= 1e-5

    end = theirs.config.eos_token_id
    export_marian(loaded.model, tmp_path / "back", start=theirs.config.decoder_start_token_id, end=end)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("positions", ["sinusoidal", "sinusoidal_halves"])
@pytest.mark.parametrize("tie", ["all", "target", "none"])
@pytest.mark.parametrize("output_bias", [True, False])
def test_our_model_is_loaded_by_their_library(tie, output_bias, positions, tmp_path):
    torch.manual_seed(0)
    config = TransformerConfig(
        source_vocab=29,
        target_vocab=29 if tie == "all" else 37,
        pad=3,
        width=16,
        heads=2,
        encoder_depth=1,
        decoder_depth=2,
        ffn_width=20,
        activation="swish",
        positions=positions,
        tie=tie,
        output_bias=output_bias,
        max_length=48,
    )
    ours = Transformer(config).eval()
    for parameter in ours.parameters():  # norms and biases that differ between features
        torch.nn.init.normal_(parameter, std=0.3)
    export_marian(ours, tmp_path / "out", start=1, end=2)
    theirs, report = transformers.MarianMTModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert (theirs.config.decoder_start_token_id, theirs.config.eos_token_id, theirs.config.pad_token_id) == (1, 2, 3)
    assert theirs.generation_config.forced_eos_token_id == 2
    assert theirs.generate(torch.tensor([[5, 6, 2]])).shape[1] <= 48
    assert greatest_difference(ours, theirs.eval()) <= 1e-5

    again = load_model(tmp_path / "out").model
    assert greatest_difference(again, theirs) <= 1e-5
    if positions == "sinusoidal_halves":
        for name, tensor in own_tensors(ours).items():
            assert torch.equal(again.state_dict()[name], tensor)


def test_old_folders_with_every_alias_and_position_table_load(tmp_path):
    theirs = marian(SHAPES[0], 7)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.half().state_dict(), tmp_path / "pytorch_model.bin")
    loaded = load_model(tmp_path, allow_pickle=True)
    assert all(tensor.dtype == torch.float32 for tensor in loaded.model.state_dict().values())
    assert greatest_difference(loaded.model, theirs.float()) <= 1e-2  # their position table went through half precision


def test_a_position_table_that_is_not_sinusoidal_is_refused(tmp_path):
    theirs = marian(SHAPES[0], 8)
    theirs.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.encoder.embed_positions.weight"] = torch.randn(64, 16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.encoder\.embed_positions\.weight.*sinusoidal_halves"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("model.decoder.layers.1.fc1.bias"), r"lacks model\.decoder\.layers\.1\.fc1\.bias"),
        (lambda t: t.pop("model.shared.weight"), r"lacks model\.shared\.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), r"does not explain: extra"),
        (lambda t: t.update({"lm_head.weight": torch.zeros(31, 16)}), r"lm_head\.weight.*different values"),
        (lambda t: t.update({"model.encoder.layers.0.fc1.bias": torch.zeros(3)}), r"feed_forward\.up\.bias.*\[3\]"),
    ],
)
def test_missing_leftover_and_wrong_tensors_are_named(change, named, tmp_path):
    marian(SHAPES[0], 9).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


@pytest.mark.parametrize("width", [6, 7])
@pytest.mark.parametrize("activation", ["relu", "gelu_new", "quick_gelu"])
def test_any_width_and_activation_is_exported(width, activation, tmp_path):
    torch.manual_seed(0)
    sizes = {"heads": 1, "encoder_depth": 1, "decoder_depth": 1, "ffn_width": 8, "activation": activation}
    ours = Transformer(TransformerConfig(source_vocab=9, target_vocab=9, width=width, **sizes)).eval()
    export_marian(ours, tmp_path / "out", start=1, end=2)
    assert greatest_difference(ours, transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()) <= 1e-5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"norm": "pre"}, "norm = 'pre'"),
        ({"positions": "learned"}, "positions = 'learned'"),
        ({"positions": "rotary", "norm": "pre"}, "positions = 'rotary' and norm = 'pre'"),
        ({"join_positions": "concatenate"}, "join_positions = 'concatenate'"),
        ({"encoder": "convolution"}, "encoder = 'convolution'"),
    ],
)
def test_what_marian_cannot_hold_is_not_exported(changes, named, tmp_path):
    ours = Transformer(TransformerConfig(source_vocab=9, target_vocab=9, width=8, heads=2, ffn_width=8, **changes))
    with pytest.raises(CheckpointError, match=f"translator with {named}.*--to onnx") as caught:
        export_marian(ours, tmp_path / "out", start=1, end=2)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


PAIRS = [
    Pair("We are eating bread. Don't you?", "Estamos comiendo pan. ¿No? ¡Sí!"),
    Pair('the house is big "2024"', "¿Dónde está? la casa es «grande» 2024"),
]
TEXTS = [
    "We are eating bread. Don't you?", "  the  house\tis BIG! 2024 ñandú ", "▁x  y", "Zoom: <b>we</b>", "",
    '"We are" ¿Dónde está? ¡¿No?! ¿¡Sí? ¿ a', "McDonald's WE (We) - We", "e\u0301xtra E\u0301xtra\u00a0we",
]  # fmt: skip
TOKENIZERS = {
    "bpe": ({}, ["es", "pt"]),
    "one target": ({"lowercase": True}, ["es"]),
    "capitals": ({"mark_case": True}, ["es", "pt"]),
    "two vocabularies": ({"joint": False, "mark_case": True}, ["es", "pt"]),
    "unigram": ({"kind": "unigram"}, ["es"]),
    "wordpiece": ({"kind": "wordpiece", "joint": False}, ["es"]),
    "word": ({"kind": "word"}, ["es"]),
    "character": ({"kind": "character", "mark_case": True}, ["es", "pt"]),
}


def saved_translator(folder, settings, targets):
    """A model with random weights and a trained tokenizer."""
    config = TokenizerConfig(size=70, min_frequency=1, **settings)
    tokenizer = train_pair_tokenizer(PAIRS * 3, config, "en", targets)
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "encoder_depth": 1, "decoder_depth": 1, "ffn_width": 20}
    model = Transformer(
        TransformerConfig(source_vocab=tokenizer.source.size, target_vocab=tokenizer.target.size, **sizes)
    )
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    save_model(folder, "transformer", model.eval(), tokenizer.save)
    return tokenizer


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_converted_translator_says_in_their_library_what_it_says_in_ours(kind, tmp_path):
    settings, targets = TOKENIZERS[kind]
    tokenizer = saved_translator(tmp_path / "ours", settings, targets)
    convert(tmp_path / "ours", tmp_path / "theirs", "huggingface")
    ours, theirs = load_model(tmp_path / "ours").model, transformers.MarianMTModel.from_pretrained(tmp_path / "theirs")
    source = target = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    if tokenizer.target is not tokenizer.source:
        target = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs", subfolder="target")

    again = PairTokenizer.load(tmp_path / "theirs")  # Regard reads the folder too
    for to in targets:
        tag = f">>{to}<< " if len(targets) > 1 else ""
        ids = tokenizer.source_ids(TEXTS, to)
        assert source([tag + text for text in TEXTS])["input_ids"] == ids == again.source_ids(TEXTS, to)
        batch = source([tag + text for text in TEXTS], return_tensors="pt", padding=True)
        written = theirs.generate(
            batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1, do_sample=False,
            max_new_tokens=12, forced_eos_token_id=None,
        )  # fmt: skip
        side = tokenizer.target
        settings = SearchSettings(max_length=12)
        start = from_source(ours, batch["input_ids"], batch["attention_mask"].bool(), settings, side.start)
        found = search(ours, start, settings, Vocabulary(start=side.start, end=side.end, pad=side.pad))
        for row, (best,) in zip(written.tolist(), found, strict=True):
            assert [token for token in row if token not in (side.start, side.end, side.pad)] == best.tokens
            assert target.decode(row, skip_special_tokens=True) == side.decode(best.tokens)
    for text, ids in zip(TEXTS, tokenizer.target_ids(TEXTS), strict=True):
        assert target(text)["input_ids"] == ids
        assert target.decode(ids, skip_special_tokens=True) == tokenizer.target.decode(ids)

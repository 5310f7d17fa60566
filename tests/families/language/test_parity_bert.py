"""BERT, RoBERTa, DistilBERT and ALBERT folders of Hugging Face: the same outputs, and exact round trips."""

import json
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.attention import record
from regard.checkpoints import export_model, load_model
from regard.checkpoints.models import own_tensors
from regard.errors import CheckpointError
from regard.families.language.bert import Bert, BertConfig

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()


class Family(NamedTuple):
    """A model type of theirs: its config names for the sizes, its heads, and the shapes to test."""

    name: str
    sizes: tuple[str, str, str, str]  # width, depth, heads, hidden width
    heads: tuple[str, ...]
    shapes: tuple[dict, ...]


HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
BERT_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
FAMILIES = {
    "bert": Family(
        "Bert", BERT_SIZES, ("Model", "ForPreTraining", *HEADS),
        ({}, {"hidden_act": "relu", "type_vocab_size": 1}, {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
         {"hidden_act": "silu", "pad_token_id": 3}, {"num_labels": 5, "max_position_embeddings": 11}),
    ),
    "roberta": Family(
        "Roberta", BERT_SIZES, ("Model", *HEADS),
        ({}, {"type_vocab_size": 1}, {"pad_token_id": 4}, {"layer_norm_eps": 1e-5}, {"num_labels": 3}),
    ),
    "distilbert": Family(
        "DistilBert", ("dim", "n_layers", "n_heads", "hidden_dim"), ("Model", *HEADS),
        ({}, {"activation": "relu"}, {"pad_token_id": 7}, {"sinusoidal_pos_embds": True}, {"num_labels": 1}),
    ),
    "albert": Family(
        "Albert", BERT_SIZES, ("Model", "ForPreTraining", *HEADS),
        ({"embedding_size": 8}, {"embedding_size": 16, "hidden_act": "gelu"}, {"embedding_size": 24, "pad_token_id": 2},
         {"embedding_size": 4, "type_vocab_size": 3}, {"embedding_size": 8, "layer_norm_eps": 1e-6}),
    ),
}  # fmt: skip
WIDTHS = ((16, 2, 4, 32), (24, 3, 6, 20), (16, 1, 2, 17), (20, 4, 5, 40), (32, 2, 1, 24))
EVERY_HEAD = [(family, head) for family, each in FAMILIES.items() for head in each.heads]


def built(family, head, seed):
    """A small model of theirs with weights large enough to reveal a mistake."""
    torch.manual_seed(seed)
    each = FAMILIES[family]
    sizes = dict(zip(each.sizes, WIDTHS[seed], strict=True))
    values = {"vocab_size": 31, "max_position_embeddings": 24, **sizes, **each.shapes[seed]}
    if head in ("ForQuestionAnswering", "ForPreTraining"):  # these heads always have two outputs
        values.pop("num_labels", None)
    config = getattr(transformers, f"{each.name}Config")(**values)
    model = getattr(transformers, f"{each.name}{head}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


def batch(config):
    """Three texts of 9, 5 and 2 tokens, none of which is the padding token, in two segments."""
    mask = torch.arange(9) < torch.tensor([9, 5, 2])[:, None]
    tokens = torch.randint(config.vocab - 1, (3, 9))
    tokens = torch.where(tokens >= config.pad, tokens + 1, tokens)
    return tokens.masked_fill(~mask, config.pad), mask, torch.randint(max(config.segments, 1), (3, 9))


def differences(ours, theirs):
    """The largest difference of every output, over real tokens."""
    tokens, mask, segments = batch(ours.config)
    given = {"token_type_ids": segments} if ours.config.segments else {}
    with torch.inference_mode():
        theirs = theirs(input_ids=tokens, attention_mask=mask.long(), **given)
        ours = ours(tokens, mask, segments)
    if "start_logits" in theirs:
        pairs = [(torch.stack([theirs.start_logits, theirs.end_logits], dim=-1), ours.logits)]
    elif "logits" in theirs:
        pairs = [(theirs.logits, ours.logits)]
    elif "prediction_logits" in theirs:
        next_sentence = theirs.sop_logits if "sop_logits" in theirs else theirs.seq_relationship_logits
        pairs = [(theirs.prediction_logits, ours.logits), (next_sentence, ours.next_sentence)]
    else:
        pairs = [(theirs.last_hidden_state, ours.hidden)]
        pairs += [(theirs.pooler_output, ours.pooled)] if "pooler_output" in theirs else []
    gaps = [(a - b).abs() for a, b in pairs]
    return [(gap[mask] if gap.shape[:2] == mask.shape else gap).max().item() for gap in gaps]


@pytest.mark.parametrize(
    ("family", "head", "seed"),
    [
        pytest.param(*each, seed, marks=() if (number + seed) % 5 < 2 else pytest.mark.full)
        for number, each in enumerate(EVERY_HEAD)
        for seed in range(5)
    ],
)
def test_their_folder_gives_the_same_answers_and_survives_the_way_back(family, head, seed, tmp_path):
    theirs = built(family, head, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert max(differences(loaded.model, theirs)) <= 1e-5

    export_model(loaded.name, loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again, report = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    assert again.config.model_type == family and again.config.architectures == [type(theirs).__name__]
    assert again.config.num_labels == theirs.config.num_labels
    assert max(differences(loaded.model, again.eval())) <= 1e-5


OURS = {
    "bert": {},
    "roberta": {"positions_after_pad": True, "pad": 1, "segments": 1},
    "distilbert": {"segments": 0, "pooler_activation": "relu"},
    "albert": {"embedding_width": 12, "shared_layers": True, "activation": "gelu_new"},
}
THEIR_HEADS = {
    "none": "Model", "masked": "ForMaskedLM", "pretraining": "ForPreTraining", "classify": "ForSequenceClassification",
    "tags": "ForTokenClassification", "answer": "ForQuestionAnswering",
}  # fmt: skip


@pytest.mark.parametrize(
    ("family", "head"),
    [(f, h) for f in FAMILIES for h, t in THEIR_HEADS.items() if t in FAMILIES[f].heads],
)
def test_our_model_is_loaded_by_their_library(family, head, tmp_path):
    torch.manual_seed(1)
    names = () if head in ("answer", "pretraining") else ("bad", "fair", "good")
    sizes = {"vocab": 29, "width": 16, "heads": 2, "depth": 2, "ffn_width": 20, "max_length": 20}
    pooler = head in ("classify", "pretraining") or (head == "none" and family != "distilbert")
    ours = Bert(
        BertConfig(**sizes, **OURS[family], head=head, labels=len(names) or 2, label_names=names, pooler=pooler)
    ).eval()
    export_model("bert", ours, tmp_path / "out")
    kind = getattr(transformers, FAMILIES[family].name + THEIR_HEADS[head])
    theirs, report = kind.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert max(differences(ours, theirs.eval())) <= 1e-5
    assert theirs.config.id2label == dict(enumerate(names or ("LABEL_0", "LABEL_1")))

    again = load_model(tmp_path / "out")
    assert again.config == ours.config
    for name, tensor in own_tensors(ours).items():
        assert torch.equal(again.model.state_dict()[name], tensor)


@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_attention_is_theirs_layer_by_layer(family, tmp_path):
    theirs = built(family, "Model", 1)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).model
    tokens, mask, segments = batch(ours.config)
    given = {"token_type_ids": segments} if ours.config.segments else {}
    theirs.set_attn_implementation("eager")
    with torch.inference_mode(), record(ours) as looks:
        ours(tokens, mask, segments)
        expected = theirs(input_ids=tokens, attention_mask=mask.long(), output_attentions=True, **given).attentions
    assert list(looks) == [f"encoder.{layer}.attention" for layer in range(ours.config.depth)]
    for seen, weights in zip(looks.values(), expected, strict=True):
        real = seen.transpose(1, 2)[mask], weights.transpose(1, 2)[mask]  # RoBERTa numbers padding differently
        torch.testing.assert_close(*real, atol=1e-5, rtol=0)


def test_shards_are_read_together(tmp_path):
    theirs = built("bert", "ForMaskedLM", 1)
    theirs.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    assert max(differences(load_model(tmp_path).model, theirs)) <= 1e-5


def rewrite(folder, change, **config):
    """A folder with changed tensors or config values."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors) or tensors, file)
    values = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in {**values, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def test_folders_of_older_versions_load(tmp_path):
    """Norms named gamma and beta, numbered positions, aliases, no architectures, and pre-training heads."""
    theirs = built("bert", "ForPreTraining", 0)
    theirs.save_pretrained(tmp_path)

    def aged(tensors):
        older = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        older["bert.embeddings.position_ids"] = torch.arange(24)[None]
        older["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
        older["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
        return older

    rewrite(tmp_path, aged, architectures=None)
    loaded = load_model(tmp_path)
    assert loaded.config.head == "pretraining"
    assert max(differences(loaded.model, theirs)) <= 1e-5


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_an_encoder_without_pooler_or_with_its_prefix_loads(family, tmp_path):
    theirs = built(family, "Model", 2)
    theirs.save_pretrained(tmp_path)
    rewrite(tmp_path, lambda t: {f"{family}.{name}": each for name, each in t.items() if "pooler" not in name})
    loaded = load_model(tmp_path)
    assert loaded.config.pooler is False
    theirs.pooler = None
    if family == "albert":
        theirs.pooler_activation = None
    assert max(differences(loaded.model, theirs)) <= 1e-5


@pytest.mark.parametrize(
    ("change", "config", "named"),
    [
        (
            lambda t: t.pop("bert.encoder.layer.0.output.dense.bias"),
            {},
            r"lacks bert\.encoder\.layer\.0\.output\.dense",
        ),
        (lambda t: t.pop("bert.embeddings.word_embeddings.weight"), {}, r"lacks bert\.embeddings\.word_embeddings"),
        (lambda t: t.pop("cls.predictions.bias"), {}, r"lacks cls\.predictions\.bias"),
        (lambda t: t.update(extra=torch.zeros(1)), {}, "does not explain: extra"),
        (lambda t: t.update({"qa_outputs.bias": torch.zeros(2)}), {}, r"does not explain: qa_outputs\.bias"),
        (
            lambda t: t.update({"cls.predictions.decoder.weight": torch.zeros(31, 16)}),
            {},
            r"decoder\.weight.*different",
        ),
        (lambda t: t.update({"bert.embeddings.position_ids": torch.ones(1, 24)}), {}, "position_ids.*numbers"),
        (lambda t: t.update({"bert.embeddings.LayerNorm.bias": torch.zeros(3)}), {}, r"embedding_norm\.bias.*\[3\]"),
        (lambda t: t.update({"bert.embeddings.LayerNorm.beta": torch.zeros(16)}), {}, "old and its present name"),
        (lambda t: None, {"architectures": ["BertForQuestionAnswering"]}, r"not explain: cls\.predictions\.bias"),
        (lambda t: None, {"architectures": ["BertForMultipleChoice"]}, "BertForMultipleChoice"),
        (lambda t: None, {"model_type": "bart"}, "model_type 'bart'; known are .*bert"),
        (lambda t: None, {"is_decoder": True}, "is_decoder True"),
        (lambda t: None, {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        (lambda t: None, {"id2label": {"0": "no", "2": "yes"}}, "id2label"),
        (lambda t: None, {"hidden_act": "mish"}, "mish"),
        (lambda t: None, {"num_attention_heads": 3}, "heads = 3"),
        (lambda t: None, {"vocab_size": 30}, r"embedding\.weight.*\[31, 16\].*\[30, 16\]"),
        (lambda t: None, {"num_hidden_layers": 3}, r"lacks bert\.encoder\.layer\.2"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(change, config, named, tmp_path):
    built("bert", "ForMaskedLM", 0).save_pretrained(tmp_path)
    rewrite(tmp_path, lambda tensors: (change(tensors), None)[1], **config)
    with pytest.raises(CheckpointError, match=named):
        load_model(tmp_path)


def test_a_pickle_is_refused_by_name(tmp_path):
    theirs = built("bert", "Model", 0)
    theirs.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle"):
        load_model(tmp_path)
    assert max(differences(load_model(tmp_path, allow_pickle=True).model, theirs)) <= 1e-5


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"segments": 0}, "cannot be exported: as bert, .*it has no segments"),
        ({"shared_layers": True}, "cannot be exported: .*as albert, .*no embedding_width"),
        ({"positions_after_pad": True, "activation": "relu"}, "as roberta.*activation 'relu'"),
    ],
)
def test_what_no_library_model_can_hold_is_not_exported(values, named, tmp_path):
    ours = Bert(BertConfig(vocab=9, width=8, heads=2, depth=1, ffn_width=8, max_length=9, **values))
    with pytest.raises(CheckpointError, match=named):
        export_model("bert", ours, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []

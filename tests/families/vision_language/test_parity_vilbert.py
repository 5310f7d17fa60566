"""ViLBERT beside the numbers of the original implementation, and co-attention beside transformers' LXMERT."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import LxmertConfig
from transformers.models.lxmert.modeling_lxmert import LxmertCrossAttentionLayer

from regard.attention import record
from regard.attention.multihead import MultiHeadAttention
from regard.data.sources import data_root
from regard.families.vision_language.model import Vilbert, VilbertConfig
from regard.layers.blocks import CrossLayer, FeedForward
from regard.training.losses import cross_entropy, divergence

GOLDEN = Path(data_root()) / "goldens" / "vilbert_tiny.npz"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}

# their name -> ours, as prefixes of the parts that differ
STREAM = {
    "attention.self.": "attention.", "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "after_attention.norm", "intermediate.dense": "feed_forward.up",
    "output.dense": "feed_forward.down", "output.LayerNorm": "after_feed_forward.norm",
}  # fmt: skip
LINK = {
    "biattention.query2": "words.cross.query", "biattention.key1": "words.cross.key",
    "biattention.value1": "words.cross.value", "biOutput.dense2": "words.cross.output",
    "biOutput.LayerNorm2": "words.after_cross.norm", "biattention.query1": "regions.cross.query",
    "biattention.key2": "regions.cross.key", "biattention.value2": "regions.cross.value",
    "biOutput.dense1": "regions.cross.output", "biOutput.LayerNorm1": "regions.after_cross.norm",
    "v_intermediate.dense": "regions.feed_forward.up", "v_output.dense": "regions.feed_forward.down",
    "v_output.LayerNorm": "regions.after_feed_forward.norm", "t_intermediate.dense": "words.feed_forward.up",
    "t_output.dense": "words.feed_forward.down", "t_output.LayerNorm": "words.after_feed_forward.norm",
}  # fmt: skip
ENDS = {
    "bert.embeddings.word_embeddings": "words.embedding",
    "bert.embeddings.position_embeddings.weight": "words.positions.table",
    "bert.embeddings.token_type_embeddings": "words.segments", "bert.embeddings.LayerNorm": "words.embedding_norm",
    "bert.v_embeddings.image_embeddings": "feature", "bert.v_embeddings.image_location_embeddings": "place",
    "bert.v_embeddings.LayerNorm": "region_norm", "bert.t_pooler.dense": "pooler.words",
    "bert.v_pooler.dense": "pooler.regions", "cls.predictions.bias": "masked.words.bias",
    "cls.predictions.transform.dense": "masked.words.dense", "cls.predictions.transform.LayerNorm": "masked.words.norm",
    "cls.bi_seq_relationship": "masked.match", "cls.imagePredictions.transform.dense": "masked.dense",
    "cls.imagePredictions.transform.LayerNorm": "masked.norm", "cls.imagePredictions.decoder": "masked.regions",
}  # fmt: skip
UNUSED = ("biOutput.q_dense", "cls.predictions.decoder.weight")  # never called; tied to the embedding


def ours(name: str) -> str:
    for theirs, part in ENDS.items():
        if name.startswith(theirs):
            return part + name.removeprefix(theirs)
    _, _, kind, number, rest = name.split(".", 4)
    prefix, table = {"layer": ("words.encoder", STREAM), "v_layer": ("regions", STREAM), "c_layer": ("links", LINK)}[
        kind
    ]
    theirs = next(each for each in table if rest.startswith(each))
    return f"{prefix}.{number}.{table[theirs]}{rest.removeprefix(theirs)}"


@pytest.fixture(scope="module")
def golden():
    if not GOLDEN.is_file():
        pytest.skip(f"{GOLDEN} is not there")
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files}


@pytest.fixture(scope="module")
def model(golden):
    theirs = json.loads(str(golden["config"]))
    config = VilbertConfig(
        vocab=theirs["vocab_size_or_config_json_file"], width=theirs["hidden_size"],
        heads=theirs["num_attention_heads"],
        depth=theirs["num_hidden_layers"], ffn_width=theirs["intermediate_size"],
        max_length=theirs["max_position_embeddings"], region_features=theirs["v_feature_size"],
        region_width=theirs["v_hidden_size"], region_heads=theirs["v_num_attention_heads"],
        region_depth=theirs["v_num_hidden_layers"], region_ffn_width=theirs["v_intermediate_size"],
        link_width=theirs["bi_hidden_size"], link_heads=theirs["bi_num_attention_heads"],
        word_links=theirs["t_biattention_id"], region_links=theirs["v_biattention_id"],
        region_classes=theirs["v_target_size"], head="pretraining",
    )  # fmt: skip
    weights = {name.removeprefix("weights/"): value for name, value in golden.items() if name.startswith("weights/")}
    state = {
        ours(name): torch.from_numpy(value)
        for name, value in weights.items()
        if not any(part in name for part in UNUSED)
    }
    built = Vilbert(config).eval()
    built.load_state_dict(state)
    return built


def inputs(golden):
    given = [
        torch.from_numpy(golden[f"in/{name}"]) for name in ("ids", "text_mask", "features", "locations", "region_mask")
    ]
    return [given[0], given[1].bool(), given[2], given[3], given[4].bool(), torch.from_numpy(golden["in/segments"])]


@torch.inference_mode()
def test_the_whole_model_gives_the_logits_of_the_original(golden, model):
    output = model(*inputs(golden))
    for found, name in ((output.word_logits, "word"), (output.region_logits, "region"), (output.match, "match")):
        torch.testing.assert_close(found, torch.from_numpy(golden[f"out/{name}_logits"]), **CLOSE)
    torch.testing.assert_close(output.score, output.match[:, 0] - output.match[:, 1])


@torch.inference_mode()
def test_the_streams_do_not_meet_without_co_attention(golden, model):
    alone = Vilbert(model.config.replace(co_attention=False)).eval()
    alone.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("links.")})
    ids, mask, features, *rest = inputs(golden)
    first, second = alone(ids, mask, features, *rest), alone(ids, mask, features.flip(0), *rest)
    assert torch.equal(first.words, second.words) and not torch.equal(first.regions, second.regions)
    assert not torch.equal(model(ids, mask, features, *rest).words, model(ids, mask, features.flip(0), *rest).words)


@torch.inference_mode()
def test_each_stream_attends_to_the_other_and_never_to_padding(golden, model):
    with record(model, "links.*") as looks:
        model(*inputs(golden))
    words, regions = golden["in/ids"].shape[1], golden["in/features"].shape[1]
    real = {"words": golden["in/region_mask"].astype(bool), "regions": golden["in/text_mask"].astype(bool)}
    for name, weights in looks.items():
        stream = name.split(".")[2]
        assert weights.shape[2:] == ((words, regions) if stream == "words" else (regions, words))
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        assert weights.transpose(1, 3)[torch.from_numpy(~real[stream])].eq(0).all()


@torch.inference_mode()
@pytest.mark.parametrize("direction", ["words to regions", "regions to words"])
def test_a_direction_is_the_cross_attention_of_lxmert(direction):
    """LXMERT's layer is attention, dense, add and norm; both streams have its width."""
    torch.manual_seed(0)
    theirs = LxmertCrossAttentionLayer(LxmertConfig(hidden_size=32, num_attention_heads=4)).eval()
    layer = CrossLayer(MultiHeadAttention(32, 4), FeedForward(32, 8), 0.0).eval()
    for ours_name, their_name in (("query", "att.query"), ("key", "att.key"), ("value", "att.value")):
        getattr(layer.cross, ours_name).load_state_dict(theirs.get_submodule(their_name).state_dict())
    layer.cross.output.load_state_dict(theirs.output.dense.state_dict())
    layer.after_cross.norm.load_state_dict(theirs.output.LayerNorm.state_dict())
    layer.after_cross.norm.eps = 1e-12
    words, regions = torch.randn(2, 5, 32), torch.randn(2, 7, 32)
    x, memory = (words, regions) if direction.startswith("words") else (regions, words)
    real = torch.arange(memory.shape[1])[None] < torch.tensor([[memory.shape[1]], [3]])
    penalty = torch.zeros(real.shape).masked_fill(~real, -1e9)[:, None, None]
    expected = theirs(x, memory, penalty)[0]
    found = layer.after_cross(x, lambda h: layer.cross(h, memory, mask=real[:, None, None]))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert layer(x, memory, real[:, None, None]).shape == x.shape


@torch.inference_mode()
def test_the_three_losses_are_those_of_the_original(golden, model):
    output = model(*inputs(golden), factored=True)
    labels, match = (torch.from_numpy(golden[f"in/{name}"]) for name in ("masked_words", "match"))
    words = cross_entropy(output.word_logits, labels.clamp(min=0), labels >= 0) / (labels >= 0).sum()
    chosen = torch.from_numpy(golden["in/masked_regions"] == 1)
    targets = torch.from_numpy(golden["in/region_targets"])
    regions = divergence(output.region_logits[:, 1:], targets, chosen) / chosen.sum()
    found = {"words": words, "regions": regions, "match": functional.cross_entropy(output.match, match)}
    for name, loss in found.items():
        assert loss.item() == pytest.approx(golden[f"out/loss_{name}"].item(), rel=1e-5)

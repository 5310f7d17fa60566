"""The Conformer's block beside transformers' Wav2Vec2ConformerEncoderLayer with relative positions."""

import pytest
import torch
from transformers import Wav2Vec2ConformerConfig
from transformers.models.wav2vec2_conformer.modeling_wav2vec2_conformer import (
    Wav2Vec2ConformerEncoderLayer,
    Wav2Vec2ConformerRelPositionalEmbedding,
)

from regard.attention.positions import DistanceTable
from regard.families.speech.conformer import ConformerBlock

# their name -> ours
NAMES = {
    "ffn1_layer_norm": "after_first.norm", "ffn1.intermediate_dense": "first.up", "ffn1.output_dense": "first.down",
    "self_attn_layer_norm": "after_attention.norm", "self_attn.linear_q": "attention.query",
    "self_attn.linear_k": "attention.key", "self_attn.linear_v": "attention.value",
    "self_attn.linear_out": "attention.output", "self_attn.linear_pos": "attention.position.project",
    "conv_module.layer_norm": "after_convolution.norm", "conv_module.pointwise_conv1": "convolution.expand",
    "conv_module.depthwise_conv": "convolution.depthwise", "conv_module.batch_norm": "convolution.norm",
    "conv_module.pointwise_conv2": "convolution.project", "ffn2_layer_norm": "after_last.norm",
    "ffn2.intermediate_dense": "last.up", "ffn2.output_dense": "last.down", "final_layer_norm": "norm",
}  # fmt: skip


@torch.no_grad()
def copied(theirs, ours):
    """Our block with their weights; their convolutions have no biases, and u is part of our query's bias."""
    own = ours.state_dict()
    for key, tensor in own.items():
        if key.endswith(".bias") and key.startswith("convolution.") and "norm" not in key:
            tensor.zero_()
    for key, tensor in theirs.state_dict().items():
        if key.startswith("self_attn.pos_bias"):
            continue
        module, _, kind = key.rpartition(".")
        into = own[f"{NAMES[module]}.{kind}"]
        into.copy_(tensor.reshape(into.shape))
    u, v = theirs.self_attn.pos_bias_u, theirs.self_attn.pos_bias_v
    own["attention.query.bias"].add_(u.flatten())
    own["attention.position.bias"].copy_((v - u)[:, None])


@pytest.mark.parametrize("seed", range(4))
def test_a_block_is_transformers_block(seed):
    torch.manual_seed(seed)
    heads, size = (2, 4, 1, 3)[seed], (8, 4, 12, 6)[seed]
    width, kernel, length = heads * size, (3, 7, 15, 31)[seed], (5, 12, 1, 40)[seed]
    config = Wav2Vec2ConformerConfig(
        hidden_size=width, num_attention_heads=heads, intermediate_size=3 * width, hidden_act="swish",
        conv_depthwise_kernel_size=kernel, position_embeddings_type="relative", hidden_dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, conformer_conv_dropout=0.0,
    )  # fmt: skip
    theirs = Wav2Vec2ConformerEncoderLayer(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    torch.nn.init.normal_(theirs.conv_module.batch_norm.running_mean)
    ours = ConformerBlock(width, heads, 3 * width, kernel, 0.0, DistanceTable(width)).eval()
    copied(theirs, ours)
    x = torch.randn(2, length, width)
    places = Wav2Vec2ConformerRelPositionalEmbedding(config)(x)
    with torch.no_grad():
        wanted = theirs(x.clone(), relative_position_embeddings=places)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        assert torch.allclose(ours(x, None), wanted, atol=2e-5)
        if length > 5:  # padding: their mask is added to the scores
            mask = torch.arange(length) < torch.tensor([length, length - 4])[:, None]
            added = torch.where(mask[:, None, None], 0.0, torch.finfo(torch.float32).min)
            padded = x * mask[..., None]
            wanted = theirs(padded.clone(), attention_mask=added, relative_position_embeddings=places)
            wanted = wanted[0] if isinstance(wanted, tuple) else wanted
            assert torch.allclose(ours(padded, mask)[0], wanted[0], atol=2e-5)

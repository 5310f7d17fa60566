"""Regard's weights in torch's own layers: `nn.TransformerEncoderLayer` and `nn.TransformerDecoderLayer`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.families.language.bert import Bert
from regard.families.translation.transformer import Transformer
from regard.layers.blocks import ACTIVATIONS, DecoderLayer, EncoderLayer, Residual


class TorchTransformer(nn.Module):
    """A Transformer (post-norm, attention encoder) with torch's own layers; the embeddings are Regard's."""

    def __init__(self, model: Transformer):
        super().__init__()
        c = model.config
        self.model = model
        sizes = c.width, c.heads, c.ffn_width, c.dropout, ACTIVATIONS[c.activation]
        reader = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        writer = nn.TransformerDecoderLayer(*sizes, batch_first=True)
        self.encoder = nn.TransformerEncoder(reader, c.encoder_depth, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(writer, c.decoder_depth)
        assert isinstance(model.encoder, nn.ModuleList)
        for ours, theirs in zip(model.encoder, self.encoder.layers, strict=True):
            copy_encoder_layer(ours, theirs)
        for ours, theirs in zip(model.decoder, self.decoder.layers, strict=True):
            copy_decoder_layer(ours, theirs)
        del self.model.encoder, self.model.decoder

    def forward(
        self, source: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"], inputs: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        model = self.model
        padding, causal = ~mask, nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        memory = self.encoder(model.embed_source(source), src_key_padding_mask=padding)
        x = model.embed_target(inputs, 0)
        x = self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)
        return model.predict(x)


class TorchBert(nn.Module):
    """A BERT with torch's own layers."""

    def __init__(self, model: Bert):
        super().__init__()
        c = model.config
        self.model = model
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, c.ffn_width, c.dropout, ACTIVATIONS[c.activation], c.norm_eps, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, c.depth, enable_nested_tensor=False)
        for ours, theirs in zip(model.encoder, self.encoder.layers, strict=True):
            copy_encoder_layer(ours, theirs)
        del self.model.encoder

    def forward(self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.encoder(self.model.embed(tokens), src_key_padding_mask=~mask)


def copy_encoder_layer(ours: nn.Module, theirs: nn.Module) -> None:
    assert isinstance(ours, EncoderLayer) and isinstance(theirs, nn.TransformerEncoderLayer)
    _attention(ours.attention, theirs.self_attn)
    for linear, other in ((ours.feed_forward.up, theirs.linear1), (ours.feed_forward.down, theirs.linear2)):
        other.load_state_dict(linear.state_dict())
    _norms((ours.after_attention, theirs.norm1), (ours.after_feed_forward, theirs.norm2))


def copy_decoder_layer(ours: nn.Module, theirs: nn.Module) -> None:
    assert isinstance(ours, DecoderLayer) and isinstance(theirs, nn.TransformerDecoderLayer)
    _attention(ours.attention, theirs.self_attn)
    _attention(ours.cross, theirs.multihead_attn)
    for linear, other in ((ours.feed_forward.up, theirs.linear1), (ours.feed_forward.down, theirs.linear2)):
        other.load_state_dict(linear.state_dict())
    pairs = (ours.after_attention, theirs.norm1), (ours.after_cross, theirs.norm2)
    _norms(*pairs, (ours.after_feed_forward, theirs.norm3))


def _attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def _norms(*pairs: tuple[Residual, nn.LayerNorm]) -> None:
    for ours, theirs in pairs:
        theirs.load_state_dict(ours.norm.state_dict())

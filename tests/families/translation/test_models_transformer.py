"""The Transformer against torch's own layers, and the properties that the lectures claim."""

import pytest
import torch
from torch import nn

from regard.attention import MultiHeadAttention, record
from regard.attention import core as masks
from regard.errors import ConfigError
from regard.families.translation.transformer import PRESETS, Transformer, TransformerConfig
from regard.layers.blocks import DecoderLayer, EncoderLayer, FeedForward


def tiny(**changes) -> Transformer:
    torch.manual_seed(0)
    sizes = {"source_vocab": 11, "target_vocab": 13, "width": 16, "heads": 4, "encoder_depth": 2, "decoder_depth": 2}
    return Transformer(TransformerConfig(**{**sizes, "ffn_width": 32, **changes})).eval()


def batch(rows=3, source=6, target=5):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([source, 2, 4][:rows])
    mask = torch.arange(source) < lengths[:, None]
    return (
        torch.randint(4, 11, (rows, source), generator=generator),
        mask,
        torch.randint(4, 11, (rows, target), generator=generator),
    )


@pytest.mark.parametrize("order", ["post", "pre"])
def test_layers_equal_torchs(order):
    torch.manual_seed(0)
    width, heads, hidden = 16, 4, 32
    theirs = nn.TransformerDecoderLayer(width, heads, hidden, dropout=0.0, batch_first=True, norm_first=order == "pre")
    own, cross = MultiHeadAttention(width, heads), MultiHeadAttention(width, heads)
    ours = DecoderLayer(own, cross, FeedForward(width, hidden), 0.0, order)
    encoder_theirs = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, batch_first=True, norm_first=order == "pre")
    encoder = EncoderLayer(MultiHeadAttention(width, heads), FeedForward(width, hidden), 0.0, order)
    for attention, twin in (
        (own, theirs.self_attn),
        (cross, theirs.multihead_attn),
        (encoder.attention, encoder_theirs.self_attn),
    ):
        for part, weight, bias in zip(
            (attention.query, attention.key, attention.value),
            twin.in_proj_weight.chunk(3),
            twin.in_proj_bias.chunk(3),
            strict=True,
        ):
            part.load_state_dict({"weight": weight, "bias": bias})
        attention.output.load_state_dict(twin.out_proj.state_dict())
    for mine, other in ((ours, theirs), (encoder, encoder_theirs)):
        mine.feed_forward.up.load_state_dict(other.linear1.state_dict())
        mine.feed_forward.down.load_state_dict(other.linear2.state_dict())
    x, memory = torch.randn(2, 5, width), torch.randn(2, 4, width)
    expected = theirs(x, memory, tgt_mask=nn.Transformer.generate_square_subsequent_mask(5), tgt_is_causal=True)
    torch.testing.assert_close(ours(x, cross.remember(memory)), expected, atol=1e-5, rtol=1e-5)
    real = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    expected = encoder_theirs(x, src_key_padding_mask=~real)
    torch.testing.assert_close(encoder(x, masks.padding(real))[real], expected[real], atol=1e-5, rtol=1e-5)


def test_every_decoder_layer_reads_the_last_encoder_layer():
    model, (source, mask, inputs) = tiny(), batch()
    seen = []
    for layer in model.decoder:
        layer.cross.key.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    model(source, mask, inputs)  # packed, because there are gradients
    memory, _ = model.encode(source, mask)
    assert len(seen) == 2 and all(torch.equal(each[0], memory[mask]) for each in seen)
    seen.clear()
    with torch.no_grad():
        model(source, mask, inputs)
        memory, _ = model.encode(source, mask)
    assert len(seen) == 2 and all(torch.equal(each, memory) for each in seen)


def test_layers_are_independent_copies():
    model = tiny()
    assert not torch.equal(model.encoder[0].attention.query.weight, model.encoder[1].attention.query.weight)
    ties = {id(p) for p in model.parameters()}
    assert len(ties) == len(list(model.parameters()))


def test_no_target_token_sees_a_later_one():
    model, (source, mask, inputs) = tiny(), batch()
    changed = inputs.clone()
    changed[:, 3:] = 4
    torch.testing.assert_close(model(source, mask, inputs)[:, :3], model(source, mask, changed)[:, :3])


def test_recording_leaves_outputs_and_state_dict_alone():
    model, args = tiny(), batch()
    before, keys = model(*args), list(model.state_dict())
    with record(model, "decoder.*.cross") as looks:
        during = model(*args)
    assert torch.equal(before, during) and list(model.state_dict()) == keys
    assert sorted(looks) == ["decoder.0.cross", "decoder.1.cross"]
    weights = looks["decoder.0.cross"]
    assert weights.shape == (3, 4, 5, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 5))
    assert (weights[1, :, :, 2:] == 0).all()
    with pytest.raises(KeyError, match=r"encoder\.0\.attention"), record(model, "nothing"):
        pass


def test_recording_step_by_step_gives_the_rows_of_the_whole():
    model, (source, mask, inputs) = tiny(), batch()
    with record(model) as whole:
        model(source, mask, inputs)
    with record(model, "decoder.*") as stepped:
        state = model.start(source, mask)
        for t in range(inputs.shape[1]):
            model.step(inputs[:, t : t + 1], state)
    for name in stepped:
        torch.testing.assert_close(stepped[name], whole[name], atol=1e-5, rtol=1e-5)


def test_presets_have_the_papers_sizes():
    base = Transformer(TransformerConfig(source_vocab=37_000, target_vocab=37_000, tie="all", **PRESETS["base"]))
    assert 60e6 < sum(p.numel() for p in base.parameters()) < 65e6  # the paper says 65 million
    assert base.decoder[0].attention.head_width == 64


def test_different_vocabularies_cannot_share_everything():
    with pytest.raises(ConfigError, match="joint tokenizer"):
        tiny(tie="all", target_vocab=99)

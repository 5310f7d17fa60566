"""Packed tokens: the same losses and gradients as with padding, for every model that packs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard.attention import packing
from regard.attention.packing import Packing, packing_for
from regard.families.catalog import MODELS
from regard.training.losses import cross_entropy

SIZES = {"width": 16, "heads": 4, "ffn_width": 24}
BOTH = {"source_vocab": 11, "target_vocab": 11, "dropout": 0.0}
MODELS_THAT_PACK = {
    "transformer": ("transformer", {**BOTH, **SIZES, "encoder_depth": 2, "decoder_depth": 2}),
    "pre-norm": ("transformer", {**BOTH, **SIZES, "encoder_depth": 2, "decoder_depth": 2, "norm": "pre"}),
    "rotary": ("transformer", {**BOTH, **SIZES, "encoder_depth": 1, "decoder_depth": 2, "positions": "rotary"}),
    "convolution": ("transformer", {**BOTH, **SIZES, "encoder_depth": 1, "decoder_depth": 1, "encoder": "convolution"}),
    "t5": ("t5", {**BOTH, **SIZES, "head_width": 4, "encoder_depth": 2, "decoder_depth": 2, "buckets": 8}),
    "seq2seq": ("seq2seq", {**BOTH, "embedding": 8, "width": 16}),
    "bottleneck": ("seq2seq", {**BOTH, "embedding": 8, "width": 16, "attention": "none", "bidirectional": False}),
}
LENGTHS = torch.tensor([9, 2, 5, 1])


def masked(lengths: Tensor) -> Tensor:
    return torch.arange(int(lengths.max())) < lengths[:, None]


def built(name: str, sizes: dict) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name].model(MODELS[name].config(**sizes)).train()


def lost(model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of some padded pairs, and its gradients."""
    torch.manual_seed(1)
    source_mask, mask = masked(LENGTHS.flip(0)), masked(LENGTHS)
    source, inputs, labels = (torch.randint(2, 11, (4, 9)) for _ in range(3))
    loss = cross_entropy(model(source, source_mask, inputs, mask, factored=True), labels, mask, 0.1)
    model.zero_grad()
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", MODELS_THAT_PACK)
def test_the_loss_and_its_gradients_are_those_of_the_whole_grid(kind: str, monkeypatch):
    model = built(*MODELS_THAT_PACK[kind])
    laid_out = list[Packing]()
    monkeypatch.setattr(packing, "Packing", lambda mask: laid_out.append(Packing(mask)) or laid_out[-1])
    ours, gradients = lost(model)
    assert laid_out
    monkeypatch.setattr(packing, "MAX_REAL_SHARE", 0.0)
    count = len(laid_out)
    whole, expected = lost(model)
    assert len(laid_out) == count
    torch.testing.assert_close(ours, whole, atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=name)


def test_a_packed_bert_reads_what_the_whole_grid_does(monkeypatch):
    model = built("bert", {**SIZES, "vocab": 11, "depth": 2, "head": "masked", "max_length": 16, "dropout": 0.0,
                           "attention_dropout": 0.0, "head_dropout": 0.0})  # fmt: skip
    mask, tokens = masked(LENGTHS), torch.randint(2, 11, (4, 9))
    packed = model(tokens, mask).hidden
    monkeypatch.setattr(packing, "MAX_REAL_SHARE", 0.0)
    torch.testing.assert_close(packed[mask], model(tokens, mask).hidden[mask], atol=1e-5, rtol=1e-5)
    assert not packed[~mask].any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 9))
def test_rows_come_back_to_their_places_with_their_gradients(lengths: list[int], seed: int):
    mask = masked(torch.tensor(lengths))
    x = torch.randn(*mask.shape, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    rows = Packing(mask)
    torch.testing.assert_close(rows.pack(x)[0], x[mask])
    back = rows.unpack(rows.pack(x))
    torch.testing.assert_close(back, torch.where(mask[..., None, None], x, 0.0))
    heads = rows.pack(x).transpose(1, 2)
    torch.testing.assert_close(rows.lay_out(heads)[0], back.transpose(1, 2))
    torch.autograd.gradcheck(rows.pack, x.requires_grad_())
    torch.autograd.gradcheck(rows.unpack, rows.pack(x).detach().requires_grad_())


def test_what_is_only_read_or_has_little_padding_stays_as_it_is():
    mask = masked(LENGTHS)
    x = torch.zeros(*mask.shape, 2)
    assert packing_for(x, mask) is None  # without gradients nothing is packed
    assert packing_for(x.requires_grad_(), mask) is not None
    assert packing_for(x, None) is None
    nearly = torch.ones(4, 9, dtype=torch.bool)
    nearly[0, 8] = False
    assert packing_for(x, nearly) is None

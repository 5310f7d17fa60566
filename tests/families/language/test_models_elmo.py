"""ELMo: directions, padding, the character encoder by torch's own operations, the mix of layers."""

import pytest
import torch
from torch.nn import functional

from regard.families.language.elmo import BEGIN, END, NOTHING, Elmo, ElmoConfig
from regard.layers.convolution import CharacterEncoder, Highway

WORDS = ["a", "cat", "über", "unbelievable", "dog", "\n", "of", "mat"]


def elmo(**changes):
    torch.manual_seed(0)
    sizes = {"vocab": len(WORDS), "width": 12, "filters": ((1, 4), (3, 8)), "characters": 8}
    model = Elmo(ElmoConfig(**{**sizes, **changes}))
    model.learn_spelling(WORDS)
    return model.eval()


def texts(rows=3, length=7):
    return torch.randint(len(WORDS), (rows, length), generator=torch.Generator().manual_seed(2))


def test_words_are_spelled_in_bytes_between_two_ends():
    spelling = elmo().spelling.tolist()
    assert spelling[1] == [BEGIN, *b"cat", END, NOTHING, NOTHING, NOTHING]
    assert spelling[2][:7] == [BEGIN, *"über".encode(), END]
    assert spelling[3] == [BEGIN, *b"unbeli", END]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_one_direction_sees_only_the_past_and_the_other_only_the_future(place):
    model, before = elmo(), texts()
    after = before.clone()
    after[:, place] = (after[:, place] + 1) % len(WORDS)
    for number, (old, new) in enumerate(zip(model.layers(before), model.layers(after), strict=True)):
        ahead, back = (((o - n).abs().amax((0, 2)) > 1e-7).nonzero().flatten().tolist()
                       for o, n in zip(old.chunk(2, -1), new.chunk(2, -1), strict=True))  # fmt: skip
        assert ahead == ([place] if number == 0 else list(range(place, 7)))
        assert back == ([place] if number == 0 else list(range(place + 1)))
    old, new = model(before), model(after)
    assert torch.equal(old.logits[:, :place], new.logits[:, :place])
    assert torch.equal(old.previous[:, place + 1 :], new.previous[:, place + 1 :])


def test_a_text_is_the_same_alone_and_padded():
    model, tokens = elmo(), texts()
    mask = torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    together = model(tokens, mask)
    for row, length in enumerate([7, 4, 1]):
        alone = model(tokens[row : row + 1, :length])
        for ours, theirs in zip(alone, together, strict=True):
            torch.testing.assert_close(ours[0], theirs[row, :length])


def test_both_readers_are_torchs_lstm():
    model, tokens = elmo(depth=1), texts()
    words, layer = model.layers(tokens)
    x = words[..., :12]
    ahead, _ = model.forwards[0].kernel(x)
    back, _ = model.backwards[0].kernel(x.flip(1))
    torch.testing.assert_close(layer, torch.cat([ahead, back.flip(1)], dim=-1))


def test_the_mix_is_a_weighted_sum_of_layers():
    model, tokens = elmo(), texts()
    layers = model.layers(tokens)
    torch.testing.assert_close(model.encode(tokens), sum(layers) / 3)
    with torch.no_grad():
        model.mix.copy_(torch.tensor([0.0, 100.0, 0.0]))
        model.scale.fill_(2.0)
    torch.testing.assert_close(model.encode(tokens), 2 * layers[1])


def test_a_classifier_learns_the_mix():
    model = elmo(head="classify", labels=3).train()
    model(texts()).logits.square().sum().backward()
    assert model.mix.grad.abs().sum() > 0 and model.scale.grad != 0


def test_characters_are_encoded_as_torch_would():
    torch.manual_seed(1)
    encoder = CharacterEncoder(20, 5, ((1, 4), (3, 6)), 2, 7)
    characters = torch.randint(20, (2, 3, 9))
    out = encoder(characters)
    one = encoder.embedding.weight[characters[1, 2]].T
    found = torch.cat([functional.conv1d(one, f.weight, f.bias).max(dim=1).values.relu() for f in encoder.filters])
    for highway in encoder.highways:
        gate = torch.sigmoid(functional.linear(found, highway.gate.weight, highway.gate.bias))
        changed = functional.linear(found, highway.change.weight, highway.change.bias).relu()
        found = gate * found + (1 - gate) * changed
    torch.testing.assert_close(out[1, 2], functional.linear(found, encoder.project.weight, encoder.project.bias))
    assert Highway(4).gate.bias.tolist() == [1.0] * 4

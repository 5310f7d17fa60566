"""The made-up language of the claims, and the translators that learn it."""

from random import Random

import pytest
import torch

from regard.attention.core import attention_weights
from regard.attention.multihead import MultiHeadAttention
from regard.claims.translation import (
    ADJECTIVES,
    BEGIN,
    CONVOLUTION,
    END,
    FIRST,
    NOUNS,
    PAD,
    RNN,
    SOURCE_VOCAB,
    TARGET_VOCAB,
    TRANSFORMER,
    Translation,
    aligned,
    build,
    draw_pair,
    exact,
    flops_of_step,
    sentences,
    unscale,
)

CONVOLUTIONS = (("width", 16), ("depth", 2), ("kernel", 3), ("longest", 16))
MODELS = {"seq2seq": RNN, "transformer": TRANSFORMER, CONVOLUTION: CONVOLUTIONS}


def _words(tokens):
    """The words of a row, without special tokens."""
    return [token for token in tokens.tolist() if token not in (PAD, BEGIN, END)]


@pytest.mark.parametrize("seed", range(5))
def test_the_noun_comes_first_and_adjectives_agree(seed):
    random = Random(seed)
    source, target, links = draw_pair(random, words=random.randint(1, 12))
    assert sorted(links) == list(range(len(source)))
    noun = None
    for word, origin in zip(target, (source[link] for link in links), strict=True):
        if word < FIRST + NOUNS:
            noun = word
            assert origin == word
        else:  # an adjective: its number, and the gender of the noun before it
            assert divmod(word - FIRST - NOUNS, 2) == (origin - FIRST - NOUNS, (noun - FIRST) % 2)
    assert max(source) < FIRST + NOUNS + ADJECTIVES == SOURCE_VOCAB and max(target) < TARGET_VOCAB


def test_batches_are_padded_and_can_be_turned_round():
    batch = sentences(Random(3), 16, (1, 6))
    back = batch.reversed
    for row in range(16):
        source, target = _words(batch.source[row]), _words(batch.targets[row])
        assert batch.inputs[row].tolist()[: len(target) + 1] == [BEGIN, *target]
        assert batch.targets[row, len(target)] == END and batch.target_mask[row].sum() == len(target) + 1
        assert _words(back.source[row]) == target and _words(back.targets[row]) == source
        assert back.targets[row, len(source)] == END and back.inputs[row, 0] == BEGIN
        for at, link in enumerate(batch.links[row, : len(target)].tolist()):
            assert back.links[row, link] == at
    assert (batch.links >= 0).sum() == (back.links >= 0).sum() == batch.source_mask.sum()


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_one_pass_decides_whether_greedy_search_is_right(name):
    torch.manual_seed(0)
    side = Translation(name, MODELS[name], 1e-2, words=(1, 3))
    batch, found = sentences(Random(1), 40, (1, 3)), []
    model = build(name, dict(side.values)).eval()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(25):  # some sentences are right then, and some wrong
        optimiser.zero_grad()
        side._loss(model, batch).backward()
        optimiser.step()
    with torch.no_grad():
        share = exact(model, batch)
        for row in range(40):
            words = _words(batch.source[row])
            source, answer = torch.tensor([words]), []
            state, last = model.start(source, source != PAD), BEGIN
            while last != END and len(answer) < 5:
                last = int(model.step(torch.tensor([[last]]), state).argmax())
                answer.append(last)
            found.append(answer == [*_words(batch.targets[row]), END])
    assert 0 < share < 1 and share == pytest.approx(sum(found) / 40)


def test_convolutions_see_no_later_target_token():
    torch.manual_seed(0)
    model, batch = build(CONVOLUTION, dict(CONVOLUTIONS)).eval(), sentences(Random(0), 4, (6, 6))
    changed = batch.inputs.clone()
    changed[:, 4:] = FIRST
    with torch.no_grad():
        before, after = (model(batch.source, batch.source_mask, inputs) for inputs in (batch.inputs, changed))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


def test_unscaled_attention_has_plain_products():
    torch.manual_seed(0)
    layer, x = MultiHeadAttention(16, 2).requires_grad_(False), torch.randn(1, 5, 16)
    unscale(layer)
    q, k, v = layer.project(x)
    weights = (q @ k.transpose(2, 3)).softmax(dim=-1)
    torch.testing.assert_close(layer(x), layer.output((weights @ v).transpose(1, 2).flatten(2)))
    assert not torch.allclose(weights, attention_weights(q, k))


@pytest.mark.parametrize("name", MODELS)
def test_a_side_trains_and_measures(name):
    side = Translation(name, MODELS[name], 3e-3, words=(1, 3), tested=((1, 2), (3, 3)))
    found, again = side(1, 2), side(1, 2)
    shares = {key: value for key, value in found.items() if key != "seconds"}
    assert shares == {key: value for key, value in again.items() if key != "seconds"} and shares["steps"] == 2
    assert {"exact, 1-2 words", "exact, 3-3 words"} <= shares.keys()
    assert ("aligned, 1-2 words" in shares) == (name == "seq2seq")


def test_a_budget_of_operations_is_kept():
    side = Translation("transformer", TRANSFORMER, 3e-3, words=(1, 3), tested=((1, 2),))
    step = flops_of_step(build("transformer", dict(TRANSFORMER)), (1, 3))
    assert Translation(**{**vars(side), "flops": 2.5 * step})(1, 10)["steps"] == 2


def test_guided_attention_learns_the_links():
    side = Translation("seq2seq", RNN, 1e-2, words=(1, 3), guide=1.0)
    torch.manual_seed(0)
    model, batch = build("seq2seq", dict(RNN)), sentences(Random(1), 32, (2, 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    with torch.no_grad():
        before = aligned(model, batch)
    for _ in range(40):
        optimiser.zero_grad()
        side._loss(model, batch).backward()
        optimiser.step()
    with torch.no_grad():
        assert aligned(model, batch) > max(before, 0.9)

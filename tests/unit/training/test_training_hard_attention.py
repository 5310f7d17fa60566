"""REINFORCE of drawn attention against exact enumeration: 3 places, 2 words."""

from itertools import product

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.attention.scores import Attended, ScoredAttention
from regard.checkpoints import newest_complete
from regard.errors import ConfigError
from regard.families.translation.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.layers.recurrent_decoder import RecurrentGridDecoder
from regard.training.hard_attention import (
    BASELINE,
    DrawsLoss,
    draws_loss,
    moved_baseline,
    true_log_probabilities,
)
from regard.training.loop import train
from regard.training.losses import cross_entropy
from regard.training.recipe.load import load_recipe

PLACES, WORDS, VOCAB = 3, 2, 4
LABELS, INPUTS = torch.tensor([[2, 3]]), torch.tensor([[0, 2]])
MASK = torch.ones(1, WORDS, dtype=torch.bool)
B = -1.3  # any baseline


@pytest.fixture
def decoder():
    """A captioner's decoder whose attention is far from even."""
    torch.manual_seed(3)
    made = RecurrentGridDecoder(
        VOCAB, embedding=3, width=4, cell="lstm", depth=1, attention="hard", estimator="reinforce", expected=0.0,
        dropout=0.0,
    ).double()  # fmt: skip
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.9)
    return made.train()


@pytest.fixture
def grid():
    return torch.randn(1, PLACES, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def passed(decoder, grid, places, monkeypatch):
    """A pass that draws these places, one a word."""
    wanted = iter(places)

    def draw(self, weights):
        drawn = torch.nn.functional.one_hot(torch.tensor(next(wanted)), PLACES).to(weights).expand_as(weights)
        return drawn + (weights - weights.detach()) if self.estimator == "straight_through" else drawn

    with monkeypatch.context() as patch:
        patch.setattr(ScoredAttention, "draw", draw)
        return decoder(grid, INPUTS)


def gradient(loss, decoder):
    found = torch.autograd.grad(loss, list(decoder.parameters()), retain_graph=True, allow_unused=True)
    return torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten()
                      for g, p in zip(found, decoder.parameters(), strict=True)])  # fmt: skip


def enumerated(decoder, grid, monkeypatch, baseline):
    """The probability of every way to draw, its exact share of the expected loss, and its estimate of the gradient."""
    expected, chances, estimates = 0.0, [], []
    for places in product(range(PLACES), repeat=WORDS):
        logits, seen = passed(decoder, grid, places, monkeypatch)
        said = logits.log_softmax(-1).gather(-1, LABELS[..., None]).sum()
        chance = seen.log_probability.sum().exp()
        expected = expected - chance * said
        known = true_log_probabilities(logits, LABELS)
        loss = cross_entropy(logits, LABELS, MASK) + draws_loss(seen, known, MASK, baseline)
        chances.append(chance.detach())
        estimates.append(gradient(loss, decoder))
    return gradient(expected, decoder), torch.stack(chances), torch.stack(estimates)


@pytest.mark.parametrize("baseline", [0.0, B])
def test_the_estimate_is_unbiased(decoder, grid, baseline, monkeypatch):
    exact, chances, estimates = enumerated(decoder, grid, monkeypatch, baseline)
    assert chances.sum().item() == pytest.approx(1, abs=1e-6)
    torch.testing.assert_close((chances[:, None] * estimates).sum(0), exact, atol=1e-6, rtol=1e-6)
    assert exact.abs().max() > 1e-2


def test_the_estimate_of_the_cross_entropy_alone_is_biased(decoder, grid, monkeypatch):
    """So that the test above can fail: without the term for the draws the gradient is another."""
    exact, chances, _ = enumerated(decoder, grid, monkeypatch, 0.0)
    estimates = []
    for places in product(range(PLACES), repeat=WORDS):
        logits, _ = passed(decoder, grid, places, monkeypatch)
        estimates.append(gradient(cross_entropy(logits, LABELS, MASK), decoder))
    assert ((chances[:, None] * torch.stack(estimates)).sum(0) - exact).abs().max() > 1e-2


def test_a_baseline_lowers_the_variance(decoder, grid, monkeypatch):
    """The mean log-probability of a word as the baseline, which the moving average finds."""

    def variance(baseline):
        _, chances, estimates = enumerated(decoder, grid, monkeypatch, baseline)
        mean = (chances[:, None] * estimates).sum(0)
        return (chances[:, None] * (estimates - mean).square()).sum().item()

    words = []
    for places in product(range(PLACES), repeat=WORDS):
        logits, seen = passed(decoder, grid, places, monkeypatch)
        words.append(seen.log_probability.sum().exp() * true_log_probabilities(logits, LABELS).mean())
    with_baseline, without = variance(sum(words).item()), variance(0.0)
    print(f"variance with the baseline {with_baseline:.3f}, without {without:.3f}")
    assert with_baseline < 0.8 * without


def test_the_straight_through_estimate_is_biased_and_varies_less(decoder, grid, monkeypatch):
    exact, chances, estimates = enumerated(decoder, grid, monkeypatch, 0.0)
    unbiased = (chances[:, None] * (estimates - exact).square()).sum()
    decoder.cross.estimator = "straight_through"
    through = []
    for places in product(range(PLACES), repeat=WORDS):
        logits, _ = passed(decoder, grid, places, monkeypatch)
        through.append(gradient(cross_entropy(logits, LABELS, MASK), decoder))
    mean = (chances[:, None] * torch.stack(through)).sum(0)
    variance = (chances[:, None] * (torch.stack(through) - mean).square()).sum()
    bias = ((mean - exact).norm() / exact.norm()).item()
    print(
        f"straight through: bias {bias:.2f} of the gradient's length, variance {variance:.2f}; without {unbiased:.2f}"
    )
    assert bias > 0.03 and variance < unbiased  # the unbiased one is exact to 1e-6


def test_sampled_estimates_agree_with_the_exact_gradient_within_their_error(decoder, grid, monkeypatch):
    exact, _, _ = enumerated(decoder, grid, monkeypatch, B)
    torch.manual_seed(0)
    rounds, each, found = 40, 100, []
    for _ in range(rounds):
        logits, seen = decoder(grid.expand(each, -1, -1), INPUTS.expand(each, -1))
        assert bool(seen.drawn.all())
        labels, mask = LABELS.expand(each, -1), MASK.expand(each, -1)
        known = true_log_probabilities(logits, labels)
        loss = cross_entropy(logits, labels, mask) + draws_loss(seen, known, mask, B)
        found.append(gradient(loss / each, decoder))
    found = torch.stack(found)
    error = found.std(0) / rounds**0.5
    assert ((found.mean(0) - exact).abs() <= 4.5 * error + 1e-9).all()


def test_sequences_that_read_the_expectation_have_no_draws():
    probabilities = torch.tensor([[[0.2, 0.8]], [[0.5, 0.5]]], requires_grad=True)
    weights = torch.tensor([[[0.0, 1.0]], [[0.5, 0.5]]])
    seen = Attended(probabilities, weights, torch.tensor([True, False]))
    known, mask = torch.tensor([[-1.0], [-2.0]]), torch.ones(2, 1, dtype=torch.bool)
    loss = draws_loss(seen, known, mask, reward=0.5, entropy=0.1)
    entropy = -(0.2 * torch.tensor(0.2).log() + 0.8 * torch.tensor(0.8).log()) + torch.tensor(2.0).log()
    expected = -(0.5 * -1.0 * torch.tensor(0.8).log() + 0.1 * entropy)
    torch.testing.assert_close(loss.detach(), expected)
    loss.backward()
    assert probabilities.grad[0, 0, 0] == pytest.approx(0.1 * (1 + torch.tensor(0.2).log().item()), abs=1e-5)


def test_the_baseline_moves_in_place_and_survives_a_bad_batch():
    carried = {}
    loss = DrawsLoss(carried, torch.device("cpu"), reward=0.1, entropy=0.0)
    place = carried[BASELINE]
    seen = Attended(torch.full((1, 2, 2), 0.5), torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.tensor([True]))
    logits, mask = torch.zeros(1, 2, 4), torch.tensor([[True, False]])
    loss(seen, logits, torch.tensor([[1, 0]]), mask)
    assert carried[BASELINE] is place and place.item() == pytest.approx(0.1 * -torch.tensor(4.0).log().item())
    before = place.clone()
    loss(seen, torch.full_like(logits, torch.nan), torch.tensor([[1, 0]]), mask)
    assert torch.equal(place, before)
    assert torch.equal(moved_baseline(before, torch.full((1, 2), torch.inf), mask), before)


def test_padding_gives_no_reward():
    torch.manual_seed(0)
    probabilities = torch.rand(1, 3, 2).softmax(-1).requires_grad_()
    seen = Attended(probabilities, torch.eye(2)[[0, 1, 0]][None], torch.tensor([True]))
    known = torch.tensor([[-1.0, -2.0, -50.0]])
    loss = draws_loss(seen, known, torch.tensor([[True, True, False]]), baseline=-1.5)
    logs = probabilities.log()
    expected = -((-3.0 + 3.0) * logs[0, 0, 0] + (-2.0 + 1.5) * logs[0, 1, 1])
    torch.testing.assert_close(loss, expected)


def test_the_translator_shows_what_it_drew():
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        source_vocab=9, target_vocab=9, embedding=4, width=8, reading="hard", estimator="reinforce", expected=0.5,
        dropout=0.0,
    )  # fmt: skip
    model, source = Seq2Seq(config).train(), torch.randint(3, 9, (40, 5))
    logits, seen = model(source, source > 0, torch.randint(3, 9, (40, 3)), attended=True)
    assert logits.shape == (40, 3, 9) and 8 < int(seen.drawn.sum()) < 32
    hard = seen.weights[seen.drawn]
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(seen.weights[~seen.drawn], seen.probabilities[~seen.drawn])
    torch.testing.assert_close(
        seen.log_probability[seen.drawn], seen.probabilities[seen.drawn][hard > 0].log().view(-1, 3)
    )


SMALL = [
    "model.preset=tiny", "model.width=16", "model.embedding=8", "model.reading=hard", "model.estimator=reinforce",
    "model.expected=0.5", "data.target=es", "data.phrasebook.count=60", "data.phrasebook.valid_count=6",
    "data.phrasebook.test_count=2", "data.phrasebook.max_words=6", "tokenizer.size=200", "training.steps=6",
    "training.batch_tokens=128", "training.guide=0", "training.validate_every=0", "training.metric=loss",
    "training.device=cpu", "decoding.max_length=8",
]  # fmt: skip


def test_a_translator_learns_by_draws_and_its_baseline_is_saved(tmp_path):
    out = train(load_recipe("phrasebook-rnn", SMALL), tmp_path / "run")
    state = load_file(newest_complete(out) / "train_state" / "state.safetensors")
    assert state[f"carried/{BASELINE}"].item() < -0.5
    assert regard.load(out).translate("we are eating bread").text is not None


def test_two_passes_that_draw_are_not_compared():
    with pytest.raises(ConfigError, match="draw different places"):
        load_recipe("phrasebook-rnn", [*SMALL, "training.r_drop=1.0"])
    with pytest.raises(ConfigError, match="no attention to draw from"):
        Seq2SeqConfig.parse({"source_vocab": 9, "target_vocab": 9, "attention": "none", "reading": "hard"})

"""AgentFormer: who sees whom, agents in another order, shorter pasts, more agents, both decoders, the sampler."""

import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from regard.attention import record
from regard.errors import ConfigError
from regard.families.trajectories.model import PRESETS, AgentFormer, AgentFormerConfig, Gaussian

VARIANTS = [
    {},
    {"decoder": "autoregressive"},
    {"decoder": "autoregressive", "norm": "pre", "outputs": "velocity", "scale": 2.0},
    {"agent_aware": False, "social": "separate"},
    {"decoder": "autoregressive", "social": "separate"},
    {"agent_aware": False, "social": "none", "body": "recurrent"},
    {"sampler": 3},
]


def build(**changes):
    torch.manual_seed(0)
    return AgentFormer(AgentFormerConfig.parse({**PRESETS["tiny"], "width": 16, **changes})).eval()


def scene(scenes=2, agents=4, steps=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    past = torch.randn(scenes, agents, steps, 2, generator=generator).cumsum(dim=2) * 0.4 + 5
    return past, torch.ones(scenes, agents, steps, dtype=torch.bool)


def noise(scenes, samples, agents, seed=1):
    return torch.randn(scenes, samples, agents, 8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(params=VARIANTS, ids=lambda variant: "-".join(map(str, variant.values())) or "usual")
def model(request):
    return build(**request.param)


@torch.no_grad()
def test_agents_in_another_order_give_the_same_answers_in_that_order(model):
    (past, seen), draws = scene(), noise(2, 5, 4)
    order = torch.tensor([2, 0, 3, 1])
    samples, likeliest = model.forecast(past, seen, draws)
    other, other_likeliest = model.forecast(past[:, order], seen[:, order], draws[:, :, order])
    torch.testing.assert_close(other, samples[:, :, order], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(other_likeliest, likeliest[:, order], atol=2e-5, rtol=1e-5)
    assert samples.shape == (2, 5, 4, 12, 2) and (samples[:, 0] - samples[:, 1]).abs().max() > 1e-3


@torch.no_grad()
def test_padding_and_other_scenes_of_the_batch_change_nothing(model):
    (past, seen), draws = scene(scenes=3), noise(3, 4, 4)
    seen[0, 2:], past[0, 2:] = False, 1e3
    seen[1, 3, :5] = False
    together, _ = model.forecast(past, seen, draws)
    alone, _ = model.forecast(past[:1, :2], seen[:1, :2], draws[:1, :, :2])
    torch.testing.assert_close(together[:1, :, :2], alone, atol=2e-5, rtol=1e-5)
    for number in (1, 2):
        one, _ = model.forecast(past[number : number + 1], seen[number : number + 1], draws[number : number + 1])
        torch.testing.assert_close(together[number : number + 1], one, atol=2e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("agents", "steps"), [(1, 8), (70, 8), (3, 2), (3, 1)])
def test_more_agents_and_a_shorter_past_work(agents, steps):
    model, (past, seen) = build(), scene(1, agents, max(2, steps))
    seen[:, :, : max(2, steps) - steps] = False
    samples, likeliest = model.forecast(past, seen, noise(1, 2, agents))
    assert samples.shape == (1, 2, agents, 12, 2) and samples.isfinite().all() and likeliest.isfinite().all()


@torch.no_grad()
def test_a_step_that_was_not_seen_is_not_read():
    model, (past, seen) = build(), scene(1)
    seen[0, 1, 3] = False
    with record(model, "encoder.*") as looks:
        model.read(past, seen)
    hidden = 1 * 8 + 3
    others = torch.arange(4 * 8) != hidden
    assert all(weights[:, :, others, hidden].abs().max() == 0 for weights in looks.values())
    assert all(np.allclose(weights.sum(-1), 1.0, atol=1e-5) for weights in looks.values())


@torch.no_grad()
def test_the_scene_may_be_anywhere():
    """Positions are read relative to the middle of the agents."""
    model, (past, seen), draws = build(outputs="velocity"), scene(), noise(2, 2, 4)
    away = torch.tensor([30.0, -20.0])
    here, there = model.forecast(past, seen, draws)[0], model.forecast(past + away, seen, draws)[0]
    torch.testing.assert_close(there, here + away, atol=1e-4, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize(("social", "reaches"), [("joint", True), ("separate", True), ("none", False)])
def test_who_is_moved_by_another_agent(social, reaches):
    model, (past, seen), draws = build(social=social, decoder="autoregressive"), scene(1, 3), noise(1, 2, 3)
    other = past.clone()
    other[0, 2, :7] += torch.tensor([0.5, -0.3])  # the last position, and so the origin, stays
    before, after = model.forecast(past, seen, draws)[0], model.forecast(other, seen, draws)[0]
    assert ((before - after)[:, :, :2].abs().max() > 1e-4) == reaches
    assert (before - after)[:, :, 2].abs().max() > 1e-4


@torch.no_grad()
def test_awareness_separates_own_pairs_from_others():
    """With the same matrices for both kinds of pairs it is plain attention; with others it is not."""
    plain, aware = build(agent_aware=False), build()
    weights = dict(plain.state_dict())
    for name in aware.state_dict():
        if ".own_" in name:
            weights[name] = weights[name.replace(".own_", ".")]
    aware.load_state_dict(weights)
    (past, seen), draws = scene(), noise(2, 2, 4)
    torch.testing.assert_close(
        aware.forecast(past, seen, draws), plain.forecast(past, seen, draws), atol=1e-4, rtol=1e-4
    )
    aware.encoder.layers[0].attention.own_key.weight.mul_(-3.0)
    assert (aware.forecast(past, seen, draws)[0] - plain.forecast(past, seen, draws)[0]).abs().max() > 1e-3


@pytest.mark.parametrize("changes", [{}, {"social": "separate", "norm": "pre"}, {"agent_aware": False}])
def test_the_pass_with_gradients_gives_what_was_walked_step_by_step(changes):
    model, (past, seen), draws = build(decoder="autoregressive", **changes), scene(), noise(2, 3, 4)
    read = model.read(past, seen)
    with_gradients = model.decode(read, model.latents(read, draws))
    with torch.no_grad():
        walked = model.decode(read, model.latents(read, draws))
    assert with_gradients.requires_grad and not walked.requires_grad
    torch.testing.assert_close(with_gradients, walked, atol=2e-5, rtol=1e-5)


def test_the_best_of_the_samples_is_the_nearest_one_of_each_agent():
    model, (past, seen) = build(social="none", agent_aware=False), scene()
    future, known = past[:, :, -1:].expand(-1, -1, 12, -1) + 0.1, torch.ones(2, 4, 12, dtype=torch.bool)
    torch.manual_seed(5)
    read = model.read(past, seen)
    best = model._best_noise(read, future, known, 6)
    torch.manual_seed(5)
    draws = torch.randn(2, 6, 4, 8)
    errors = ((model.decode(read, model.latents(read, draws)) - future[:, None]) ** 2).sum(dim=(-1, -2))
    for number in range(2):
        for agent in range(4):
            assert torch.equal(best[number, agent], draws[number, errors[number, :, agent].argmin(), agent])


def test_divergence_is_that_of_torch():
    a, b = (Gaussian(torch.randn(3, 4), torch.randn(3, 4)) for _ in range(2))
    expected = kl_divergence(*(Normal(each.mean, (0.5 * each.log_variance).exp()) for each in (a, b)))
    torch.testing.assert_close(a.divergence(b), expected, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_samples_of_the_sampler_take_turns_and_the_first_round_has_no_noise():
    model, (past, seen) = build(sampler=3), scene()
    read = model.read(past, seen)
    means = model.sampler(read.pooled).mean
    latents = model.latents(read, noise(2, 7, 4))
    torch.testing.assert_close(latents[:, :3], means)
    assert all((latents[:, 3 + k] - means[:, k]).abs().max() > 0 for k in range(3))
    assert model.train().training and model.sampler.training and not model.encoder.training


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 3}, "must divide"),
        ({"body": "recurrent"}, "reads each agent alone"),
        ({"past": 0}, "greater than 0"),
        ({"social": "some"}, "social"),
    ],
)
def test_wrong_values_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        AgentFormerConfig.parse({**PRESETS["tiny"], **changes})

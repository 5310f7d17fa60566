import math

import pytest
import torch
from torch import nn

from regard.training.optim import adamw, ema_decay, ema_update, guarded_step, mean_weights, schedule


def test_noam_is_the_papers_formula():
    width, warmup = 512, 4000
    peak = width**-0.5 * warmup**-0.5
    lr = schedule("noam", lr=peak, warmup=warmup, steps=100_000)
    for step in (1, 10, 3999, 4000, 4001, 100_000):
        assert lr(step) == pytest.approx(width**-0.5 * min(step**-0.5, step * warmup**-1.5))


def test_cosine_warms_up_then_falls_to_zero():
    lr = schedule("cosine", lr=0.5, warmup=10, steps=110)
    assert lr(5) == pytest.approx(0.25)
    assert lr(10) == pytest.approx(0.5)
    assert lr(60) == pytest.approx(0.25)
    assert lr(85) == pytest.approx(0.5 * 0.5 * (1 + math.cos(math.pi * 0.75)))
    assert lr(110) == lr(200) == pytest.approx(0.0)


def test_constant_stays_after_warmup():
    lr = schedule("constant", lr=0.2, warmup=4, steps=10)
    assert [lr(step) for step in (1, 2, 4, 5, 99)] == pytest.approx([0.05, 0.1, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("name", ["noam", "cosine", "constant"])
def test_no_warmup_starts_at_the_top(name):
    assert schedule(name, lr=1.0, warmup=0, steps=1000)(1) == pytest.approx(1.0, abs=1e-4)


def test_norms_and_biases_do_not_decay():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Embedding(5, 4))
    optimizer = adamw(model.parameters(), betas=(0.9, 0.98), weight_decay=0.1)
    decayed = {id(p) for group in optimizer.param_groups if group["weight_decay"] > 0 for p in group["params"]}
    assert decayed == {id(model[0].weight), id(model[2].weight)}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 5


def test_a_step_is_torchs_own_unless_it_is_bad():
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizer = adamw(ours.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0)
    for bad in (0.0, 1.0, 0.0):
        for model in (ours, theirs):
            model.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
        if bad:
            ours.weight.grad.fill_(float("nan"))
        guarded_step(optimizer, 0.01, torch.tensor(bad))
        if not bad:
            reference.step()
        torch.testing.assert_close(ours.weight, theirs.weight)
    assert all(moments["step"].item() == 2 for moments in optimizer.state.values())


def test_moving_average_follows_its_formula():
    shadow, expected = [torch.tensor([1.0, 2.0])], torch.tensor([1.0, 2.0])
    for step in range(1, 30):
        weights = torch.tensor([float(step), -float(step)])
        ema_update(shadow, [weights], step, 0.9)
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * weights
        assert ema_decay(step, 0.9) == decay
    torch.testing.assert_close(shadow[0], expected)


def test_mean_weights_is_the_mean_element_by_element():
    states = [{"w": torch.tensor([1.0, 5.0]), "count": torch.tensor(i)} for i in range(2)]
    states.append({"w": torch.tensor([4.0, -4.0]), "count": torch.tensor(9)})
    mean = mean_weights(states)
    torch.testing.assert_close(mean["w"], torch.tensor([2.0, 2.0]))
    assert mean["w"].dtype == torch.float32
    assert mean["count"].item() == 9

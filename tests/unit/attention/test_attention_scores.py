"""The lectures' attention layer step by step: from one query and a similarity to hard attention."""

import math

import pytest
import torch

from regard.attention import ScoredAttention, record

SCORES = ["additive", "dot", "general", "scaled_dot"]


def by_hand(layer, query, memory):
    """The score written out for one query vector and one memory vector."""
    match layer.score:
        case "additive":
            return layer.to_score(torch.tanh(layer.of_memory(memory) + layer.of_query(query))).item()
        case "dot":
            return float(query @ memory)
        case "general":
            return (query @ layer.of_memory.weight @ memory).item()
        case "scaled_dot":
            return float(query @ memory) / math.sqrt(len(memory))


@pytest.mark.parametrize("score", SCORES)
def test_context_is_the_softmax_weighted_sum(score):
    torch.manual_seed(0)
    layer = ScoredAttention(6, 6, score=score)
    query, memory = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    mask = torch.tensor([[True, True, True, False], [True, True, True, True]])
    context, weights, soft = layer(query, memory, layer.project(memory), mask)
    assert soft is weights
    for b in range(2):
        for w in range(3):
            e = [by_hand(layer, query[b, w], memory[b, i]) if mask[b, i] else -math.inf for i in range(4)]
            a = torch.tensor(e).softmax(0)
            torch.testing.assert_close(weights[b, w], a)
            torch.testing.assert_close(context[b, w], sum(a[i] * memory[b, i] for i in range(4)))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert (weights[0, :, 3] == 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_gradients_flow_through_everything(score):
    layer = ScoredAttention(4, 4, score=score)
    query, memory = torch.randn(1, 2, 4, requires_grad=True), torch.randn(1, 3, 4, requires_grad=True)
    layer(query, memory)[0].square().sum().backward()
    for tensor in (query, memory, *layer.parameters()):
        assert tensor.grad.abs().sum() > 0


def test_hard_reading_draws_by_the_weights_and_reads_one_place():
    torch.manual_seed(0)
    layer = ScoredAttention(4, 4, score="dot", reading="hard").train()
    soft = ScoredAttention(4, 4, score="dot")
    memory = torch.randn(1, 3, 4)
    query = torch.randn(1, 1, 4).expand(1, 20_000, 4)
    context, weights, _ = layer(query, memory)
    assert set(weights.unique().tolist()) == {0.0, 1.0} and (weights.sum(-1) == 1).all()
    torch.testing.assert_close(weights.mean(1)[0], soft(query[:, :1], memory)[1][0, 0], atol=0.02, rtol=0)
    assert (context[0, 0] == memory[0, weights[0, 0].argmax()]).all()
    layer.eval()
    assert layer(query[:, :1], memory)[1].argmax() == soft(query[:, :1], memory)[1].argmax()


def test_hard_reading_has_the_gradient_of_the_soft_weights():
    torch.manual_seed(0)
    layer, query = ScoredAttention(4, 4, score="dot", reading="hard"), torch.randn(1, 1, 4, requires_grad=True)
    memory = torch.randn(1, 3, 4)
    layer(query, memory)[0].sum().backward()
    hard = query.grad.clone()
    query.grad = None
    ScoredAttention(4, 4, score="dot")(query, memory)[0].sum().backward()
    torch.testing.assert_close(hard, query.grad)


def test_widths_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match="general"):
        ScoredAttention(4, 6, score="dot")


def test_recording_shows_one_head_and_changes_nothing():
    layer = ScoredAttention(4, 4)
    query, memory = torch.randn(1, 2, 4), torch.randn(1, 3, 4)
    before = layer(query, memory)
    with record(layer) as looks:
        during = layer(query, memory)
    assert torch.equal(before[0], during[0])
    (weights,) = looks.values()
    torch.testing.assert_close(weights[:, 0], before[1])

"""Recurrent networks against their equations, padding against single sequences, and the claims about gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import UsageError
from regard.layers import recurrent
from regard.layers.recurrent import (
    GRUCell,
    LockedDropout,
    LSTMCell,
    Recurrent,
    RNNCell,
    WordDropout,
    reverse,
    unroll,
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

KINDS = ["rnn", "lstm", "gru"]


def both_ways(kind, *sizes, **options):
    """The same parameters with the fused kernel and with the equations."""
    fused = Recurrent(kind, *sizes, **options)
    plain = Recurrent(kind, *sizes, **options, fused=False)
    plain.load_state_dict(fused.state_dict())
    return fused, plain


def mask_of(lengths, size):
    return torch.arange(size)[None] < torch.tensor(lengths)[:, None]


def make_cell(kind, inputs, width):
    torch.manual_seed(0)
    gates = kind.gates * width
    return kind(torch.randn(gates, inputs), torch.randn(gates, width), torch.randn(gates), torch.randn(gates))


def test_lstm_is_one_matrix_of_4h_by_2h_on_input_and_state():
    cell = make_cell(LSTMCell, 3, 3)
    assert cell.matrix.shape == (4 * 3, 2 * 3)
    x, hidden, memory = torch.randn(3, 5, 3)
    i, f, g, o = (torch.cat([x, hidden], 1) @ cell.matrix.T + cell.input_bias + cell.state_bias).chunk(4, dim=1)
    expected = f.sigmoid() * memory + i.sigmoid() * g.tanh()
    new_hidden, new_memory = cell(x, (hidden, memory))
    torch.testing.assert_close(new_memory, expected)
    torch.testing.assert_close(new_hidden, o.sigmoid() * expected.tanh())


def test_rnn_is_tanh_of_one_matrix():
    cell = make_cell(RNNCell, 2, 4)
    x, hidden = torch.randn(5, 2), torch.randn(5, 4)
    expected = torch.tanh(torch.cat([x, hidden], 1) @ cell.matrix.T + cell.input_bias + cell.state_bias)
    torch.testing.assert_close(cell(x, (hidden,))[0], expected)


def test_lstm_with_open_forget_and_closed_input_gate_keeps_its_cell_for_ever():
    width = 4
    bias = torch.tensor([-1e4] * width + [1e4] * width + [0.3] * 2 * width)  # i = 0, f = 1
    cell = LSTMCell(torch.randn(16, 3), torch.randn(16, width), bias, torch.zeros(16))
    kept = torch.randn(2, width)
    state = (torch.randn(2, width), kept)
    for _ in range(1000):
        state = cell(torch.randn(2, 3), state)
    assert torch.equal(state[1], kept)


def test_unrolled_gru_is_a_weighted_sum_of_all_earlier_candidates():
    """h_t = Σ_i (1 - u_i) Π_{j>i} u_j h̃_i, and the weights sum to 1 - Π u_j."""
    cell, steps = make_cell(GRUCell, 3, 4), 6
    hidden = torch.zeros(2, 4)
    gates, candidates = [], []
    for x in torch.randn(steps, 2, 3):
        from_x = x @ cell.of_input.T + cell.input_bias
        from_h = hidden @ cell.of_state.T + cell.state_bias
        r, u = torch.sigmoid(from_x + from_h)[:, :8].chunk(2, dim=1)
        gates.append(u)
        candidates.append(torch.tanh(from_x[:, 8:] + r * from_h[:, 8:]))
        (hidden,) = cell(x, (hidden,))
    u = torch.stack(gates)
    weights = torch.stack([(1 - u[i]) * u[i + 1 :].prod(dim=0) for i in range(steps)])
    torch.testing.assert_close(hidden, (weights * torch.stack(candidates)).sum(0))
    torch.testing.assert_close(weights.sum(0), 1 - u.prod(0))


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    bidirectional=st.booleans(),
    depth=st.integers(1, 3),
    width=st.integers(1, 7),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    with_state=st.booleans(),
)
def test_fused_kernel_and_equations_agree_with_gradients(kind, bidirectional, depth, width, lengths, with_state):
    torch.manual_seed(len(lengths) + width)
    batch, size = len(lengths), max([*lengths, 1]) + 1
    models = both_ways(kind, 3, width, depth, bidirectional)
    state = torch.randn_like(models[0].zero_state(torch.zeros(batch, 1))) if with_state else None
    mask, x = mask_of(lengths, size), torch.randn(batch, size, 3)
    results = []
    for model in models:
        leaf = x.clone().requires_grad_()
        output, final = model(leaf, state, mask)
        (output.square().sum() + final.sin().sum()).backward()
        results.append([output, final, leaf.grad, *(p.grad for p in model.parameters())])
    for fused, plain in zip(*results, strict=True):
        torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_gives_the_same_alone_and_in_a_padded_batch(kind, bidirectional, fused):
    model = Recurrent(kind, 3, 4, 2, bidirectional, fused=fused)
    lengths = [2, 5, 1, 4]
    x = torch.randn(4, 6, 3)
    output, final = model(x, mask=mask_of(lengths, 6))
    for row, length in enumerate(lengths):
        alone, alone_final = model(x[row : row + 1, :length])
        torch.testing.assert_close(output[row : row + 1, :length], alone, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(final[:, :, row : row + 1], alone_final, atol=1e-6, rtol=1e-5)
        assert not output[row, length:].any()


def test_dropout_between_layers_acts_in_training_only():
    for model in both_ways("gru", 3, 32, 2, dropout=0.5):
        x = torch.randn(2, 4, 3)
        assert not torch.equal(model(x)[0], model(x)[0])
        model.eval()
        assert torch.equal(model(x)[0], model(x)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_stepping_equals_reading_the_whole_sequence(kind):
    model = Recurrent(kind, 3, 4, depth=2)
    x = torch.randn(2, 5, 3)
    whole, final = model(x)
    state, outputs = None, []
    for token in x.unbind(1):
        output, state = model.step(token, state)
        outputs.append(output)
    torch.testing.assert_close(torch.stack(outputs, 1), whole)
    torch.testing.assert_close(state, final)


def test_the_four_shapes_of_the_lectures_are_uses_of_one_module():
    model = Recurrent("rnn", 3, 3)
    sequence = torch.randn(2, 4, 3)
    one_to_one, _ = model.step(sequence[:, 0])
    token, state, one_to_many = sequence[:, 0], None, []
    for _ in range(5):
        token, state = model.step(token, state)  # each output is the next input
        one_to_many.append(token)
    many_to_many, final = model(sequence)
    many_to_one = final[0, -1]
    assert one_to_one.shape == many_to_one.shape == (2, 3)
    assert len(one_to_many) == 5
    torch.testing.assert_close(one_to_many[0], one_to_one)
    torch.testing.assert_close(many_to_many[:, -1], many_to_one)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_truncation_cuts_gradients_exactly_and_leaves_outputs_alone(kind, fused):
    model = Recurrent(kind, 3, 4, depth=2, fused=fused)
    x, mask = torch.randn(3, 7, 3, requires_grad=True), mask_of([7, 6, 2], 7)
    whole, whole_final = model(x, mask=mask)
    cut, cut_final = model(x, mask=mask, truncate=3)
    torch.testing.assert_close(cut, whole)
    torch.testing.assert_close(cut_final, whole_final)
    (gradient,) = torch.autograd.grad(cut[:2, 5].sum(), x)  # step 5 is in the second piece, steps 3 to 5
    assert not gradient[:, :3].any() and not gradient[:, 6:].any()
    assert gradient[:2, 3:6].abs().sum(dim=-1).all()
    (gradient,) = torch.autograd.grad(whole[:2, 5].sum(), x)
    assert gradient[:2, :6].abs().sum(dim=-1).all()


def test_what_cannot_be_done_is_refused():
    both = Recurrent("gru", 2, 2, bidirectional=True)
    with pytest.raises(UsageError, match="bidirectional=False"):
        both.step(torch.randn(1, 2))
    with pytest.raises(UsageError, match="one direction"):
        both(torch.randn(1, 2, 2), truncate=1)
    with pytest.raises(UsageError, match="at least 1"):
        Recurrent("gru", 2, 2)(torch.randn(1, 2, 2), truncate=0)


def test_the_lstm_starts_out_remembering():
    cell = Recurrent("lstm", 2, 3).cell(0)
    assert cell.input_bias.tolist() == [0.0] * 3 + [1.0] * 3 + [0.0] * 6
    for gate in cell.of_state.split(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(3), atol=1e-5, rtol=0)


@given(lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4))
def test_reverse_turns_real_tokens_round_and_undoes_itself(lengths):
    x, mask = torch.randn(len(lengths), 5, 2), mask_of(lengths, 5)
    turned = reverse(x, mask)
    for row, length in enumerate(lengths):
        assert torch.equal(turned[row, :length], x[row, :length].flip(0))
        assert torch.equal(turned[row, length:], x[row, length:])
    assert torch.equal(reverse(turned, mask), x)


def gradient_norms(cell, width, steps):
    """|∂ last state / ∂ state_t| for t = steps-1, ..., 0, following the part of the state that carries the memory."""
    states = [tuple(torch.full((1, width), 1e-3).requires_grad_() for _ in range(cell.parts))]
    for _ in range(steps):
        states.append(cell(torch.zeros(1, 1), states[-1]))
    gradients = torch.autograd.grad(states[-1][-1].sum(), [state[-1] for state in states])
    return torch.stack([gradient.norm() for gradient in gradients]).flip(0)[1:]


def test_gradients_vanish_or_explode_with_the_largest_singular_value_but_not_along_the_lstm_cell():
    width, steps = 8, 50
    rotation = torch.linalg.qr(torch.randn(width, width)).Q
    no_input = torch.zeros(width, 1), torch.zeros(width)
    final = {}
    for gain in (0.8, 1.2):
        cell = RNNCell(no_input[0], gain * rotation, no_input[1], torch.zeros(width))
        norms = gradient_norms(cell, width, 20)
        torch.testing.assert_close(norms, norms[0] * gain ** torch.arange(20), rtol=0.1, atol=0)
        final[gain] = norms[-1] / norms[0]
    assert final[0.8] < 0.02 and final[1.2] > 20
    gates = torch.zeros(4 * width)
    gates[width : 2 * width] = 20.0  # forget gate open
    lstm = LSTMCell(torch.zeros(4 * width, 1), torch.zeros(4 * width, width), gates, torch.zeros(4 * width))
    norms = gradient_norms(lstm, width, steps)
    torch.testing.assert_close(norms, norms[0].expand(steps))


def test_unroll_backward_starts_at_the_last_real_token():
    cell, x = make_cell(RNNCell, 2, 3), torch.randn(2, 4, 2)
    initial = (torch.zeros(2, 3),)
    output, final = unroll(cell, x, initial, mask_of([3, 4], 4), backward=True)
    torch.testing.assert_close(output[0, 2], torch.tanh(cell.project(x[0, 2]) + cell.state_bias))
    torch.testing.assert_close(final[0], output[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_weight_drop_thins_the_recurrent_matrices_on_both_roads(kind):
    fused, plain = both_ways(kind, 4, 6, 2, weight_drop=0.5)
    x = torch.randn(3, 7, 4)
    torch.manual_seed(5)
    ours, state = fused(x)
    torch.manual_seed(5)
    again, same_state = plain(x)
    torch.testing.assert_close(ours, again)
    torch.testing.assert_close(state, same_state)
    assert not torch.allclose(ours, fused(x)[0])  # other entries are dropped
    ours.sum().backward()
    dropped = (fused.kernel.weight_hh_l0.grad == 0).float().mean()
    assert 0.3 < dropped < 0.7
    assert (fused.kernel.weight_ih_l1.grad != 0).all()
    torch.testing.assert_close(fused.eval()(x)[0], plain.eval()(x)[0])
    with pytest.raises(UsageError, match="padding"):
        fused.train()(x, mask=mask_of([7, 3, 5], 7))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("padded", [False, True])
def test_where_autocast_means_half_kernels_stay_in_the_type_of_their_weights(kind, padded, monkeypatch):
    monkeypatch.setattr(recurrent, "AUTOCAST_IS_HALF", ("cpu",))
    torch.manual_seed(0)
    layer, x = Recurrent(kind, 6, 8), torch.randn(3, 5, 6).bfloat16()
    mask = mask_of([5, 2, 3], 5) if padded else None
    expected = layer(x.float(), mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, mask=mask)
    torch.testing.assert_close(found, expected)  # types included


def test_locked_dropout_has_one_mask_for_all_steps():
    x = torch.randn(50, 9, 40)
    dropped = LockedDropout(0.3)(x)
    kept = dropped != 0
    assert (kept == kept[:, :1]).all() and 0.6 < kept.float().mean() < 0.8
    torch.testing.assert_close(dropped[kept], x[kept] / 0.7)
    assert torch.equal(LockedDropout(0.3).eval()(x), x)


def test_word_dropout_forgets_a_word_wherever_it_stands():
    tokens = torch.randint(30, (20, 15))
    dropped = WordDropout(0.4)(torch.ones(20, 15, 3), tokens, 30)
    values = [dropped[tokens == word] for word in range(30)]
    assert all(len(each.unique()) == 1 for each in values)
    found = {round(each.flatten()[0].item(), 4) for each in values}
    assert found == {0.0, round(1 / 0.6, 4)}


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, True, True], [True, False, False]])])
def test_gradients_of_a_frozen_network_need_no_cudnn(mask, monkeypatch):
    """cuDNN refuses the backward pass of a network in evaluation mode, as a frozen part or a saliency has it."""
    network, used = Recurrent("lstm", 4, 5, depth=2), []
    kernel = network.kernel.forward
    monkeypatch.setattr(network.kernel, "forward", lambda *a: used.append(torch.backends.cudnn.enabled) or kernel(*a))
    x = torch.randn(2, 3, 4, device=DEVICE, requires_grad=True)
    network.to(DEVICE).eval()
    output, _ = network(x, mask=None if mask is None else mask.to(DEVICE))
    output.sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0
    with torch.no_grad():
        network(x)
    network.train()(x)
    assert used == [False, True, True] and torch.backends.cudnn.enabled

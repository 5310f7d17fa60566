"""The recurrent encoder-decoder: training and decoding agree, padding and beams have no effect, and it learns."""

import itertools

import pytest
import torch
from torch.nn import functional

from regard.attention.record import record
from regard.errors import ConfigError
from regard.families.translation.seq2seq import PRESETS, Seq2Seq, Seq2SeqConfig

ATTENTIONS = ["none", "additive", "dot", "general", "scaled_dot"]
CELLS = ["rnn", "lstm", "gru"]
VARIANTS = [
    {"decoder_depth": 2, "encoder_depth": 2},
    {"bidirectional": False},
    {"reverse_source": True},
    {"encoder": "convolution", "encoder_depth": 2},
    {"encoder": "convolution", "attention": "none"},
    {"reading": "hard"},
    {"tie": "none"},
    {"tie": "all"},
    {"attention": "none", "context": False},
    {"attention": "none", "context": False, "first_state": "last", "cell": "gru"},
    {"first_state": "last", "encoder_depth": 2, "decoder_depth": 2},
    {"token_query": True},
    {"token_query": True, "attention": "general", "cell": "gru", "decoder_depth": 2},
]
CHOICES = [{"attention": a, "cell": c} for a, c in itertools.product(ATTENTIONS, CELLS)] + VARIANTS
SIZES = {"source_vocab": 11, "target_vocab": 11, "embedding": 6, "width": 8, "dropout": 0.2}


def build(**choices):
    torch.manual_seed(0)
    return Seq2Seq(Seq2SeqConfig(**{**SIZES, **choices})).eval()


def sentences(lengths=(4, 2, 6)):
    torch.manual_seed(1)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return torch.randint(1, 11, mask.shape).masked_fill(~mask, 0), mask


def named(choices):
    return "-".join(str(value) for value in choices.values())


@pytest.mark.parametrize("choices", CHOICES, ids=named)
def test_stepping_gives_the_logits_of_teacher_forcing(choices):
    model = build(**choices)
    source, mask = sentences()
    inputs = torch.randint(1, 11, (3, 5))
    state = model.start(source, mask)
    stepped = torch.cat([model.step(inputs[:, t : t + 1], state) for t in range(5)], dim=1)
    torch.testing.assert_close(stepped, model(source, mask, inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("choices", CHOICES, ids=named)
def test_a_sentence_gives_the_same_alone_and_in_a_padded_batch(choices):
    model = build(**choices)
    source, mask = sentences()
    inputs = torch.randint(1, 11, (3, 5))
    together = model(source, mask, inputs)
    for row in range(3):
        real = mask[row]
        alone = model(source[row, real][None], mask[row, real][None], inputs[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("choices", CHOICES, ids=named)
def test_gradients_reach_every_parameter(choices):
    model = build(**choices).train()
    source, mask = sentences()
    inputs, labels = torch.randint(1, 11, (2, 3, 4))
    functional.cross_entropy(model(source, mask, inputs).flatten(0, 1), labels.flatten()).backward()
    untouched = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert untouched == []


@pytest.mark.parametrize(
    "choices",
    [
        *({"attention": attention, "cell": cell} for attention in ("none", "additive") for cell in CELLS),
        {"attention": "none", "context": False, "first_state": "last", "encoder_depth": 2},
        {"token_query": True},
    ],
    ids=named,
)
def test_reordered_and_kept_hypotheses_equal_recomputing_their_prefixes(choices):
    model = build(**choices, decoder_depth=2)
    source, mask = sentences()
    state = model.start(source, mask)
    model.step(torch.full((3, 1), 1), state)
    state.reorder(torch.zeros(3, 3, dtype=torch.long))  # one hypothesis becomes a beam of three
    second = torch.randint(1, 11, (3, 3))
    model.step(second, state)
    origin = torch.tensor([[2, 0], [1, 1], [0, 2]])
    state.reorder(origin)
    kept = torch.tensor([0, 2])
    state.keep(kept)
    third = torch.randint(1, 11, (2, 2))
    logits = model.step(third, state)
    for s, w in itertools.product(range(2), range(2)):
        sentence = kept[s]
        prefix = torch.stack([torch.tensor(1), second[sentence, origin[sentence, w]], third[s, w]])[None]
        expected = model(source[sentence][None], mask[sentence][None], prefix)[0, -1]
        torch.testing.assert_close(logits[s, w], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("attention", ATTENTIONS[1:])
def test_attention_rows_sum_to_one_and_never_look_at_padding(attention):
    model = build(attention=attention)
    source, mask = sentences()
    with record(model, "cross") as looks:
        model(source, mask, torch.randint(1, 11, (3, 5)))
    weights = looks["cross"]
    assert weights.shape == (3, 1, 5, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 5))
    assert not weights[~mask[:, None, None].expand_as(weights)].any()
    assert (weights[mask[:, None, None].expand_as(weights)] > 0).all()


def test_hard_reading_looks_at_exactly_one_word():
    model = build(reading="hard").train()
    source, mask = sentences()
    with record(model, "cross") as looks:
        model(source, mask, torch.randint(1, 11, (3, 5)))
    assert torch.equal(looks["cross"].sort(dim=-1, descending=True).values[..., 0], torch.ones(3, 1, 5))
    assert torch.equal(looks["cross"].sum(-1), torch.ones(3, 1, 5))


def test_reading_backwards_keeps_the_memory_in_the_written_order():
    forwards, backwards = build(bidirectional=False), build(bidirectional=False, reverse_source=True)
    source, mask = sentences()
    turned = source.clone()
    for row, length in enumerate(mask.sum(1)):
        turned[row, :length] = source[row, :length].flip(0)
    there, here = forwards.encode(turned, mask)[0], backwards.encode(source, mask)[0]
    for row, length in enumerate(mask.sum(1)):
        torch.testing.assert_close(here.memory[row, :length], there.memory[row, :length].flip(0))
    torch.testing.assert_close(here.summary, there.summary)


def test_without_attention_the_context_never_changes():
    model = build(attention="none")
    encoded, _ = model.encode(*sentences())
    one, other = (model.attend(torch.randn(3, 1, 8), torch.randn(3, 1, 6), encoded) for _ in range(2))
    assert torch.equal(one, other) and torch.equal(one[:, 0], encoded.summary)


@pytest.mark.parametrize("token_query", [False, True], ids=["bahdanau", "cho"])
def test_one_step_is_attend_update_predict_as_the_papers_write_it(token_query):
    """e_i = W3 tanh(W1 h_i + W2 s), and in Cho's form W3 tanh(W1 h_i + W2 s + W4 y)."""
    model = build(cell="gru", token_query=token_query)
    source, mask = sentences()
    (encoded, hidden), token = model.encode(source, mask), torch.tensor([[3], [5], [7]])
    s = hidden[0, 0]
    cross, y = model.cross, model.target_embedding(token)[:, 0]
    of_state, of_token = cross.of_query.weight[:, :8], cross.of_query.weight[:, 8:]
    query = s @ of_state.T + cross.of_query.bias + (y @ of_token.T if token_query else 0)
    scores = cross.to_score(torch.tanh(cross.of_memory(encoded.memory) + query[:, None]))[..., 0]
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    c = torch.einsum("bs,bsd->bd", weights, encoded.memory)
    (s,) = model.decoder.cell(0)(torch.cat([y, c], 1), (s,))
    logits = torch.tanh(model.deep_output(torch.cat([s, c, y], 1))) @ model.output_weight.T + model.output_bias
    torch.testing.assert_close(model.step(token, model.start(source, mask))[:, 0], logits, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_a_decoder_without_a_context_vector_is_its_equations(cell):
    """s_0 = h_T, s_t = g(y_{t-1}, s_{t-1}) and nothing else of the source, written as a loop over plain cells."""
    model = build(cell=cell, attention="none", context=False, first_state="last", bidirectional=False)
    source, inputs = torch.randint(1, 11, (1, 5)), torch.randint(1, 11, (1, 4))
    state = tuple(torch.zeros(1, 8) for _ in range(2 if cell == "lstm" else 1))
    for x in model.source_embedding(source)[0]:
        state = model.encoder.cell(0)(x[None], state)
    logits = []
    for y in model.target_embedding(inputs)[0]:
        state = model.decoder.cell(0)(y[None], state)
        deep = torch.tanh(model.deep_output(torch.cat([state[0], y[None]], 1)))
        logits.append(deep @ model.output_weight.T + model.output_bias)
    expected = torch.stack(logits, dim=1)
    torch.testing.assert_close(model(source, torch.ones_like(source).bool(), inputs), expected, atol=1e-6, rtol=1e-5)


def test_the_last_states_of_both_directions_are_the_first_of_the_decoder():
    model = build(cell="gru", first_state="last", encoder_depth=2, decoder_depth=2)
    source, mask = sentences()
    _, final = model.encoder(model.source_embedding(source), mask=mask)  # [1, layers and directions, B, half]
    hidden = model.encode(source, mask)[1]
    for layer in range(2):
        both = torch.cat([final[0, 2 * layer], final[0, 2 * layer + 1]], dim=-1)
        assert torch.equal(hidden[0, layer], both)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"token_query": True, "attention": "dot"}, "'additive' or 'general'"),
        ({"token_query": True, "attention": "none"}, "'additive' or 'general'"),
        ({"context": False}, "set attention to 'none'"),
        ({"first_state": "last", "decoder_depth": 2}, "make encoder_depth and decoder_depth equal"),
        ({"first_state": "last", "encoder": "convolution"}, "has no last state"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(choices, message):
    with pytest.raises(ConfigError, match=message):
        build(**choices)


def test_what_does_not_hold_together_is_refused():
    with pytest.raises(ConfigError, match="joint tokenizer"):
        build(tie="all", source_vocab=12)
    with pytest.raises(ConfigError, match="make it even"):
        build(width=7)
    with pytest.raises(ConfigError, match="width"):
        Seq2SeqConfig.parse({**SIZES, "width": 0})


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_build_a_model(preset):
    config = Seq2SeqConfig.parse({"source_vocab": 20, "target_vocab": 20, **PRESETS[preset]})
    with torch.device("meta"):
        model = Seq2Seq(config)
    assert sum(p.numel() for p in model.parameters()) > 100_000


def learn(model, steps, rate, task):
    """Train on random sequences of five letters; returns the share of correct letters on new ones, decoded greedily."""
    torch.manual_seed(3)
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(steps):
        source = torch.randint(2, 9, (64, 5))
        target = task(source)
        inputs = functional.pad(target, (1, 0), value=1)[:, :-1]
        logits = model(source, torch.ones_like(source).bool(), inputs)
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    model.eval()
    source = torch.randint(2, 9, (100, 5))
    state = model.start(source, torch.ones_like(source).bool())
    token, decoded = torch.ones(100, 1, dtype=torch.long), []
    for _ in range(5):
        token = model.step(token, state).argmax(-1)
        decoded.append(token)
    return (torch.cat(decoded, 1) == task(source)).float().mean()


@pytest.mark.parametrize(
    ("attention", "reading", "task"),
    [
        ("additive", "soft", "copy"),
        pytest.param("scaled_dot", "soft", "reverse", marks=pytest.mark.full),
        ("general", "hard", "reverse"),
        pytest.param("none", "soft", "copy", marks=pytest.mark.full),
        ("none", "soft", "reverse"),
    ],
)
def test_it_learns_to_copy_and_to_reverse(attention, reading, task):
    model = build(attention=attention, reading=reading, cell="gru", embedding=16, width=48, dropout=0.0)
    steps, rate = (300, 5e-3) if attention == "none" else (200, 1e-2)  # without attention larger steps learn less
    assert learn(model, steps, rate, torch.clone if task == "copy" else torch.fliplr) > 0.98

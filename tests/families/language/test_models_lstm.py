"""The recurrent language model: whole texts, pieces and single steps give the same; the effect of its options."""

import pytest
import torch
from torch import nn

from regard.families.language.lstm import PRESETS, Lstm, LstmConfig

VOCAB = 23
AWD = {key: value for key, value in PRESETS["awd"].items() if key not in ("embedding", "width", "depth")}


def lstm(**changes):
    torch.manual_seed(0)
    return Lstm(LstmConfig(**{"vocab": VOCAB, "embedding": 10, "width": 14, "depth": 3, **changes}))


def texts(rows=4, length=12):
    return torch.randint(VOCAB, (rows, length), generator=torch.Generator().manual_seed(1))


def test_it_computes_what_torch_computes_layer_by_layer():
    model, tokens = lstm().eval(), texts()
    x = model.embedding(tokens)
    for layer, (reads, says) in zip(model.decoder, [(10, 14), (14, 14), (14, 10)], strict=True):
        oracle = nn.LSTM(reads, says, batch_first=True)
        oracle.load_state_dict(layer.kernel.state_dict())
        x, _ = oracle(x)
    assert torch.allclose(model(tokens), x @ model.embedding.weight.T + model.output_bias, atol=1e-6)


def test_a_text_read_in_pieces_is_the_text_read_at_once():
    model, tokens = lstm().eval(), texts()
    whole, state, pieces = model(tokens), None, []
    for piece in tokens.split([5, 1, 6], dim=1):
        reading = model.read(piece, state)
        state = reading.state
        pieces.append(model.predict(reading.outputs))
    assert torch.allclose(torch.cat(pieces, dim=1), whole, atol=1e-6)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [1, 5, 3]])
def test_steps_after_a_prompt_are_the_whole_forward_pass(lengths):
    model, tokens = lstm(tie=False).eval(), texts(3, 9)
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    state = model.start(tokens[:, :5] * mask, mask)
    state.reorder(torch.zeros(3, 2, dtype=torch.long))
    state.keep(torch.tensor([0, 2]))
    for extra in range(3):
        places = torch.tensor(lengths)[[0, 2]] - 1 + extra
        fed = tokens[[0, 2], places]
        logits = model.step(fed[:, None].expand(2, 2), state)
        for row, (sentence, place) in enumerate(zip([0, 2], places.tolist(), strict=True)):
            expected = model(tokens[sentence : sentence + 1, : place + 1])[0, -1]
            assert torch.allclose(logits[row], expected.expand(2, -1), atol=1e-6)


def test_dropouts_act_in_training_only():
    model, tokens = lstm(**AWD), texts()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert torch.allclose(model(tokens), lstm().eval()(tokens))


def test_penalties_are_their_formulas():
    model = lstm(size_penalty=2.0, change_penalty=3.0, dropout=0.5)
    reading = model.read(texts())
    plain, outputs = reading.plain, reading.outputs
    changes = [(plain[:, t + 1] - plain[:, t]).square().mean() for t in range(plain.shape[1] - 1)]
    expected = 2.0 * outputs.square().mean() + 3.0 * sum(changes) / len(changes)
    assert torch.allclose(model.penalty(reading), expected)
    assert model.penalty(model.read(texts(length=1))).isfinite()


def test_the_preset_has_the_papers_size():
    with torch.device("meta"):
        model = Lstm(LstmConfig(vocab=33278, **PRESETS["awd"]))
    assert sum(p.numel() for p in model.parameters()) == 33_556_078

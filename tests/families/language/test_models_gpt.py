"""The decoder-only model: cached steps, padding on either side, and the effect of its options."""

import pytest
import torch

from regard.attention import record
from regard.errors import ConfigError
from regard.families.language.gpt import IGPT, LLAMA, PRESETS, Gpt, GptConfig
from regard.look.forced_pass import kind_of

VARIANTS = [
    {},
    {"tie": False, "activation": "gelu", "scaled": False},
    LLAMA,
    {**LLAMA, "kv_heads": 2, "tie": True},
    {**LLAMA, "head_width": 6, "kv_heads": 1, "attention_bias": True},
    {"positions": "rotary", "gated": True},
    IGPT,
]


def tiny(**changes) -> Gpt:
    torch.manual_seed(0)
    sizes = {"vocab": 13, "width": 16, "heads": 4, "depth": 2, "ffn_width": 24, "max_length": 12}
    model = Gpt(GptConfig(**{**sizes, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # so that positions and biases matter
    return model


def texts(rows=3, length=7):
    return torch.randint(13, (rows, length), generator=torch.Generator().manual_seed(1))


def padded(tokens, lengths, side):
    """Rows cut to these lengths and padded with a token that must have no effect."""
    real = torch.arange(tokens.shape[1]) < torch.tensor(lengths)[:, None]
    rows = torch.where(real, tokens, 3)
    if side == "left":
        rows = torch.stack([row.roll(tokens.shape[1] - n) for row, n in zip(rows, lengths, strict=True)])
        real = real.flip(1)
    return rows, real


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(changes, side):
    model, tokens, lengths = tiny(**changes), texts(), [7, 4, 1]
    rows, real = padded(tokens, lengths, side)
    batch = model(rows, real)
    for row, length in enumerate(lengths):
        alone = model(tokens[row : row + 1, :length])[0]
        torch.testing.assert_close(batch[row][real[row]], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("side", ["right", "left", "none"])
def test_cached_steps_equal_reading_everything_again(changes, side):
    model, tokens = tiny(**changes), texts()
    lengths = [3, 3, 3] if side == "none" else [4, 2, 1]
    source, real = padded(tokens[:, : max(lengths)], lengths, side)
    state = model.start(source, real)
    told = tokens.gather(1, torch.tensor(lengths)[:, None] - 1)
    said = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    for token in ([5, 6, 7], [1, 2, 3], [9, 9, 9]):
        logits = model.step(told, state)[:, 0]
        for row, before in enumerate(said):
            torch.testing.assert_close(logits[row], model(torch.tensor([before]))[0, -1], atol=1e-5, rtol=1e-5)
        said = [[*before, new] for before, new in zip(said, token, strict=True)]
        told = torch.tensor(token)[:, None]


@pytest.mark.parametrize("side", ["right", "left", "none"])
def test_a_grid_of_hypotheses_equals_separate_texts(side):
    model, tokens = tiny(), texts()
    lengths = [4, 4, 4] if side == "none" else [4, 2, 1]
    source, real = padded(tokens[:, :4], lengths, side)
    said = [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)]
    state = model.start(source, real)
    model.step(torch.tensor([[row[-1]] for row in said]), state)
    state.reorder(torch.zeros(3, 2, dtype=torch.long))
    second = [[7, 8], [9, 4], [5, 6]]
    model.step(torch.tensor(second), state)
    state.reorder(torch.tensor([[1, 0], [1, 1], [0, 0]]))
    state.keep(torch.tensor([0, 2]))
    after = model.step(torch.tensor([[4, 5], [6, 7]]), state)
    told = [[*said[0], 8, 4], [*said[0], 7, 5], [*said[2], 5, 6], [*said[2], 5, 7]]
    expected = torch.stack([model(torch.tensor([row]))[0, -1] for row in told])
    torch.testing.assert_close(after.flatten(0, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("changes", VARIANTS)
def test_every_parameter_learns(changes):
    model = tiny(**changes).train()
    model(texts(length=12)).square().sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A constant added to every key does not change a softmax, so without rotation key biases have no gradient.
    assert [name for name in dead if not name.endswith("key.bias")] == []


@pytest.mark.parametrize("changes", VARIANTS)
def test_no_token_sees_a_later_one(changes):
    model, tokens = tiny(**changes), texts()
    changed = tokens.clone()
    changed[:, 4:] = 2
    torch.testing.assert_close(model(tokens)[:, :4], model(changed)[:, :4])


def test_recording_names_the_layers_and_changes_nothing():
    model, tokens = tiny(**LLAMA, kv_heads=2), texts()
    before = model(tokens)
    with record(model) as looks:
        during = model(tokens)
    assert torch.equal(before, during)
    assert sorted(looks) == ["decoder.0.attention", "decoder.1.attention"]
    assert {kind_of(name) for name in looks} == {"causal"}
    weights = looks["decoder.1.attention"]
    assert weights.shape == (3, 4, 7, 7)
    assert (weights.triu(1) == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 7))


def test_recorded_steps_are_the_rows_of_the_whole():
    model, tokens = tiny(), texts()
    with record(model) as whole:
        model(tokens)
    with record(model) as stepped:
        state = model.start(tokens[:, :4], torch.ones(3, 4, dtype=torch.bool))
        for t in range(3, 7):
            model.step(tokens[:, t : t + 1], state)
    for name in whole:
        torch.testing.assert_close(stepped[name], whole[name], atol=1e-5, rtol=1e-5)


def test_more_tokens_than_learned_positions_are_refused():
    with pytest.raises(ValueError, match="position 13 asked for, but only 12 were learned"):
        tiny()(texts(length=13))
    assert tiny(**LLAMA)(texts(length=13)).shape == (3, 13, 13)


@pytest.mark.parametrize(
    ("preset", "vocab", "millions"),
    [("gpt2", 50257, 124.4), ("gpt2-medium", 50257, 354.8), ("gpt2-xl", 50257, 1557.6), ("llama-7b", 32000, 6738.4)],
)
def test_presets_have_the_papers_sizes(preset, vocab, millions):
    with torch.device("meta"):
        model = Gpt(GptConfig(vocab=vocab, **PRESETS[preset]))
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, abs=0.1)


def test_the_character_preset_is_the_shape_of_nanogpt():
    model = Gpt(GptConfig(vocab=65, **PRESETS["character"]))
    without_positions = sum(p.numel() for p in model.parameters()) - model.positions.table.numel()
    assert without_positions / 1e6 == pytest.approx(10.65, abs=0.05)


def test_a_token_that_starts_an_image_is_never_predicted():
    assert tiny(**IGPT)(texts()).shape == (3, 7, 12)
    with pytest.raises(ConfigError, match="set tie = false"):
        tiny(unpredicted=1)
    with pytest.raises(ConfigError, match="none is left to predict"):
        tiny(unpredicted=13, tie=False)

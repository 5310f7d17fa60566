"""The captioner: its equations, its decoding steps, its bodies and its refusals."""

import pytest
import torch

from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_images

BODY = {"stem": "small", "stem_width": 8, "block": "basic", "widths": (8, 16), "depths": (1, 1)}
SIZES = {
    "vocab": 19, "image_size": 12, "body": "resnet", "body_values": BODY, "embedding": 10, "width": 16, "heads": 2,
    "ffn_width": 20, "dropout": 0.0,
}  # fmt: skip
VARIANTS = [
    {},
    {"decoder": "gru", "depth": 2},
    {"attention": "none"},
    {"attention": "hard"},
    {"decoder": "transformer", "depth": 2},
    {"decoder": "transformer", "attention": "none"},
]
VOCABULARY = Vocabulary(start=0, end=1, pad=0)


def made(**changes):
    torch.manual_seed(0)
    return MODELS["captioner"].model(MODELS["captioner"].config(**{**SIZES, **changes})).eval()


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@torch.inference_mode()
def test_steps_give_the_logits_of_teacher_forcing(changes):
    model, images, words = made(**changes), torch.randn(3, 3, 12, 12), torch.randint(2, 19, (3, 6))
    whole, _ = model(images, words)
    state = model.start(images)
    steps = [model.step(words[:, at : at + 1], state)[:, 0] for at in range(6)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, atol=1e-5, rtol=1e-4)


SETTINGS = {
    "greedy": SearchSettings(max_length=8),
    "beam": SearchSettings(beam=3, n_best=2, max_length=8),
    "sampling": SearchSettings(sample=True, n_best=2, max_length=8),
}


@pytest.mark.parametrize(
    ("changes", "how"),
    [*((changes, "beam") for changes in VARIANTS), ({}, "greedy"), ({"decoder": "transformer"}, "sampling")],
    ids=str,
)
def test_a_batch_gives_what_its_images_give_alone(changes, how):
    settings = SETTINGS[how]
    model, images = made(**changes), torch.randn(4, 3, 12, 12)
    together = search(model, from_images(model, images, settings, 0), settings, VOCABULARY)
    for row in range(4):
        alone = search(model, from_images(model, images[row : row + 1], settings, 0), settings, VOCABULARY)[0]
        assert [each.tokens for each in alone] == [each.tokens for each in together[row]]


@torch.inference_mode()
def test_the_recurrent_decoder_is_that_of_the_paper():
    """s_0, c_0, α, β, the LSTM and the deep output of the first two words, written out (Xu 2015, section 3.1)."""
    model, image, words = made(), torch.randn(1, 3, 12, 12), torch.tensor([[4, 7]])
    a, d = model.grid(image)[0], model.decoder
    h, c = torch.tanh(d.first(a.mean(0))).view(2, -1)
    logits, seen = model(image, words)
    for t in range(2):
        e = torch.stack([d.cross.to_score(torch.tanh(d.cross.of_memory(ai) + d.cross.of_query(h)))[0] for ai in a])
        alpha = e.softmax(0)
        beta = torch.sigmoid(d.gate(h))
        z = beta * sum(weight * ai for weight, ai in zip(alpha, a, strict=True))
        y = d.embedding.weight[words[0, t]]
        k = d.recurrent.kernel
        gates = k.weight_ih_l0 @ torch.cat([y, z]) + k.bias_ih_l0 + k.weight_hh_l0 @ h + k.bias_hh_l0
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        deep = torch.tanh(d.deep_output(torch.cat([h, z, y])))
        torch.testing.assert_close(d.embedding.weight @ deep + d.output_bias, logits[0, t], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(seen.probabilities[0, t], alpha, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(seen.gates[0, t], beta[0], atol=1e-6, rtol=1e-4)


@torch.inference_mode()
def test_without_attention_only_the_mean_of_the_grid_counts():
    model, words = made(attention="none"), torch.randint(2, 19, (1, 4))
    grid = torch.randn(1, 9, 16)
    shuffled = grid[:, torch.randperm(9)]
    for decoder in (model.decoder, made(decoder="transformer", attention="none").decoder):
        torch.testing.assert_close(decoder(grid, words)[0], decoder(shuffled, words)[0], atol=1e-5, rtol=1e-4)
    looking = made().decoder
    other = grid.clone()
    other[:, 0] += 1
    other[:, 1] -= 1  # the same mean
    assert not torch.allclose(looking(grid, words)[0], looking(other, words)[0], atol=1e-4)


@pytest.mark.parametrize("body", ["vit", "swin", "mvit"])
def test_every_image_model_can_be_the_body(body):
    preset = {**MODELS[body].presets["tiny"]}
    preset.pop("image_size", None)
    model = made(body=body, body_values=preset, image_size=32)
    side = model.config.grid_side
    assert model.grid(torch.randn(2, 3, 32, 32)).shape == (2, side**2, 16)
    finer = (
        made(body=body, body_values=preset, image_size=32, level=1)
        if len(model.config.body_config().map_sides()) > 1
        else None
    )
    assert finer is None or finer.config.grid_side >= side


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder": "transformer", "attention": "hard"}, "looks softly"),
        ({"level": 2}, "the body has 2 maps"),
        ({"decoder": "transformer", "heads": 3}, "divide"),
        ({"body": "gpt"}, "yields no feature maps"),
    ],
)
def test_what_cannot_be_is_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        MODELS["captioner"].config.parse({**SIZES, **changes})

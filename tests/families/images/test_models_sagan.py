"""SAGAN: shape and range of images, the effect of classes, spectral norms, and attention where it is configured."""

import pytest
import torch

from regard.attention import record
from regard.errors import ConfigError
from regard.families.images.sagan import PRESETS, Sagan, SaganConfig
from regard.training.losses import hinge_critic, hinge_generator

SMALL = SaganConfig(image_size=16, widths=(16, 8), latent=6, attention_at=8, classes=3)


def model(**changes):
    torch.manual_seed(0)
    return Sagan(SMALL.replace(**changes))


@pytest.mark.parametrize(
    "changes", [{}, {"conditional": False}, {"attention_at": 0}, {"channels": 1, "image_size": 12}]
)
def test_pictures_are_made_and_judged(changes):
    gan = model(**{**changes, **({"attention_at": 6} if changes.get("image_size") == 12 else {})})
    labels = torch.tensor([0, 2, 1, 0])
    images = gan(gan.draw(labels), labels)
    assert images.shape == (4, gan.config.channels, gan.config.image_size, gan.config.image_size)
    assert images.abs().max() <= 1
    assert gan.critic(images, labels).shape == (4,)


def test_classes_matter_to_both_networks():
    gan = model()
    for norm in (module for module in gan.modules() if hasattr(module, "offset")):
        torch.nn.init.normal_(norm.offset.weight)
    gan.eval()
    latent, zeros, ones = torch.randn(2, 6), torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.long)
    images = gan(latent, zeros)
    assert not torch.allclose(images, gan(latent, ones))
    assert not torch.allclose(gan.critic(images, zeros), gan.critic(images, ones))


def test_every_convolution_stretches_nothing_by_more_than_one():
    gan, labels = model(), torch.zeros(4, dtype=torch.long)
    for _ in range(60):  # each call improves the estimate
        gan.critic(gan(gan.draw(labels), labels), labels)
    layers = [module for module in gan.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) > 15
    for layer in layers:
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2).item() == pytest.approx(1, abs=0.02)


def test_attention_is_at_the_chosen_map_in_both_networks():
    gan, labels = model(), torch.zeros(2, dtype=torch.long)
    with record(gan) as looks:
        gan.critic(gan(gan.draw(labels), labels), labels)
    assert {name: tuple(weights.shape) for name, weights in looks.items()} == {
        "generator.look": (2, 1, 64, 16),
        "critic.look": (2, 1, 64, 16),
    }


def test_maps_that_cannot_be_are_explained():
    with pytest.raises(ConfigError, match="image_size = 18: must divide by 4"):
        model(image_size=18)
    with pytest.raises(ConfigError, match=r"attention_at = 7: .*\[8\]"):
        model(attention_at=7)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_can_be_built(preset):
    assert Sagan(SaganConfig(**PRESETS[preset])).config.sides[-1] == PRESETS[preset]["image_size"]


def test_a_critic_learns_to_tell_and_a_generator_to_please():
    gan, labels = model(), torch.arange(8) % 3
    real = torch.rand(8, 3, 16, 16)
    critic = torch.optim.Adam(gan.critic.parameters(), lr=4e-3, betas=(0.0, 0.9))
    generator = torch.optim.Adam(gan.generator.parameters(), lr=1e-3, betas=(0.0, 0.9))
    fake = gan(gan.draw(labels), labels).detach()
    losses = []
    for _ in range(30):
        loss = hinge_critic(gan.critic(real, labels), gan.critic(fake, labels))
        critic.zero_grad()
        loss.backward()
        critic.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    latent = gan.draw(labels)
    before = hinge_generator(gan.critic(gan(latent, labels), labels)).item()
    for _ in range(15):
        generator.zero_grad()
        hinge_generator(gan.critic(gan(latent, labels), labels)).backward()
        generator.step()
    assert hinge_generator(gan.critic(gan(latent, labels), labels)).item() < before

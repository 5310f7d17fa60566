"""Augmentation: each operation against plain loops; an image is changed independently of its batch."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from regard.data.images import augmentation
from regard.data.images.augmentation import BASE, COLOURS, PER_OPERATION, Augmentation
from regard.errors import ConfigError

EVERYTHING = Augmentation(
    flip=0.5, shift=2, crop=0.5, brightness=0.4, contrast=0.4, saturation=0.4, randaugment=2, erase=0.5, mixup=0.4,
    cutmix=1.0, mix=0.7,
)  # fmt: skip


def pictures(count=24, channels=3, side=12):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(1))


def drawn(change, count=24, place=(1, 0, 0)):
    return torch.from_numpy(change.draw(np.random.default_rng(place), count))


def test_nothing_is_changed_unless_asked_for():
    images = pictures()
    mixed = Augmentation()(images, drawn(Augmentation()))
    assert torch.equal(mixed.images, images)
    assert torch.equal(mixed.share, torch.ones(24))


@pytest.mark.parametrize("channels", [1, 3])
def test_everything_at_once_stays_a_picture_and_repeats(channels):
    images, draws = pictures(channels=channels), drawn(EVERYTHING)
    assert draws.shape == (24, 2 + BASE + 2 * PER_OPERATION)
    mixed, again = EVERYTHING(images, draws), EVERYTHING(images, drawn(EVERYTHING))
    assert torch.equal(mixed.images, again.images)
    assert mixed.images.min() >= 0 and mixed.images.max() <= 1 and mixed.images.isfinite().all()
    assert not torch.equal(mixed.images, EVERYTHING(images, drawn(EVERYTHING, place=(1, 1, 0))).images)


def test_a_picture_alone_changes_as_it_does_among_others():
    change = EVERYTHING.replace(mixup=0.0, cutmix=0.0)
    images, draws = pictures(), drawn(change)
    whole = change(images, draws).images
    for number in (0, 7, 23):
        alone = change(images[number : number + 1], draws[number : number + 1]).images
        torch.testing.assert_close(alone[0], whole[number], atol=1e-5, rtol=0)


def test_a_flip_is_a_mirror_image_of_about_half_of_them():
    images = pictures(200)
    flipped = Augmentation(flip=0.5)(images, drawn(Augmentation(flip=0.5), 200)).images
    same = torch.isclose(flipped, images, atol=1e-5).flatten(1).all(dim=1)
    mirrored = torch.isclose(flipped, images.flip(3), atol=1e-5).flatten(1).all(dim=1)
    assert (same | mirrored).all()
    assert 70 < mirrored.sum() < 130


def test_a_shift_moves_by_whole_pixels_and_brings_in_black():
    images, side, most = pictures(100), 12, 2
    moved = Augmentation(shift=most)(images, drawn(Augmentation(shift=most), 100)).images
    padded = torch.nn.functional.pad(images, (most,) * 4)
    seen = set()
    for image, around in zip(moved, padded, strict=True):
        places = [
            (y, x)
            for y in range(2 * most + 1)
            for x in range(2 * most + 1)
            if torch.allclose(image, around[:, y : y + side, x : x + side], atol=1e-4)
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) == (2 * most + 1) ** 2  # all 25 offsets occur among 100 draws


def test_a_crop_shows_no_less_than_its_share():
    ramp = torch.linspace(0, 1, 33).expand(60, 1, 33, 33)
    change = Augmentation(crop=0.25)
    found = change(ramp, drawn(change, 60)).images[:, 0, 16]
    width = found[:, -1] - found[:, 0]
    assert (width > 0.25).all() and (width <= 1 + 1e-6).all()
    assert width.std() > 0.05


def test_masks_move_with_their_pictures():
    masks = torch.randint(0, 4, (16, 12, 12), generator=torch.Generator().manual_seed(2))
    images = (masks / 4)[:, None].expand(-1, 3, -1, -1)
    change = Augmentation(flip=0.5, shift=3)
    moved = change(images, drawn(change, 16), masks)
    assert moved.masks.dtype == masks.dtype
    torch.testing.assert_close(moved.images[:, 0], moved.masks / 4, atol=1e-4, rtol=0)


def test_erasing_paints_one_rectangle():
    images = pictures(60) * 0 + 2  # no random colour is 2
    found = Augmentation(erase=1.0)(images, drawn(Augmentation(erase=1.0), 60)).images
    for image in found:
        painted = image[0] != 2
        rows, columns = painted.any(1).nonzero()[:, 0], painted.any(0).nonzero()[:, 0]
        if len(rows):
            assert painted[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
            assert len(image[:, painted].unique()) == 1
    untouched = Augmentation(erase=0.3)(images, drawn(Augmentation(erase=0.3), 60)).images
    assert 5 < (untouched != 2).flatten(1).any(1).sum() < 35


def test_mixup_blends_and_cutmix_pastes_in_the_share_they_say():
    images = pictures(80)
    others = images.roll(1, 0)
    blended = Augmentation(mixup=0.5)(images, drawn(Augmentation(mixup=0.5), 80))
    expected = blended.share[:, None, None, None] * images + (1 - blended.share[:, None, None, None]) * others
    torch.testing.assert_close(blended.images, expected)
    pasted = Augmentation(cutmix=1.0)(images, drawn(Augmentation(cutmix=1.0), 80))
    own = (pasted.images == images).all(dim=1)
    assert (own | (pasted.images == others).all(dim=1)).all()
    torch.testing.assert_close(own.float().mean(dim=(1, 2)), pasted.share)
    assert torch.equal(pasted.partners(torch.arange(80))[1:], torch.arange(79))
    seldom = Augmentation(cutmix=1.0, mix=0.2)
    assert 45 < (seldom(images, drawn(seldom, 80)).share == 1).sum() < 79


def as_pillow(image):
    return Image.fromarray((image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())


PILLOW = {
    "_brightness": lambda image, s: ImageEnhance.Brightness(image).enhance(1 + 0.9 * s),
    "_contrast": lambda image, s: ImageEnhance.Contrast(image).enhance(1 + 0.9 * s),
    "_saturation": lambda image, s: ImageEnhance.Color(image).enhance(1 + 0.9 * s),
    "_posterise": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "_solarise": lambda image, s: ImageOps.solarize(image, round(255 * (1 - abs(s))) + 1),
    "_autocontrast": lambda image, s: ImageOps.autocontrast(image),
}


@pytest.mark.parametrize("name", PILLOW)
@pytest.mark.parametrize("strength", [-0.5, 0.5])
def test_changes_of_colour_are_pillows(name, strength):
    images = (pictures(6, side=16) * 255).round() / 255
    found = getattr(augmentation, name)(images, torch.full((6,), strength))
    for image, ours in zip(images, found, strict=True):
        theirs = torch.from_numpy(np.asarray(PILLOW[name](as_pillow(image), strength)).copy()).permute(2, 0, 1) / 255
        torch.testing.assert_close(ours, theirs, atol=2.5 / 255, rtol=0)


def test_sharpness_is_pillows_but_at_the_border():
    images = (pictures(3, side=16) * 255).round() / 255
    found = augmentation._sharpness(images, torch.full((3,), 0.5))
    for image, ours in zip(images, found, strict=True):
        theirs = np.asarray(ImageEnhance.Sharpness(as_pillow(image)).enhance(1.45))
        theirs = torch.from_numpy(theirs.copy()).permute(2, 0, 1) / 255
        torch.testing.assert_close(ours[:, 1:-1, 1:-1], theirs[:, 1:-1, 1:-1], atol=3 / 255, rtol=0)


def test_equalising_spreads_levels_evenly():
    dull = 0.4 + 0.1 * pictures(2, side=32)
    found = augmentation._equalise(dull, torch.zeros(2))
    for before, after in zip(dull.flatten(2).flatten(0, 1), found.flatten(2).flatten(0, 1), strict=True):
        order = (before * 255).round().argsort()
        assert (after[order].diff() >= -1e-6).all()  # the order of brightness is kept
        assert after.min() == 0 and after.max() == 1
        assert abs(after.mean() - 0.5) < 0.05
    flat = torch.full((1, 3, 4, 4), 0.3)
    assert torch.equal(augmentation._equalise(flat, torch.zeros(1)), flat)


def test_every_operation_of_randaugment_is_drawn():
    change, images = Augmentation(randaugment=1, magnitude=1.0), pictures(600)
    found = change(images, drawn(change, 600)).images
    unchanged = torch.isclose(found, images, atol=1e-4).flatten(1).all(1).float().mean()
    assert 0.02 < unchanged < 0.2  # one of 14 operations does nothing
    assert len(COLOURS) + augmentation.MOVES == 14


def test_a_share_beyond_one_is_refused():
    with pytest.raises(ConfigError, match="flip"):
        Augmentation.parse({"flip": 1.5})
    with pytest.raises(ConfigError, match="did you mean 'mixup'"):
        Augmentation.parse({"mixop": 1.0})

"""The built-in images: the labels describe what is drawn."""

import numpy as np
import pytest

from regard.data.synthetic.shapes import COLOURS, SHAPE_NAMES, SHAPES, Scene, Thing, scenes
from regard.errors import UsageError


def some(count=60, **changes):
    return list(scenes(**{"part": "train", "count": count, "seed": 3, "size": 32, **changes}))


def test_the_same_seed_draws_the_same_and_parts_differ():
    for first, second in zip(some(5), some(5), strict=True):
        assert np.array_equal(first.pixels, second.pixels) and first.things == second.things
    assert not np.array_equal(some(1)[0].pixels, some(1, part="valid")[0].pixels)
    assert not np.array_equal(some(1)[0].pixels, some(1, seed=4)[0].pixels)
    assert np.array_equal(some(8)[5].pixels, some(6)[5].pixels)  # a longer draw begins with the shorter one


def test_every_thing_lies_where_its_mask_and_colour_say():
    for scene in some():
        for thing in scene.things:
            number = 1 + SHAPE_NAMES.index(thing.shape)
            rows, columns = np.nonzero(scene.mask == number)
            near = np.hypot(columns + 0.5 - 32 * thing.x, rows + 0.5 - 32 * thing.y) <= 32 * thing.radius * 1.5
            assert near.any(), thing
            colour = np.median(scene.pixels[:, rows[near], columns[near]], axis=1)
            others = [each for each in scene.things if each.shape == thing.shape and each is not thing]
            if not others:
                assert np.abs(colour - COLOURS[thing.colour]).max() < 40
        assert set(np.unique(scene.mask)) - {0} == {1 + SHAPE_NAMES.index(thing.shape) for thing in scene.things}


def test_the_first_thing_is_the_largest_and_gives_the_label():
    for scene in some():
        assert scene.things[0].radius == max(thing.radius for thing in scene.things)
        assert SHAPE_NAMES[scene.label] == scene.things[0].shape
        assert [thing.size for thing in scene.things] == ["large"] + ["small"] * (len(scene.things) - 1)


def test_all_shapes_colours_and_numbers_of_things_occur():
    drawn = some(150)
    assert {scene.label for scene in drawn} == set(range(len(SHAPES)))
    assert {len(scene.things) for scene in drawn} == {1, 2, 3, 4}
    assert {thing.colour for scene in drawn for thing in scene.things} == set(COLOURS)


@pytest.mark.parametrize(
    ("x", "y", "words"), [(0.9, 0.5, "left of"), (0.1, 0.5, "right of"), (0.5, 0.9, "above"), (0.5, 0.1, "below")]
)
def test_captions_say_how_things_lie(x, y, words):
    things = (
        Thing("circle", "red", 0.5, 0.5, 0.2),
        Thing("square", "blue", x, y, 0.1),
        Thing("ring", "white", 0, 0, 0.1),
    )
    scene = Scene(np.zeros((3, 1, 1)), np.zeros((1, 1)), things)
    assert scene.caption == f"a large red circle {words} a small blue square and a small white ring"
    assert Scene(*scene[:2], things[:1]).caption == "a large red circle"


def test_pictures_too_small_are_refused():
    with pytest.raises(UsageError, match="16 or more"):
        some(1, size=8)


def test_objects_are_drawn_in_full():
    """Every object is drawn within its box alone; over the whole plane it covers the same pixels."""
    for scene in scenes(part="train", count=40, seed=8, size=24):
        points = (np.arange(24 * 3) + 0.5) / (24 * 3)
        owners = np.zeros((24, 24), dtype=np.uint8)
        for number, thing in reversed([*enumerate(scene.things, start=1)]):
            x, y = (points[None, :] - thing.x) / thing.radius, (points[:, None] - thing.y) / thing.radius
            inside = SHAPES[thing.shape](x, y) <= 1
            owners[inside.reshape(24, 3, 24, 3).mean(axis=(1, 3)) >= 0.5] = number
        np.testing.assert_array_equal(scene.owners, owners)


def test_scenes_of_one_object_show_the_largest_of_the_same_scenes():
    whole, alone = (list(scenes(part="train", count=5, seed=3, most=most)) for most in (None, 1))
    assert [scene.things[:1] for scene in whole] == [scene.things for scene in alone]
    assert all(set(np.unique(scene.owners)) == {0, 1} for scene in alone)

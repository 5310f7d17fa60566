"""Texts about scenes, regions of images, their store, and the batches made of them."""

import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data.synthetic.scene_texts import ANSWERS, Chooser, phrases, questions
from regard.data.synthetic.shapes import SHAPES, scenes
from regard.data.text.masking import Masking
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import CheckpointError, DataError
from regard.families.vision_language.data import ChoiceMaker, MaskedPairMaker, PairMaker, RegionTexts
from regard.families.vision_language.regions import (
    FinderConfig,
    connected,
    crops,
    grid_boxes,
    object_boxes,
    overlapping,
    places,
)

SIZE = 64


@pytest.fixture(scope="module")
def drawn():
    return list(scenes(part="train", count=150, seed=3, size=SIZE))


def picture(scene):
    return Image.fromarray(scene.pixels.transpose(1, 2, 0))


def test_the_box_of_a_thing_is_where_its_pixels_are(drawn):
    points = (np.arange(400) + 0.5) / 400
    for thing in (thing for scene in drawn[:40] for thing in scene.things):
        x, y = points[None, :], points[:, None]
        inside = SHAPES[thing.shape]((x - thing.x) / thing.radius, (y - thing.y) / thing.radius) <= 1
        rows, columns = np.flatnonzero(inside.any(axis=1)), np.flatnonzero(inside.any(axis=0))
        found = np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / 400
        np.testing.assert_allclose(thing.box, found, atol=2 / 400)


# Texts


def fits(thing, words):
    return all(word in (thing.size, thing.colour, thing.shape, "shape", "the") for word in words)


def test_a_phrase_means_one_thing(drawn):
    ways = {"leftmost": ("x", min), "rightmost": ("x", max), "highest": ("y", min), "lowest": ("y", max)}
    kinds = Counter()
    for scene in drawn:
        for text, kind, target in phrases(scene):
            kinds[kind] += 1
            words = text.split()
            if kind == "place":
                axis, best = ways[words[1]]
                assert scene.things[target] == best(scene.things, key=lambda thing: getattr(thing, axis))
            else:
                assert [number for number, thing in enumerate(scene.things) if fits(thing, words)] == [target]
    assert kinds.keys() == {"1 words", "2 words", "3 words", "place"}


def answered(scene, text):
    """The answer to a question, found in another way than the generator makes it."""
    things, words = scene.things, text.split()
    if words[:2] == ["how", "many"]:
        if words[2] == "shapes":
            return str(len(things))
        return str(sum(thing.colour == words[2] or thing.shape in (words[2][:-1], words[2][:-2]) for thing in things))
    if words[:2] == ["is", "there"]:
        return "yes" if any((thing.colour, thing.shape) == (words[3], words[4]) for thing in things) else "no"
    if words[-3:] == ["large", "or", "small"]:
        (thing,) = [each for each in things if fits(each, words[1:-3])]
        return thing.size
    if words[:2] == ["what", "colour"]:
        (thing,) = [each for each in things if fits(each, words[3:])]
        return thing.colour
    if words[:2] == ["which", "shape"]:
        (thing,) = [each for each in things if fits(each, words[3:])]
        return thing.shape
    named, _, other = text.removeprefix("is the ").rpartition(" the ")
    place = next(number for number, word in enumerate(words) if word in ("left", "right", "above", "below")) - 2
    asked = named.split()[place:]
    (first,) = [each for each in things if fits(each, named.split()[:place])]
    if other == "middle":
        x, y = 0.5, 0.5
    else:
        ((x, y),) = [(each.x, each.y) for each in things if fits(each, other.split())]
    holds = {"left": first.x < x, "right": first.x > x, "above": first.y < y, "below": first.y > y}
    if "or" in asked:
        return next(word for word in asked if holds.get(word))
    return "yes" if holds[asked[0]] else "no"


def test_a_question_has_the_answer_that_the_scene_gives(drawn):
    kinds = set()
    for scene in drawn:
        for text, kind, target in questions(scene):
            kinds.add(kind)
            assert target in ANSWERS and answered(scene, text) == target, (scene.caption, text)
    assert kinds == {"colour", "shape", "size", "number", "presence", "relation", "side", "middle"}


def test_questions_about_two_things_can_name_the_larger_one_first(drawn):
    for scene in drawn[:40]:
        both, first, last = (
            {each.text for each in questions(scene, order) if each.kind in ("side", "relation")}
            for order in (None, True, False)
        )
        assert first | last == both and not first & last
        for text in first:
            named = [next(each for each in scene.things if fits(each, part.split()[-3:])) for part in _parts(text)]
            assert scene.things.index(named[0]) < scene.things.index(named[1])


def _parts(text):
    """The names of both things: what stands after each "the"."""
    return [" ".join(part.split()[:3]) for part in text.split(" the ")[1:]]


def test_drawn_answers_are_balanced(drawn):
    choose, rng, counts = Chooser(), np.random.default_rng(0), Counter()
    for scene in drawn:
        some = choose(list(questions(scene)), 3, rng)
        assert len({each.text for each in some}) == 3
        counts.update((each.kind, each.target) for each in some)
    for kind in ("relation", "presence", "size"):
        both = [count for (each, _), count in counts.items() if each == kind]
        assert len(both) == 2 and max(both) - min(both) <= 4
    colours = [count for (kind, _), count in counts.items() if kind == "colour"]
    assert len(colours) == 8 and max(colours) <= 2 * min(colours)


# Regions


def test_objects_are_found_where_the_shapes_are(drawn):
    found_all = 0
    for scene in drawn:
        found = object_boxes(picture(scene))
        middles = (found[:, :2] + found[:, 2:]) / 2
        near = [
            np.abs(middles - (np.array(thing.box)[:2] + np.array(thing.box)[2:]) / 2).max(axis=1).min() < 2 / SIZE
            for thing in scene.things
        ]
        found_all += len(found) == len(scene.things) and all(near)
    assert found_all >= 0.97 * len(drawn)  # shapes of one colour that touch are one object


def test_connected_parts_are_those_of_a_flood_fill():
    rng = np.random.default_rng(0)
    for _ in range(20):
        mask, kind = rng.random((7, 9)) < 0.75, rng.integers(2, size=(7, 9))
        labels, seen = connected(mask, np.eye(2)[kind] * 9), np.zeros(mask.shape, dtype=bool)
        assert (labels > 0).tolist() == mask.tolist()
        for start in zip(*np.nonzero(mask), strict=True):
            if seen[start]:
                continue
            part, queue = set(), [start]
            while queue:
                y, x = queue.pop()
                if 0 <= y < 7 and 0 <= x < 9 and mask[y, x] and kind[y, x] == kind[start] and (y, x) not in part:
                    part.add((y, x))
                    queue += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
            for place in part:
                seen[place] = True
            assert {tuple(each) for each in np.argwhere(labels == labels[start])} == part


def test_regions_have_the_whole_image_first_and_pixels_of_one_size(tmp_path):
    image = Image.fromarray(np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3))
    config = FinderConfig(finder="grid", rows=2, columns=3, side=4)
    boxes, features, _ = config.read(image)
    assert boxes.shape == (7, 4) and features.shape == (7, 48) and config.regions == 7
    np.testing.assert_allclose(boxes[0], [0, 0, 1, 1])
    np.testing.assert_allclose(boxes[1:], grid_boxes(2, 3))
    np.testing.assert_allclose(places(boxes)[:, 4], [1, *[1 / 6] * 6], rtol=1e-6)
    whole = np.asarray(image.resize((4, 4), Image.Resampling.BILINEAR)).transpose(2, 0, 1).ravel() / 127.5 - 1
    np.testing.assert_allclose(features[0], whole, atol=1e-3)
    assert np.isfinite(crops(image, np.array([[1.0, 1.0, 1.0, 1.0], [0.2, 0.3, 0.2, 0.3]]), 4)).all()  # no area
    config.save(tmp_path)
    assert FinderConfig.load(tmp_path) == config
    (tmp_path / "regions.json").write_text('{"finder": "magic"}')
    with pytest.raises(CheckpointError, match="magic"):
        FinderConfig.load(tmp_path)


def test_the_region_of_a_box_is_the_one_that_overlaps_it_most():
    boxes = np.array([[0, 0, 1, 1], [0.1, 0.1, 0.5, 0.5], [0.2, 0.2, 0.6, 0.6]])
    assert overlapping(boxes, (0.2, 0.2, 0.6, 0.55)) == 2 and overlapping(boxes, (0.1, 0.1, 0.5, 0.5)) == 1
    assert overlapping(boxes, (0.7, 0.7, 1.0, 1.0)) is None and overlapping(boxes[:1], (0.0, 0.0, 1.0, 1.0)) is None


# Batches


@pytest.fixture(scope="module")
def store(drawn, tmp_path_factory):
    tokenizer = train_vocabulary([scene.caption for scene in drawn], VocabularyConfig(kind="wordpiece"), "enclosed")
    config = FinderConfig(most=4, side=4)

    def examples():
        for scene in drawn:
            read = config.read(picture(scene), np.array([thing.box for thing in scene.things]))
            classes = np.eye(6)[[0] * len(read.boxes)]
            ids = tokenizer.encode([scene.caption])[0].ids
            yield read._replace(classes=classes), [(ids, 1), (ids[:3], -1)]

    folder = tmp_path_factory.mktemp("regions") / "train"
    RegionTexts.write(folder, examples(), config.regions)
    return RegionTexts.open(folder), tokenizer


def test_a_store_gives_back_what_was_written_and_travels_as_its_folder(store, drawn, tmp_path):
    texts, _ = store
    assert len(texts) == 2 * len(drawn) and texts.features.shape == (len(drawn), 5, 48)
    assert texts.counts.tolist() == [1 + len(scene.things) for scene in drawn]
    np.testing.assert_allclose(texts.places[0, 1, :4], drawn[0].things[0].box, rtol=1e-5)
    assert texts.targets[:4].tolist() == [1, -1, 1, -1] and texts.images[:4].tolist() == [0, 0, 1, 1]
    again = pickle.loads(pickle.dumps(texts))
    assert np.array_equal(again.features, texts.features)
    assert len(pickle.dumps(texts)) < 1000
    (tmp_path / "store.json").write_text("{}")
    with pytest.raises(DataError, match="prepare it again"):
        RegionTexts.open(tmp_path)


def test_masks_are_drawn_as_the_paper_says(store):
    texts, tokenizer = store
    maker = MaskedPairMaker(PairMaker(texts, tokenizer.pad, 40), Masking(tokenizer, 0.15), 0.15, seed=1)
    pairs = maker.pairs
    counts = Counter()
    for epoch in range(40):
        rows = np.arange(0, len(texts), 2)
        batch, true = maker(rows, (epoch, 0)), pairs(rows)
        chosen, masked = batch.region_labels_mask, batch.labels_mask
        assert not chosen[:, 0].any() and not (chosen & ~batch.region_mask).any()
        unmatched = batch.targets == 1
        assert not masked[unmatched].any() and not chosen[unmatched].any()
        matched = ~unmatched
        assert torch.equal(batch.labels[matched], true.inputs[matched])
        zeroed = (batch.features == 0).all(-1) & batch.region_mask
        counts["regions"] += int(batch.region_mask[matched][:, 1:].sum())
        counts["chosen"] += int(chosen.sum())
        counts["zeroed"] += int((zeroed & chosen).sum())
        counts["pairs"] += len(rows)
        counts["unmatched"] += int(unmatched.sum())
        words = (true.mask[matched].sum() - 2 * matched.sum()).item()
        counts["words"] += words
        counts["masked"] += int(masked.sum())
    assert counts["chosen"] / counts["regions"] == pytest.approx(0.15, abs=0.01)
    assert counts["zeroed"] / counts["chosen"] == pytest.approx(0.9, abs=0.02)
    assert counts["unmatched"] / counts["pairs"] == pytest.approx(0.5, abs=0.02)
    assert counts["masked"] / counts["words"] == pytest.approx(0.15, abs=0.02)


def test_an_example_does_not_depend_on_its_batch(store):
    texts, tokenizer = store
    for maker in (
        MaskedPairMaker(PairMaker(texts, tokenizer.pad, 40), Masking(tokenizer, 0.15), 0.15, seed=1),
        ChoiceMaker(PairMaker(texts, tokenizer.pad, 40), 1, seed=1),
    ):
        some, one = maker(np.arange(20), (2, 0)), maker(np.array([7]), (2, 5))
        assert torch.equal(some.inputs[7], one.inputs[0]) and torch.equal(some.features[7], one.features[0])
        assert not torch.equal(maker(np.arange(20), (3, 0)).inputs, some.inputs) or isinstance(maker, ChoiceMaker)


def test_the_first_choice_is_right_and_the_others_say_something_else(store):
    texts, tokenizer = store
    rows = np.arange(0, 60, 2)
    pairs = PairMaker(texts, tokenizer.pad, 40)
    batch, true = ChoiceMaker(pairs, 4, seed=1)(rows, (0, 0)), pairs(rows)
    inputs, features = batch.inputs.view(30, 4, -1), batch.features.view(30, 4, 5, -1)
    assert torch.equal(inputs[:, 0], true.inputs) and torch.equal(features[:, 0], true.features)
    assert batch.targets.tolist() == [0] * 30
    for wrong in (1, 2, 3):
        text = (inputs[:, wrong] != true.inputs).any(-1)
        image = (features[:, wrong] != true.features).flatten(1).any(-1)
        assert (text.all() and not image.any()) if wrong % 2 else (image.all() and not text.any())

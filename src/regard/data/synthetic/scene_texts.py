"""Texts about the built-in scenes besides captions: phrases that mean one shape, and questions with one answer.

A phrase or question is made only where it can be understood in one way: what it describes is there once, and places are
compared only where they clearly differ. `Chooser` keeps kinds of texts, and answers within a kind, equally frequent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import NamedTuple

import numpy as np

from regard.data.synthetic.shapes import COLOURS, MAX_OBJECTS, SHAPE_NAMES, Scene, Thing

CLEAR = 0.08  # a smaller difference of two places, relative to the side of the image, is not asked about
SIZES = ("large", "small")
NUMBERS = tuple(str(number) for number in range(MAX_OBJECTS + 1))
# two opposite sides, and the coordinate that is smaller on the first
SIDES = (("left", "right", "x"), ("above", "below", "y"))
ANSWERS = (  # of all questions
    *COLOURS, *SHAPE_NAMES, *SIZES, *NUMBERS, "yes", "no", *(word for side in SIDES for word in side[:2])
)  # fmt: skip
# the word of a relation, the coordinate it compares, and the sign of first - second where it holds
RELATIONS = (("left of", "x", -1), ("right of", "x", 1), ("above", "y", -1), ("below", "y", 1))
EXTREMES = (("leftmost", "x", -1), ("rightmost", "x", 1), ("highest", "y", -1), ("lowest", "y", 1))


class SceneText(NamedTuple):
    """A text about a scene, its kind, and what it means: the number of a thing, or an answer."""

    text: str
    kind: str
    target: int | str


def phrases(scene: Scene) -> Iterator[SceneText]:
    """Every phrase that means one thing of a scene, such as "the small blue square" or "the leftmost shape"."""
    things, known = scene.things, [_whole(thing) for thing in scene.things]
    for number, thing in enumerate(known):
        for words in _descriptions(thing):
            if _count(known, words) == 1:
                yield SceneText(f"the {_spoken(words)}", f"{sum(map(bool, words))} words", number)
    for word, coordinate, sign in EXTREMES:
        places = [sign * getattr(thing, coordinate) for thing in things]
        if len(things) > 1 and np.diff(np.sort(places))[-1] >= CLEAR:
            yield SceneText(f"the {word} shape", "place", int(np.argmax(places)))


def questions(scene: Scene, larger_first: bool | None = None) -> Iterator[SceneText]:
    """Every question about a scene that has one answer.

    Of two things, the larger or earlier one is named first, or last, or both.
    """
    things, known = scene.things, [_whole(thing) for thing in scene.things]
    for thing, whole in zip(things, known, strict=True):
        for words in _descriptions(whole):
            if _count(known, words) == 1:
                yield from _attributes(whole, words)
                yield from _from_the_middle(_spoken(words), thing)
    for first, second in permutations(range(len(things)), 2):
        if larger_first is not None and larger_first != (first < second):
            continue
        if known.count(known[first]) == known.count(known[second]) == 1:
            yield from _relations(things[first], things[second])
    yield SceneText("how many shapes are there", "number", NUMBERS[len(things)])
    _, colours, shapes = (Counter(column) for column in zip(*known, strict=True))
    for colour in COLOURS:
        yield SceneText(f"how many {colour} shapes are there", "number", NUMBERS[colours[colour]])
    for shape in SHAPE_NAMES:
        yield SceneText(f"how many {_plural(shape)} are there", "number", NUMBERS[shapes[shape]])
    here = {(colour, shape) for _, colour, shape in known}
    for colour, shape in product(COLOURS, SHAPE_NAMES):
        # A "no" is asked where the colour or the shape is there, so that the answer needs both.
        if colours[colour] or shapes[shape]:
            answer = "yes" if (colour, shape) in here else "no"
            yield SceneText(f"is there {_article(colour)} {colour} {shape}", "presence", answer)


class Chooser:
    """Draws texts so that kinds, and answers within a kind, are as equally frequent as the scenes allow."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.targets: Counter[tuple[str, int | str]] = Counter()

    def __call__(self, texts: Sequence[SceneText], count: int, rng: np.random.Generator) -> list[SceneText]:
        """Up to `count` different texts; of those that are equally needed, random ones."""
        left, drawn = [texts[place] for place in rng.permutation(len(texts))], list[SceneText]()
        while left and len(drawn) < count:
            best = min(left, key=lambda each: (self.kinds[each.kind], self.targets[each.kind, each.target]))
            self.kinds[best.kind] += 1
            self.targets[best.kind, best.target] += 1
            left.remove(best)
            drawn.append(best)
        return drawn


Words = tuple[str, str, str]  # size, colour and shape; empty where it is not said


def _whole(thing: Thing) -> Words:
    return thing.size, thing.colour, thing.shape


def _descriptions(thing: Words) -> Iterator[Words]:
    """All that can be said of a thing, from one word to three."""
    size, colour, shape = thing
    for words in product((size, ""), (colour, ""), (shape, "")):
        if any(words):
            yield words


def _count(things: Sequence[Words], words: Words) -> int:
    """How many things fit a description."""
    return sum(all(word in ("", real) for word, real in zip(words, thing, strict=True)) for thing in things)


def _spoken(words: Words) -> str:
    return " ".join(word for word in (*words[:2], words[2] or "shape") if word)


def _attributes(thing: Words, words: Words) -> Iterator[SceneText]:
    """Questions for what a description leaves out."""
    if not words[1]:
        yield SceneText(f"what colour is the {_spoken(words)}", "colour", thing[1])
    if not words[2]:
        yield SceneText(f"which shape is {' '.join(word for word in words if word)}", "shape", thing[2])
    if not words[0]:
        yield SceneText(f"is the {_spoken(words)} large or small", "size", thing[0])


def _relations(first: Thing, second: Thing) -> Iterator[SceneText]:
    """Whether two things are so related, and on which side of the second the first is.

    The answer to the former depends on the relation, on the places and on which thing is named first, and on no two of
    them: nothing of it can be learnt before all is. The latter is a step on the way, and so is the middle of the image
    in place of the second thing.
    """
    yield from _compared(first.words, first, f"the {second.words}", second, ("relation", "side"))


def _from_the_middle(name: str, thing: Thing) -> Iterator[SceneText]:
    """The same questions with the middle of the image in place of another thing."""
    yield from _compared(name, thing, "the middle", thing._replace(x=0.5, y=0.5), ("middle", "middle"))


def _compared(name: str, first: Thing, than: str, second: Thing, kinds: tuple[str, str]) -> Iterator[SceneText]:
    """Questions about the places of two things, answered with yes or no (the first kind) or with a side."""
    for word, coordinate, sign in RELATIONS:
        difference = sign * (getattr(first, coordinate) - getattr(second, coordinate))
        if abs(difference) >= CLEAR:
            yield SceneText(f"is the {name} {word} {than}", kinds[0], "yes" if difference > 0 else "no")
    for smaller, larger, coordinate in SIDES:
        difference = getattr(first, coordinate) - getattr(second, coordinate)
        if abs(difference) >= CLEAR:
            words = f"{smaller} or {larger}" + (" of" if coordinate == "x" else "")
            yield SceneText(f"is the {name} {words} {than}", kinds[1], larger if difference > 0 else smaller)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _plural(word: str) -> str:
    return f"{word}es" if word.endswith("s") else f"{word}s"

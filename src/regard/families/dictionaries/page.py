"""The features of a dictionary as plain values: contexts, outputs and effects, for the terminal, JSON and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from regard.families.dictionaries.pipeline import Feature, FeatureDictionary
from regard.look.page import bundle, fill_page, read_module, read_web

WORDS = 4  # that stand for a feature without a name
ANSWERS = {"whole": "as it is", "off": "off", "up": "turned up"}
LINE_END = "\n"
CELLS = " ·▪■"  # how strongly a place of an image is lit, in a terminal


def ranked(dictionary: FeatureDictionary) -> list[Feature]:
    """The features that were active on some example: named ones first, then the most frequent."""
    names = dictionary.names
    seen = [feature for feature in dictionary.contexts.features if feature.contexts]
    return sorted(seen, key=lambda feature: (feature.number not in names, -feature.share))


def words_of(feature: Feature) -> list[str]:
    """The tokens at which a feature is strongest, the most frequent first; of images, the places."""
    if not feature.contexts[0].tokens:
        return [f"image {context.example} place {context.position}" for context in feature.contexts[:WORDS]]
    counted = Counter(context.tokens[context.at] for context in feature.contexts)
    return [token.strip() or token for token, _ in counted.most_common(WORDS)]


def list_features(dictionary: FeatureDictionary) -> list[dict[str, Any]]:
    """What a list shows of every feature that was active: its name, how often it is active, and its words."""
    names = dictionary.names
    return [_listed(feature, names) for feature in ranked(dictionary)]


def _listed(feature: Feature, names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "number": feature.number,
        "name": names.get(feature.number, ""),
        "share": feature.share,
        "largest": feature.largest,
        "words": words_of(feature) if feature.contexts else [],
    }


def described(dictionary: FeatureDictionary, number: int) -> dict[str, Any]:
    """What is known of a feature without running the model: its contexts, and its direct effect on the output."""
    feature, outputs = dictionary.feature(number), dictionary.outputs(number)
    return _listed(feature, dictionary.names) | {
        "contexts": [asdict(context) for context in feature.contexts],
        "outputs": None if outputs is None else outputs._asdict(),
    }


def images_of(dictionary: FeatureDictionary, features: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The images that the contexts of some features are from, as PNG files in base64."""
    needed = {context["example"] for feature in features for context in feature["contexts"]}
    examples = dictionary.contexts.examples
    return {key: example.image for key, example in examples.items() if key in needed and example.image}


def feature_report(
    dictionary: FeatureDictionary, numbers: Sequence[int], *, progress: Callable[[int, int], None]
) -> dict[str, Any]:
    """Everything that a page shows of some features; the model runs with each of them off and turned up."""
    features = list[dict[str, Any]]()
    for done, number in enumerate(numbers):
        progress(done, len(numbers))
        effects = []
        for context, whole, off, up in dictionary.effects(number):
            prompt = "".join(context.tokens[: context.at + 1]) or f"image {context.example}"
            effects.append({"prompt": prompt, "whole": whole, "off": off, "up": up})
        features.append(described(dictionary, number) | {"effects": effects})
    return about(dictionary) | {"images": images_of(dictionary, features), "features": features}


def about(dictionary: FeatureDictionary) -> dict[str, Any]:
    """Which model and place a dictionary is of, and how many vectors its contexts were found among."""
    return {
        "dictionary": dictionary.name,
        "model": dictionary.subject.model,
        "place": dictionary.subject.place,
        "vectors": dictionary.contexts.vectors,
    }


def lines_of(feature: dict[str, Any]) -> Iterator[str]:
    """A feature of a report for the terminal."""
    yield f"feature {feature['number']}  {feature['name']}".rstrip()
    yield f"  active at {feature['share']:.2%} of the positions, largest value {feature['largest']:.2f}"
    for context in feature["contexts"]:
        yield f"  {context['values'][context['at']]:7.2f}  {_lit(context)}"
    if feature["outputs"]:
        for kind, pairs in feature["outputs"].items():
            yield f"  {kind:8} {'  '.join(f'{name} {value:+.2f}' for name, value in pairs)}"
    for effect in feature["effects"]:
        yield f"  {effect['prompt']}"
        yield from (f"    {label:10} {effect[key].replace(LINE_END, '⏎')}" for key, label in ANSWERS.items())


def _lit(context: dict[str, Any]) -> str:
    """A text with the active tokens in brackets, or the values of an image as rows of cells."""
    if context["tokens"]:
        pairs = zip(context["tokens"], context["values"], strict=True)
        return "".join(f"[{token}]" if value > 0 else token for token, value in pairs)
    if context["boxes"]:
        pairs = zip(context["boxes"], context["values"], strict=True)
        lit = ("-".join(f"{side:.2f}" for side in box) for box, value in pairs if value > 0)
        return f"image {context['example']}, boxes {', '.join(lit)}"
    most, columns = max(context["values"]) or 1.0, context["columns"]
    values = context["values"][-context["rows"] * columns :]
    cells = [CELLS[min(len(CELLS) - 1, int(len(CELLS) * value / most))] for value in values]
    rows = ["".join(cells[first : first + columns]) for first in range(0, len(cells), columns)]
    return f"image {context['example']}\n" + "\n".join(f"{'':11}|{row}|" for row in rows)


def render_features(report: dict[str, Any]) -> str:
    """The offline page of what `feature_report` gives."""
    script = bundle(["family/dictionaries/feature_page.js"], read_module)
    style = read_web("page.css") + read_web("features.css")
    return fill_page(title=f"Features of {report['place']}", style=style, script=script, data=report)

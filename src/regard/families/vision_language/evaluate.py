"""Models of texts and regions: matches and recalls of captions, and the accuracy of pointing and of answers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from regard.data.captions import captioned_images
from regard.data.sources import PARTS
from regard.data.synthetic.scene_texts import Chooser, SceneText, phrases, questions
from regard.data.synthetic.shapes import Scene, scenes
from regard.errors import DataError, UsageError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.vision_language.finders import Regions, overlapping
from regard.families.vision_language.pipeline import VisionLanguageModel
from regard.training.recipe.files import SCENES
from regard.training.scores import recalls

SIZE = 48  # pixels of a side of the scenes
POOL = 100  # images among which a caption's is searched
MISSED = -1  # the region of a shape that was not found; no answer is right then
EACH = 3  # phrases or questions about a scene


def evaluate_regions(reader: VisionLanguageModel, data: str, options: EvaluationOptions) -> Evaluation:
    """What the head of the model was trained for, on built-in scenes; regions are found in the pixels.

    Of a file of captions, all images and all captions are compared.
    """
    if data != SCENES:
        return _captioned(reader, data)
    drawn = list(scenes(part="test", count=options.count, seed=options.seed, size=SIZE))
    match reader.config.head:
        case "point" | "answer":
            return Evaluation(_targets(reader, drawn, options))
    pool = _distinct(drawn)[:POOL]
    regions, texts = [_regions(reader, each) for each in pool], [each.caption for each in pool]
    scores, right = reader.scores(regions, texts), np.eye(len(pool), dtype=bool)
    return Evaluation(retrieval_scores(scores, right, says_yes=reader.config.head == "pretraining"))


def _captioned(reader: VisionLanguageModel, data: str) -> Evaluation:
    """Recalls among all images of a file of captions, and among all of its captions; and what chance finds."""
    if reader.config.head not in ("pretraining", "score"):
        raise UsageError(f"{data}: phrases and questions with known answers are only in {SCENES!r}")
    unread: list[str] = []
    regions, texts, of = list[Regions](), list[str](), list[int]()
    for number, each in enumerate(captioned_images(data, problems=unread, skip_bad=True)):
        regions.append(reader.regions(each.image))
        texts += each.captions
        of += [number] * len(each.captions)
    if not regions:
        raise DataError(f"{data} has no image that can be read")
    right = np.arange(len(regions))[:, None] == np.array(of)[None]
    scores = retrieval_scores(reader.scores(regions, texts), right, says_yes=reader.config.head == "pretraining")
    rng = np.random.default_rng(0)
    chance = retrieval_scores(rng.random(right.shape), right, says_yes=False)
    return Evaluation({**scores, **{f"chance, {key}": value for key, value in chance.items() if "@" in key}}, unread)


def retrieval_scores(
    scores: NDArray[np.floating[Any]],
    right: NDArray[np.bool_],
    *,
    says_yes: bool,
) -> dict[str, object]:
    """Recalls in both directions of scores [images, texts], and the accuracy of yes and no, weighted equally."""
    found: dict[str, object] = {"images": len(scores), "texts": scores.shape[1]}
    if says_yes:
        found["match"] = float(((scores > 0)[right].mean() + (scores <= 0)[~right].mean()) / 2)
    for way, rows, same in (("caption to image", scores.T, right.T), ("image to caption", scores, right)):
        found |= {f"{way}, recall@{count}": share for count, share in recalls(rows, same).items()}
    return found


def _targets(reader: VisionLanguageModel, drawn: list[Scene], options: EvaluationOptions) -> dict[str, object]:
    """The share of phrases whose region is found, or of questions that are answered; by kind too."""
    choose, pointing = Chooser(), reader.config.head == "point"
    regions, texts, of, targets, kinds = list[Regions](), list[str](), list[int](), list[int | str](), list[str]()
    for number, scene in enumerate(drawn):
        rng = np.random.default_rng([options.seed, PARTS.index("test"), number, 1])
        regions.append(_regions(reader, scene))
        for each in choose(list(phrases(scene) if pointing else questions(scene)), EACH, rng):
            texts.append(each.text)
            of.append(number)
            kinds.append(each.kind)
            targets.append(_target(regions[-1], scene, each))
    if pointing:
        found: list[int | str] = [each.region for each in reader.pointed(regions, texts, of)]
    else:
        found = [each.label for each in reader.answered(regions, texts, of)]
    right = np.array([mine == true for mine, true in zip(found, targets, strict=True)])
    by_kind = {f"accuracy of {kind}": float(right[np.array(kinds) == kind].mean()) for kind in sorted(set(kinds))}
    return {"images": len(drawn), "texts": len(texts), "accuracy": float(right.mean()), **by_kind}


def _regions(reader: VisionLanguageModel, scene: Scene) -> Regions:
    return reader.regions(Image.fromarray(scene.pixels.transpose(1, 2, 0)))


def _target(regions: Regions, scene: Scene, text: SceneText) -> int | str:
    """The answer, or the found region that a phrase means; none if it was not found."""
    if isinstance(text.target, str):
        return text.target
    found = overlapping(regions.boxes, scene.things[text.target].box)
    return MISSED if found is None else found


def _distinct(drawn: list[Scene]) -> list[Scene]:
    """The scenes without those whose caption an earlier one has."""
    return list({scene.caption: scene for scene in reversed(drawn)}.values())[::-1]

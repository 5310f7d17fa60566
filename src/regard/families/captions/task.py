"""Captioning: texts about images, learnt by teacher forcing (Xu et al. 2015), and the scores of written captions.

Captions are compared with several references each by BLEU, CIDEr-D and ROUGE-L, as COCO's evaluation computes them; on
drawn scenes it is also measured whether a captioner looks at what it names. Texts are words separated by spaces
(`data/captions.py` makes them so). All scores are of the whole corpus, not means of BLEU over sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import nn

from regard.data.batch import CaptionBatch
from regard.data.loader import Rows, spread_evenly
from regard.data.synthetic.shapes import Scene
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError
from regard.families.captions.data import CaptionBatches, CaptionCorpus, CaptionedRows, DeviceCaptions, open_examples
from regard.families.captions.model import Captioner, CaptionerConfig
from regard.families.captions.pipeline import Caption, ImageCaptioner, write_captions
from regard.families.captions.recipe import DECODED, CaptioningRecipe
from regard.families.contract import Evaluation, EvaluationOptions
from regard.training.hard_attention import DrawsLoss
from regard.training.image_task import ImageTask, initial_preprocessing
from regard.training.initial_model import build_model, initial_tokenizer, planned_config, start_body
from regard.training.losses import Loss, cross_entropy, doubly_stochastic
from regard.training.safeguards import Poll
from regard.training.task import SAMPLES, Forward, Sample, SupervisedTask, Values

AT_ONCE = 64  # images whose captions are evaluated together
SHOWN = ("bleu4", "cider")  # scores of the baselines
ORDERS = 4  # n-grams of 1 to 4 words
CIDER_SIGMA, CIDER_SCALE = 6.0, 10.0  # Vedantam et al. 2015, CIDEr-D
ROUGE_BETA = 1.2

Words = Sequence[str]
Grams = Counter[tuple[str, ...]]


class CaptioningTask(ImageTask[CaptionBatch], SupervisedTask[CaptionBatch]):
    """Images with one or several captions each."""

    recipe: CaptioningRecipe
    corpus: CaptionCorpus

    @classmethod
    def images(cls, recipe: CaptioningRecipe) -> CaptionCorpus:
        config, init = planned_config(recipe.model, CaptionerConfig), recipe.model.init
        size, channels = config.image_size, config.channels
        given, tokenizer = initial_preprocessing(init, size, channels), initial_tokenizer(init) if init else None
        return CaptionCorpus(recipe.data, size, channels, recipe.seed, given, recipe.tokenizer, tokenizer)

    def __init__(self, recipe: CaptioningRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        training, config = recipe.training, planned_config(recipe.model, CaptionerConfig)
        self.factored = training.factored(device.type)
        self.draws: DrawsLoss | None = None
        if config.attention == "hard" and config.estimator == "reinforce":
            self.divisible = False  # every process would have a baseline of its own
            self.draws = DrawsLoss(self.carried, device, reward=training.draw_reward, entropy=training.draw_entropy)

    @property
    def pad(self) -> int:
        """Pads captions, and begins every one of them."""
        return self.corpus.tokenizer.pad

    def maker(self) -> CaptionBatches:
        part, recipe, training = self.corpus.train, self.recipe, self.recipe.training
        return CaptionBatches(
            part, self.pad, part.images.resident, recipe.augmentation, recipe.seed, training.captions,
            training.round_lengths, draws=True,
        )  # fmt: skip

    def placed(self, part: CaptionedRows) -> DeviceCaptions:
        return DeviceCaptions(part, self.device, self.pad)

    def build(self) -> nn.Module:
        section = self.recipe.model
        model = build_model(section, self.corpus.tokenizer)
        assert isinstance(model, Captioner)
        if section.body_init:
            start_body(model.body, section.body_init)
        return model

    def loss(self, model: Forward, batch: CaptionBatch) -> Loss:
        """Cross-entropy of the words, the penalty of places that are looked at too often or never, and the loss of
        drawn attention."""
        training, labels, mask = self.recipe.training, batch.labels, batch.labels_mask
        pixels = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        images = self.corpus.preprocessing.normalise(pixels)
        logits, seen = model(images, batch.inputs, mask, factored=self.factored)
        total = cross_entropy(logits, labels, mask, training.label_smoothing)
        if seen is not None and training.coverage:
            total = total + training.coverage * doubly_stochastic(seen.probabilities, mask)
        if self.draws is not None:
            assert seen is not None
            total = total + self.draws(seen, logits, labels, mask)
        return Loss(total, mask.sum())

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Loss and, of some images evenly spread, the scores of their captions."""
        values = {"loss": self._loss(model, self.valid, poll)}
        chosen = spread_evenly(self.recipe.training.validate_images, len(self.valid))
        if not len(chosen):
            return values
        captions, references = self._written(model, self.valid, chosen, poll)
        self.shown = [
            Sample(source=f"image {number}", target=references[number][0], output=captions[number])
            for number in range(0, len(captions), -(-len(captions) // SAMPLES))
        ]
        return values | _scores(captions, references)

    def measured(self, model: nn.Module, images: DeviceCaptions, poll: Poll) -> Values:
        """Loss and scores, both of all images."""
        values = {"loss": self._loss(model, images, poll)}
        return values | _scores(*self._written(model, images, np.arange(len(images)), poll))

    @torch.inference_mode()
    def _loss(self, model: nn.Module, images: DeviceCaptions, poll: Poll) -> float:
        total, tokens = torch.zeros((), device=self.device, dtype=torch.float64), 0
        for batch in images.batches(np.arange(len(images)), self.recipe.training.batch):
            poll()
            logits, _ = model(self.read(batch, images), batch.inputs, batch.labels_mask, factored=True)
            total += cross_entropy(logits, batch.labels, batch.labels_mask)
            tokens += batch.tokens
        return total.item() / tokens

    def _written(
        self, model: nn.Module, images: DeviceCaptions, rows: Rows, poll: Poll
    ) -> tuple[list[str], list[list[str]]]:
        """The captions that a model writes to some images, and the references."""
        settings, tokenizer = self.recipe.decoding.replace(n_best=1), self.corpus.tokenizer
        captions: list[str] = []
        for batch in images.batches(rows, self.recipe.training.batch):
            poll()
            hypotheses = write_captions(model, self.read(batch, images), settings, tokenizer)
            captions += [tokenizer.decode(best[0].tokens) for best in hypotheses]
        return captions, [images.texts[row] for row in rows]

    def save(self, folder: Path) -> None:
        self.corpus.tokenizer.save(folder)
        super().save(folder)


def _scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> Values:
    """The scores that training measures."""
    scores = caption_scores(captions, references)
    return {metric.name: scores[metric.name] for metric in DECODED}


# Scores


def caption_scores(captions: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
    """BLEU-1 to 4 in percent, CIDEr-D, ROUGE-L, and the share of captions that equal a reference."""
    written, known = [text.split() for text in captions], [[text.split() for text in some] for some in references]
    scores = {f"bleu{order}": 100 * score for order, score in enumerate(bleu(written, known), 1)}
    exact = sum(text in some for text, some in zip(captions, references, strict=True)) / len(captions)
    return scores | {"cider": cider_d(written, known), "rouge": rouge_l(written, known), "exact": exact}


def baseline_scores(texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, object]:
    """The scores of the most frequent reference for every image, and of each caption for another image."""
    ((constant, _),) = Counter(text for known in references for text in known).most_common(1)
    half = len(texts) // 2
    others = {"constant": [constant] * len(texts), "exchanged": [*texts[half:], *texts[:half]]}
    values: dict[str, object] = {"constant caption": constant}
    for name, captions in others.items():
        scores = caption_scores(captions, references)
        values |= {f"{name} {key}": scores[key] for key in SHOWN}
    return values


def bleu(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> list[float]:
    """BLEU-1 to 4 of a corpus (Papineni et al. 2002): clipped matches and lengths are summed over all captions; the
    length of a caption is compared with the closest reference."""
    right, made = [0] * ORDERS, [0] * ORDERS
    length = expected = 0
    for words, known in zip(captions, references, strict=True):
        length += len(words)
        expected += min((abs(len(each) - len(words)), len(each)) for each in known)[1]
        for order in range(1, ORDERS + 1):
            found, most = _grams(words, order), Counter[tuple[str, ...]]()
            for each in known:
                most |= _grams(each, order)
            right[order - 1] += (found & most).total()
            made[order - 1] += found.total()
    penalty = math.exp(min(0.0, 1 - expected / length)) if length else 0.0
    scores, product = [], 1.0
    for order in range(ORDERS):
        product *= right[order] / made[order] if made[order] else 0.0
        scores.append(penalty * product ** (1 / (order + 1)))
    return scores


def cider_d(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """CIDEr-D: the cosine of clipped TF-IDF vectors, less where lengths differ, times 10; the mean over references,
    orders and captions. A rare n-gram is one that few images have in their references."""
    frequency = Counter[tuple[str, ...]]()
    for known in references:
        frequency.update({gram for each in known for order in range(1, ORDERS + 1) for gram in _grams(each, order)})
    images = math.log(len(references))

    def vectors(words: Words) -> list[dict[tuple[str, ...], float]]:
        return [
            {gram: count * (images - math.log(max(1, frequency[gram]))) for gram, count in _grams(words, order).items()}
            for order in range(1, ORDERS + 1)
        ]

    total = 0.0
    for words, known in zip(captions, references, strict=True):
        mine = vectors(words)
        for each in known:
            penalty = math.exp(-((_bigrams(words) - _bigrams(each)) ** 2) / (2 * CIDER_SIGMA**2))
            alike = sum(_clipped_cosine(one, other) for one, other in zip(mine, vectors(each), strict=True))
            total += CIDER_SCALE * penalty * alike / ORDERS / len(known)
    return total / len(captions)


def rouge_l(captions: Sequence[Words], references: Sequence[Sequence[Words]]) -> float:
    """ROUGE-L: the F-measure of the longest common subsequence, with the best precision and recall among references."""
    total = 0.0
    for words, known in zip(captions, references, strict=True):
        common = [(_common_length(words, each), len(each)) for each in known]
        precision = max(same for same, _ in common) / max(1, len(words))
        recall = max(same / max(1, length) for same, length in common)
        if precision and recall:
            total += (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)
    return total / len(captions)


def _grams(words: Words, order: int) -> Grams:
    return Counter(tuple(words[at : at + order]) for at in range(len(words) - order + 1))


def _bigrams(words: Words) -> int:
    """The length by which CIDEr-D compares texts."""
    return max(0, len(words) - 1)


def _clipped_cosine(one: dict[tuple[str, ...], float], other: dict[tuple[str, ...], float]) -> float:
    product = sum(min(value, other[gram]) * other[gram] for gram, value in one.items() if gram in other)
    norms = math.sqrt(sum(v * v for v in one.values())) * math.sqrt(sum(v * v for v in other.values()))
    return product / norms if norms else 0.0


def _common_length(first: Words, second: Words) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for at, other in enumerate(second, 1):
            before, row[at] = row[at], before + 1 if word == other else max(row[at], row[at - 1])
    return row[-1]


class Looks:
    """How much of the attention falls on a shape while it is named, and how much of the image the shape covers."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.masses: dict[str, list[float]] = {}
        self.areas: list[float] = []

    def add(
        self,
        drawn: Sequence[Scene],
        captions: Sequence[tuple[str, Sequence[int]]],
        seen: Iterable[tuple[dict[str, Float[np.ndarray, "H T L"]], list[float]]],
    ) -> None:
        """Measure the words that name shapes: size, colour and shape of every object that is in the scene.

        Captions are texts with their token ids; for `seen` see `ImageCaptioner.forced`.
        """
        for scene, (text, ids), (layers, _) in zip(drawn, captions, seen, strict=True):
            numbers = self.tokenizer.word_numbers(ids)
            for thing, words in named_things(scene, text.split()):
                places = [place for place, number in enumerate(numbers) if number in words]
                assert scene.owners is not None
                inside = scene.owners == thing + 1
                self.areas.append(float(inside.mean()))
                for name, weights in layers.items():
                    mass = np.mean([mass_inside(weights[:, place].mean(axis=0), inside) for place in places])
                    self.masses.setdefault(name, []).append(float(mass))

    def scores(self) -> dict[str, object]:
        """The mean mass of every layer, and how many times the mean area that is."""
        if not self.areas:
            return {}
        area = float(np.mean(self.areas))
        scores: dict[str, object] = {"named shapes": len(self.areas), "area of a named shape": area}
        for name, masses in self.masses.items():
            mass, key = float(np.mean(masses)), f"attention on it, {name}"
            scores |= {key: mass, f"{key}, times its area": mass / max(area, 1e-9)}
        return scores


def named_things(scene: Scene, words: Sequence[str]) -> Iterator[tuple[int, range]]:
    """The objects of a scene that words name, each with the places of its three words."""
    left = [thing.words.split() for thing in scene.things]
    for place in range(len(words) - 2):
        name = list(words[place : place + 3])
        if name in left:
            number = left.index(name)
            left[number] = []  # an object is named once
            yield number, range(place, place + 3)


def mass_inside(weights: Float[np.ndarray, L], inside: NDArray[np.bool_]) -> float:
    """The weight of the cells of a square grid that falls on a part of the image, if it is spread evenly over cells."""
    side = int(len(weights) ** 0.5)
    rows, columns = (np.arange(size) * side // size for size in inside.shape)
    cells = rows[:, None] * side + columns[None, :]
    covered = np.bincount(cells[inside], minlength=len(weights)) / np.bincount(cells.ravel(), minlength=len(weights))
    return float(weights @ covered)


def evaluate_captions(captioner: ImageCaptioner, data: str, options: EvaluationOptions) -> Evaluation:
    """BLEU-1 to 4, CIDEr-D, ROUGE-L and exact captions; the same of a constant caption and of exchanged images."""
    unread, size = list[str](), captioner.preprocessing.size[0]
    settings = captioner.settings.replace(n_best=1, **({} if options.beam is None else {"beam": options.beam}))
    captions, references, looks = list[Caption](), list[list[str]](), Looks(captioner.tokenizer)
    examples = open_examples(data, size=size, part="test", count=options.count, seed=options.seed, problems=unread)
    while some := list(islice(examples, AT_ONCE)):
        pixels = torch.from_numpy(np.stack([captioner.pixels(example.image) for example in some]))
        written = captioner.describe(pixels, settings)
        captions += written
        references += [example.captions for example in some]
        drawn = [example.scene for example in some if example.scene is not None]
        if drawn and captioner.looks:
            said = [(caption.text, caption.ids) for caption in written]
            looks.add(drawn, said, captioner.forced(pixels, [ids for _, ids in said]))
        options.measured(len(some))
    if not captions:
        raise DataError(f"{data} has no captioned image that can be read")
    texts = [caption.text for caption in captions]
    scores: dict[str, object] = {"images": len(texts), **caption_scores(texts, references)}
    return Evaluation(scores | looks.scores() | baseline_scores(texts, references), unread)

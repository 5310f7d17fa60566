"""Models of texts and images as regions: which belong together, where a phrase points, and answers to questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import record
from regard.data.batch import pad_rows
from regard.data.captions import caption_words
from regard.data.images.reading import Pixels
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError
from regard.families.images.pipeline import DETAIL, ImageSource, open_image
from regard.families.vision_language.model import Head, Vilbert
from regard.families.vision_language.regions import Boxes, FinderConfig, RegionReader, Regions, places, region_reader
from regard.look.neurons import LayerNeurons, record_neurons
from regard.search.pipeline import Labelled, load_for_pipeline

BATCH_PAIRS = 256
VERBS: dict[Head, str] = {  # what a model with each head can do
    "none": "nothing yet", "pretraining": "match texts with images", "score": "match texts with images",
    "point": "point at regions", "answer": "answer questions",
}  # fmt: skip


@dataclass(frozen=True)
class Match:
    """How well a text fits an image: a score; `probability` only from a model that was trained to say yes or no."""

    image: int  # numbers among those that were given
    text: int
    score: float
    probability: float | None


@dataclass(frozen=True)
class Pointed:
    """The region that a phrase means, and the probability of every region; region 0 is the whole image."""

    region: int
    boxes: Boxes
    probabilities: list[float]

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the region, as fractions of the image."""
        left, top, right, bottom = self.boxes[self.region].tolist()
        return left, top, right, bottom


@dataclass(frozen=True)
class RegionAttention:
    """Recorded layers by name [H, queries, keys], the tokens of the text, and regions in an image."""

    weights: dict[str, Float[np.ndarray, "H Q K"]]
    tokens: list[str]
    boxes: Boxes
    pixels: Pixels
    neurons: Mapping[str, LayerNeurons] = field(default_factory=dict)


class VisionLanguageModel:
    """A model of texts and regions, with its tokenizer and its way of finding regions."""

    pipeline: ClassVar[str] = "vision_language"

    def __init__(self, model: Vilbert, tokenizer: TextTokenizer, finder: RegionReader, *, name: str = "") -> None:
        self.model, self.tokenizer, self.finder, self.name = model.eval(), tokenizer, finder, name
        self.config, self.device = model.config, next(model.parameters()).device
        self.labels = list(self.config.label_names) or [str(number) for number in range(self.config.labels)]

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> VisionLanguageModel:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="compares no texts with images")
        assert isinstance(loaded.model, Vilbert)
        tokenizer = TextTokenizer.load(loaded.folder)
        finder = region_reader(FinderConfig.load(loaded.folder), loaded.folder, device)
        return cls(loaded.model, tokenizer, finder, name=Path(folder).name)

    def regions(self, image: ImageSource) -> Regions:
        """The regions of an image: a path, the bytes of a file, or a Pillow image."""
        (regions,) = self.finder([open_image(image)])
        return regions

    def match(self, images: ImageSource | Sequence[ImageSource], texts: str | Sequence[str]) -> list[Match]:
        """Every text with every image, those that fit best first."""
        scores = self.scores([self.regions(image) for image in _list(images, ImageSource)], _list(texts, str))
        matches = [
            Match(image, text, float(score), self.probability(float(score)))
            for (image, text), score in np.ndenumerate(scores)
        ]
        return sorted(matches, key=lambda match: -match.score)

    def probability(self, score: float) -> float | None:
        """How probable it is that a text with this score fits; None if the model was only trained to rank."""
        return float(1 / (1 + np.exp(-score))) if self.config.head == "pretraining" else None

    @torch.inference_mode()
    def scores(self, images: Sequence[Regions], texts: Sequence[str]) -> Float[np.ndarray, "I T"]:
        """How well every text fits every image."""
        self.require("pretraining", "score")
        tokens, mask = (rows.to(self.device) for rows in pad_rows(self.ids(texts), self.tokenizer.pad))
        scores = np.empty((len(images), len(texts)), dtype=np.float32)
        for row, image in zip(scores, images, strict=True):
            regions = self._padded([image])  # once for all texts
            for begin in range(0, len(texts), BATCH_PAIRS):
                some = slice(begin, begin + BATCH_PAIRS)
                repeated = (tensor.expand(len(tokens[some]), *tensor.shape[1:]) for tensor in regions)
                row[some] = self.model(tokens[some], mask[some], *repeated).score.float().cpu().numpy()
        return scores

    def point(self, image: ImageSource, phrases: str | Sequence[str]) -> list[Pointed]:
        """The region of an image that each phrase means."""
        self.require("point")
        regions, texts = self.regions(image), _list(phrases, str)
        rows = self.probabilities([regions], texts, [0] * len(texts))
        return [Pointed(int(np.argmax(row)), regions.boxes, row) for row in rows]

    def answer(self, image: ImageSource, questions: str | Sequence[str]) -> list[Labelled]:
        """The answer to each question about an image, with the probability of every label."""
        self.require("answer")
        regions, texts = self.regions(image), _list(questions, str)
        rows = self.probabilities([regions], texts, [0] * len(texts))
        named = (sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1]) for row in rows)
        return [Labelled(dict(shares)) for shares in named]

    @torch.inference_mode()
    def probabilities(self, images: Sequence[Regions], texts: Sequence[str], of: Sequence[int]) -> list[list[float]]:
        """The probabilities of regions or answers for each text, with the image whose number is beside it."""
        ids, rows = self.ids(texts), list[list[float]]()
        for begin in range(0, len(texts), BATCH_PAIRS):
            some = slice(begin, begin + BATCH_PAIRS)
            logits: Tensor = self.model(*self.inputs(ids[some], [images[image] for image in of[some]])).logits
            rows += logits.float().softmax(dim=-1).tolist()
        return rows

    @torch.inference_mode()
    def attention(self, image: ImageSource, text: str, *, layers: str = "*") -> RegionAttention:
        """Every head of the layers whose names match, while the model reads a text and an image."""
        opened = open_image(image)
        regions, ids = self.regions(opened), self.ids([text])
        with record(self.model, layers) as looks, record_neurons(self.model, layers) as seen:
            self.model(*self.inputs(ids, [regions]))
        weights = {name: looks[name][0].float().cpu().numpy() for name in looks}
        opened.thumbnail((DETAIL, DETAIL))
        pixels = np.ascontiguousarray(np.asarray(opened.convert("RGB")).transpose(2, 0, 1))
        return RegionAttention(weights, self.tokenizer.shown(ids[0]), regions.boxes, pixels, seen)

    def require(self, *heads: Head) -> None:
        """Refuse what a model with another head cannot do."""
        if self.config.head not in heads:
            raise UsageError(
                f"{self.name or 'this model'} was trained to {VERBS[self.config.head]}, not to {VERBS[heads[0]]}"
            )

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of texts, in lower case and without punctuation as captions are learnt."""
        if empty := [text for text in texts if not caption_words(text)]:
            raise UsageError(f"{empty[0]!r} says nothing; give a text")
        rows = [row.ids for row in self.tokenizer.encode([caption_words(text) for text in texts])]
        for text, row in zip(texts, rows, strict=True):
            if len(row) > self.config.longest:
                raise UsageError(f"{text[:40]!r}… has {len(row)} tokens; the model reads {self.config.longest}")
        return rows

    def inputs(self, ids: Sequence[list[int]], images: Sequence[Regions]) -> list[Tensor]:
        """What the model reads of texts and images side by side, padded."""
        tokens = (rows.to(self.device) for rows in pad_rows(ids, self.tokenizer.pad))
        return [*tokens, *self._padded(images)]

    def _padded(self, images: Sequence[Regions]) -> list[Tensor]:
        """Features and places of the regions of images, and which of them are real."""
        counts = [len(image.boxes) for image in images]

        def padded(rows: Sequence[Any]) -> Tensor:
            whole = np.zeros((len(rows), max(counts), rows[0].shape[1]), dtype=np.float32)
            for number, row in enumerate(rows):
                whole[number, : len(row)] = row
            return torch.from_numpy(whole)

        real = torch.arange(max(counts))[None] < torch.tensor(counts)[:, None]
        tensors = padded([image.features for image in images]), padded([places(image.boxes) for image in images]), real
        return [tensor.to(self.device) for tensor in tensors]


def _list(given: Any, one: Any) -> list[Any]:
    return [given] if isinstance(given, one) else list(given)

"""What every model that is read offers: its examples as rows of numbers, batches of them, and their loss.

An example is one row of whole numbers for each column of its reader (tokens; source and target; pixels and class), so
that examples of any kind lie in the same memory-mapped files. Of a model of images the first row is the pixels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.intervene import Apply
from regard.attention.places import Computed, Place, find_places, record_activations
from regard.data.batch import Batch, collate
from regard.data.formats.lines import Documents
from regard.data.formats.pairs import Pair
from regard.data.images.reading import Pixels, Preprocessing
from regard.data.sources import Part
from regard.data.tokenizers.pair import START
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError, with_article
from regard.families.catalog import PIPELINES
from regard.layers.recurrent import Recurrent
from regard.search.pipeline import batches_by_length
from regard.search.search import search
from regard.search.settings import NO_TOKEN, SearchSettings
from regard.search.start import from_source

B = TypeVar("B")
Example = tuple[NDArray[Any], ...]  # one row for each column
SAMPLES, PHRASEBOOK, SCENES, SPEECH = "samples", "phrasebook", "scenes", "speech"
# Data without files; samples are texts that a language model writes itself. Every name can also have the prefix.
BUILT_IN, PREFIX = (SAMPLES, PHRASEBOOK, SCENES, SPEECH), "builtin:"


@dataclass(frozen=True)
class Source:
    """Where examples come from: a path or the name of built-in data, and how much of it is read."""

    path: str
    part: Part = "train"
    count: int = 10_000  # the most examples
    block: int = 128  # tokens of the longest text
    documents: Documents = "blank"
    to: str = ""  # the target language, for a translator with several
    seed: int = 1


@dataclass(frozen=True)
class TokenUnits:
    """The positions of a text, its tokens, or of a recording, its frames, in a form to be shown."""

    tokens: list[str]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class ImageUnits:
    """The positions of an image: `extra` tokens such as the class token, then places row by row."""

    pixels: NDArray[np.uint8]  # [C H W]
    rows: int
    columns: int
    extra: int = 0

    def __len__(self) -> int:
        return self.extra + self.rows * self.columns


@dataclass(frozen=True)
class BoxUnits:
    """The positions of an image that is read as regions: left, top, right, bottom of each, as shares of its sides."""

    pixels: NDArray[np.uint8]  # [C H W]
    boxes: list[list[float]]

    def __len__(self) -> int:
        return len(self.boxes)


Units = TokenUnits | ImageUnits | BoxUnits


class Reader(ABC, Generic[B]):
    """A model with the examples that it reads. B is a batch of them on the device."""

    columns: ClassVar[Mapping[str, str]]  # the data type of each column
    reads_text: ClassVar[bool] = True  # whether `given` takes a text; otherwise the path of a file
    built_in: ClassVar[Sequence[str]] = ()  # data that it reads without files
    at_once: ClassVar[int] = 0  # examples that are read together; 0: as many as fit, by their lengths
    model: nn.Module
    device: torch.device

    def __init__(self, pipeline: Any) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device

    @abstractmethod
    def examples(self, source: Source) -> Iterator[Example]:
        """The examples of some data."""

    @abstractmethod
    def given(self, text: str) -> Example:
        """The example that a person gives: a text, or the path of a file."""

    @abstractmethod
    def batch(self, examples: Sequence[Example]) -> B:
        """Examples as tensors."""

    @abstractmethod
    def run(self, batch: B) -> object:
        """Run the model on a batch in one pass, as far as it goes without its last matrix if that is large."""

    @abstractmethod
    def loss(self, batch: B) -> tuple[float, int]:
        """Run the model on a batch in one pass: the summed loss of its answers, and how many there are."""

    @abstractmethod
    def real(self, batch: B, place: str) -> Bool[Tensor, "B T"] | None:
        """Which positions at a place are not padding; None if all."""

    def arranged(self, vectors: Float[Tensor, "N *T D"], place: str) -> Float[Tensor, "B *T D"]:
        """The vectors of a place with one row for each example, where the model reads an example in several rows."""
        return vectors

    @abstractmethod
    def units(self, example: Example, place: str) -> Units:
        """The positions at a place, as people see them."""

    @abstractmethod
    def answer(self, example: Example, position: int) -> str:
        """What the model says to an example; a language model continues it from a position on."""

    def output_names(self) -> Callable[[int], str]:
        """The names of the model's logits: tokens or classes."""
        return str

    def length(self, example: Example) -> int:
        """The size by which examples are batched."""
        return sum(map(len, example))

    def batches(self, examples: Sequence[Example]) -> Iterator[list[int]]:
        """The numbers of examples that are read together."""
        if self.at_once:
            count, step = len(examples), self.at_once
            return (list(range(first, min(first + step, count))) for first in range(0, count, step))
        return batches_by_length([self.length(example) for example in examples])


class Site:
    """One place of a model, at which every position has a vector; of a place with heads, their outputs side by side."""

    def __init__(self, model: nn.Module, name: str) -> None:
        places = find_places(model, name)
        if len(places) > 1:
            raise UsageError(f"{name!r} matches {len(places)} places, such as {places[0].name}; name one of them")
        self.model, self.place, self.name = model, places[0], places[0].name

    @property
    def changeable(self) -> bool:
        """Whether another value can be put there."""
        return not isinstance(self.place.spot, Computed)

    def vectors(self, value: Tensor) -> Float[Tensor, "B *T D"]:
        """A value of the place as one vector for each position."""
        return value.movedim(1, -2).flatten(-2) if self.place.spot.headed else value

    def replaced(self, change: Callable[[Tensor], Tensor]) -> Apply:
        """The intervention that changes the vectors by a function of [*rest D]."""

        def new(value: Tensor) -> Tensor:
            changed = change(self.vectors(value).float()).to(value.dtype)
            return changed.unflatten(-1, (value.shape[1], -1)).movedim(-2, 1) if self.place.spot.headed else changed

        return Apply(self.name, new)


@dataclass(frozen=True)
class Seen:
    """What a pass showed: the vectors [B *T D] of a place, which of them are real [B *T], and the loss if asked for."""

    vectors: Float[Tensor, "B *T D"]
    real: Bool[Tensor, B * T]
    loss: float = 0.0
    answers: int = 0

    @property
    def rows(self) -> Float[Tensor, "N D"]:
        """The real vectors, one after another."""
        return self.vectors[self.real]


@torch.inference_mode()
def observe(reader: Reader[Any], site: Site, examples: Sequence[Example], *, loss: bool = False) -> Seen:
    """Run a model on a batch of examples and keep the vectors of a place; with `loss`, also the summed loss."""
    batch, summed, answers = reader.batch(examples), 0.0, 0
    with record_activations(site.model, site.name) as recorded:
        if loss:
            summed, answers = reader.loss(batch)
        else:
            reader.run(batch)
    if site.name not in recorded:
        raise UsageError(f"{site.name} was not used while the model read its examples; choose another place")
    vectors = reader.arranged(site.vectors(recorded[site.name]).float(), site.name)
    real = reader.real(batch, site.name)
    shape = vectors.shape[:-1]
    if real is None:
        real = torch.ones(shape, dtype=torch.bool, device=vectors.device)
    if real.shape != shape:
        raise UsageError(
            f"{site.name} has the shape {list(recorded[site.name].shape)}, which is not one vector for each of "
            f"{list(real.shape)} positions; choose another place"
        )
    return Seen(vectors, real, summed, answers)


def side_of(place: Place | str) -> str:
    """What the positions of a place belong to: "source" in an encoder or the body of a model of images, and in what a
    decoder looks at there."""
    name = place if isinstance(place, str) else place.name
    return "source" if name.startswith(("encoder", "body")) or is_looked_at(name) else "target"


def is_looked_at(place: str) -> bool:
    """Whether a place holds what an attention between two sides looks at, which belongs to the other side."""
    return ".cross." in f".{place}" and place.endswith((".keys", ".values"))


def summed_loss(logits: Any, labels: Int[Tensor, "*N"], counted: Bool[Tensor, "*N"]) -> tuple[float, int]:
    """The cross-entropy of the labels that count, summed, and how many there are."""
    total = functional.cross_entropy(logits[counted].float(), labels[counted], reduction="sum")
    return float(total), int(counted.sum())


def fed_tokens(tokenizer: TextTokenizer, ids: Sequence[int]) -> TokenUnits:
    """What a decoder is fed to write a text: all of its tokens but the last, after the sign that it begins, which has
    the id of padding and is shown as what it is."""
    return TokenUnits([START, *tokenizer.running(ids[:-1])])


def goes_by_steps(model: nn.Module) -> bool:
    """Whether a model has a recurrent decoder. Trained on whole texts it computes its states without a call at each, so
    that they can be seen and changed only while it goes step by step."""
    decoder = getattr(model, "decoder", None)
    return isinstance(decoder, nn.Module) and any(isinstance(module, Recurrent) for module in decoder.modules())


def step_logits(model: Any, state: object, inputs: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
    """The logits of every next token, from a state before the first, one token at a time."""
    return torch.cat([model.step(token, state) for token in inputs.split(1, dim=1)], dim=1)


class SourceReader(Reader[Batch]):
    """A model that reads tokens and writes others. Places of its encoder belong to what it reads."""

    columns: ClassVar = {"source": "<i4", "target": "<i4"}

    def __init__(self, pipeline: Any, model: nn.Module, settings: SearchSettings) -> None:
        self.decoding, self.model, self.settings, self.device = pipeline, model, settings, pipeline.device
        self.by_steps = goes_by_steps(model)

    @abstractmethod
    def pairs(self, source: Source) -> Iterator[Pair]:
        """The texts of some data."""

    @abstractmethod
    def source_ids(self, text: str, to: str) -> list[int]:
        """The tokens of a text that is read, in a language or for a task."""

    @abstractmethod
    def target_ids(self, text: str) -> list[int]:
        """The tokens of an answer, with its end."""

    @abstractmethod
    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        """Tokens as they are shown."""

    def examples(self, source: Source) -> Iterator[Example]:
        examples = (self.example(pair) for pair in islice(self.pairs(source), source.count))
        return (example for example in examples if max(map(len, example)) <= source.block)

    def example(self, pair: Pair) -> Example:
        """A text and its answer, whatever their lengths."""
        ids, answer = self.source_ids(pair.source, pair.to), self.target_ids(pair.target)
        return np.array(ids, dtype=np.int32), np.array(answer, dtype=np.int32)

    def answered(self, text: str, to: str) -> Example:
        """A text with the model's own answer."""
        ids = np.array(self.source_ids(text, to), dtype=np.int32)
        end = self.decoding.vocabulary.end
        return ids, np.array([*self.said(ids), *([] if end == NO_TOKEN else [end])], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> Batch:
        vocabulary = self.decoding.vocabulary
        sources, targets = zip(*examples, strict=True)
        return collate(sources, targets, pad=vocabulary.pad, start=vocabulary.start).to(self.device)

    def run(self, batch: Batch) -> object:
        return self._logits(batch, factored=True)

    def loss(self, batch: Batch) -> tuple[float, int]:
        return summed_loss(self._logits(batch), batch.labels, batch.labels_mask)

    def real(self, batch: Batch, place: str) -> Bool[Tensor, "B T"]:
        return batch.source_mask if side_of(place) == "source" else batch.labels_mask

    def units(self, example: Example, place: str) -> TokenUnits:
        source, target = (ids.tolist() for ids in example)
        side = side_of(place)
        shown = source if side == "source" else [self.decoding.vocabulary.start, *target[:-1]]
        if place.startswith("encoder") and getattr(self.model.config, "reverse_source", False):
            shown = shown[::-1]  # some recurrent encoders read a sentence from its end
        return TokenUnits(self.pieces(shown, side))

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.pieces([number], "target")[0]

    def said(self, ids: np.ndarray) -> list[int]:
        """The tokens of the model's answer, without its end."""
        source = torch.tensor(ids[None], dtype=torch.long, device=self.device)
        vocabulary, decoder, mask = self.decoding.vocabulary, self.decoding.decoder, torch.ones_like(source).bool()
        start = from_source(decoder, source, mask, self.settings, vocabulary.start)
        return list(search(decoder, start, self.settings, vocabulary)[0][0].tokens)

    def _logits(self, batch: Batch, *, factored: bool = False) -> object:
        if self.by_steps:
            model: nn.Module = self.model
            return step_logits(model, model.start(batch.source, batch.source_mask), batch.inputs)  # type: ignore[operator]
        return self.model(batch.source, batch.source_mask, batch.inputs, factored=factored)


def reader_of(pipeline: Any) -> Reader[Any]:
    """The reader of a loaded pipeline."""
    entry = PIPELINES[pipeline.pipeline]
    if not entry.reader:
        names = [other.class_name.rpartition(".")[2] for other in PIPELINES.values() if other.reader]
        raise UsageError(
            f"a sparse autoencoder cannot read {with_article(type(pipeline).__name__)}; it reads: {', '.join(names)}"
        )
    reader: Reader[Any] = entry.load(entry.reader)(pipeline)
    return reader


AT_ONCE = 64  # images


class PipelineOfImages(Protocol):
    """A pipeline whose model reads images."""

    @property
    def model(self) -> nn.Module: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def preprocessing(self) -> Preprocessing: ...
    def pixels(self, image: Any) -> Pixels: ...


class PixelReader(Reader[B]):
    """A model that reads images of one size."""

    reads_text: ClassVar = False
    built_in: ClassVar = (SCENES,)
    at_once: ClassVar = AT_ONCE

    def __init__(self, pipeline: PipelineOfImages) -> None:
        super().__init__(pipeline)
        self.shape = (pipeline.preprocessing.channels, *pipeline.preprocessing.size)

    def row(self, image: Image.Image | str) -> NDArray[np.uint8]:
        """The pixels of an image, or of a file, at the size of the model."""
        return self.pipeline.pixels(image).ravel()

    def image(self, example: Example) -> Pixels:
        """The image of an example."""
        return example[0].reshape(self.shape)

    def pixels(self, examples: Sequence[Example]) -> UInt8[Tensor, "B C H W"]:
        """The images of examples."""
        return torch.from_numpy(np.stack([self.image(example) for example in examples]))

    def normalised(self, examples: Sequence[Example]) -> Float[Tensor, "B C H W"]:
        """The images of examples as the model reads them."""
        return self.pipeline.preprocessing.normalise(self.pixels(examples).to(self.device))

    def real(self, batch: B, place: str) -> Bool[Tensor, "B T"] | None:
        return None

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> Units:
        """The map of a place, perhaps after a class token. Places in a row are those of a map of the image's shape."""
        shape = observe(self, Site(self.model, place), [example]).vectors.shape[1:-1]
        pixels = self.image(example)
        if len(shape) == 2:
            return ImageUnits(pixels, *shape)
        aspect = pixels.shape[1] / pixels.shape[2]
        rows = int((shape[0] * aspect) ** 0.5 + 1e-6)
        columns = round(rows / aspect)
        return ImageUnits(pixels, rows, columns, shape[0] - rows * columns)

"""A dictionary of features with the model that it reads: what a feature stands for, and what it does to the model."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention.intervene import intervene
from regard.checkpoints import load_model
from regard.checkpoints.folder import local_folder, read_json
from regard.config import Config
from regard.data.files import write_whole
from regard.data.images.reading import png
from regard.device import find_device
from regard.errors import CheckpointError, UsageError, with_article
from regard.families.dictionaries.model import SparseAutoencoder
from regard.families.loading import load_pipeline
from regard.look.predictions import Unembeds
from regard.look.reader import (
    BoxUnits,
    Example,
    ImageUnits,
    Reader,
    Site,
    TokenUnits,
    Units,
    observe,
    reader_of,
)

SUBJECT, CONTEXTS, NAMES = "dictionary.json", "features.json", "names.json"
TOP_CONTEXTS = 8  # of each feature
AROUND = 12  # tokens shown on either side of the strongest
OUTPUTS = 8  # tokens or classes that a feature makes most, and least, probable
TURNED_UP = 2.0  # times the largest value that was seen


def fingerprint(model: nn.Module) -> str:
    """A number that tells the weights of models apart."""
    checksum = 0
    for name, weights in sorted(model.named_parameters()):
        raw = weights.detach().cpu().contiguous().view(torch.uint8).numpy()
        checksum = zlib.crc32(raw.tobytes(), zlib.crc32(name.encode(), checksum))
    return f"{checksum:08x}"


class Subject(Config):
    """Which model and place a dictionary is of."""

    model: str
    place: str
    weights: str = ""  # the fingerprint of the model; dictionaries of earlier versions have none

    def save(self, folder: Path) -> None:
        """Write it beside the weights."""
        (folder / SUBJECT).write_text(self.model_dump_json(), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Subject:
        """Read what `save` wrote."""
        if not (folder / SUBJECT).is_file():
            raise CheckpointError(f"{folder} has no {SUBJECT}, which says which model its features are of")
        return cls.parse(read_json(folder / SUBJECT), where=str(folder / SUBJECT))


@dataclass(frozen=True)
class Context:
    """A stretch of an example in which a feature is active: the value at every position, the strongest at `at`.

    Of a text, it has tokens; of an image, rows and columns of values, the last of all, or the box of every value.
    """

    example: str  # its key among all examples
    values: list[float]
    at: int
    position: int  # of the strongest value in the whole example
    tokens: list[str] = field(default_factory=list)
    rows: int = 0
    columns: int = 0
    boxes: list[list[float]] = field(default_factory=list)

    @property
    def strongest(self) -> float:
        return self.values[self.at]


@dataclass(frozen=True)
class StoredExample:
    """A whole example, so that the model can read it again: every row as packed bytes. Images also as PNG files."""

    rows: list[str]
    image: str = ""

    @classmethod
    def pack(cls, example: Example, dtypes: Sequence[str], image: str) -> StoredExample:
        """An example whose columns have these data types."""
        raw = [row.astype(dtype).tobytes() for row, dtype in zip(example, dtypes, strict=True)]
        return cls([base64.b64encode(zlib.compress(row)).decode() for row in raw], image)

    def unpack(self, dtypes: Sequence[str]) -> Example:
        """What `pack` was given."""
        raw = (zlib.decompress(base64.b64decode(row)) for row in self.rows)
        return tuple(np.frombuffer(row, dtype=dtype) for row, dtype in zip(raw, dtypes, strict=True))


@dataclass(frozen=True)
class Feature:
    """What is known of a feature: how often it is active, its largest value, and where."""

    number: int
    share: float  # of the vectors at which it is active
    largest: float
    contexts: list[Context]


@dataclass(frozen=True)
class Contexts:
    """The features of a dictionary with their strongest contexts, and the examples that these are from."""

    vectors: int
    features: list[Feature]
    examples: dict[str, StoredExample]

    def save(self, folder: Path) -> None:
        """Write them beside the weights."""
        (folder / CONTEXTS).write_text(json.dumps(asdict(self), ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Contexts:
        """Read what `save` wrote."""
        if not (folder / CONTEXTS).is_file():
            raise CheckpointError(f"{folder} has no {CONTEXTS}; it is written when the training of a dictionary ends")
        read = json.loads((folder / CONTEXTS).read_text(encoding="utf-8"))
        features = [
            Feature(**{**values, "contexts": [Context(**context) for context in values["contexts"]]})
            for values in read["features"]
        ]
        examples = {key: StoredExample(**values) for key, values in read["examples"].items()}
        return cls(read["vectors"], features, examples)


class ActiveFeature(NamedTuple):
    """A feature that is active on an input: its largest value there and its position, and the value at every one."""

    number: int
    value: float
    at: int
    values: list[float]


class Effect(NamedTuple):
    """What a model says to a context as it is, with a feature switched off, and with the feature turned up."""

    context: Context
    whole: str
    off: str
    up: str


class Outputs(NamedTuple):
    """The tokens or classes whose logits a feature raises most and lowers most, through the unembedding alone."""

    raised: list[tuple[str, float]]
    lowered: list[tuple[str, float]]


class FeatureDictionary:
    """A trained dictionary. The model that it reads is loaded when it is first needed."""

    pipeline: ClassVar[str] = "feature_dictionary"

    def __init__(
        self, model: SparseAutoencoder, subject: Subject, folder: Path, *, device: str = "cpu", name: str = ""
    ) -> None:
        self.model, self.subject, self.folder, self.name = model.eval(), subject, folder, name
        self.device = model.mean.device
        self._device = device

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> FeatureDictionary:
        """Read the folder of a dictionary."""
        loaded = load_model(Path(folder), find_device(device), allow_pickle)
        if not isinstance(loaded.model, SparseAutoencoder):
            raise UsageError(f"{folder} is {with_article(loaded.name)} model; expected a dictionary of features")
        subject = Subject.load(loaded.folder)
        return cls(loaded.model, subject, loaded.folder, device=device, name=Path(folder).name)

    def of(self, model: str) -> FeatureDictionary:
        """The same dictionary, read from another copy of its model."""
        return FeatureDictionary(
            self.model, self.subject.replace(model=model), self.folder, device=self._device, name=self.name
        )

    @cached_property
    def reader(self) -> Reader[Any]:
        """The model that the dictionary reads."""
        model = self.subject.model
        if not local_folder(model).exists():
            raise UsageError(
                f"the features of {self.name} are of {model}, which is not there; name its folder with --of"
            )
        reader = reader_of(load_pipeline(model, device=self._device))
        if self.subject.weights not in ("", fingerprint(reader.model)):
            raise UsageError(
                f"the features of {self.name} are of another model than {model}: its weights are not those they were "
                "learnt from; train the dictionary again, or name the folder of its model with --of"
            )
        return reader

    @cached_property
    def site(self) -> Site:
        """The place that the dictionary reads."""
        return Site(self.reader.model, self.subject.place)

    @cached_property
    def contexts(self) -> Contexts:
        """The strongest contexts of every feature, found when training ended."""
        return Contexts.load(self.folder)

    def feature(self, number: int) -> Feature:
        """One feature by its number."""
        if not 0 <= number < self.model.config.features:
            raise UsageError(f"there is no feature {number}; there are 0 to {self.model.config.features - 1}")
        return self.contexts.features[number]

    # Names

    @property
    def names(self) -> dict[int, str]:
        """The names that people gave to features."""
        path = self.folder / NAMES
        return {int(number): name for number, name in read_json(path).items()} if path.is_file() else {}

    def rename(self, names: Mapping[int, str]) -> None:
        """Give features names, which are kept beside the weights; an empty name removes one."""
        for number in names:
            self.feature(number)
        kept = {number: name for number, name in (self.names | dict(names)).items() if name}
        text = json.dumps({str(number): kept[number] for number in sorted(kept)}, ensure_ascii=False, indent=1)
        write_whole(self.folder / NAMES, text + "\n")

    # What features do

    @torch.inference_mode()
    def active(self, text: str, top: int = 20) -> tuple[Units, list[ActiveFeature]]:
        """The positions of a text, or of the image of a file, and the features most active there, strongest first.

        A feature's value is compared with the largest that was seen in training.
        """
        example = self.reader.given(text)
        values = self.model.encode(observe(self.reader, self.site, [example]).rows)
        largest = torch.tensor([feature.largest for feature in self.contexts.features], device=values.device)
        strength, where = (values / largest.clamp(min=1e-6)).max(dim=0)
        active = [number for number in strength.argsort(descending=True).tolist() if float(values[:, number].max()) > 0]
        return self.reader.units(example, self.site.name), [
            ActiveFeature(number, float(values[where[number], number]), int(where[number]), values[:, number].tolist())
            for number in active[:top]
        ]

    @torch.inference_mode()
    def outputs(self, number: int) -> Outputs | None:
        """The logits that a feature raises and lowers, seen from the mean activation; None if nothing unembeds it."""
        self.feature(number)
        model, width = self.reader.model, self.model.config.width
        if not isinstance(model, Unembeds) or not _is_stream(self.subject.place, model):
            return None
        mean = self.model.mean.view(1, 1, width)
        moved = mean + self.feature(number).largest * self.model.scale * self.model.directions[number]
        change = (model.unembed(moved) - model.unembed(mean)).flatten()
        change, name = change - change.mean(), self.reader.output_names()
        count, order = min(OUTPUTS, len(change) // 2), change.argsort(descending=True).tolist()
        first, last = order[:count], order[len(order) - count :][::-1]
        return Outputs(*([(name(output), float(change[output])) for output in some] for some in (first, last)))

    def effects(self, number: int, count: int = 2) -> list[Effect]:
        """What the model says to the strongest contexts as it is, without the feature, and with it everywhere."""
        feature = self.feature(number)
        values = [0.0, TURNED_UP * feature.largest]
        return [
            Effect(context, *self._answers(*self._stored(context), number, *values))
            for context in feature.contexts[:count]
        ]

    def answers(self, text: str, number: int, value: float) -> tuple[str, str]:
        """What the model says to a text or the image of a file, as it is and if a feature has a value everywhere."""
        self.feature(number)
        example = self.reader.given(text)
        whole, changed = self._answers(example, len(example[0]) - 1, number, value)
        return whole, changed

    def answers_in(self, number: int, context: int, value: float) -> tuple[str, str]:
        """The same for one of the strongest contexts of the feature, counted from 0."""
        contexts = self.feature(number).contexts
        if not 0 <= context < len(contexts):
            raise UsageError(
                f"there is no context {context} of feature {number}; it has {len(contexts)}, counted from 0"
            )
        whole, changed = self._answers(*self._stored(contexts[context]), number, value)
        return whole, changed

    def changed(self, number: int, value: float) -> AbstractContextManager[None]:
        """A context in which one feature has another value at every position; 0 switches it off."""
        change = self.site.replaced(lambda vectors: self.model.with_feature(vectors, number, value))
        return intervene(self.site.model, change)

    def _stored(self, context: Context) -> tuple[Example, int]:
        """The whole example of a context, and the position at which the feature is strongest."""
        stored = self.contexts.examples[context.example]
        return stored.unpack(list(self.reader.columns.values())), context.position

    def _answers(self, example: Example, position: int, number: int, *values: float) -> list[str]:
        """What the model says as it is, and with each value of a feature."""
        answers = [self.reader.answer(example, position)]
        for value in values:
            with self.changed(number, value):
                answers.append(self.reader.answer(example, position))
        return answers


def _is_stream(place: str, model: torch.nn.Module) -> bool:
    """Whether what is written at a place reaches the unembedding by residual connections alone."""
    last = place.rpartition(".")[2]
    ends = "decoder" if hasattr(model, "decoder") else "encoder"
    return place.startswith(ends) and last in ("input", "residual", "after_attention", "after_cross")


@torch.inference_mode()
def find_contexts(
    reader: Reader[Any], site: Site, dictionary: SparseAutoencoder, examples: Sequence[Example]
) -> Contexts:
    """The strongest contexts of every feature: at most one of each example, found example by example."""
    count = dictionary.config.features
    best = torch.full((TOP_CONTEXTS, count), -1.0)
    where = torch.zeros((TOP_CONTEXTS, count), dtype=torch.long)  # the number of the example
    active, vectors = torch.zeros(count, dtype=torch.long), 0
    for batch in reader.batches(examples):
        seen = observe(reader, site, [examples[number] for number in batch])
        real = seen.real.flatten(1)
        values = (dictionary.encode(seen.vectors.flatten(1, -2)) * real[..., None]).cpu()
        vectors += int(real.sum())
        active += (values > 0).sum(dim=(0, 1))
        best, order = torch.cat([best, values.amax(dim=1)]).topk(TOP_CONTEXTS, dim=0)
        where = torch.cat([where, torch.tensor(batch)[:, None].expand(-1, count)]).gather(0, order)
    features = [
        Feature(number, int(active[number]) / max(vectors, 1), max(0.0, float(best[0, number])), [])
        for number in range(count)
    ]
    stored: dict[str, StoredExample] = {}
    for example, values in _again(reader, site, dictionary, examples, where[best > 0].unique().tolist()):
        units, key = reader.units(examples[example], site.name), str(example)
        shown = "" if isinstance(units, TokenUnits) else base64.b64encode(png(units.pixels)).decode()
        stored[key] = StoredExample.pack(examples[example], list(reader.columns.values()), shown)
        for number in ((where == example) & (best > 0)).any(dim=0).nonzero()[:, 0].tolist():
            features[number].contexts.append(_context(key, units, values[:, number]))
    for feature in features:
        feature.contexts.sort(key=lambda context: -context.strongest)
    return Contexts(vectors, features, stored)


def _again(
    reader: Reader[Any], site: Site, dictionary: SparseAutoencoder, examples: Sequence[Example], numbers: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "T F"]]]:
    """The features at every position of some examples."""
    for batch in reader.batches([examples[number] for number in numbers]):
        seen = observe(reader, site, [examples[numbers[place]] for place in batch])
        for place, rows, real in zip(batch, seen.vectors.flatten(1, -2), seen.real.flatten(1), strict=True):
            yield numbers[place], dictionary.encode(rows[real]).cpu()


def _context(example: str, units: Units, values: Float[Tensor, T]) -> Context:
    row, at = [round(value, 4) for value in values.tolist()], int(values.argmax())
    if isinstance(units, ImageUnits):
        return Context(example, row, at, at, rows=units.rows, columns=units.columns)
    if isinstance(units, BoxUnits):
        return Context(example, row, at, at, boxes=[[round(side, 4) for side in box] for box in units.boxes])
    first, last = max(0, at - AROUND), min(len(row), at + AROUND + 1)
    return Context(example, row[first:last], at - first, at, tokens=units.tokens[first:last])

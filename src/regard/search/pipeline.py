"""What pipelines that decode share: loading models, their fast versions, and their default search settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torch import nn

from regard.checkpoints import LoadedModel, load_model
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.device import find_device
from regard.errors import UsageError, with_article
from regard.families.catalog import MODELS, models_run_by
from regard.search.cuda_graphs import with_cuda_graphs
from regard.search.protocols import Ensemble, TokenSourceModel
from regard.search.settings import SearchSettings
from regard.search.speculative import decoding_model, learned_positions

BATCH_TOKENS, BATCH_SENTENCES, BATCH_HYPOTHESES = 4096, 64, 1024  # the most of a batch


def batches_by_length(lengths: Sequence[int], width: int = 1) -> Iterator[list[int]]:
    """Sentence numbers, sorted by length and cut into batches that fit with `width` hypotheses for each sentence."""
    most = max(1, min(BATCH_SENTENCES, BATCH_HYPOTHESES // width))
    return batches_that_fit(lengths, lambda count, longest: count <= most and count * longest <= BATCH_TOKENS)


def batches_that_fit(lengths: Sequence[int], fits: Callable[[int, int], bool]) -> Iterator[list[int]]:
    """Numbers of examples, sorted by length, in batches that `fits` allows by their count and longest length."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda each: lengths[each]):
        if batch and not fits(len(batch) + 1, lengths[number]):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


@dataclass(frozen=True)
class Labelled:
    """The labels of a text with their probabilities, best first; for a model that rates texts, the value instead."""

    labels: dict[str, float]
    value: float | None = None
    unknown: list[UnknownWord] = field(default_factory=list)  # words of the text that the model does not know

    @property
    def label(self) -> str:
        return next(iter(self.labels), "")

    @property
    def probability(self) -> float | None:
        return next(iter(self.labels.values()), None)


def load_for_pipeline(
    pipeline: str, folder: str | Path, device: str, allow_pickle: bool, *, cannot: str = ""
) -> LoadedModel:
    """The model of a folder, ours or Hugging Face's; a model that another pipeline runs is refused.

    `cannot` says what such a model cannot do, for the error message.
    """
    loaded = load_model(Path(folder), find_device(device), allow_pickle)
    if MODELS[loaded.name].pipeline != pipeline:
        reason, expected = f", which {cannot}" if cannot else "", with_article(" or ".join(models_run_by(pipeline)))
        raise UsageError(f"{folder} is {with_article(loaded.name)} model{reason}; expected {expected}")
    return loaded


class DecodingPipeline(ABC):
    """One model, or several that decide together as an ensemble, with the settings of their search.

    `settings` say how the model decodes if a call does not say otherwise. With `graphs`, the steps of a search on a GPU
    are captured as CUDA graphs: the answers are the same, and come sooner.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        *,
        end: int,
        settings: SearchSettings | None,
        name: str,
        precision: str,
        graphs: bool,
    ):
        self.models, self.name, self.settings = [model.eval() for model in models], name, settings or SearchSettings()
        self.device = next(self.models[0].parameters()).device
        members = [decoding_model(model, precision, end) for model in self.models]
        together = members[0] if len(members) == 1 else Ensemble(members)
        self.decoder = cast(TokenSourceModel, with_cuda_graphs(together, self.device) if graphs else together)
        self.positions = learned_positions(self.models[0].config)

    @classmethod
    @abstractmethod
    def runs(cls, model: nn.Module) -> bool:
        """Whether this pipeline can run a model."""

    @classmethod
    @abstractmethod
    def expected(cls) -> str:
        """The models that this pipeline runs, for error messages."""

    @classmethod
    def read_models(cls, folders: Sequence[str | Path], device: str, allow_pickle: bool) -> list[LoadedModel]:
        """Load model folders, ours or Hugging Face's; refuse models that this pipeline does not run."""
        place = find_device(device)
        loaded = [load_model(Path(folder), place, allow_pickle) for folder in folders]
        for folder, each in zip(folders, loaded, strict=True):
            if not cls.runs(each.model):
                raise UsageError(f"{folder} is {with_article(each.name)} model; expected {cls.expected()}")
        return loaded

"""What pipelines that decode share: loading models, their fast versions, and their default search settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from torch import nn

from regard.checkpoints import LoadedModel, load_model
from regard.device import find_device
from regard.errors import UsageError, with_article
from regard.inference.decoding.cuda_graphs import with_cuda_graphs
from regard.inference.decoding.ensemble import Ensemble
from regard.inference.decoding.protocols import TokenSourceModel
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.speculative import decoding_model, learned_positions


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

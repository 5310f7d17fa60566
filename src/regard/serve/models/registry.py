"""The models of a server: registered by folder, loaded when first used, and unloaded when memory is short."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

import regard
from regard.attention.record import attention_names
from regard.checkpoints import resolve
from regard.checkpoints.hub import PREFIX, local_folder
from regard.checkpoints.models import identify, outline
from regard.config import Config
from regard.data.formats.languages import find_language, style_of
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import CheckpointError, UsageError
from regard.families.catalog import MODELS, PIPELINES
from regard.families.contract import TRANSLATOR, PipelineEntry
from regard.families.language.encoder import TextEncoder
from regard.families.language.word_vectors import WordVectors
from regard.families.loading import find_pipeline
from regard.families.translation.translator import Translator
from regard.runtime.linear import check_precision
from regard.serve.http.errors import HTTPError, NotFoundError
from regard.serve.settings import MIB

if TYPE_CHECKING:
    from regard.families.loading import Pipeline

LANGUAGES_IN_NAME = re.compile(r"(?:^|[-_/])([a-z]{2,3})[-_]([a-z]{2,3})$")  # opus-mt-en-es


class ModelLoadError(HTTPError):
    """A registered model cannot be read. The reason may name files, so it goes to the log only."""

    status = 500


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model without loading it."""

    id: str
    folder: Path
    family: str  # name in the catalog
    pipeline: PipelineEntry
    config: Config
    source: str  # source language, for translation models
    targets: tuple[str, ...]
    bytes: int

    @cached_property
    def outline(self) -> nn.Module:
        """The model built without memory for its weights."""
        return outline(self.family, self.config)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.outline.parameters())

    @property
    def layers(self) -> dict[str, int]:
        """The names of its attention layers, with their numbers of heads."""
        return {name: getattr(self.outline.get_submodule(name), "heads", 1) for name in attention_names(self.outline)}

    @property
    def title(self) -> str:
        """The display name of the family."""
        return MODELS[self.family].title

    @property
    def ability(self) -> str:
        """What the model can do: translate, write, embed or see."""
        return self.pipeline.ability

    @property
    def predicts_tokens(self) -> bool:
        """Whether the model predicts tokens of a text: the next one, or a masked one."""
        return self.ability == "write" or getattr(self.outline, "masked", None) is not None

    def target(self, wanted: str) -> str | None:
        """The model's own code for a requested target language, in the style asked for."""
        return find_language([code for code in self.targets if style_of(code) == style_of(wanted)], wanted)


def describe(name: str, folder: Path) -> ModelInfo:
    """The information of a model folder; raises an error if the server cannot serve it."""
    folder = resolve(folder)
    family, config, _ = identify(folder)
    key = find_pipeline(folder)
    pipeline = PIPELINES[key]
    if pipeline.not_served:
        raise UsageError(f"{name} {pipeline.not_served}")
    weights = sum(file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))
    if key != TRANSLATOR:
        return ModelInfo(name, folder, family, pipeline, config, "", (), weights)
    tokenizer = PairTokenizer.load(folder)
    source, targets = tokenizer.source_language, tokenizer.target_languages
    if not source or not any(targets):  # a Marian folder that does not name its languages may have them in its own name
        if (found := LANGUAGES_IN_NAME.search(name)) is None:
            raise CheckpointError(f"{name} does not say its languages; call its folder something like model-en-es")
        source, targets = source or found[1], targets if any(targets) else (found[2],)
    return ModelInfo(name, folder, family, pipeline, config, source, tuple(targets), weights)


class ModelRegistry:
    """Models by id, in the order of registration; those in use stay loaded, up to `memory` MiB of weights."""

    def __init__(
        self,
        models: Iterable[str | Path] = (),
        *,
        memory: int = 4096,
        device: str = "cpu",
        precision: str = "fp32",
    ) -> None:
        check_precision(precision)
        self.memory, self.device, self.precision = memory, device, precision
        self._infos: dict[str, ModelInfo] = {}
        self._loaded: OrderedDict[str, Pipeline] = OrderedDict()  # least recently used first
        self._lock = threading.RLock()
        for model in models:
            self.add(model)

    def add(self, model: str | Path, name: str = "") -> str:
        """Register a folder or `hf:owner/name`; returns the id of the model."""
        folder = local_folder(model)
        name = name or (str(model).removeprefix(PREFIX) if str(model).startswith(PREFIX) else folder.resolve().name)
        with self._lock:
            known = {info.folder: info.id for info in self._infos.values()}
            if (there := known.get(resolve(folder))) is not None:
                return there
            info = describe(self._free(name), folder)
            if info.bytes > self.memory * MIB:
                raise UsageError(
                    f"{name} has {info.bytes / MIB:.0f} MiB of weights, but only {self.memory} may be loaded; "
                    "raise --memory"
                )
            self._infos[info.id] = info
            return info.id

    def remove(self, name: str) -> None:
        """Remove a model, if it is registered."""
        with self._lock:
            self._infos.pop(name, None)
            self._loaded.pop(name, None)

    def put_before(self, name: str, other: str) -> None:
        """Let requests that name no model find `name` before `other`. Nothing moves if that is so already."""
        with self._lock:
            order = list(self._infos)
            if not {name, other} <= set(order) or order.index(name) <= order.index(other):
                return
            order.remove(name)
            order.insert(order.index(other), name)
            self._infos = {each: self._infos[each] for each in order}

    def infos(self) -> list[ModelInfo]:
        with self._lock:
            return list(self._infos.values())

    def translation_models(self) -> list[ModelInfo]:
        """The models that translate."""
        return [info for info in self.infos() if info.ability == "translate"]

    def find(self, name: str = "") -> ModelInfo:
        """The model with that id; without an id, the first."""
        infos = self.infos()
        if not infos:
            raise NotFoundError("there is no model yet; train one, or start the server with -m FOLDER")
        if not name:
            return infos[0]
        for info in infos:
            if info.id == name:
                return info
        raise NotFoundError(f"there is no model {name!r}; there are: {', '.join(each.id for each in infos)}")

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    def translator(self, name: str) -> Translator:
        """A model that translates; raises an error for others."""
        found = self.model(name)
        if not isinstance(found, Translator):
            raise UsageError(f"{name} does not translate")
        return found

    def model(self, name: str) -> Pipeline:
        """The model itself, loaded if necessary; other models are unloaded if memory does not suffice."""
        info = self.find(name)
        with self._lock:
            if (here := self._loaded.get(info.id)) is None:
                self._make_room(info.bytes)
                try:
                    precision = self.precision if info.pipeline.takes_precision else "fp32"
                    loaded = regard.load(info.folder, device=self.device, precision=precision)
                    if isinstance(loaded, TextEncoder | WordVectors):
                        loaded.warns = False  # the answers name unknown words
                    here = self._loaded[info.id] = loaded
                except (CheckpointError, OSError) as error:
                    raise ModelLoadError(f"the model {info.id} cannot be loaded; the server's log says why") from error
            self._loaded.move_to_end(info.id)
            return here

    def _make_room(self, needed: int) -> None:
        used = {name: self._infos[name].bytes for name in self._loaded}
        while used and sum(used.values()) + needed > self.memory * MIB:
            oldest, _ = self._loaded.popitem(last=False)
            del used[oldest]

    def _free(self, name: str) -> str:
        """The name, with a number appended if another model has it."""
        number, free = 1, name
        while free in self._infos:
            number, free = number + 1, f"{name}-{number + 1}"
        return free

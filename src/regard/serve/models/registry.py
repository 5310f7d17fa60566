"""The models of a server: registered by folder, loaded when first used, and unloaded when memory is short.

`LanguageRoutes` says which of them translate between two languages: one, or two through a pivot language.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

import regard
from regard.attention.record import attention_names
from regard.checkpoints import resolve
from regard.checkpoints.folder import PREFIX, local_folder, read_json
from regard.checkpoints.models import CONFIG, identify, outline
from regard.config import Config
from regard.data.formats.languages import find_language, language_name, same_language, style_of
from regard.data.tokenizers.pair import PairTokenizer
from regard.documents.language_id import Detected, choose_language, detect
from regard.errors import CheckpointError, UsageError
from regard.families.catalog import MODELS, PIPELINES
from regard.families.contract import TRANSLATOR, PipelineEntry
from regard.families.loading import find_pipeline
from regard.runtime.linear import check_precision
from regard.serve.http.responses import HTTPError, NotFoundError
from regard.serve.settings import MIB

if TYPE_CHECKING:
    from regard.families.loading import Pipeline
    from regard.families.translation.translator import Translator

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
    source: str  # source language of a translation model; of several, the one that is asked for
    sources: tuple[str, ...]
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

    def reads(self, language: str) -> bool:
        """Whether a translation model takes texts of this language."""
        return find_language(self.sources, language) is not None

    def reading(self, language: str) -> ModelInfo:
        """The same model, asked to read one of its source languages."""
        return replace(self, source=find_language(self.sources, language) or self.source)


def describe(name: str, folder: Path) -> ModelInfo:
    """The information of a model folder; raises an error if the server cannot serve it."""
    folder = resolve(folder)
    family, config, _ = identify(folder)
    key = find_pipeline(folder)
    pipeline = PIPELINES[key]
    if pipeline.not_served:
        raise UsageError(f"{name} {pipeline.not_served}")
    weights = sum(file.stat().st_size for pattern in ("*.safetensors", "*.bin") for file in folder.glob(pattern))
    if read_json(folder / CONFIG).get("regard", {}).get("storage") == "int8":
        weights *= 4  # loaded as float32
    if key != TRANSLATOR:
        return ModelInfo(name, folder, family, pipeline, config, "", (), (), weights)
    tokenizer = PairTokenizer.load(folder)
    sources, targets = tokenizer.source_languages, tokenizer.target_languages
    if not all(sources) or not any(
        targets
    ):  # a Marian folder that does not name its languages may have them in its own name
        if (found := LANGUAGES_IN_NAME.search(name)) is None:
            raise CheckpointError(f"{name} does not say its languages; call its folder something like model-en-es")
        sources, targets = sources if all(sources) else (found[1],), targets if any(targets) else (found[2],)
    return ModelInfo(name, folder, family, pipeline, config, sources[0], sources, tuple(targets), weights)


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
        if self.find(name).ability != "translate":
            raise UsageError(f"{name} does not translate")
        translator: Translator = self.model(name)
        return translator

    def model(self, name: str) -> Pipeline:
        """The model itself, loaded if necessary; other models are unloaded if memory does not suffice."""
        info = self.find(name)
        with self._lock:
            if (here := self._loaded.get(info.id)) is None:
                self._make_room(info.bytes)
                try:
                    precision = self.precision if info.pipeline.takes_precision else "fp32"
                    loaded = regard.load(info.folder, device=self.device, precision=precision)
                    if info.ability == "embed":
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


Route = Sequence[tuple[ModelInfo, str]]  # one model, or two through a pivot language, each with its target language


class LanguageRoutes:
    """Finds models and languages among the translation models of a server."""

    def __init__(self, registry: ModelRegistry) -> None:
        self.registry = registry

    def find_model(self, source: str, target: str) -> tuple[ModelInfo, str]:
        """The first model for a language pair, and the model's own code of the target language."""
        infos = self.registry.translation_models()
        if not any(each.reads(source) for each in infos):
            raise UsageError(f"{source} is not supported")
        if not any(each.target(target) for each in infos):
            raise UsageError(f"{target} is not supported")
        for info in infos:
            if info.reads(source) and (to := info.target(target)):
                return info.reading(source), to
        raise UsageError(f"{source} to {target} is not supported")

    def find_route(self, source: str, target: str) -> Route:
        """The model for a language pair or, if there is none, two models through a pivot language."""
        infos = self.registry.translation_models()
        starts = [each.reading(source) for each in infos if each.reads(source)]
        if not any(each.target(target) for each in starts):
            for first, second in product(starts, infos):
                pivot, to = next(filter(None, map(first.target, second.sources)), None), second.target(target)
                if pivot and to:
                    return [(first, pivot), (second.reading(pivot), to)]
        return [self.find_model(source, target)]

    def reachable_targets(self, source: str) -> list[str]:
        """The languages that a language is translated into, by one model or through a pivot language."""
        infos = self.registry.translation_models()
        direct = [to for each in infos if each.reads(source) for to in each.targets]
        through = [each for each in infos if any(map(each.reads, direct))]
        reached = dict.fromkeys([*direct, *(to for each in through for to in each.targets)])
        return [to for to in reached if not same_language(to, source)]

    def target_language(self, info: ModelInfo, wanted: str) -> str:
        """The model's own code of the target language; `wanted` may be empty if the model has one target only."""
        plain = [code for code in info.targets if not style_of(code)]
        if not wanted and len(plain) == 1:
            return plain[0]
        if not wanted:
            raise UsageError(f"{info.id} translates into {', '.join(info.targets)}; say which")
        if (to := info.target(wanted)) is None:
            raise UsageError(f"{info.id} translates into {', '.join(info.targets)}, not into {wanted}")
        return to

    def source_languages(self, target: str) -> list[str]:
        """The languages that are translated into `target`, by one model or through a pivot language."""
        infos = self.registry.translation_models()
        known = dict.fromkeys(source for each in infos for source in each.sources)
        found = [source for each in infos if each.target(target) for source in each.sources]
        found += [source for source in known if find_language(self.reachable_targets(source), target)]
        if not found:
            raise UsageError(f"{target} is not supported")
        return list(dict.fromkeys(found))

    def detect_language(self, text: str, target: str = "") -> list[Detected]:
        """The languages that the text may be in, best first.

        With a `target`, the first language is one that a model translates from, or the target itself. If the text is
        in any other language, this raises an error.
        """
        found = detect(text, [source for each in self.registry.translation_models() for source in each.sources])
        if not target:
            return found
        best = choose_language(text, sources := self.source_languages(target), target)
        if not any(same_language(best.language, each) for each in (*sources, target)):
            raise UsageError(
                f"the text is in {_with_names([best.language])}, and the models here translate into "
                f"{_with_names([target])} only from {_with_names(sources)}; if it is in one of these, give that as "
                "the source"
            )
        return [best, *(each for each in found if each.language != best.language)]


def _with_names(codes: Sequence[str]) -> str:
    """Language codes with their English names: English (en), German (de)."""
    return ", ".join(f"{language_name(code)} ({code})" for code in codes)

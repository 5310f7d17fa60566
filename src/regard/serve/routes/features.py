"""The features of a dictionary for the page: a list, one feature, what a text activates, live changes, and names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import Field

from regard.errors import UsageError
from regard.families.contract import FEATURES
from regard.families.dictionaries.page import about, described, images_of, list_features
from regard.families.dictionaries.pipeline import FeatureDictionary
from regard.look.reader import TokenUnits
from regard.serve.http.responses import ForbiddenError, StrictRequest, keyed_router
from regard.serve.models.registry import ModelInfo, ModelLoadError
from regard.serve.models.translation_service import TranslationService

T = TypeVar("T")
ACTIVE = 40  # features of a text that are listed
Number = Annotated[int, Field(ge=0, lt=2**31)]


class FeatureRequest(StrictRequest):
    """A feature of a dictionary; without a model, of the first dictionary."""

    model: str = ""
    number: Number


class ChangeRequest(FeatureRequest):
    """A feature is given a value everywhere while its model answers one of its contexts, or a text."""

    value: Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]
    context: Number | None = None
    text: str = ""


class NameRequest(FeatureRequest):
    """A name for a feature; an empty one removes it."""

    name: Annotated[str, Field(max_length=200)]


class TextRequest(StrictRequest):
    """A text whose features are wanted."""

    model: str = ""
    text: Annotated[str, Field(min_length=1)]


def features_router(service: TranslationService) -> APIRouter:
    router = keyed_router("/api/features")

    async def computed(request: Request, model: str, work: Callable[[FeatureDictionary], T]) -> T:
        """What work on a dictionary gives, on the thread that runs models."""
        info = _find(service, model)
        return await service.compute(request, lambda: work(_opened(service, info)))

    @router.get("")
    async def features(request: Request, model: str = "") -> dict[str, Any]:
        """Which model and place a dictionary is of, and its features: named ones first, then the most frequent."""

        def work(dictionary: FeatureDictionary) -> dict[str, Any]:
            facts = about(dictionary) | {
                "model": dictionary.subject.model.rpartition("/")[2]
            }  # no path of this machine
            return facts | {"reads_text": dictionary.reader.reads_text, "features": list_features(dictionary)}

        return await computed(request, model, work)

    @router.get("/{number}")
    async def feature(request: Request, number: Number, model: str = "") -> dict[str, Any]:
        """The strongest contexts of a feature, and the logits that it raises and lowers."""

        def work(dictionary: FeatureDictionary) -> dict[str, Any]:
            told = described(dictionary, number)
            return told | {"images": images_of(dictionary, [told])}

        return await computed(request, model, work)

    @router.post("/change")
    async def change(request: Request, asked: ChangeRequest) -> dict[str, str]:
        """What the model says to a context or a text as it is, and with the feature at a value everywhere."""
        (text,) = service.check_limits([asked.text])

        def work(dictionary: FeatureDictionary) -> dict[str, str]:
            if asked.context is not None:
                whole, changed = dictionary.answers_in(asked.number, asked.context, asked.value)
            else:
                whole, changed = dictionary.answers(_checked(dictionary, text), asked.number, asked.value)
            return {"whole": whole, "changed": changed}

        return await computed(request, asked.model, work)

    @router.post("/active")
    async def active(request: Request, asked: TextRequest) -> dict[str, Any]:
        """The tokens of a text, and the features that are most active there with their value at every token."""
        (text,) = service.check_limits([asked.text])

        def work(dictionary: FeatureDictionary) -> dict[str, Any]:
            units, found = dictionary.active(_checked(dictionary, text), ACTIVE)
            assert isinstance(units, TokenUnits)
            return {"tokens": units.tokens, "features": [each._asdict() for each in found]}

        return await computed(request, asked.model, work)

    @router.post("/name")
    async def name(request: Request, asked: NameRequest) -> dict[str, str]:
        """Give a feature a name, which is kept beside the weights of its dictionary."""
        if not service.settings.training:
            raise ForbiddenError(
                "this server writes nothing to its models; name features with `regard features --name`"
            )

        def work(dictionary: FeatureDictionary) -> dict[str, str]:
            dictionary.rename({asked.number: asked.name.strip()})
            return {"name": dictionary.names.get(asked.number, "")}

        return await computed(request, asked.model, work)

    return router


def _find(service: TranslationService, name: str) -> ModelInfo:
    """A dictionary by its id; without an id, the first."""
    known = [info for info in service.registry.infos() if info.pipeline.input == FEATURES]
    if name:
        info = service.registry.find(name)
        if info not in known:
            raise UsageError(f"{name} is no dictionary of features")
        return info
    if not known:
        raise UsageError("there is no dictionary of features here; start the server with -m FOLDER of one")
    return known[0]


def _opened(service: TranslationService, info: ModelInfo) -> FeatureDictionary:
    """The dictionary with the model that it reads. What is wrong with that model's folder is for the log alone."""
    dictionary = service.registry.model(info.id)
    assert isinstance(dictionary, FeatureDictionary)
    try:
        _ = dictionary.reader
    except UsageError as error:
        reason = f"the model that {info.id} reads cannot be loaded; the server's log says why"
        raise ModelLoadError(reason) from error
    return dictionary


def _checked(dictionary: FeatureDictionary, text: str) -> str:
    """A text for a model that reads texts. Readers of files would take it for the path of one, which a client must not
    choose."""
    if not dictionary.reader.reads_text:
        raise UsageError(f"{dictionary.name} is of a model that reads no texts; choose one of the feature's contexts")
    if not text.strip():
        raise UsageError("give a text, or the number of a context")
    return text

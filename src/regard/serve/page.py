"""The routes behind the page: translations with all that led to them, attention in pieces, and the models."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from regard.data.passages import split_passage
from regard.errors import UsageError
from regard.inference.attending import kind_of
from regard.inference.foretelling import TOP
from regard.inference.pipelines import Partial, Translation, Translator, joined
from regard.inference.tree import grow_tree, path_to
from regard.inference.writing import Writer
from regard.layers.vision import ImageConfig
from regard.look.figures import View, save
from regard.look.page import quantise
from regard.look.scenes import Scene
from regard.serve.answers import answered, error_response, streamed
from regard.serve.desk import Desk, Spoken, ranked
from regard.serve.libre import ERRORS
from regard.serve.shelf import Exhibit
from regard.serve.sights import (
    ALIGNMENT,
    Question,
    Recording,
    Sights,
    Wanted,
    encoded,
    foretold_pieces,
    pieces,
    score_pieces,
)
from regard.studies.costs import COSTS
from regard.studies.plan import make_plan
from regard.studies.units import byte_size, scaled

MEDIA = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "json": "application/json"}


class Asked(BaseModel):
    """What every question about a text has."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    text: str
    to: str = ""


class TranslateRequest(Asked):
    beam: Annotated[int, Field(ge=1)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1
    search: bool = False
    attention: bool = True


class Drawing(BaseModel):
    """How tokens are drawn; a temperature of 0 takes the most probable one."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class Writing(Drawing):
    """How a model writes on; 0 tokens: it only reads."""

    max_tokens: Annotated[int, Field(ge=0, le=1024)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class Foretelling(Drawing):
    """Which places' next or hidden tokens are wanted, and how many candidates of each."""

    places: tuple[int, int] | None = None
    top: Annotated[int, Field(ge=1, le=100)] = TOP


class Looked(Asked):
    """What is looked at: for a translator a sentence, for an encoder a text or two, for a writer a prompt."""

    target: str = ""
    pair: str = ""
    writing: Writing | None = None


class LookRequest(Looked):
    layers: list[str] | None = None
    heads: list[int] | None = None
    rows: tuple[int, int] | None = None
    side: Annotated[int, Field(ge=0, le=4096)] = 0
    scores: bool = False
    foretold: Foretelling | None = None


class ExportRequest(Looked):
    format: Literal["html", "svg", "png", "json"]
    layer: str = ""
    head: int | None = None


def page_router(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds, sights = desk.settings.seconds, Sights()

    @router.get("/models")
    def models() -> dict[str, Any]:
        listed = [_entry(desk, exhibit) for exhibit in desk.shelf.exhibits()]
        translating = [each["id"] for each in listed if each["ability"] == "translate"]
        return {"models": listed, "default": next(iter(translating), None)}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        exhibit = desk.shelf.find(name)
        return _entry(desk, exhibit) | _details(exhibit)

    @router.post("/translate")
    async def translate(request: Request, asked: TranslateRequest) -> dict[str, Any]:
        return await answered(request, _translate(desk, asked), seconds=seconds)

    @router.post("/translate/stream", response_class=StreamingResponse)
    async def stream(request: Request, asked: TranslateRequest) -> StreamingResponse:
        exhibit, to, (text,) = _question(desk, asked)
        changes: dict[str, Any] = {"beam": min(asked.beam, desk.settings.beam)} if asked.beam else {}
        return await streamed(request, _events(desk.stream(exhibit, to, text, **changes)), seconds=seconds)

    @router.post("/look")
    async def look(request: Request, asked: LookRequest) -> dict[str, Any]:
        question = _looked(desk, asked)
        wanted = Wanted(asked.layers or [], asked.heads, asked.rows, asked.side)

        def see() -> dict[str, Any]:
            recording = sights.look(question, desk.shelf.model(question.model))
            found = score_pieces(recording, wanted) if asked.scores else pieces(recording, wanted)
            return recording.describe() | {"pieces": found, "foretold": _foretold(recording, asked.foretold)}

        return await answered(request, desk.engine.run(see), seconds=seconds)

    @router.post("/look/stream", response_class=StreamingResponse)
    async def write(request: Request, asked: Looked) -> StreamingResponse:
        """What a model writes, as it is written; looking at it afterwards does not write it again."""
        return await streamed(request, _events(_written(desk, sights, _looked(desk, asked))), seconds=seconds)

    @router.post("/look/export", response_class=Response)
    async def export(request: Request, asked: ExportRequest) -> Response:
        question = _looked(desk, asked)

        def see() -> bytes:
            return _drawn(sights.look(question, desk.shelf.model(question.model)).scene, asked)

        content = await answered(request, desk.engine.run(see), seconds=seconds)
        name = f"regard-{asked.layer or 'attention'}.{asked.format}".replace("*", "all")
        disposition = f'attachment; filename="{_file_name(name)}"'
        return Response(content, media_type=MEDIA[asked.format], headers={"content-disposition": disposition})

    return router


def _question(desk: Desk, asked: Asked, *more: str) -> tuple[Exhibit, str, list[str]]:
    """The model asked, its target language, and the texts, all checked."""
    exhibit = desk.shelf.find(asked.model)
    if exhibit.ability != "translate":
        raise UsageError(f"{exhibit.id} does not translate; ask it through the OpenAI API")
    return exhibit, desk.target(exhibit, asked.to), desk.checked([asked.text, *more])


def _looked(desk: Desk, asked: Looked) -> Question:
    """What is to be looked at, with everything checked that can be before the model is there."""
    exhibit = desk.shelf.find(asked.model)
    text, target, pair = desk.checked([asked.text, asked.target, asked.pair])
    to = desk.target(exhibit, asked.to) if exhibit.ability == "translate" else asked.to
    writing = asked.writing.model_dump() if asked.writing else {}
    return Question(exhibit.id, text, to, target, pair, tuple(writing.items()))


def _foretold(recording: Recording, asked: Foretelling | None) -> list[dict[str, Any]]:
    if asked is None:
        return []
    drawing = asked.model_dump(include=asked.model_fields_set - {"places", "top"})
    return foretold_pieces(recording, asked.places, asked.top, drawing)


def _written(desk: Desk, sights: Sights, question: Question) -> AsyncIterator[Partial]:
    """The text a model writes, as far as it is settled; nothing where there is nothing to write."""

    def begin() -> Iterator[Partial]:
        writer, writing = desk.shelf.model(question.model), dict(question.writing)
        if not isinstance(writer, Writer) or question.target or not writing.get("max_tokens"):
            return
        told = ""
        for chunk in writer.stream(question.text, **writing):
            told += chunk.text
            if chunk.whole is not None:
                sights.keep_written(question, writer, chunk.whole)
            yield Partial(told)

    return desk.engine.stream(begin)


# Translations


async def _translate(desk: Desk, asked: TranslateRequest) -> dict[str, Any]:
    exhibit, to, (text,) = _question(desk, asked)
    limits = desk.settings
    if (asked.beam or 1) > limits.beam or asked.n_best > limits.alternatives + 1:
        raise UsageError(f"beam may be {limits.beam} at most, and n_best {limits.alternatives + 1}")
    changes = {"n_best": asked.n_best} | ({"beam": asked.beam} if asked.beam else {})
    began = time.monotonic()
    (spoken,) = await desk.translate(exhibit, to, [text], **changes)
    milliseconds = round(1000 * (time.monotonic() - began), 1)

    def explain() -> dict[str, Any]:
        translator = desk.shelf.translator(exhibit.id)
        answers = _ranked(spoken)
        first = split_passage(text, exhibit.source).sentences[:1]
        tree = _tree(translator, first[0], to, changes) if asked.search and first else None
        tokens = [translator.tokenizer.source_ids([each.source], to)[0] for each in spoken.sentences]
        return {
            "source_words": answers[0].source_words if answers else [],
            "source_tokens": [piece for ids in tokens for piece in translator.tokenizer.source.pieces(ids)],
            "translations": [_translation(each, translator, asked.attention) for each in answers],
            "search": tree,
        }

    explained = await desk.engine.run(explain, accepted=True)
    if explained["translations"]:
        explained["translations"][0]["text"] = spoken.text  # with the line breaks of the source
    return {"model": exhibit.id, "source": text, "to": to, "milliseconds": milliseconds} | explained


def _ranked(spoken: Spoken) -> list[Translation]:
    """The best translation of a whole text, the next best, and so on, all different."""
    if not spoken.sentences:
        return []
    most = max(len(each.alternatives) for each in spoken.sentences)
    answers = [joined([ranked(each, rank) for each in spoken.sentences]) for rank in range(most + 1)]
    return list({answer.text: answer for answer in reversed(answers)}.values())[::-1]


def _translation(answer: Translation, translator: Translator, attention: bool) -> dict[str, Any]:
    looks = attention and translator.alignment is not None and answer.target_words
    return {
        "text": answer.text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "words": answer.target_words,
        "alignment": answer.alignment if looks else [],
        "attention": encoded(quantise(answer.attention)) if looks else None,
    }


def _tree(translator: Translator, sentence: str, to: str, changes: dict[str, Any]) -> dict[str, Any]:
    settings = translator.search_settings(changes)
    search = translator.begin(sentence, to=to, settings=settings)
    nodes, found = grow_tree(search)
    best = path_to(nodes, found[0], search.vocabulary.end)
    pieces_of = translator.tokenizer.target.pieces
    listed = [
        {
            "id": node.id, "parent": node.parent, "step": node.step, "state": node.state, "best": node.id in best,
            "token": "</s>" if node.token == search.vocabulary.end else pieces_of([node.token])[0],
            "total": round(node.total, 4), "score": round(node.score, 4),
        }
        for node in nodes
    ]  # fmt: skip
    return {"width": search.width, "nodes": listed}


async def _events(partials: AsyncIterator[Partial]) -> AsyncIterator[str]:
    """A text in the making as server-sent events."""
    began = truncated = False
    try:
        async for partial in partials:
            truncated |= partial.truncated
            yield _event({"text": partial.text})
            began = True
        yield _event({"done": True} | ({"truncated": True} if truncated else {}))
    except Exception as error:
        if not began:
            raise
        yield f"data: {bytes(error_response('/api', error).body).decode()}\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


# Pictures


def _drawn(scene: Scene, asked: ExportRequest) -> bytes:
    """The file asked for: one layer or head, the words' alignment, or everything."""
    sight = scene.sight()
    if asked.layer not in ("", ALIGNMENT):
        sight = replace(sight.select(asked.layer, asked.head), alignment=None)
    view: View | None = "alignment" if asked.layer == ALIGNMENT else None
    with tempfile.TemporaryDirectory(prefix="regard-export-") as folder:
        return save(sight, Path(folder) / f"look.{asked.format}", view=view).read_bytes()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name if letter.isascii())


# Models


def _entry(desk: Desk, exhibit: Exhibit) -> dict[str, Any]:
    return {
        "id": exhibit.id,
        "family": exhibit.family,
        "source": exhibit.source,
        "targets": list(exhibit.targets),
        "loaded": desk.shelf.is_loaded(exhibit.id),
        "parameters": exhibit.parameters,
        "bytes": exhibit.bytes,
        "attention": bool(exhibit.layers),
        "ability": exhibit.ability,
        "foretells": exhibit.foretells,
    }


def _details(exhibit: Exhibit) -> dict[str, Any]:
    """The config, the card, the recipe and last metrics, the layers, and what the model costs."""
    return {
        "config": exhibit.config.model_dump(mode="json"),
        "card": _text(exhibit.folder / "README.md") or "",
        "recipe": _text(exhibit.folder / "recipe.toml"),
        "metrics": _metrics(exhibit.folder / "metrics.jsonl"),
        "layers": [{"name": name, "kind": kind_of(name), "heads": heads} for name, heads in exhibit.layers.items()],
        "plan": _costs(exhibit),
    }


def _costs(exhibit: Exhibit) -> list[list[str]]:
    """What the model takes; of other families than the translators', only its weights are worked out so far."""
    weights = [["Parameters", f"{exhibit.parameters:,}"], ["Weights in memory", byte_size(4 * exhibit.parameters)]]
    if exhibit.family not in COSTS:
        return weights
    plan = make_plan(str(exhibit.folder), batch=1)
    length, entries = f"of {plan.source_length} tokens", sum(each.entries for each in plan.costs.matrices)
    if isinstance(exhibit.config, ImageConfig):
        return [
            *weights,
            ["To look at a picture, forward", f"{scaled(plan.forward_flops)}FLOPs"],
            ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
            ["Attention weights of a picture", f"{entries:,}"],
        ]
    return [
        *weights,
        [f"To translate a sentence {length}, forward", f"{scaled(plan.forward_flops)}FLOPs"],
        ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
        [f"Attention weights of a sentence {length}", f"{entries:,}"],
        ["Remembered of a source while decoding", byte_size(plan.cache["sentence"])],
        ["Remembered of each hypothesis", byte_size(plan.cache["hypothesis"])],
    ]


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None


def _metrics(file: Path) -> dict[str, Any] | None:
    """What was measured at the end of training: on the test set where there was one."""
    rows = [json.loads(line) for line in (_text(file) or "").splitlines() if line.strip()]
    measured = {row["kind"]: row for row in rows if row.get("kind") in ("valid", "test")}
    return measured.get("test") or measured.get("valid")

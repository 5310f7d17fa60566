"""The OpenAI API: models, completions and embeddings. A translation model completes a text with its translation."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import StreamingResponse

from regard.errors import UsageError
from regard.inference.pipelines import Translation, Translator
from regard.serve.answers import answered, error_response, streamed
from regard.serve.desk import Desk
from regard.serve.libre import ERRORS
from regard.serve.shelf import Exhibit

Prompt = str | list[str] | list[int] | list[list[int]]
MOST_CHOICES, MOST_LOGPROBS = 16, 5
COLDEST = 1e-3  # temperature; below it nothing but the best would ever be drawn
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


class CompletionRequest(BaseModel):
    """POST /v1/completions; fields a client library adds and we do not know are let pass, as OpenAI does."""

    model_config = ConfigDict(extra="ignore")

    model: str
    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    user: str | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def stops(self) -> list[str]:
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in found if each]

    def changes(self) -> dict[str, Any]:
        """As settings of the search: the model's own, unless a temperature above 0 asks for chance."""
        candidates = max(self.choices, self.best_of or 1)
        changes: dict[str, Any] = {"n_best": candidates} if candidates > 1 else {}
        if self.max_tokens:
            changes["max_length"] = self.max_tokens
        if self.temperature and self.temperature >= COLDEST:
            chance = {"sample": True, "temperature": self.temperature, "seed": self.seed or 0}
            changes |= chance | ({"top_p": self.top_p} if self.top_p else {})
        return changes

    def check(self) -> None:
        """Refuse what a translation model cannot do, rather than ignore it."""
        if self.best_of and self.best_of < self.choices:
            raise UsageError(f"best_of is {self.best_of}; it must be at least n, which is {self.choices}")
        unsupported = ("echo", "suffix", "logit_bias", "presence_penalty", "frequency_penalty")
        for name in unsupported:
            if getattr(self, name):
                raise UsageError(f"{name} is not supported: this model answers with a translation and nothing else")
        if self.stream and (self.choices > 1 or self.best_of not in (None, 1) or self.logprobs is not None):
            raise UsageError("a stream carries one choice without logprobs; leave out n, best_of and logprobs")


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: Prompt


def openai_router(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"], responses={**ERRORS, 401: ERRORS[403]})
    created, seconds = int(time.time()), desk.settings.seconds

    @router.get("/models")
    def models() -> dict[str, Any]:
        names = [name for exhibit in desk.shelf.exhibits() for name in _names(exhibit)]
        return {"object": "list", "data": [_model(name, created) for name in names]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        _find(desk, name)
        return _model(name, created)

    @router.post("/completions", response_model=None, responses=STREAM)
    async def completions(request: Request, asked: CompletionRequest) -> dict[str, Any] | StreamingResponse:
        asked.check()
        exhibit, to = _find(desk, asked.model)
        prompts = await answered(request, _prompts(desk, exhibit, asked.prompt), seconds=seconds)
        if asked.stream:
            if len(prompts) > 1:
                raise UsageError("a stream carries one prompt; send the others by themselves")
            return await streamed(request, _stream(desk, exhibit, to, prompts[0], asked), seconds=seconds)
        return await answered(request, _complete(desk, exhibit, to, prompts, asked), seconds=seconds)

    @router.post("/embeddings")
    def embeddings(asked: EmbeddingRequest) -> dict[str, Any]:
        exhibit, _ = _find(desk, asked.model)
        raise UsageError(f"{exhibit.id} is a translation model and gives no embeddings")

    return router


def _names(exhibit: Exhibit) -> list[str]:
    """A model of several targets is one model for each, `name:es`, since a completion has no target to choose."""
    several = len(exhibit.targets) > 1
    return [f"{exhibit.id}:{target}" for target in exhibit.targets] if several else [exhibit.id]


def _find(desk: Desk, name: str) -> tuple[Exhibit, str]:
    for exhibit in desk.shelf.exhibits():
        if name == exhibit.id:
            return exhibit, desk.target(exhibit, "")
        if name in _names(exhibit):
            return exhibit, name.removeprefix(f"{exhibit.id}:")
    return desk.shelf.find(name or "?"), ""


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "regard"}


async def _prompts(desk: Desk, exhibit: Exhibit, prompt: Prompt) -> list[str]:
    """The texts to translate; token ids are those of the model's source side."""
    given: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    if not given:
        raise UsageError("prompt is empty; give a text, or a list of texts")

    def decoded() -> list[str]:
        source = desk.shelf.translator(exhibit.id).tokenizer.source
        for ids in given:
            if not all(0 <= each < source.size for each in ids):
                raise UsageError(f"prompt has a token outside 0 to {source.size - 1}")
        return [source.decode(ids) for ids in given]

    return desk.checked(given if isinstance(given[0], str) else await desk.engine.run(decoded))


async def _complete(
    desk: Desk, exhibit: Exhibit, to: str, prompts: list[str], asked: CompletionRequest
) -> dict[str, Any]:
    spoken = await desk.translate(exhibit, to, prompts, **asked.changes())
    choices: list[dict[str, Any]] = []
    for each in spoken:
        texts = [each.text, *each.alternatives(asked.choices - 1)]
        texts += [texts[-1]] * (asked.choices - len(texts))  # a short text may have fewer translations than asked for
        for text in texts:
            cut, stopped = _cut(text, asked.stops)
            reason = "length" if each.truncated and not stopped else "stop"
            choices.append({"index": len(choices), "text": cut, "logprobs": None, "finish_reason": reason})
    if asked.logprobs is not None:
        top = asked.logprobs
        told = await desk.engine.run(lambda: [_logprobs(each.sentences, top) for each in spoken], accepted=True)
        for choice, values in zip(choices[:: asked.choices], told, strict=True):
            choice["logprobs"] = values
    read = await desk.engine.run(lambda: _count_source(desk.shelf.translator(exhibit.id), prompts), accepted=True)
    written = sum(len(sentence.tokens) for each in spoken for sentence in each.sentences)
    return _completion(asked.model, choices) | {"usage": _usage(read, written)}


async def _stream(desk: Desk, exhibit: Exhibit, to: str, prompt: str, asked: CompletionRequest) -> AsyncIterator[str]:
    """Server-sent events: what is settled so far, piece by piece; then why it ended; then what it took."""
    base, sent, reason = _completion(asked.model, []), "", "stop"

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**base, 'choices': choices, **more}, ensure_ascii=False)}\n\n"

    try:
        async for text, truncated in desk.stream(exhibit, to, prompt, settled=True, **asked.changes()):
            cut, stopped = _cut(text, asked.stops)
            reason = "length" if truncated else reason
            if len(cut) > len(sent):
                yield event([_delta(cut[len(sent) :])])
                sent = cut
            if stopped:
                reason = "stop"
                break
        yield event([_delta("", reason)])
        if (asked.stream_options or {}).get("include_usage"):
            counts = await desk.engine.run(
                lambda: _counts(desk.shelf.translator(exhibit.id), prompt, sent), accepted=True
            )
            yield event([], usage=_usage(*counts))
    except Exception as error:
        if not sent:
            raise
        yield f"data: {bytes(error_response('/v1', error).body).decode()}\n\n"
    yield "data: [DONE]\n\n"


def _completion(model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    name = f"cmpl-{uuid.uuid4().hex}"
    return {"id": name, "object": "text_completion", "created": int(time.time()), "model": model, "choices": choices}


def _delta(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first of the stop strings, and whether one was there."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _count_source(translator: Translator, prompts: Sequence[str]) -> int:
    return sum(len(ids) for ids in translator.tokenizer.source.encode(prompts))


def _counts(translator: Translator, prompt: str, answer: str) -> tuple[int, int]:
    return _count_source(translator, [prompt]), len(translator.tokenizer.target.encode([answer])[0])


def _logprobs(sentences: Sequence[Translation], top: int) -> dict[str, Any]:
    """Of every token of the answer: its log-probability, and those of the `top` most probable ones in its place."""
    told: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    offset = 0
    for answer in sentences:
        translator = answer.translator
        assert translator is not None
        pieces = translator.tokenizer.target.vocabulary
        for source, ids in answer.parts:
            log_p = translator.log_probabilities(source, ids, to=answer.to)
            best = log_p.topk(max(top, 1), dim=-1)
            for place, token in enumerate(ids):
                told["tokens"].append(pieces[token])
                told["token_logprobs"].append(log_p[place, token].item())
                values = zip(best.indices[place].tolist(), best.values[place].tolist(), strict=True)
                told["top_logprobs"].append({pieces[i]: value for i, value in values} if top else None)
                told["text_offset"].append(offset)
                offset += len(pieces[token].lstrip("▁")) + (place > 0 and pieces[token].startswith("▁"))
        offset += 1
    return told

"""Requests, responses and stream events of the OpenAI API."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.data.tokenizers.unknown_words import UnknownWord
from regard.errors import UsageError
from regard.serve.http.responses import event
from regard.serve.models.batching import AskedSettings

Prompt = str | list[str] | list[int] | list[list[int]]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MOST_CHOICES, MOST_LOGPROBS = 16, 20
MIN_TEMPERATURE = 1e-3  # below it sampling would always draw the most probable token, so decoding is greedy


class GenerationRequest(BaseModel):
    """What completions and chats have in common; unknown fields are ignored, as OpenAI does."""

    model_config = ConfigDict(extra="ignore")

    model: str
    max_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    user: str | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: Prompt
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens."""
        return bool((self.stream_options or {}).get("include_usage"))

    def response_builder(self) -> ResponseBuilder:
        """Builds responses in the format that this request expects."""
        return ResponseBuilder(self.model)

    @property
    def default_max_tokens(self) -> int:
        """The limit of tokens if the request has none; the same as OpenAI's."""
        return 16

    @property
    def stops(self) -> list[str]:
        found = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [each for each in found if each]

    def search(self) -> AskedSettings:
        """What is asked of the search of a translator; a temperature above 0 turns sampling on."""
        candidates = max(self.choices, self.best_of or 1)
        asked = AskedSettings(n_best=candidates if candidates > 1 else None)
        if self.temperature and self.temperature >= MIN_TEMPERATURE:
            return asked.replace(
                sample=True, temperature=self.temperature, seed=self.seed or 0, top_p=self.top_p or None
            )
        return asked if self.temperature is None else asked.replace(sample=False)

    def check(self, *unsupported: str) -> None:
        """Raise an error for options that the model does not support, instead of ignoring them."""
        if self.best_of and self.best_of < self.choices:
            raise UsageError(f"best_of is {self.best_of}; it must be at least n, which is {self.choices}")
        for name in unsupported:
            if getattr(self, name):
                raise UsageError(f"{name} is not supported by this model; leave it out")
        if self.stream and (self.choices > 1 or self.best_of not in (None, 1) or self.logprobs is not None):
            raise UsageError("a stream has one choice without logprobs; leave out n, best_of and logprobs")


class Message(BaseModel):
    """One message of a chat; its content is a text, or a list of text parts."""

    model_config = ConfigDict(extra="ignore")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        for part in self.content:
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise UsageError(f"a part of a message has the type {part.get('type')!r}; only text is supported")
        return "".join(part["text"] for part in self.content)


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=4096)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None

    def completion(self, prompt: str) -> ChatCompletion:
        """The chat as a completion of a prompt."""
        if self.tools or (self.response_format or {}).get("type", "text") != "text":
            raise UsageError("the models here support neither tools nor response_format; leave them out")
        if self.top_logprobs and not self.logprobs:
            raise UsageError("top_logprobs needs logprobs; set logprobs to true")
        shared = {name: getattr(self, name) for name in self.model_fields_set & CompletionRequest.model_fields.keys()}
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        limit = self.max_completion_tokens or self.max_tokens
        return ChatCompletion(**{**shared, "prompt": prompt, "logprobs": logprobs, "max_tokens": limit})


class ChatCompletion(CompletionRequest):
    """A completion whose response has the format of a chat completion."""

    @property
    def default_max_tokens(self) -> int:
        """The limit of tokens for an answer that does not end by itself."""
        return 512

    def response_builder(self) -> ResponseBuilder:
        return ChatResponseBuilder(self.model)


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class ResponseBuilder:
    """Builds the response or the stream events of one completion request, all with the same id."""

    def __init__(self, model: str) -> None:
        name, now = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.base = {"id": name, "object": "text_completion", "created": now, "model": model}

    def response(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self.base, "choices": choices, "usage": usage}

    def event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """One server-sent event of a stream."""
        return event({**self.base, "choices": choices, **more})

    def delta(self, text: str, reason: str | None = None) -> str:
        return self.event([choice(0, text, reason)])


class ChatResponseBuilder(ResponseBuilder):
    """Builds the response or the stream events of one chat completion request."""

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self.base |= {"id": f"chat{self.base['id']}", "object": "chat.completion"}
        self._role_sent = False

    def response(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return super().response([_chat_choice(each) for each in choices], usage)

    def event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        return super().event(choices, object="chat.completion.chunk", **more)

    def delta(self, text: str, reason: str | None = None) -> str:
        delta = {} if self._role_sent else {"role": "assistant"}
        self._role_sent = True
        delta |= {"content": text} if text or reason is None else {}
        return self.event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}])


def _chat_choice(given: dict[str, Any]) -> dict[str, Any]:
    """A choice of a completion in the format of a chat completion."""
    message = {"role": "assistant", "content": given["text"], "refusal": None}
    logprobs = given["logprobs"] and {"content": _chat_logprobs(given["logprobs"]), "refusal": None}
    return {"index": given["index"], "message": message, "logprobs": logprobs, "finish_reason": given["finish_reason"]}


def _chat_logprobs(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The log-probabilities of an answer's tokens in the format of a chat completion: one object per token."""

    def entry(token: str, value: float) -> dict[str, Any]:
        return {"token": token, "logprob": value, "bytes": list(token.encode())}

    rows = zip(given["tokens"], given["token_logprobs"], given["top_logprobs"], strict=True)
    return [
        entry(token, value) | {"top_logprobs": [entry(*each) for each in (top or {}).items()]}
        for token, value, top in rows
    ]


def choice(index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def unknown_field(unknown: Sequence[Sequence[UnknownWord]]) -> dict[str, Any]:
    """An extra field, absent if empty: the words of each text that the model does not know."""
    return {"unknown": [[each.to_json() for each in words] for words in unknown]} if any(unknown) else {}


def usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

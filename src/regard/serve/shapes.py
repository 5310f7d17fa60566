"""What OpenAI's clients send and expect: requests, completions, events of a stream."""

from __future__ import annotations

import json
import time
import uuid
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from regard.errors import UsageError

Prompt = str | list[str] | list[int] | list[list[int]]
Penalty = Annotated[float, Field(ge=-2, le=2)]
MOST_CHOICES, MOST_LOGPROBS = 16, 5
COLDEST = 1e-3  # temperature; below it nothing but the best would ever be drawn
LAST = "data: [DONE]\n\n"


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
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
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

    def check(self, *unsupported: str) -> None:
        """Refuse what a model cannot do, rather than ignore it."""
        if self.best_of and self.best_of < self.choices:
            raise UsageError(f"best_of is {self.best_of}; it must be at least n, which is {self.choices}")
        for name in unsupported:
            if getattr(self, name):
                raise UsageError(f"{name} is not supported by this model; leave it out")
        if self.stream and (self.choices > 1 or self.best_of not in (None, 1) or self.logprobs is not None):
            raise UsageError("a stream carries one choice without logprobs; leave out n, best_of and logprobs")


class EmbeddingRequest(BaseModel):
    """POST /v1/embeddings."""

    model_config = ConfigDict(extra="ignore")

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class Telling:
    """The answers to one request, all under one name."""

    def __init__(self, model: str) -> None:
        name, now = f"cmpl-{uuid.uuid4().hex}", int(time.time())
        self.base = {"id": name, "object": "text_completion", "created": now, "model": model}

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        return {**self.base, "choices": choices, "usage": usage}

    def event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        """One server-sent event of a stream."""
        return f"data: {json.dumps({**self.base, 'choices': choices, **more}, ensure_ascii=False)}\n\n"

    def delta(self, text: str, reason: str | None = None) -> str:
        return self.event([choice(0, text, reason)])


def choice(index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}


def usage(read: int, written: int) -> dict[str, int]:
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}

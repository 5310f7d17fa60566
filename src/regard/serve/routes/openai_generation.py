"""Completions by models that generate text, and embeddings by text encoders."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from regard.errors import UsageError
from regard.families.language.encoder import TextEncoder
from regard.families.language.generator import Completion, TextGenerator
from regard.families.language.word_vectors import WordVectors
from regard.serve.http.responses import error_response
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.openai_schemas import (
    DONE_EVENT,
    MIN_TEMPERATURE,
    CompletionRequest,
    EmbeddingRequest,
    choice,
    unknown_field,
    usage,
)


async def complete_text(
    service: TranslationService, info: ModelInfo, prompts: list[str], body: CompletionRequest
) -> dict[str, Any]:
    """Complete each prompt."""
    if body.echo and body.logprobs is not None:
        raise UsageError("logprobs are given for the completion only; leave out echo")

    def generate() -> dict[str, Any]:
        writer = cast(TextGenerator, service.registry.model(info.id))
        answers = writer.generate(prompts, n=body.choices, best_of=body.best_of, **_settings(body))
        choices: list[dict[str, Any]] = []
        for answer in answers:
            for each in (answer, *answer.alternatives):
                logprobs = _logprobs(each, body.logprobs) if body.logprobs is not None else None
                text = each.prompt + each.text if body.echo else each.text
                choices.append(choice(len(choices), text, each.reason or "stop", logprobs))
        read = sum(len(answer.prompt_ids) for answer in answers)
        written = sum(len(each.ids) for answer in answers for each in (answer, *answer.alternatives))
        response = body.response_builder().response(choices, usage(read, written))
        return response | unknown_field([answer.unknown for answer in answers])

    return await service.engine.run(generate)


async def stream_text(
    service: TranslationService, info: ModelInfo, prompt: str, body: CompletionRequest
) -> AsyncIterator[str]:
    """Complete a prompt as server-sent events; each event has text that cannot change any more."""
    builder, sent, pieces = body.response_builder(), prompt if body.echo else "", list[str]()
    if sent:
        yield builder.delta(sent)

    def begin() -> Any:
        writer = cast(TextGenerator, service.registry.model(info.id))
        text, reason = "", ""
        for chunk in writer.stream(prompt, **_settings(body)):
            text, reason = text + chunk.text, chunk.reason
            yield text, reason

    try:
        async for text, reason in service.engine.stream(begin):
            new = text[sum(map(len, pieces)) :]
            if new or reason:
                yield builder.delta(new, reason or None)
                pieces.append(new)
        if (body.stream_options or {}).get("include_usage"):
            counts = await service.engine.run(lambda: _counts(service, info, prompt, "".join(pieces)), accepted=True)
            yield builder.event([], usage=usage(*counts))
    except Exception as error:
        if not pieces and not sent:
            raise
        yield f"data: {bytes(error_response('/v1', error).body).decode()}\n\n"
    yield DONE_EVENT


async def embed_texts(
    service: TranslationService, info: ModelInfo, texts: list[str], body: EmbeddingRequest
) -> dict[str, Any]:
    """A vector for each text, normalised to length 1."""

    def embed() -> dict[str, Any]:
        encoder = service.registry.model(info.id)
        if not isinstance(encoder, TextEncoder | WordVectors):
            raise UsageError(f"{info.id} gives no embeddings; it is there to {info.ability}")
        if body.dimensions not in (None, encoder.width):
            raise UsageError(f"dimensions is {body.dimensions}; the vectors of {info.id} have {encoder.width}")
        vectors, read = encoder.embed(texts), sum(encoder.lengths(texts))
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(vector.tolist(), vector.numpy().tobytes(), body),
            }
            for index, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": body.model,
            "usage": {"prompt_tokens": read, "total_tokens": read},
        } | unknown_field([encoder.unknown_words(text) for text in texts])

    return await service.engine.run(embed)


def _encoded(values: list[float], content: bytes, body: EmbeddingRequest) -> list[float] | str:
    return base64.b64encode(content).decode() if body.encoding_format == "base64" else values


def _settings(body: CompletionRequest) -> dict[str, Any]:
    greedy = body.temperature is not None and body.temperature < MIN_TEMPERATURE
    given = {
        "temperature": 0.0 if greedy else body.temperature, "top_p": body.top_p, "seed": body.seed,
        "presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty,
        "logit_bias": body.logit_bias,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"max_tokens": body.max_tokens or body.default_max_tokens, "stop": body.stops, **chosen}


def _logprobs(answer: Completion, top: int) -> dict[str, Any]:
    """The log-probability of every token of the answer, and those of the `top` most probable tokens at its position."""
    tokens, log_p, writer = answer.tokens, answer.log_probabilities, cast(TextGenerator, answer.generator)
    best = log_p.topk(max(top, 1), dim=-1)
    others = [
        dict(zip(writer.tokenizer.pieces(ids), values, strict=True)) if top else None
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    offsets = [
        len(answer.prompt) + len(writer.decode(answer.prompt_ids, answer.ids[:count])) for count in range(len(tokens))
    ]
    chosen = [log_p[place, token].item() for place, token in enumerate(answer.ids)]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": others[: len(tokens)], "text_offset": offsets}


def _counts(service: TranslationService, info: ModelInfo, prompt: str, answer: str) -> tuple[int, int]:
    writer = cast(TextGenerator, service.registry.model(info.id))
    read: Sequence[int] = writer.read(prompt)
    return len(read), len(writer.tokenizer.encode([answer])[0].ids) if answer else 0

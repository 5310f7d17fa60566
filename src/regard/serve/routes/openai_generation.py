"""Completions by models that write, and vectors by models that read."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

from regard.errors import UsageError
from regard.inference.pipelines.generation import Completion, Writer
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.inference.pipelines.word_vectors import WordVectors
from regard.serve.http.responses import error_response
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.openai_schemas import (
    LAST,
    MIN_TEMPERATURE,
    CompletionRequest,
    EmbeddingRequest,
    choice,
    unknown_field,
    usage,
)


async def complete_text(
    service: TranslationService, info: ModelInfo, prompts: list[str], asked: CompletionRequest
) -> dict[str, Any]:
    """Write on from each prompt."""
    if asked.echo and asked.logprobs is not None:
        raise UsageError("logprobs are those of the answer; leave out echo")

    def write() -> dict[str, Any]:
        writer = cast(Writer, service.registry.model(info.id))
        answers = writer.generate(prompts, n=asked.choices, best_of=asked.best_of, **_settings(asked))
        choices: list[dict[str, Any]] = []
        for answer in answers:
            for each in (answer, *answer.alternatives):
                told = _logprobs(each, asked.logprobs) if asked.logprobs is not None else None
                text = each.prompt + each.text if asked.echo else each.text
                choices.append(choice(len(choices), text, each.reason or "stop", told))
        read = sum(len(answer.prompt_ids) for answer in answers)
        written = sum(len(each.ids) for answer in answers for each in (answer, *answer.alternatives))
        told = asked.response_builder().whole(choices, usage(read, written))
        return told | unknown_field([answer.unknown for answer in answers])

    return await service.engine.run(write)


async def stream_text(
    service: TranslationService, info: ModelInfo, prompt: str, asked: CompletionRequest
) -> AsyncIterator[str]:
    """The same piece by piece, as soon as a piece cannot change any more."""
    builder, sent, pieces = asked.response_builder(), prompt if asked.echo else "", list[str]()
    if sent:
        yield builder.delta(sent)

    def begin() -> Any:
        writer = cast(Writer, service.registry.model(info.id))
        told, reason = "", ""
        for chunk in writer.stream(prompt, **_settings(asked)):
            told, reason = told + chunk.text, chunk.reason
            yield told, reason

    try:
        async for told, reason in service.engine.stream(begin):
            new = told[sum(map(len, pieces)) :]
            if new or reason:
                yield builder.delta(new, reason or None)
                pieces.append(new)
        if (asked.stream_options or {}).get("include_usage"):
            counts = await service.engine.run(lambda: _counts(service, info, prompt, "".join(pieces)), accepted=True)
            yield builder.event([], usage=usage(*counts))
    except Exception as error:
        if not pieces and not sent:
            raise
        yield f"data: {bytes(error_response('/v1', error).body).decode()}\n\n"
    yield LAST


async def embed_texts(
    service: TranslationService, info: ModelInfo, texts: list[str], asked: EmbeddingRequest
) -> dict[str, Any]:
    """A vector for each text, of length 1."""

    def embed() -> dict[str, Any]:
        encoder = service.registry.model(info.id)
        if not isinstance(encoder, TextEncoder | WordVectors):
            raise UsageError(f"{info.id} gives no embeddings; it is there to {info.ability}")
        if asked.dimensions not in (None, encoder.width):
            raise UsageError(f"dimensions is {asked.dimensions}; the vectors of {info.id} have {encoder.width}")
        vectors, read = encoder.embed(texts), sum(encoder.lengths(texts))
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _encoded(vector.tolist(), vector.numpy().tobytes(), asked),
            }
            for index, vector in enumerate(vectors)
        ]
        return {
            "object": "list",
            "data": data,
            "model": asked.model,
            "usage": {"prompt_tokens": read, "total_tokens": read},
        } | unknown_field([encoder.unknown_words(text) for text in texts])

    return await service.engine.run(embed)


def _encoded(values: list[float], content: bytes, asked: EmbeddingRequest) -> list[float] | str:
    return base64.b64encode(content).decode() if asked.encoding_format == "base64" else values


def _settings(asked: CompletionRequest) -> dict[str, Any]:
    cold = asked.temperature is not None and asked.temperature < MIN_TEMPERATURE
    given = {
        "temperature": 0.0 if cold else asked.temperature, "top_p": asked.top_p, "seed": asked.seed,
        "presence_penalty": asked.presence_penalty, "frequency_penalty": asked.frequency_penalty,
        "logit_bias": asked.logit_bias,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"max_tokens": asked.max_tokens or asked.usual_tokens, "stop": asked.stops, **chosen}


def _logprobs(answer: Completion, top: int) -> dict[str, Any]:
    """Of every token of the answer: its log-probability, and those of the `top` most probable ones in its place."""
    tokens, log_p, writer = answer.tokens, answer.log_probabilities, cast(Writer, answer.writer)
    best = log_p.topk(max(top, 1), dim=-1)
    others = [
        dict(zip(writer.tokenizer.pieces(ids), values, strict=True)) if top else None
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    offsets = [
        len(answer.prompt) + len(writer.written(answer.prompt_ids, answer.ids[:count])) for count in range(len(tokens))
    ]
    chosen = [log_p[place, token].item() for place, token in enumerate(answer.ids)]
    return {"tokens": tokens, "token_logprobs": chosen, "top_logprobs": others[: len(tokens)], "text_offset": offsets}


def _counts(service: TranslationService, info: ModelInfo, prompt: str, answer: str) -> tuple[int, int]:
    writer = cast(Writer, service.registry.model(info.id))
    read: Sequence[int] = writer.read(prompt)
    return len(read), len(writer.tokenizer.encode([answer])[0].ids) if answer else 0

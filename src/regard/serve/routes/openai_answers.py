"""Completions by models that generate text and by translators, and embeddings by text encoders."""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Any

from regard.errors import UsageError
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.serve.models.registry import ModelInfo, Route
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.openai_schemas import (
    MIN_TEMPERATURE,
    CompletionRequest,
    EmbeddingRequest,
    choice,
    unknown_field,
    usage,
)


async def complete_text(
    service: TranslationService, route: Route, prompts: list[str], body: CompletionRequest
) -> dict[str, Any]:
    """Complete each prompt by the one model of a route."""
    ((info, _),) = route
    if body.echo and body.logprobs is not None:
        raise UsageError("logprobs are given for the completion only; leave out echo")

    def generate() -> dict[str, Any]:
        answers = service.registry.model(info.id).generate(
            prompts, n=body.choices, best_of=body.best_of, **_settings(body)
        )
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
    service: TranslationService, route: Route, prompt: str, body: CompletionRequest
) -> AsyncIterator[str]:
    """Complete a prompt as server-sent events; each event has text that cannot change any more."""
    ((info, _),), builder, sent = route, body.response_builder(), ""
    if body.echo and prompt:
        yield builder.delta(prompt)

    def begin() -> Any:
        text = ""
        for chunk in service.registry.model(info.id).stream(prompt, **_settings(body)):
            text += chunk.text
            yield text, chunk.reason

    async for text, reason in service.engine.stream(begin):
        if len(text) > len(sent) or reason:
            yield builder.delta(text[len(sent) :], reason or None)
            sent = text
    if body.includes_usage:

        def counts() -> tuple[int, int]:
            writer = service.registry.model(info.id)
            return len(writer.read(prompt)), len(writer.tokenizer.encode([sent])[0].ids) if sent else 0

        yield builder.event([], usage=usage(*await service.engine.run(counts, accepted=True)))


async def embed_texts(
    service: TranslationService, info: ModelInfo, texts: list[str], body: EmbeddingRequest
) -> dict[str, Any]:
    """A vector for each text, normalised to length 1."""
    if info.ability != "embed":
        raise UsageError(f"{info.id} gives no embeddings; it is there to {info.ability}")

    def embed() -> dict[str, Any]:
        encoder = service.registry.model(info.id)
        if body.dimensions not in (None, encoder.width):
            raise UsageError(f"dimensions is {body.dimensions}; the vectors of {info.id} have {encoder.width}")
        vectors, read = encoder.embed(texts), sum(encoder.lengths(texts))
        written = [
            base64.b64encode(vector.numpy().tobytes()).decode() if body.encoding_format == "base64" else vector.tolist()
            for vector in vectors
        ]
        data = [{"object": "embedding", "index": index, "embedding": each} for index, each in enumerate(written)]
        counts = {"prompt_tokens": read, "total_tokens": read}
        answer = {"object": "list", "data": data, "model": body.model, "usage": counts}
        return answer | unknown_field([encoder.unknown_words(text) for text in texts])

    return await service.engine.run(embed)


def _settings(body: CompletionRequest) -> dict[str, Any]:
    greedy = body.temperature is not None and body.temperature < MIN_TEMPERATURE
    given = {
        "temperature": 0.0 if greedy else body.temperature, "top_p": body.top_p, "seed": body.seed,
        "presence_penalty": body.presence_penalty, "frequency_penalty": body.frequency_penalty,
        "logit_bias": body.logit_bias,
    }  # fmt: skip
    chosen = {name: value for name, value in given.items() if value is not None}
    return {"max_tokens": body.max_tokens or body.default_max_tokens, "stop": body.stops, **chosen}


def _logprobs(answer: Any, top: int) -> dict[str, Any]:
    """The log-probability of every token of the answer, and those of the `top` most probable tokens at its position."""
    tokens, log_p, writer = answer.tokens, answer.log_probabilities, answer.generator
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


async def complete_translation(
    service: TranslationService, route: Route, prompts: list[str], body: CompletionRequest
) -> dict[str, Any]:
    translated = await service.translate_along(route, prompts, body.search())
    reader, translator = (service.registry.translator(info.id) for info, _ in (route[0], route[-1]))
    choices: list[dict[str, Any]] = []
    for each in translated:
        texts = [each.text, *each.alternatives(body.choices - 1)]
        texts += [texts[-1]] * (body.choices - len(texts))  # a short text may have fewer translations than asked for
        for text in texts:
            cut, reason = _shorten(translator, text, body, each.truncated)
            choices.append(choice(len(choices), cut, reason))
    if body.logprobs is not None:
        top = body.logprobs
        found = await service.engine.run(
            lambda: [_translation_logprobs(each.sentences, top) for each in translated], accepted=True
        )
        for each_choice, values in zip(choices[:: body.choices], found, strict=True):
            each_choice["logprobs"] = {name: listed[: body.max_tokens] for name, listed in values.items()}
    read = await service.engine.run(lambda: _count_source(reader, prompts), accepted=True)
    lengths = [sum(len(sentence.tokens) for sentence in each.sentences) for each in translated]
    written = sum(min(length, body.max_tokens or length) for length in lengths)
    response = body.response_builder().response(choices, usage(read, written))
    response |= unknown_field([each.unknown for each in translated])
    if len(route) > 1:  # two models: the language between, and the text in it for each prompt
        response["pivot"] = {"language": route[0][1], "texts": [each.way.text for each in translated if each.way]}
    return response


async def stream_translation(
    service: TranslationService, route: Route, prompt: str, body: CompletionRequest
) -> AsyncIterator[str]:
    """Events: text that cannot change any more, then the finish reason, then the token usage."""
    builder, sent, reason = body.response_builder(), "", "stop"
    (first, _), (last, to) = route[0], route[-1]
    reader, translator = service.registry.translator(first.id), service.registry.translator(last.id)
    text = prompt
    if len(route) > 1:
        (way,) = await service.translate_along(route[:-1], [prompt])
        text = way.text
    async for growing in service.stream(last, to, text, body.search(), settled=True):
        cut, reason = _shorten(translator, growing.text, body, growing.truncated)
        if len(cut) > len(sent):
            yield builder.delta(cut[len(sent) :])
            sent = cut
        if len(cut) < len(growing.text):
            break
    yield builder.delta("", reason)
    if body.includes_usage:

        def counts() -> tuple[int, int]:
            return _count_source(reader, [prompt]), len(translator.tokenizer.target.encode([sent])[0])

        yield builder.event([], usage=usage(*await service.engine.run(counts, accepted=True)))


def _shorten(translator: Translator, text: str, body: CompletionRequest, truncated: bool) -> tuple[str, str]:
    """The text up to the first stop string or the limit of tokens, and the reason why it ends.

    The whole answer is searched for, and then cut: a search that must end early finds another, or an empty one."""
    stops = [place for place in (text.find(stop) for stop in body.stops) if place >= 0]
    cut = text[: min(stops, default=len(text))]
    short = cut if body.max_tokens is None else _beginning(translator, cut, body.max_tokens)
    if len(short) < len(cut) or (truncated and not stops):
        return short, "length"
    return short, "stop"


def _beginning(translator: Translator, text: str, most: int) -> str:
    """The longest beginning of a text that has at most so many tokens."""
    encode = translator.tokenizer.target.encode
    if len(encode([text])[0]) <= most:
        return text
    end = bisect_right(range(len(text) + 1), most, key=lambda length: len(encode([text[:length]])[0]))
    return text[: max(end - 1, 0)].rstrip()


def _count_source(translator: Translator, prompts: Sequence[str]) -> int:
    return sum(len(ids) for ids in translator.tokenizer.source.encode(prompts))


def _translation_logprobs(sentences: Sequence[Translation], top: int) -> dict[str, Any]:
    """The log-probability of every token of the answer, and those of the `top` most probable tokens at its position."""
    logprobs: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    offset = 0
    for answer in sentences:
        translator = answer.translator
        assert translator is not None
        pieces = translator.tokenizer.target.vocabulary
        for source, ids in answer.parts:
            log_p = translator.log_probabilities(source, ids, to=answer.to)
            best = log_p.topk(max(top, 1), dim=-1)
            for place, token in enumerate(ids):
                logprobs["tokens"].append(pieces[token])
                logprobs["token_logprobs"].append(log_p[place, token].item())
                values = zip(best.indices[place].tolist(), best.values[place].tolist(), strict=True)
                logprobs["top_logprobs"].append({pieces[i]: value for i, value in values} if top else None)
                logprobs["text_offset"].append(offset)
                offset += len(pieces[token].lstrip("▁")) + (place > 0 and pieces[token].startswith("▁"))
        offset += 1
    return logprobs

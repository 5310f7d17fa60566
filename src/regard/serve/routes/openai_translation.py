"""Completions by translation models: the completion of a prompt is its translation."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence
from typing import Any

from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator
from regard.serve.http.responses import error_response
from regard.serve.models.language_routes import Route
from regard.serve.models.translated_text import TranslatedText
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.openai_schemas import DONE_EVENT, CompletionRequest, choice, unknown_field, usage


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
        found = await service.engine.run(lambda: [_logprobs(each.sentences, top) for each in translated], accepted=True)
        for each_choice, values in zip(choices[:: body.choices], found, strict=True):
            each_choice["logprobs"] = {name: listed[: body.max_tokens] for name, listed in values.items()}
    read = await service.engine.run(lambda: _count_source(reader, prompts), accepted=True)
    lengths = [sum(len(sentence.tokens) for sentence in each.sentences) for each in translated]
    written = sum(min(length, body.max_tokens or length) for length in lengths)
    response = body.response_builder().response(choices, usage(read, written))
    return response | unknown_field([each.unknown for each in translated]) | _pivot_field(route, translated)


async def stream_translation(
    service: TranslationService, route: Route, prompt: str, body: CompletionRequest
) -> AsyncIterator[str]:
    """Server-sent events: text that cannot change any more, then the finish reason, then the token usage."""
    builder, sent, reason = body.response_builder(), "", "stop"
    (first, _), (last, to) = route[0], route[-1]
    reader, translator = service.registry.translator(first.id), service.registry.translator(last.id)
    try:
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
        if (body.stream_options or {}).get("include_usage"):
            counts = await service.engine.run(lambda: _counts(reader, prompt, translator, sent), accepted=True)
            yield builder.event([], usage=usage(*counts))
    except Exception as error:
        if not sent:
            raise
        yield f"data: {bytes(error_response('/v1', error).body).decode()}\n\n"
    yield DONE_EVENT


def _cut(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text up to the first stop string, and whether there was one."""
    places = [place for place in (text.find(stop) for stop in stops) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _shorten(translator: Translator, text: str, body: CompletionRequest, truncated: bool) -> tuple[str, str]:
    """The text up to the first stop string or the limit of tokens, and the reason why it ends.

    The whole answer is searched for, and then cut: a search that must end early finds another, or an empty one."""
    cut, stopped = _cut(text, body.stops)
    short = cut if body.max_tokens is None else _beginning(translator, cut, body.max_tokens)
    if len(short) < len(cut) or (truncated and not stopped):
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


def _counts(reader: Translator, prompt: str, writer: Translator, answer: str) -> tuple[int, int]:
    return _count_source(reader, [prompt]), len(writer.tokenizer.target.encode([answer])[0])


def _pivot_field(route: Route, translated: Sequence[TranslatedText]) -> dict[str, Any]:
    """For an answer by two models: the language between, and the text in it for each prompt."""
    if len(route) == 1:
        return {}
    return {"pivot": {"language": route[0][1], "texts": [each.way.text for each in translated if each.way is not None]}}


def _logprobs(sentences: Sequence[Translation], top: int) -> dict[str, Any]:
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

"""The OpenAI API with its real client."""

import asyncio
import math
import re
from pathlib import Path

import openai
import pytest

import regard

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def name(translator_folder: Path) -> str:
    return f"{translator_folder.name}:es"


@pytest.fixture(scope="module")
def translator(translator_folder: Path):
    return regard.load(translator_folder)


def test_models(client, name):
    names = [model.id for model in client.models.list()]
    assert {name, name.replace(":es", ":pt"), "fixed"} <= set(names)
    assert client.models.retrieve(name).owned_by == "regard"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")


def test_a_completion_is_a_translation(client, name, translator):
    answer = client.completions.create(model=name, prompt=[SENTENCE, "she reads a book"])
    assert [choice.text for choice in answer.choices] == [
        each.text for each in translator.translate([SENTENCE, "she reads a book"], to="es")
    ]
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens > 0


def test_a_stream_says_what_the_whole_answer_says(client, name):
    text = "We are eating bread. She reads a book.\nThe old house is red."
    whole = client.completions.create(model=name, prompt=text)
    chunks = list(
        client.completions.create(model=name, prompt=text, stream=True, stream_options={"include_usage": True})
    )
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_several_choices(client, name, translator):
    answer = client.completions.create(model=name, prompt=SENTENCE, n=3, best_of=4)
    best = translator.translate(SENTENCE, to="es", n_best=4)
    expected = [best.text, *(each.text for each in best.alternatives)]
    assert [choice.text for choice in answer.choices] == expected[:3]


def test_log_probabilities_add_up_to_the_score_of_the_search(client, name, translator):
    told = client.completions.create(model=name, prompt=SENTENCE, logprobs=2).choices[0].logprobs
    answer = translator.translate(SENTENCE, to="es")
    assert told.tokens == answer.tokens
    end = translator.log_probabilities(SENTENCE, answer.parts[0][1], to="es")[-1, translator.vocabulary.end].item()
    length = len(told.tokens) + 1
    assert math.isclose(sum(told.token_logprobs) + end, answer.score * length, abs_tol=1e-3)
    for own, top in zip(told.token_logprobs, told.top_logprobs, strict=True):
        assert len(top) == 2 and max(top.values()) >= own - 1e-5


def test_length_and_stop(client, name):
    whole = client.completions.create(model=name, prompt=SENTENCE).choices[0].text
    for most in (1, 2, 3):
        answer = client.completions.create(model=name, prompt=SENTENCE, max_tokens=most, logprobs=0)
        short = answer.choices[0]
        assert short.finish_reason == "length" and short.text and whole.startswith(short.text) and short.text != whole
        assert len(short.logprobs.tokens) == answer.usage.completion_tokens == most
        streamed = [
            chunk.choices[0]
            for chunk in client.completions.create(model=name, prompt=SENTENCE, max_tokens=most, stream=True)
        ]
        assert "".join(each.text for each in streamed) == short.text and streamed[-1].finish_reason == "length"
    plenty = client.completions.create(model=name, prompt=SENTENCE, max_tokens=900).choices[0]
    assert (plenty.text, plenty.finish_reason) == (whole, "stop")
    stop = whole[-3:]
    cut = client.completions.create(model=name, prompt=SENTENCE, stop=[stop, "never there"]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.split(stop)[0], "stop")
    stream_events = client.completions.create(model=name, prompt=SENTENCE, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream_events) == cut.text


def test_chance_is_seeded(client, name):
    def drawn(seed: int) -> str:
        return client.completions.create(model=name, prompt=SENTENCE, temperature=1.5, seed=seed).choices[0].text

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(6)}) > 1


def test_token_prompts(client, name, translator):
    ids = translator.tokenizer.source.encode([SENTENCE])[0]
    expected = client.completions.create(model=name, prompt=SENTENCE).choices[0].text
    assert client.completions.create(model=name, prompt=ids).choices[0].text == expected
    assert client.completions.create(model=name, prompt=[ids]).choices[0].text == expected
    with pytest.raises(openai.BadRequestError, match="outside"):
        client.completions.create(model=name, prompt=[10**6])


@pytest.mark.parametrize(
    "wrong",
    [{"echo": True}, {"logit_bias": {"5": 1}}, {"presence_penalty": 1.0}, {"suffix": "x"}, {"n": 0}, {"n": 99},
     {"best_of": 1, "n": 2}, {"prompt": []}, {"prompt": "x" * 10_001}, {"temperature": 9}, {"max_tokens": 0},
     {"stream": True, "n": 2}, {"stream": True, "prompt": ["a", "b"]}],
)  # fmt: skip
def test_bad_requests(client, name, wrong):
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(**{"model": name, "prompt": "hello", **wrong})
    assert set(error.value.body) == {"message", "type", "param", "code"} and error.value.body["message"]


def test_unknown_models_and_embeddings(client, name):
    with pytest.raises(openai.NotFoundError, match=f"nothing.*{name}.*fixed"):
        client.completions.create(model="nothing", prompt="x")
    with pytest.raises(openai.BadRequestError, match=f"say which: {name} or {name[:-3]}:pt"):
        client.completions.create(model=name.removesuffix(":es"), prompt="x")
    assert client.completions.create(model="fixed:es", prompt="x").choices  # also for a model with one target
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="fixed", input="x")


def test_keys(locked):
    stranger = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="sesame", max_retries=0) as friend:
        assert friend.models.list().data


# Chats


def asked(text: str = SENTENCE) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Translate."}, {"role": "user", "content": "x"},
            {"role": "assistant", "content": "y"}, {"role": "user", "content": text}]  # fmt: skip


def test_a_translator_answers_the_last_message_of_the_user(client, name, translator):
    answer = client.chat.completions.create(model=name, messages=asked())
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == translator.translate(SENTENCE, to="es").text
    assert (answer.object, choice.finish_reason) == ("chat.completion", "stop")
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens > 0
    other = client.chat.completions.create(model=name.replace(":es", ":pt"), messages=asked())
    assert other.choices[0].message.content == translator.translate(SENTENCE, to="pt").text


def test_a_message_may_come_in_parts(client, name):
    parts = [{"type": "text", "text": "we are "}, {"type": "text", "text": "eating bread"}]
    answer = client.chat.completions.create(model=name, messages=[{"role": "user", "content": parts}])
    whole = client.chat.completions.create(model=name, messages=[{"role": "user", "content": SENTENCE}])
    assert answer.choices[0].message.content == whole.choices[0].message.content


def test_a_chat_is_streamed(client, name):
    text = "We are eating bread. She reads a book.\nThe old house is red."
    whole = client.chat.completions.create(model=name, messages=asked(text)).choices[0].message.content
    usage = {"include_usage": True}
    chunks = list(client.chat.completions.create(model=name, messages=asked(text), stream=True, stream_options=usage))
    told = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(each.delta.content or "" for each in told) == whole
    assert told[0].delta.role == "assistant" and told[-1].finish_reason == "stop"
    assert chunks[-1].usage.total_tokens > 0 and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}


def test_a_chat_has_choices_limits_and_log_probabilities(client, name, translator):
    create = client.chat.completions.create
    best = translator.translate(SENTENCE, to="es", n_best=3)
    answer = create(model=name, messages=asked(), n=3)
    assert [each.message.content for each in answer.choices] == [best.text, *(each.text for each in best.alternatives)]
    for limit in ({"max_tokens": 1}, {"max_completion_tokens": 1}):
        assert create(model=name, messages=asked(), **limit).choices[0].finish_reason == "length"
    stop = best.text[-3:]
    assert create(model=name, messages=asked(), stop=stop).choices[0].message.content == best.text.split(stop)[0]
    drawn = {create(model=name, messages=asked(), temperature=1.5, seed=s).choices[0].message.content for s in range(6)}
    assert len(drawn) > 1
    told = create(model=name, messages=asked(), logprobs=True, top_logprobs=2).choices[0].logprobs.content
    plain = client.completions.create(model=name, prompt=SENTENCE, logprobs=2).choices[0].logprobs
    assert [each.token for each in told] == plain.tokens
    assert [each.logprob for each in told] == plain.token_logprobs
    assert all(len(each.top_logprobs) == 2 for each in told)


@pytest.mark.parametrize(
    "wrong",
    [{"messages": []}, {"messages": [{"role": "system", "content": "x"}]},
     {"messages": [{"role": "king", "content": "x"}]},
     {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, {"n": 0},
     {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"response_format": {"type": "json_object"}},
     {"logit_bias": {"5": 1}}, {"top_logprobs": 2}, {"stream": True, "n": 2}, {"temperature": 9}],
)  # fmt: skip
def test_bad_chats_are_refused(client, name, wrong):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"model": name, "messages": asked(), **wrong})
    assert set(error.value.body) == {"message", "type", "param", "code"} and error.value.body["message"]


def test_chats_with_unknown_models_name_those_there_are(client, name):
    with pytest.raises(openai.NotFoundError, match=f"nothing.*{name}"):
        client.chat.completions.create(model="nothing", messages=asked())
    with pytest.raises(openai.BadRequestError, match=name):
        client.chat.completions.create(model=name.removesuffix(":es"), messages=asked())


def test_the_asynchronous_client(served, name, translator):
    async def ask() -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            assert name in [model.id async for model in await client.models.list()]
            whole = await client.chat.completions.create(model=name, messages=asked())
            stream = await client.chat.completions.create(model=name, messages=asked(), stream=True)
            pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        return whole.choices[0].message.content, "".join(pieces)

    expected = translator.translate(SENTENCE, to="es").text
    assert asyncio.run(ask()) == (expected, expected)


def test_two_models_translate_through_a_pivot_language(folders, back_folder, start_server_of_module):
    server = start_server_of_module([folders[0], back_folder])
    there, back = (server.registry.translator(each.id) for each in server.registry.translation_models())
    name = f"{back_folder.name}+{folders[0].name}:pt"
    text = "ella lee un libro"
    way = back.translate(text, to="en").text
    expected = there.translate(way, to="pt").text
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        names = [model.id for model in client.models.list()]
        assert names == [f"{folders[0].name}:es", f"{folders[0].name}:pt", back_folder.name, name]
        assert client.models.retrieve(name).id == name
        whole = client.completions.create(model=name, prompt=[text], logprobs=1)
        assert whole.choices[0].text == expected
        assert whole.model_extra["pivot"] == {"language": "en", "texts": [way]}
        assert whole.usage.prompt_tokens == len(back.tokenizer.source.encode([text])[0])
        usage = {"include_usage": True}
        *chunks, last = client.completions.create(model=name, prompt=text, stream=True, stream_options=usage)
        assert "".join(each.choices[0].text for each in chunks) == expected
        assert last.usage.prompt_tokens == whole.usage.prompt_tokens
        message = {"role": "user", "content": text}
        chat = client.chat.completions.create(model=name, messages=[message])
        assert chat.choices[0].message.content == expected
        with pytest.raises(openai.NotFoundError, match=re.escape(f"{back_folder.name}, {name}")):
            client.completions.create(model=f"{back_folder.name}+nothing", prompt=text)
        with pytest.raises(openai.BadRequestError, match="translates through en and does nothing else"):
            client.embeddings.create(model=name, input=text)

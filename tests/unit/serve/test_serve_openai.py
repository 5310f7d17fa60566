"""The OpenAI API, by its real client."""

import math
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
    short = client.completions.create(model=name, prompt=SENTENCE, max_tokens=1).choices[0]
    assert short.finish_reason == "length"
    streamed = list(client.completions.create(model=name, prompt=SENTENCE, max_tokens=1, stream=True))
    assert streamed[-1].choices[0].finish_reason == "length"
    whole = client.completions.create(model=name, prompt=SENTENCE).choices[0].text
    stop = whole[-3:]
    cut = client.completions.create(model=name, prompt=SENTENCE, stop=[stop, "never there"]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.split(stop)[0], "stop")
    streamed = client.completions.create(model=name, prompt=SENTENCE, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.text


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
    with pytest.raises(openai.NotFoundError, match="nothing"):
        client.completions.create(model="nothing", prompt="x")
    with pytest.raises(openai.BadRequestError, match="say which"):
        client.completions.create(model=name.removesuffix(":es"), prompt="x")
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="fixed", input="x")


def test_keys(locked):
    stranger = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="sesame", max_retries=0) as friend:
        assert friend.models.list().data

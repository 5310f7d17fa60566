"""Language models and encoders behind the OpenAI API, with its real client, against the models themselves."""

import shutil
from pathlib import Path

import numpy as np
import openai
import pytest
import torch

import regard
from regard.checkpoints import save_model
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.families.language.word_vectors import Word2Vec, Word2VecConfig

PROMPT = "the fox saw"


@pytest.fixture
def client(start_server, gpt_folder: Path, make_encoder, folders: list[Path]):
    served = start_server([folders[0], gpt_folder, make_encoder("masked")])
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        client.served = served
        yield client


def test_a_language_model_goes_on(client, gpt_folder: Path):
    writer = regard.load(gpt_folder)
    expected = writer.generate(PROMPT, max_tokens=12, temperature=0.0)
    answer = client.completions.create(model="gpt-writer", prompt=PROMPT, max_tokens=12, temperature=0, logprobs=2)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (expected.text, expected.reason)
    assert choice.logprobs.tokens == expected.tokens
    assert sum(choice.logprobs.token_logprobs) == pytest.approx(expected.log_probability, abs=0.05)
    chunks = list(
        client.completions.create(model="gpt-writer", prompt=PROMPT, max_tokens=12, temperature=0, stream=True)
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == expected.reason
    echoed = client.completions.create(model="gpt-writer", prompt=PROMPT, max_tokens=12, temperature=0, echo=True)
    assert echoed.choices[0].text == PROMPT + expected.text


CHAT = [
    {"role": "user", "content": "the fox"},
    {"role": "assistant", "content": "saw"},
    {"role": "user", "content": "owl"},
]
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }} {{ m.content }}{% endfor %}{{ bos_token }}assistant"


def test_a_language_model_answers_a_chat(start_server, gpt_folder: Path, tmp_path: Path):
    made = shutil.copytree(gpt_folder, tmp_path / "chatty")
    (made / "chat_template.jinja").write_text(TEMPLATE)
    served = start_server([gpt_folder, made])
    settings = {"temperature": 0.0, "max_tokens": 8}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        plain = client.chat.completions.create(model="gpt-writer", messages=CHAT, **settings)
        answer = client.chat.completions.create(
            model="chatty", messages=CHAT, **settings, logprobs=True, top_logprobs=7
        )
        usage = {"include_usage": True}
        chunks = list(client.chat.completions.create(
            model="chatty", messages=CHAT, **settings, stream=True, stream_options=usage
        ))  # fmt: skip
        long = client.chat.completions.create(model="chatty", messages=CHAT, temperature=0)
    writer = regard.load(gpt_folder)
    on = writer.generate("the fox\nsaw\nowl", **settings)
    assert plain.choices[0].message.content == on.text  # without a template the chat is simply continued
    cut = [
        writer.tokenizer.encode([text])[0].ids for text in ("user the fox", "assistant saw", "user owl", "assistant")
    ]
    ids = [token for part in cut for token in (writer.tokenizer.end, *part)]
    assert answer.usage.prompt_tokens == len(ids) == chunks[-1].usage.prompt_tokens
    log_p = writer.log_probabilities(ids, [0])  # the probability of every first token after the whole chat
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens == 8 and 1 < len(told[0].top_logprobs) <= 7
    assert told[0].logprob == pytest.approx(log_p[0].max().item(), abs=1e-4)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        answer.choices[0].message.content
    )
    assert long.usage.completion_tokens > 16  # the default limit of a chat answer is larger than that of a completion


def test_recurrent_models_go_on_and_words_have_vectors(start_server, make_writer, tmp_path: Path):
    reader = make_writer("lstm")
    words = train_vocabulary(
        ["king queen\n"], VocabularyConfig.parse({"kind": "word", "min_frequency": 1}), "separated"
    )
    model = Word2Vec(Word2VecConfig(vocab=words.size, width=6))
    save_model(tmp_path / "words", "word2vec", model, extras=words.save)
    served = start_server([reader, tmp_path / "words"])
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(model="lstm-writer", prompt=PROMPT, max_tokens=6, temperature=0)
        found = client.embeddings.create(model="words", input=["king", "king queen"])
        with pytest.raises(openai.BadRequestError, match="give texts"):
            client.embeddings.create(model="words", input=[[1, 2]])
    expected = regard.load(reader).generate(PROMPT, max_tokens=6, temperature=0.0)
    assert answer.choices[0].text == expected.text
    vectors = regard.load(tmp_path / "words").embed(["king", "king queen"])
    assert torch.allclose(torch.tensor([each.embedding for each in found.data]), vectors)
    assert found.usage.total_tokens == 3


def test_it_draws_as_often_as_asked(client, gpt_folder: Path):
    drawn = client.completions.create(
        model="gpt-writer", prompt=[PROMPT, "the owl"], n=2, best_of=3, seed=7, max_tokens=5
    )
    expected = regard.load(gpt_folder).generate([PROMPT, "the owl"], n=2, best_of=3, seed=7, max_tokens=5)
    assert [choice.text for choice in drawn.choices] == [
        text for each in expected for text in (each.text, *(other.text for other in each.alternatives))
    ]


def test_penalties_and_biases_are_those_of_the_model(client, gpt_folder: Path):
    writer = regard.load(gpt_folder)
    asked = {"max_tokens": 12, "temperature": 0.0}
    plain = writer.generate(PROMPT, **asked)
    for given in ({"presence_penalty": 2.0}, {"frequency_penalty": 1.5}, {"logit_bias": {str(plain.ids[0]): -100}}):
        answer = client.completions.create(model="gpt-writer", prompt=PROMPT, **asked, **given)
        own = {name: {plain.ids[0]: -100} if name == "logit_bias" else value for name, value in given.items()}
        expected = writer.generate(PROMPT, **asked, **own)
        assert answer.choices[0].text == expected.text != plain.text
    for wrong in ({"presence_penalty": 3}, {"frequency_penalty": -9}, {"logit_bias": {"1": 101}},
                  {"logit_bias": {"290": 1}}, {"logit_bias": {"-1": 1}}, {"logit_bias": {"x": 1}}):  # fmt: skip
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="gpt-writer", prompt=PROMPT, **wrong)


def test_vectors_come_as_numbers_and_as_the_client_asks_for_them(client, make_encoder):
    folder = make_encoder("masked")
    texts = ["we are eating bread", "the house is big"]
    expected = regard.load(folder).embed(texts).numpy()
    for kind in ({}, {"encoding_format": "float"}):  # by default the client asks for base64
        answer = client.embeddings.create(model=folder.name, input=texts, **kind)
        assert np.allclose([each.embedding for each in answer.data], expected, atol=1e-6)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=folder.name, input=texts, dimensions=3)


def test_each_model_does_what_it_can_and_says_what_it_cannot(client, make_encoder):
    encoder = make_encoder("masked").name
    with pytest.raises(openai.BadRequestError, match="completes none"):
        client.completions.create(model=encoder, prompt="x")
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        client.embeddings.create(model="gpt-writer", input="x")
    asked = {"q": "x", "source": "en", "target": "es"}
    assert client.served.client.post("/translate", json=asked).status_code == 200
    listed = {each["id"]: each for each in client.served.client.get("/api/models").json()["models"]}
    assert (listed["gpt-writer"]["ability"], listed[encoder]["ability"]) == ("write", "embed")
    answer = client.served.client.post("/api/translate", json={"model": "gpt-writer", "text": "x"})
    assert answer.status_code == 400 and "does not translate" in answer.json()["error"]
    told = client.served.client.get("/api/models/gpt-writer").json()
    assert {each["kind"] for each in told["layers"]} == {"causal"} and told["plan"]

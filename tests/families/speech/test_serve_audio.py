"""OpenAI's API of transcriptions with its real client, on a Whisper with random weights."""

import io
import json

import httpx
import numpy as np
import openai
import pytest
import soundfile

import regard
from regard.cli.main import run
from regard.documents.subtitles import Cue, write_srt
from regard.families.loading import load_pipeline
from tiny_whisper import as_wav, sounds, whisper_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return whisper_folder(tmp_path_factory.mktemp("models") / "tiny-whisper")


@pytest.fixture
def served(folder, start_server):
    return start_server([folder])


@pytest.fixture
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def audio():
    return as_wav(np.concatenate(sounds(3, seed=1)))


def test_every_format_says_the_same(client, folder, audio):
    assert [model.id for model in client.models.list()] == ["tiny-whisper"]
    ours = load_pipeline(folder)
    (plain,), (timed,) = ours.transcribe(audio), ours.transcribe(audio, timestamps=True)
    given = {"model": "tiny-whisper", "file": ("speech.wav", audio)}
    assert client.audio.transcriptions.create(**given).text == plain.text
    assert client.audio.transcriptions.create(**given, response_format="text").strip() == plain.text
    cues = [Cue(each.start, each.end, each.text) for each in timed.segments]
    assert client.audio.transcriptions.create(**given, response_format="srt") == write_srt(cues)
    assert client.audio.transcriptions.create(**given, response_format="vtt").startswith("WEBVTT\n\n00:00:00.")
    found = client.audio.transcriptions.create(**given, response_format="verbose_json")
    assert found.text == timed.text and found.duration == 1.5 and found.language in ("english", "portuguese", "german")
    assert [(each.start, each.text) for each in found.segments] == [
        (round(each.start, 3), each.text) for each in timed.segments
    ]
    assert found.words is None and found.segments[0].avg_logprob == pytest.approx(timed.segments[0].score)


def test_times_of_words_language_prompt_and_temperature(client, folder, audio):
    given = {"model": "tiny-whisper", "file": ("speech.wav", audio), "response_format": "verbose_json"}
    found = client.audio.transcriptions.create(**given, timestamp_granularities=["word", "segment"], language="pt")
    assert found.language == "portuguese" and found.words
    assert [word.word for word in found.words] == [word for each in found.segments for word in each.text.split()]
    ours = load_pipeline(folder)
    (expected,) = ours.transcribe(audio, prompt="a b c", language="de", timestamps=True)
    assert client.audio.transcriptions.create(**given, prompt="a b c", language="de").text == expected.text
    drawn = [client.audio.transcriptions.create(**given, temperature=1.0, language="de").text for _ in range(2)]
    assert drawn[0] == drawn[1] != expected.text


def as_file(samples, form):
    file = io.BytesIO()
    soundfile.write(file, samples, 8_000, format=form, subtype="PCM_U8" if form == "WAV" else None)
    return file.getvalue()


@pytest.mark.parametrize("form", ["WAV", "FLAC", "OGG"])
def test_other_files_are_read(client, form):
    samples = np.stack(sounds(2, seed=2), axis=1)
    found = client.audio.transcriptions.create(model="tiny-whisper", file=(f"x.{form}", as_file(samples, form)))
    assert found.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file": ("empty.wav", b"")}, "empty.wav is empty"),
        ({"file": ("note.txt", b"this is a text")}, "note.txt is no audio"),
        ({"language": "xx"}, "'xx'; known: en, pt, de"),
        ({"timestamp_granularities": ["word"]}, "verbose_json"),
        ({"response_format": "mp3"}, "response_format"),
        ({"temperature": 3}, "temperature"),
        ({"include": ["logprobs"]}, r"include\[\] is not supported"),
    ],
)
def test_mistakes_are_said(client, audio, changes, words):
    given = {"model": "tiny-whisper", "file": ("speech.wav", audio), **changes}
    with pytest.raises(openai.BadRequestError, match=words):
        client.audio.transcriptions.create(**given)


def test_models_that_cannot_transcribe_and_routes_that_need_texts(client, served, translator_folder, audio):
    served.registry.add(translator_folder)
    with pytest.raises(openai.BadRequestError, match="does not transcribe audio"):
        client.audio.transcriptions.create(model=f"{translator_folder.name}:es", file=("speech.wav", audio))
    with pytest.raises(openai.NotFoundError, match="tiny-whisper"):
        client.audio.transcriptions.create(model="nothing", file=("speech.wav", audio))
    with pytest.raises(openai.BadRequestError, match="ask /v1/audio/transcriptions"):
        client.completions.create(model="tiny-whisper", prompt="hello")


def test_uploads_have_the_limits_of_other_routes(folder, start_server):
    served = start_server([folder], body=1000, upload=50_000)
    form = {"model": "tiny-whisper"}
    small, large = (as_wav(np.concatenate(sounds(count))) for count in (1, 4))
    fits = httpx.post(f"{served.url}/v1/audio/transcriptions", data=form, files={"file": ("a.wav", small)})
    assert fits.status_code == 200
    refused = httpx.post(f"{served.url}/v1/audio/transcriptions", data=form, files={"file": ("a.wav", large)})
    assert refused.status_code == 413 and "limit" in refused.json()["error"]["message"]


def test_a_converted_folder_says_the_same(folder, audio, tmp_path):
    (expected,) = load_pipeline(folder).transcribe(audio, timestamps=True)
    assert run(["convert", str(folder), str(tmp_path / "ours"), "--to", "regard"]) == 0
    assert run(["convert", str(tmp_path / "ours"), str(tmp_path / "theirs"), "--to", "huggingface"]) == 0
    for name in ("ours", "theirs"):
        assert load_pipeline(tmp_path / name).transcribe(audio, timestamps=True) == [expected]
    before, after = (json.loads((place / "config.json").read_text()) for place in (folder, tmp_path / "theirs"))
    assert {key: after.get(key) for key in before} == before | {
        key: json.loads((folder / "generation_config.json").read_text())[key]
        for key in ("bos_token_id", "eos_token_id", "decoder_start_token_id") if key in before
    }  # fmt: skip


def test_the_page_hears_and_looks(served, audio):
    samples, rate = soundfile.read(io.BytesIO(audio), dtype="float32")
    given = {"data": {"model": "tiny-whisper"}, "files": {"file": ("speech.wav", as_wav(samples[: rate // 2]))}}
    answer = served.client.post("/api/inspect", **given).json()
    assert answer["answer"]["seconds"] == 0.5 and answer["answer"]["text"]
    layer = served.client.post("/api/inspect/layer", json={"id": answer["id"], "layer": 1})
    assert layer.status_code == 200
    long = served.client.post("/api/inspect", data=given["data"], files={"file": ("long.wav", audio)})
    assert long.status_code == 400 and "at most 0.5 s" in long.json()["error"]


def test_the_same_models_work_in_python(folder, audio, tmp_path):
    path = tmp_path / "speech.wav"
    path.write_bytes(audio)
    model = regard.load(folder)
    assert model.transcribe(path) == model.transcribe(str(path)) == model.transcribe([audio])

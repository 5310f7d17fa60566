"""Whisper: loops are drawn anew, silence is told by the model, and what a folder declares is read."""

import json

import pytest
import torch

from regard.errors import CheckpointError
from regard.families.speech.pipeline import TranscribeOptions
from regard.families.speech.whisper import SpokenTokens
from regard.families.speech.whisper_pipeline import WhisperTranscriber, Written
from regard.search.search import Hypothesis
from tiny_whisper import generation_values, sounds, vocabulary, whisper_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return whisper_folder(tmp_path_factory.mktemp("whisper") / "model")


@pytest.fixture
def whisper(folder):
    return WhisperTranscriber.load(folder)


def scripted(whisper, monkeypatch, *answers):
    """Let the model write these answers, one list for every call; returns the settings of the calls."""
    calls, left = [], list(answers)

    def write(memory, prompts, settings, *, times, seeds=()):
        calls.append((len(prompts), settings.temperature if settings.sample else 0.0, list(seeds)))
        return left.pop(0)

    monkeypatch.setattr(whisper, "write", write)
    return calls


def said(whisper, text, score=-0.1, no_speech=0.0):
    return Written([Hypothesis(whisper.text_ids(text.strip()), score, score, True)], no_speech)


def test_only_texts_that_repeat_are_drawn_anew(whisper, monkeypatch):
    good, loop = said(whisper, " a b c d"), said(whisper, " a b" * 60)
    calls = scripted(whisper, monkeypatch, [good, loop, loop], [loop, good], [good])
    found = whisper.hear(sounds(3), TranscribeOptions(language="en"))
    assert [segments[0].text for segments in found] == ["a b c d"] * 3
    assert [(count, heat) for count, heat, _ in calls] == [(3, 0.0), (2, 0.2), (1, 0.4)]
    assert calls[1][2] == calls[0][2][1:] and calls[2][2] == calls[0][2][1:2] and len(set(calls[0][2])) == 3


def test_a_loop_that_stays_is_given_up(whisper, monkeypatch):
    loop = said(whisper, " a b" * 60)
    calls = scripted(whisper, monkeypatch, *[[loop]] * 6)
    assert whisper.hear(sounds(1), TranscribeOptions(language="en"))[0][0].text.startswith("a b a b")
    assert [heat for _, heat, _ in calls] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(("no_speech", "score", "heard"), [(0.7, -1.5, 0), (0.7, -0.5, 1), (0.5, -1.5, 1)])
def test_a_piece_without_speech_says_nothing(whisper, monkeypatch, no_speech, score, heard):
    scripted(whisper, monkeypatch, [said(whisper, " a b c", score, no_speech)])
    assert len(whisper.hear(sounds(1), TranscribeOptions(language="en"))[0]) == heard


def test_segments_lie_between_times(whisper, monkeypatch):
    first = whisper.tokens.first_time
    a, b = whisper.text_ids("a b"), whisper.text_ids("c")
    tokens = [first + 1, *a, first + 5, first + 5, *b, first + 9, first + 12, *a]
    scripted(whisper, monkeypatch, [Written([Hypothesis(tokens, -0.1, -1.0, True)], 0.0)])
    (found,) = whisper.hear(sounds(1), TranscribeOptions(language="pt", timestamps=True, words=True))
    assert [(each.text, round(each.start, 2), round(each.end, 2)) for each in found] == [
        ("a b", 0.02, 0.1), ("c", 0.1, 0.18), ("a b", 0.24, 0.5)
    ]  # fmt: skip
    assert [[word.text for word in each.words] for each in found] == [["a", "b"], ["c"], ["a", "b"]]


def test_names_stand_in_for_what_a_folder_does_not_declare():
    ids, added = vocabulary()
    values, names = generation_values(), {**ids, **added}
    assert SpokenTokens.read({}, names, "x").start == values["decoder_start_token_id"]
    assert SpokenTokens.read({}, names, "x").languages == {}  # a small vocabulary, as of an English model
    assert [*SpokenTokens.read({"is_multilingual": True}, names, "x").languages] == ["en", "pt", "de"]
    read = SpokenTokens.read(values | {"suppress_tokens": [-1, 4]}, names, "x")
    assert read.suppressed == [4] and read.no_speech == added["<|nospeech|>"] and read.heads == [(1, 0), (1, 1)]
    with pytest.raises(CheckpointError, match="startoftranscript"):
        SpokenTokens.read({}, ids, "x")


def test_bands_that_do_not_fit_are_refused(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "manifest.json").unlink(missing_ok=True)
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "feature_size": 40}))
    with pytest.raises(CheckpointError, match="40 bands; its model reads 80"):
        WhisperTranscriber.load(tmp_path)


def test_too_many_frames_are_refused(whisper):
    with pytest.raises(ValueError, match="reads at most 50"):
        whisper.model.encode(torch.zeros(1, 60, 80))

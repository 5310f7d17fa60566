"""Subtitles that are written, and read again by the translator of subtitles."""

import pytest

from regard.documents.subtitles import Cue, translate_subtitles, write_srt, write_vtt

CUES = [
    Cue(0.0, 1.2345, "hello"),
    Cue(3599.9996, 7325.5, "a text that is much too long for one line of subtitles, so it is wrapped"),
    Cue(8000, 7999, " a < b & c --> d "),
    Cue(8001, 8002, "   "),
]


def test_times_and_lines_are_as_players_want_them():
    assert write_srt(CUES) == (
        "1\n00:00:00,000 --> 00:00:01,234\nhello\n\n"
        "2\n01:00:00,000 --> 02:02:05,500\n"
        "a text that is much too long for one\nline of subtitles, so it is wrapped\n\n"
        "3\n02:13:20,000 --> 02:13:20,000\na < b & c --> d\n\n"
    )
    written = write_vtt(CUES)
    assert written.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.234\nhello\n\n")
    assert "a &lt; b &amp; c --&gt; d" in written
    assert write_srt([]) == "" and write_vtt([]) == "WEBVTT\n\n"


@pytest.mark.parametrize("write", [write_srt, write_vtt])
def test_they_are_translated_from_there(write):
    def upper(texts):
        return [text.upper() for text in texts]

    (found,) = translate_subtitles([write(CUES[:2])], upper, "en")
    assert found == write(CUES[:2]).replace("hello", "HELLO").replace(
        "a text that is much too long for one\nline of subtitles, so it is wrapped",
        "A TEXT THAT IS MUCH TOO LONG FOR ONE\nLINE OF SUBTITLES, SO IT IS WRAPPED",
    )

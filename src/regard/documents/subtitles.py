"""Write SubRip (.srt) and WebVTT (.vtt) subtitles, and translate them: only the spoken text changes.

The lines of a cue are one text. It is translated sentence by sentence, and wrapped into as many lines of about equal
length. Where several people speak, each line that begins with a dash begins a text of its own.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from regard.documents.markup import MARK_CHAR, Mark, Piece, Translate, parse
from regard.documents.sentences import translate_sentences

LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
TIME = re.compile(r"\s*(?:\d+:)?\d+:\d+(?:[.,]\d+)?\s*-->")
NOT_SPOKEN = re.compile(r"(?:NOTE|STYLE|REGION)(?:\s|$)")  # blocks of WebVTT
KARAOKE = re.compile(r"(<[\d:.]+>)")  # WebVTT's time stamps within a cue
SPACELESS = "[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"  # Chinese and Japanese, which may be broken anywhere
NO_SPACE = re.compile(rf"(?<={SPACELESS})\n(?={SPACELESS})")
WORD = re.compile(
    rf"[{MARK_CHAR}\s]*(?:{SPACELESS}[、。」』！），．？]*|(?:(?!{SPACELESS})\S)+)\s*"
)  # with marks before it
TAGS = r"(?:\s|<[^<>]*>|\{[^{}]*\})*"
DASHED = re.compile(rf"({TAGS})([-‐‑–—]+)(?=\s*\S)")


LINE_LENGTH = 42  # characters of a line of subtitles, as broadcasters have it

Line = tuple[str, str]  # its text, and its line end


class Cue(NamedTuple):
    """A text, and from when to when it is shown, in seconds."""

    start: float
    end: float
    text: str


def write_srt(cues: Sequence[Cue]) -> str:
    """Cues as a SubRip file."""
    return "".join(
        f"{number}\n{_times(cue, ',')}\n{_lines(cue.text)}\n\n" for number, cue in enumerate(_shown(cues), 1)
    )


def write_vtt(cues: Sequence[Cue]) -> str:
    """Cues as a WebVTT file, whose text has entities as HTML has."""
    written = (f"{_times(cue, '.')}\n{_lines(html.escape(cue.text, quote=False))}\n\n" for cue in _shown(cues))
    return "WEBVTT\n\n" + "".join(written)


def _shown(cues: Sequence[Cue]) -> list[Cue]:
    """Cues that say something; an empty one would end the cue before it."""
    return [cue._replace(text=text) for cue in cues if (text := " ".join(cue.text.split()))]


def _lines(text: str) -> str:
    return "\n".join(wrap_lines(text, -(-len(text) // LINE_LENGTH)))


def _times(cue: Cue, point: str) -> str:
    return " --> ".join(_time(seconds, point) for seconds in (cue.start, max(cue.start, cue.end)))


def _time(seconds: float, point: str) -> str:
    thousandths = round(max(0.0, seconds) * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


# Translating


def translate_subtitles(texts: Sequence[str], translate: Translate, language: str) -> list[str]:
    """Translate whole subtitle files from `language`, all in one call."""
    files = [list(_parts([line for line in LINE.findall(text) if line != ("", "")])) for text in texts]
    spoken = [part for file in files for part in file if not isinstance(part, str)]
    done = iter(translate_sentences([_pieces(lines) for lines in spoken], translate, language))
    return ["".join(part if isinstance(part, str) else _wrap_like(part, next(done)) for part in file) for file in files]


def _parts(lines: Sequence[Line]) -> Iterator[str | list[Line]]:
    """Text to copy as strings, and each spoken text as a list of lines."""
    spoken: list[Line] = []
    for line, is_spoken in zip(lines, _spoken([says for says, _ in lines]), strict=True):
        if spoken and not (is_spoken and not DASHED.match(line[0])):
            yield spoken
            spoken = []
        if is_spoken:
            spoken.append(line)
        else:
            yield "".join(line)
    if spoken:
        yield spoken


def _spoken(lines: Sequence[str]) -> Iterator[bool]:
    """Which lines are spoken: those after the first time code, except time codes, numbers, titles and notes."""
    started = in_note = False
    for number, line in enumerate(lines):
        is_time = bool(TIME.match(line))
        started = started or is_time
        follows_blank = number == 0 or not lines[number - 1].strip()
        in_note = bool(line.strip()) and (in_note or (follows_blank and bool(NOT_SPOKEN.match(line))))
        leads = number + 1 < len(lines) and bool(TIME.match(lines[number + 1]))
        titles = leads and (follows_blank or line.strip().isdecimal())
        yield started and bool(line.strip()) and not (is_time or in_note or titles)


def _pieces(lines: Sequence[Line]) -> list[Piece]:
    text = NO_SPACE.sub("", "\n".join(says.strip() for says, _ in lines)).replace("\n", " ")
    dashed = DASHED.match(text)
    lead, dash = (parse(dashed[1]), [Mark(dashed[2])]) if dashed else ([], [])
    rest = KARAOKE.split(text[dashed.end() if dashed else 0 :])
    pieces = [[Mark(part)] if place % 2 else parse(part) for place, part in enumerate(rest)]
    # tags that only format, such as italics, are light: they may be dropped with their words
    return [
        replace(piece, light=True) if isinstance(piece, Mark) and piece.key in ("b", "i", "u", "font") else piece
        for piece in [*lead, *dash, *(piece for each in pieces for piece in each)]
    ]


# Wrapping


def _wrap_like(lines: Sequence[Line], pieces: Sequence[Piece]) -> str:
    """The translation with the number of lines and the line ends of the source; fewer lines if it has fewer words."""
    marks = iter([piece.content for piece in pieces if isinstance(piece, Mark)])
    text = "".join(MARK_CHAR if isinstance(piece, Mark) else piece.replace(MARK_CHAR, "") for piece in pieces).strip()
    if not text.replace(MARK_CHAR, "").strip():  # an empty line would end the cue
        return "".join(says + end for says, end in lines)
    rows = [re.sub(MARK_CHAR, lambda _: next(marks), row) for row in wrap_lines(text, len(lines))]
    ends = [end for _, end in lines]
    return "".join(row + end for row, end in zip(rows, [*ends[: len(rows) - 1], ends[-1]], strict=True))


def wrap_lines(text: str, count: int) -> list[str]:
    """A text wrapped at spaces into `count` lines of about equal length; fewer if it has fewer words."""
    words = WORD.findall(text)
    count = min(count, len(words))
    ends = list(accumulate(len(word.replace(MARK_CHAR, "")) for word in words))
    breaks = [0]
    for row in range(1, count):
        ideal = ends[-1] * row / count
        place = bisect_left(ends, ideal) + 1
        if place > 1 and ideal - ends[place - 2] < ends[place - 1] - ideal:
            place -= 1
        breaks.append(min(max(place, breaks[-1] + 1), len(words) - count + row))
    return ["".join(words[start:end]).strip() for start, end in pairwise([*breaks, len(words)])]

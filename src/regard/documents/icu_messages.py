"""Messages of user interfaces: placeholders are kept, the branches of ICU's plurals are translated one by one.

`{n, plural, one {# file} other {# files}}` has two branches; each is a segment of its own, and so is the text around
the argument. Names, selectors and the spelling of everything that is not text are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from regard.documents.document_job import DocumentJob, TextSpan, batches
from regard.documents.markup import (
    Mark,
    Piece,
    Translate,
    joined,
    parse,
    sent_text,
    text_without_spaces,
    translate_marked,
)

CHOICE = re.compile(r"\{\s*[\w.-]+\s*,\s*(plural|select|selectordinal)\s*,")
BRANCH = re.compile(r"\s*(?:offset:\d+\s*)?=?[\w-]+\s*\{")
CLOSE = re.compile(r"\s*\}")
QUOTED = re.compile(r"('[{}#|][^']*')")  # text that ICU does not interpret
COUNT = re.compile(r"(#)")  # the number, in a branch of a plural
BREAK = re.compile(r"(\s*[\r\n\t\f\v]\s*)")  # between lines and columns, which are texts of their own
MAX_DEPTH = 20  # of nested arguments


class Branch(NamedTuple):
    """A branch of an argument: its selector with the opening brace, and its message."""

    head: str
    message: Message


class Choice(NamedTuple):
    """An argument with branches, such as a plural: how it begins, its branches and how it ends."""

    head: str
    branches: list[Branch]
    tail: str


class Message(NamedTuple):
    """Text and arguments with branches; `counted` in a plural, where # is the number."""

    parts: list[str | Choice]
    counted: bool = False


class MalformedMessageError(ValueError):
    """A text that looks like an ICU message, but whose braces do not match."""


def translate_messages(texts: Sequence[str], translate: Translate) -> list[str]:
    """Translate messages; those without branches are translated line by line, like any text with placeholders."""
    parsed = [_icu_message(text) or BREAK.split(text) for text in texts]
    segments = [list(pieces) for each in parsed for pieces in _all_pieces(each)]
    translated = translate_marked(segments, translate)
    # Where no word changed, not even the order of the placeholders does
    done = iter(
        before if text_without_spaces(before) == text_without_spaces(after) else after
        for before, after in zip(segments, translated, strict=True)
    )
    rendered = []
    for each, text in zip(parsed, texts, strict=True):
        if isinstance(each, Message):
            rendered.append(_render(each, text, done))
        else:  # every second one is a break
            each[::2] = [joined(next(done)) for _ in each[::2]]
            rendered.append("".join(each))
    return rendered


def translated_edits(
    job: DocumentJob, found: Sequence[TextSpan], write: Callable[[TextSpan, str], str]
) -> list[TextSpan]:
    """The edits that translate messages; `write` spells a translation. One without letters is left as it is."""
    todo = [span for span in found if has_letters(span.text)]
    edits = []
    for batch in batches(todo):
        done = translate_messages([span.text for span in batch], job.translate)
        edits += [
            span._replace(text=write(span, new)) for span, new in zip(batch, done, strict=True) if new != span.text
        ]
    job.report.translated += len(todo)
    return edits


def sent_messages(text: str) -> list[str]:
    """What `translate_messages` sends to the translator for a message."""
    parsed = _icu_message(text) or BREAK.split(text)
    return [sent for pieces in _all_pieces(parsed) if (sent := sent_text(list(pieces)))]


def has_letters(text: str) -> bool:
    """Whether there is anything to translate."""
    if CHOICE.search(text):
        return True
    return any(isinstance(piece, str) and any(map(str.isalpha, piece)) for piece in parse(text))


def _all_pieces(parsed: Message | list[str]) -> Iterator[Iterable[Piece]]:
    if isinstance(parsed, Message):
        yield from map(_pieces, _segments(parsed))
    else:
        yield from map(parse, parsed[::2])


# Texts to messages


def _icu_message(text: str) -> Message | None:
    if not CHOICE.search(text):
        return None
    try:
        return _message(text, 0, 0, counted=False)[0]
    except MalformedMessageError:
        return Message([Choice(text, [], "")])  # nothing in it is known to be text


def _message(text: str, start: int, depth: int, *, counted: bool) -> tuple[Message, int]:
    """The message from `start` to the brace that closes it, or to the end of the text; and where it ends."""
    if depth > MAX_DEPTH:
        raise MalformedMessageError
    parts: list[str | Choice] = []
    done = place = start
    while place < len(text):
        quoted = QUOTED.match(text, place)
        if quoted:
            place = quoted.end()
        elif head := CHOICE.match(text, place):
            parts.append(text[done:place])
            choice, place = _choice(text, head, depth, counted=counted)
            parts.append(choice)
            done = place
        elif text[place] == "{":
            place = _argument_end(text, place)
        elif text[place] == "}" and depth:
            break
        else:
            place += 1
    if depth and place == len(text):
        raise MalformedMessageError
    return Message([part for part in [*parts, text[done:place]] if part], counted), place


def _choice(text: str, head: re.Match[str], depth: int, *, counted: bool) -> tuple[Choice, int]:
    branches: list[Branch] = []
    place = head.end()
    while branch := BRANCH.match(text, place):
        inside, end = _message(text, branch.end(), depth + 1, counted=counted or head[1] != "select")
        branches.append(Branch(branch[0], inside))
        place = end + 1
    closing = CLOSE.match(text, place)
    if not closing or not branches:
        raise MalformedMessageError
    return Choice(head[0], branches, closing[0]), closing.end()


def _argument_end(text: str, start: int) -> int:
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    raise MalformedMessageError


# Messages to segments, and back


def _segments(message: Message) -> Iterator[Message]:
    yield message
    for part in message.parts:
        if isinstance(part, Choice):
            for branch in part.branches:
                yield from _segments(branch.message)


def _pieces(message: Message) -> Iterator[Piece]:
    for part in message.parts:
        if isinstance(part, Choice):
            yield Mark(part)
            continue
        for quoted, string in enumerate(QUOTED.split(part)):
            for number, each in enumerate(COUNT.split(string) if message.counted and quoted % 2 == 0 else [string]):
                if quoted % 2 or number % 2:
                    yield Mark(each)
                else:
                    yield from parse(each.replace("''", "'"))


def _render(message: Message, source: str, done: Iterator[list[Piece]]) -> str:
    """The text of a translated message; `done` are its segments, in the order of `_segments`."""
    pieces = next(done)
    # The branches come in the order of the source, whatever the order of the arguments in the translation is
    choices = {id(part): _render_choice(part, source, done) for part in message.parts if isinstance(part, Choice)}
    written = [choices[id(piece.content)] if isinstance(piece, Mark) and isinstance(piece.content, Choice)
               else piece.content if isinstance(piece, Mark) else piece.replace("'", "''") if "''" in source
               else piece for piece in pieces]  # fmt: skip
    for place, (one, other) in enumerate(zip(pieces, written[1:], strict=False)):
        if isinstance(one, str) and one.endswith("'") and "''" not in source and other[:1] in ("{", "#"):
            written[place] = f"{one[:-1]}’"  # an apostrophe before a brace would quote it
    return "".join(written)


def _render_choice(choice: Choice, source: str, done: Iterator[list[Piece]]) -> str:
    branches = (f"{branch.head}{_render(branch.message, source, done)}}}" for branch in choice.branches)
    return f"{choice.head}{''.join(branches)}{choice.tail}"

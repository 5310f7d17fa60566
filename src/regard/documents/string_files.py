"""Message files of lines `key = value`: Java's .properties and Apple's .strings; only the values change."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.documents.document_job import DocumentJob
from regard.documents.text_edits import FoundText, edited, translated_edits
from regard.errors import DataError

# Java's .properties

LOGICAL_LINE = re.compile(r"(?:[^\\\r\n]|\\(?:\r\n|[\s\S]))+")
KEY = re.compile(r"[ \t\f]*(?:[^\\=: \t\f\r\n]|\\(?:\r\n|[\s\S]))*[ \t\f]*[=:]?[ \t\f]*(?:\\(?:\r\n|\r|\n)[ \t\f]*)*")
ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(\r\n|\r|\n)[ \t\f]*|([\s\S]))")
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
ARGUMENT = re.compile(r"\{\d+[^{}]*\}")  # of java.text.MessageFormat, in which '' is an apostrophe
LONE_APOSTROPHE = re.compile(r"(?<!')'(?!')")


def translate_properties(job: DocumentJob) -> None:
    text = job.text()
    ascii_only = text.isascii()  # readers before Java 9 take the file for Latin-1; escapes are read by all

    def spelled(found: FoundText, new: str) -> str:
        new = new.replace("'", "''") if _is_doubled(unescaped_property(text[found.start : found.end])) else new
        return escaped_property(new, "ascii" if ascii_only else job.encoding)

    job.write(edited(text, translated_edits(job, list(_properties(text)), spelled)))


def _properties(text: str) -> Iterator[FoundText]:
    for line in LOGICAL_LINE.finditer(_without_comments(text)):
        key = KEY.match(text, line.start(), line.end())
        start = key.end() if key else line.end()
        value = unescaped_property(text[start : line.end()])
        yield FoundText(start, line.end(), value.replace("''", "'") if _is_doubled(value) else value)


def _without_comments(text: str) -> str:
    """The text with line feeds in place of comments; places stay the same. A comment never goes on in the next line."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
    kept, goes_on = [], False
    for line in lines:
        body = line.rstrip("\r\n")
        comment = not goes_on and body.lstrip(" \t\f")[:1] in ("#", "!")
        kept.append("\n" * len(line) if comment or not (goes_on or body.strip()) else line)
        goes_on = not comment and (len(body) - len(body.rstrip("\\"))) % 2 == 1
    return "".join(kept)


def _is_doubled(value: str) -> bool:
    """Whether a value is a MessageFormat, whose apostrophes are all doubled."""
    return bool(ARGUMENT.search(value)) and not LONE_APOSTROPHE.search(value)


def unescaped_property(raw: str) -> str:
    """The value that Java reads."""

    def character(match: re.Match[str]) -> str:
        code, line_end, letter = match.groups()
        return chr(int(code, 16)) if code else "" if line_end else LETTERS.get(letter, letter)

    # surrogates are written as two escapes
    return ESCAPE.sub(character, raw).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def escaped_property(value: str, encoding: str) -> str:
    """A value as Java reads it; letters that the encoding lacks become escapes."""
    names = {character: f"\\{letter}" for letter, character in LETTERS.items()} | {"\\": "\\\\"}
    written = "".join(names.get(each) or _spelled(each, encoding) for each in value)
    return f"\\{written}" if written.startswith(" ") else written


def _spelled(character: str, encoding: str) -> str:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        units = character.encode("utf-16-be").hex()
        return "".join(f"\\u{units[place : place + 4].upper()}" for place in range(0, len(units), 4))
    return character


# Apple's .strings

COMMENT = r"(?:\s|/\*.*?\*/|//[^\r\n]*)*+"
STRING = r'"(?:[^"\\]|\\.)*+"'
ENTRY = re.compile(
    rf"{COMMENT}(?:{STRING}|[\w.$/:-]+){COMMENT}={COMMENT}(?P<value>{STRING}){COMMENT};", re.DOTALL
)  # fmt: skip
REST = re.compile(COMMENT, re.DOTALL)
APPLE_ESCAPE = re.compile(r"\\(?:[Uu]([0-9A-Fa-f]{4})|(.))", re.DOTALL)
APPLE_LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


def translate_strings(job: DocumentJob) -> None:
    text = job.text()
    found = []
    place = 0
    while entry := ENTRY.match(text, place):
        start, end = entry.span("value")
        found.append(FoundText(start, end, _apple_text(text[start + 1 : end - 1])))
        place = entry.end()
    rest = REST.match(text, place)
    if rest is None or rest.end() < len(text):
        line = text.count("\n", 0, rest.end() if rest else place) + 1
        raise DataError(f'{job.path}, line {line}: not well-formed; expected "key" = "value"; or a comment')
    job.write(edited(text, translated_edits(job, found, lambda _, new: _apple_string(new))))


def _apple_text(raw: str) -> str:
    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else APPLE_LETTERS.get(match[2], match[2])

    return APPLE_ESCAPE.sub(character, raw).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _apple_string(text: str) -> str:
    names = {character: f"\\{letter}" for letter, character in APPLE_LETTERS.items()} | {"\\": "\\\\", '"': '\\"'}
    return '"' + "".join(names.get(each, each) for each in text) + '"'

"""Message files of apps: Java's .properties, Apple's .strings and Android's strings.xml; only the texts change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from regard.data.formats.exchange import name_of
from regard.documents.document_job import DocumentJob, TextSpan, batches, edited
from regard.documents.icu_messages import has_letters, translated_edits
from regard.documents.markup import Mark, Piece, parse, same_text
from regard.documents.sentences import translate_sentences
from regard.documents.xml_edits import XmlDocument, inline_pieces
from regard.errors import DataError
from regard.optional import needed

# Java's .properties

CONTINUED = r"\\(?:\r\n|\r|\n)[ \t\f]*"
SPACE = rf"(?:[ \t\f]|{CONTINUED})*"
KEY = re.compile(rf"{SPACE}(?:[^\\=: \t\f\r\n]|{CONTINUED}|\\[^\r\n])*{SPACE}[=:]?{SPACE}")
LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
ARGUMENT = re.compile(r"\{\d+[^{}]*\}")  # of java.text.MessageFormat, in which '' is an apostrophe
LONE_APOSTROPHE = re.compile(r"(?<!')'(?!')")


def translate_properties(job: DocumentJob) -> None:
    text = job.text()
    encoding = "ascii" if text.isascii() else job.encoding  # readers before Java 9 take the file for Latin-1
    values = dict(_properties(job, text))

    def spelled(found: TextSpan, new: str) -> str:
        return _escaped_property(new.replace("'", "''") if _is_doubled(values[found]) else new, encoding)

    job.write(edited(text, translated_edits(job, list(values), spelled)))


def _properties(job: DocumentJob, text: str) -> Iterator[tuple[TextSpan, str]]:
    """The place and text of every property, and its value as Java reads it."""
    java = needed("javaproperties", extra="documents")
    place = 0
    try:
        for element in java.parse(text):
            source = element.source_stripped
            if isinstance(element, java.KeyValue) and (key := KEY.match(source)):
                value = _without_surrogates(element.value)
                plain = value.replace("''", "'") if _is_doubled(value) else value
                yield TextSpan(place + key.end(), place + len(source), plain), value
            place += len(element.source)
    except java.InvalidUEscapeError as error:
        line = text.count("\n", 0, place) + 1
        raise DataError(f"{job.path}, line {line}: {error}; expected four hexadecimal digits after \\u") from None


def _is_doubled(value: str) -> bool:
    """Whether a value is a MessageFormat, whose apostrophes are all doubled."""
    return bool(ARGUMENT.search(value)) and not LONE_APOSTROPHE.search(value)


def _without_surrogates(text: str) -> str:
    """Surrogates, which are written as two escapes, become one character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _escaped_property(value: str, encoding: str) -> str:
    """A value as Java reads it; letters that the encoding lacks become escapes."""
    names = {character: f"\\{letter}" for letter, character in LETTERS.items()} | {"\\": "\\\\"}
    written = "".join(names.get(letter) or _encodable(letter, encoding) for letter in value)
    return f"\\{written}" if written.startswith((" ", "=", ":")) else written  # else it would end the key


def _encodable(letter: str, encoding: str) -> str:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        units = letter.encode("utf-16-be").hex()
        return "".join(f"\\u{units[place : place + 4].upper()}" for place in range(0, len(units), 4))
    return letter


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
        found.append(TextSpan(start, end, _apple_text(text[start + 1 : end - 1])))
        place = entry.end()
    rest = REST.match(text, place)
    if rest is None or rest.end() < len(text):
        line = text.count("\n", 0, rest.end() if rest else place) + 1
        raise DataError(f'{job.path}, line {line}: not well-formed; expected "key" = "value"; or a comment')
    names = {character: f"\\{letter}" for letter, character in APPLE_LETTERS.items()} | {"\\": "\\\\", '"': '\\"'}
    spelled = str.maketrans(names)
    job.write(edited(text, translated_edits(job, found, lambda _, new: f'"{new.translate(spelled)}"')))


def _apple_text(raw: str) -> str:
    def character(match: re.Match[str]) -> str:
        return chr(int(match[1], 16)) if match[1] else APPLE_LETTERS.get(match[2], match[2])

    return _without_surrogates(APPLE_ESCAPE.sub(character, raw))


# Android's strings.xml: strings, plurals and arrays, each item by itself. <b> is put back by alignment; <xliff:g> is
# not translated. Apostrophes, quotes and other characters with a meaning of their own are written with a backslash.

BREAK = re.compile(r"((?<!\\)(?:\\[nrt])+)")
ANDROID_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
ANDROID_SPECIAL = re.compile(r"""(['"\\])""")


def translate_android(job: DocumentJob) -> None:
    text = job.text()
    document = XmlDocument(text, job.path)
    if name_of(document.root) != "resources":
        raise DataError(
            f"{job.path}: of .xml files only Android's string resources can be translated, whose root is <resources>; "
            f"this one is <{name_of(document.root)}>"
        )
    elements, text_pieces = list(_elements(job, document.root)), partial(_android_text_pieces, document)

    def pieces_of(element: Any) -> list[Piece]:
        is_wrapper, single = lambda inner: name_of(inner) != "g", lambda inner: Mark(document.outer(inner))
        return list(inline_pieces(document, element, text_pieces, is_wrapper, single))

    for batch in batches(elements):
        pieces = [pieces_of(element) for element in batch]
        done = translate_sentences(pieces, job.translate, job.source)
        for element, before, after in zip(batch, pieces, done, strict=True):
            if not same_text(before, after):
                parts = (_android_text(document, piece) if isinstance(piece, str) else piece.content for piece in after)
                content = "".join(parts)
                document.set_content(element, f"\\{content}" if content[:1] in ("@", "?") else content)
    job.report.translated += len(elements)
    job.write(document.result())


def _elements(job: DocumentJob, root: Any) -> Iterator[Any]:
    """The elements whose content is a text."""
    for entry in root:
        kind = name_of(entry)
        if kind not in ("string", "plurals", "string-array"):
            continue
        items = [entry] if kind == "string" else [item for item in entry if name_of(item) == "item"]
        if entry.get("translatable") == "false":
            job.report.skipped['marked translatable="false"'] += len(items)
            continue
        for item in items:
            # @string/title is the name of another resource
            is_reference = not len(item) and re.fullmatch(r"\s*[@?][\w.:+-]+/[\w.]+\s*", item.text or "")
            if has_letters("".join(item.itertext())) and not is_reference:
                yield item


def _android_text_pieces(document: XmlDocument, raw: str) -> Iterator[Piece]:
    quoted = len(raw) > 1 and raw[0] == raw[-1] == '"' and raw[-2] != "\\"
    if quoted:  # they keep the spaces of the text; a tag without a partner keeps its place
        yield Mark('"', "close", object())
        raw = raw[1:-1]
    for number, part in enumerate(BREAK.split(raw)):
        if number % 2:
            yield Mark(part, "close", object())  # a tag without a partner, which keeps its place
            continue
        for piece in parse(ANDROID_ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], part)):
            yield piece if isinstance(piece, str) else replace(piece, content=_android_text(document, piece.content))
    if quoted:
        yield Mark('"', "close", object())


def _android_text(document: XmlDocument, text: str) -> str:
    return document.escape(ANDROID_SPECIAL.sub(r"\\\1", text))

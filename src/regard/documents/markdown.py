"""Translate Markdown: text changes where it stands; code, HTML blocks, front matter, URLs and layout stay.

markdown-it-py finds the blocks and the inline markup. Its tokens have no places, so they are followed through the
source, character by character. A translation is written only if the parser finds the same markup in it again."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import pairwise
from typing import Any, NamedTuple

from regard.documents.document_job import DocumentJob, edited
from regard.documents.markup import Mark, Piece, parse, text_without_spaces
from regard.documents.sentences import translate_sentences
from regard.optional import needed

FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\n.*?\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z]\w*);")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
AUTOLINK = re.compile(r"<[^<>]*>")
LINE_BREAK = re.compile(r"[ \t]*\\?\n[ \t]*")
INSIDE = r"(?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*"
TITLE = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\((?:[^()\\]|\\.)*\)"""
LINK_END = re.compile(rf"\](?:\(\s*(?:<[^<>\n]*>|{INSIDE})(?:\s+(?:{TITLE}))?\s*\)|\[[^\[\]]*\])?", re.DOTALL)
# Footnotes, the boxes of task lists, and GitHub's alerts, which the parser takes for text
EXTENSION = re.compile(r"(\[\^[^\]\s]+\]:?|\A\[[ xX]\](?=\s)|\A\[![A-Z]+\])")
# The line that opens or closes a box of MkDocs, VuePress or Docusaurus, which the parser takes for text, too
FENCE = re.compile(r":{3,}.*|(?:!!!|\?\?\?\+?)[ \t].*")
FORMULA = re.compile(r"\s*\$\$.*\$\$\s*", re.DOTALL)
SPECIAL = re.compile(r"([`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[A-Za-z/!?])|~(?=~))")
AMBIGUOUS = re.compile(r"(\\(?=[!-/:-@\[-`{-~])|&(?=#?\w+;))")  # always escaped: would vanish without a trace
BLOCK_START = re.compile(r"([#>+*=-]+|\d+(?=[.)]))(?=[.)]?(?:\s|\Z))")
PAIRS = {"em": True, "strong": True, "s": True, "link": False}  # and whether one only shapes its words


class Place(NamedTuple):
    """A text with inline markup: its place in the file, its content, its tokens and what is before its next line."""

    start: int
    end: int
    content: str
    tokens: list[Any]
    indent: str
    kind: str  # of the token around it


class UnknownMarkupError(ValueError):
    """Tokens that cannot be found in the source."""


def translate_markdown(job: DocumentJob) -> None:
    text = job.text()
    line_end = next((end for end in ("\r\n", "\n", "\r") if end in text), "\n")
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    parser = needed("markdown_it", extra="documents").MarkdownIt("commonmark").enable(["table", "strikethrough"])
    front = FRONT_MATTER.match(plain)
    first = front.end() if front else 0
    references: dict[str, Any] = {}
    tokens = parser.parse(plain[first:], references)
    found = []
    for place in _places(tokens, plain, first):
        try:
            found.append((place, _Reader(place).pieces()))
        except UnknownMarkupError:
            job.report.kept["with markup that is not understood"] += 1
    done = translate_sentences([pieces for _, pieces in found], job.translate_counted, job.source)
    edits = []
    for (place, before), after in zip(found, done, strict=True):
        if text_without_spaces(before) != text_without_spaces(after):
            new = _written(place, after, parser, references)
            if new is None:
                job.report.kept["whose markup the translation would break"] += 1
            else:
                edits.append((place.start, place.end, new))
    result = edited(plain, edits)
    if not edits:
        result = text
    elif line_end != "\n":
        result = result.replace("\n", line_end)
    job.write(result)


# Tokens to places


def _places(tokens: Sequence[Any], text: str, first: int) -> Iterator[Place]:
    lines = text[first:].split("\n")
    starts = [first]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    cursors: dict[int, int] = defaultdict(int)  # where the next cell of a table begins, by line
    for before, token in pairwise(tokens):
        if token.type != "inline" or not token.map or FORMULA.fullmatch(token.content):
            continue
        row, content = token.map[0], token.content.split("\n")
        is_cell = before.type in ("td_open", "th_open")
        if is_cell:
            content = [content[0].replace("|", "\\|")]
            columns = [lines[row].find(content[0], cursors[row])]
            cursors[row] = columns[0] + len(content[0])
        else:
            columns = [lines[row + number].rfind(line) for number, line in enumerate(content)]
        if min(columns) < 0 or not any(map(str.isalpha, token.content)):
            continue
        last = row + len(content) - 1
        indent = lines[row + 1][: columns[1]] if len(content) > 1 else ""
        start, end = starts[row] + columns[0], starts[last] + columns[-1] + len(content[-1])
        yield Place(start, end, token.content, token.children, indent, before.type)


class _Reader:
    """Follows the tokens of a text through its source."""

    def __init__(self, place: Place) -> None:
        self.place, self.content, self.at = place, place.content, 0
        self._open: list[tuple[object, int]] = []  # the pairs that are open: key, and where their text begins

    def pieces(self) -> list[Piece]:
        found = list(self._joined(self._read(self.place.tokens)))
        if self.content[self.at :].strip():
            raise UnknownMarkupError
        return found

    def _joined(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        """Pieces with neighbouring texts joined, and their placeholders found."""
        text, first = "", True
        for piece in (*pieces, None):
            if isinstance(piece, str):
                text += piece
                continue
            yield from self._parsed(text, first=first)
            first, text = first and not text, ""
            if piece:
                yield piece

    def _parsed(self, text: str, *, first: bool) -> Iterator[Piece]:
        for number, part in enumerate(EXTENSION.split(text)):
            if number % 2 and (first or part.startswith("[^")):
                yield Mark(part)
            else:
                yield from parse(part)

    def _read(self, tokens: Sequence[Any]) -> Iterator[Piece]:
        linked = False  # within an autolink, which is one mark
        for token in tokens:
            name, _, end = token.type.rpartition("_")
            if linked:
                linked = token.type != "link_close"
            elif token.type == "text":
                is_fence = FENCE.fullmatch(token.content) and token.content == self._line()
                text = self._text(token.content)
                yield Mark(text, "close", object()) if is_fence else text
            elif token.type in ("softbreak", "hardbreak"):
                yield self._break(token.type == "hardbreak")
            elif token.type == "code_inline":
                yield Mark(self._take(CODE))
            elif token.type == "html_inline":
                pieces = parse(self._literal(token.content))
                yield from pieces if len(pieces) == 1 else [Mark(token.content)]
            elif token.type == "link_open" and token.markup == "autolink":
                yield Mark(self._take(AUTOLINK))
                linked = True
            elif token.type == "image":
                yield self._opened("![", light=False)
                yield from self._read(token.children or [])
                yield self._link_end()
            elif token.type == "link_close":
                yield self._link_end()
            elif name in PAIRS and end == "open":
                yield self._opened(token.markup or "[", light=PAIRS[name])
            elif name in PAIRS and end == "close":
                yield Mark(self._literal(token.markup), "close", self._open.pop()[0], firm=True, light=True)
            else:
                raise UnknownMarkupError

    def _literal(self, text: str) -> str:
        if not self.content.startswith(text, self.at):
            raise UnknownMarkupError
        self.at += len(text)
        return text

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.content, self.at)
        if not found:
            raise UnknownMarkupError
        self.at = found.end()
        return found[0]

    def _text(self, text: str) -> str:
        """The text as people read it; its source may have escapes and entities."""
        done = 0
        while done < len(text):
            entity = ENTITY.match(self.content, self.at)
            read = unescape(entity[0]) if entity else ""
            if entity and read != entity[0] and text.startswith(read, done):
                self.at, done = entity.end(), done + len(read)
                continue
            if self.content[self.at : self.at + 1] == "\\" and self.content[self.at + 1 : self.at + 2] == text[done]:
                self.at += 1
            self._literal(text[done])
            done += 1
        return text

    def _line(self) -> str:
        """The line that is being read."""
        start = self.content.rfind("\n", 0, self.at) + 1
        return self.content[start:].partition("\n")[0].strip()

    def _break(self, hard: bool) -> Piece:
        start, before = self.at, self._line()
        raw = self._take(LINE_BREAK)
        by_fence = FENCE.fullmatch(before) or FENCE.fullmatch(self._line())
        if hard or by_fence or re.fullmatch(r"\[![A-Z]+\]", self.content[:start]):
            end, _, indent = raw.rpartition("\n")
            kept = indent if by_fence else ""  # a box may begin with lines that are further in
            return Mark(f"{end}\n{self.place.indent}{kept}", "close", object())  # without a partner: it keeps its place
        return " "

    def _opened(self, raw: str, *, light: bool) -> Mark:
        self._literal(raw)
        self._open.append((object(), self.at))
        return Mark(raw, "open", self._open[-1][0], firm=True, light=light)

    def _link_end(self) -> Mark:
        key, start = self._open.pop()
        label = self.content[start : self.at]
        raw = self._take(LINK_END)
        # The text of [text] and [text][] is their reference, too; a translation of it needs another
        return Mark(f"][{label}]" if raw in ("]", "][]") else raw, "close", key, firm=True)


# Pieces to Markdown


def _written(place: Place, pieces: Sequence[Piece], parser: Any, references: dict[str, Any]) -> str | None:
    """The translation as Markdown, with as few escapes as the parser needs; None if it finds other markup in it."""
    wanted = _signature(place.tokens)
    for special in (None, SPECIAL):
        new = "".join(
            _escaped(piece, special) if isinstance(piece, str) else _placeholder(piece, place) for piece in pieces
        )
        if place.kind == "paragraph_open" and (start := BLOCK_START.match(new)):
            new = f"{start[0]}\\{new[start.end() :]}" if start[0].isdigit() else f"\\{new}"
        (inline,) = parser.parseInline(new.replace(f"\n{place.indent}", "\n"), references)
        if _signature(inline.children) == wanted:
            return new.replace("|", "\\|") if place.kind in ("td_open", "th_open") else new
    return None


def _escaped(text: str, special: re.Pattern[str] | None) -> str:
    text = AMBIGUOUS.sub(r"\\\1", text)
    return special.sub(r"\\\1", text) if special else text


def _placeholder(mark: Mark, place: Place) -> str:
    """A mark as it was written; a placeholder that had escapes in it gets them again."""
    raw = str(mark.content)
    return raw if raw in place.content or mark.role != "single" else _escaped(raw, SPECIAL)


def _signature(tokens: Sequence[Any]) -> list[tuple[str, ...]]:
    """The markup in tokens, in any order: kinds, targets of links, code."""
    return sorted(
        (
            token.type,
            str(token.attrs.get("href") or token.attrs.get("src") or ""),
            token.content if token.type in ("code_inline", "html_inline") else "",
        )
        for token in tokens
        if token.type not in ("text", "softbreak")
    )

"""Translate HTML: the text changes, every tag keeps its spelling and encloses the same words.

A page is split into tokens, not parsed into a tree, so the joined tokens are exactly the page. Block elements delimit
segments; inline tags become marks. Scripts, styles, code, preformatted text, SVG, formulas and elements with
translate="no", class="notranslate" or the `lang` of a third language are copied. Attributes that people read or hear
(alt, title, placeholder, a page's description) are translated, and `lang` is set to the target language.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape, unescape
from itertools import groupby
from typing import Literal, NamedTuple

from regard.data.formats.languages import same_language
from regard.documents.markup import VOID, Mark, Piece, Translate, joined, marks_of, parse, same_text
from regard.documents.sentences import text_of, translate_sentences

# Every alternative may also match to the end of the text, so that matching takes linear time; `_tokens` handles those
TOKEN = re.compile(
    r"""
      <!--.*?(?:-->|\Z) | <!\[CDATA\[.*?(?:\]\]>|\Z)
    | (?P<tag> <(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*) (?: =\s*"[^"]*" | =\s*'[^']*' | [^>] )*+ (?:>|\Z) )
    | (?P<odd> <[!?/][^>]*(?:>|\Z) )
    """,
    re.VERBOSE | re.DOTALL,
)
RAW_TEXT_ELEMENTS = {
    name: re.compile(rf"</{name}(?=[\s/>])[^>]*(?:>|\Z)", re.IGNORECASE)
    for name in ("iframe", "noembed", "noframes", "script", "style", "textarea", "xmp")
}
COPIED_ELEMENTS = frozenset({"code", "kbd", "math", "pre", "samp", "svg", "tt", "var"})
BLOCK_ELEMENTS = frozenset({
    "address", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas", "caption",
    "center", "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup",
    "hr", "html", "legend", "li", "link", "main", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup",
    "option", "p", "param", "picture", "pre", "search", "section", "select", "slot", "source", "summary", "svg",
    "table", "tbody", "td", "template", "tfoot", "th", "thead", "title", "tr", "track", "ul", "video",
    *RAW_TEXT_ELEMENTS,
})  # fmt: skip
UNTRANSLATED = re.compile(
    r"""\s(?: translate\s*=\s*["']?no["'\s/>] | class\s*=\s*(?: (["'])(?:(?!\1).)*?(?<![\w-])notranslate(?![\w-])
    | notranslate[\s/>] ) )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
MAX_DEPTH = 200  # nested elements; deeper ones keep their place
NO_BREAK = "\xa0"


ATTRIBUTE = re.compile(r"""\s([^\s"'<>/=]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'=<>`]+))?""")
TRANSLATED_ATTRIBUTES = frozenset({  # attributes whose values people read or hear, on any element: these are translated
    "abbr", "alt", "aria-description", "aria-label", "aria-placeholder", "aria-roledescription", "aria-valuetext",
    "label", "placeholder", "summary", "title",
})  # fmt: skip
BUTTON_TYPES = frozenset({"button", "reset", "submit"})
TRANSLATED_META = frozenset({
    "description", "keywords", "og:title", "og:description", "og:image:alt", "og:site_name", "twitter:title",
    "twitter:description", "twitter:image:alt",
})  # fmt: skip
# Elements that only format their words; one without words can be dropped
FORMATTING_ELEMENTS = frozenset(
    {"b", "big", "em", "font", "i", "mark", "s", "small", "strike", "strong", "sub", "sup", "u"}
)
CHARSET = re.compile(rb"""<meta[^>]*[\s;"']charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
XML_ENCODING = re.compile(rb"""<\?xml[^>]*?\sencoding\s*=\s*["']([\w.:-]+)""")
BROWSER_CHARSETS = {  # charsets that browsers read as a superset
    "iso8859-1": "cp1252", "ascii": "cp1252", "iso8859-9": "cp1254", "gb2312": "gb18030", "gbk": "gb18030",
    "shift_jis": "cp932", "euc_kr": "cp949", "tis-620": "cp874", "utf-16": "utf-8", "utf-16-le": "utf-8",
    "utf-16-be": "utf-8",
}  # fmt: skip


class Token(NamedTuple):
    """A substring of a page: text, a tag, or anything else that is copied. A raw text element is one token."""

    raw: str
    kind: Literal["text", "open", "close", "single"]
    name: str = ""


class Segment(NamedTuple):
    """Text with its marks, and its original spelling."""

    pieces: list[Piece]
    raw: str


class Attribute(NamedTuple):
    """An attribute of a tag: its value, and the position of the value with its quotes."""

    name: str
    text: str
    start: int
    end: int


Part = Token | Segment  # a token is copied except for its attributes, a segment is translated


def stated_encoding(head: bytes) -> str | None:
    """The encoding that a page declares, as browsers interpret it."""
    found = CHARSET.search(head, 0, 4096) or XML_ENCODING.match(head)
    if not found:
        return None
    name = found[1].decode()
    try:
        return BROWSER_CHARSETS.get(codecs.lookup(name).name, name)
    except LookupError:
        return name


def translate_html(texts: Sequence[str], translate: Translate, language: str, target: str = "") -> list[str]:
    """Translate the text of HTML pages or fragments from `language`, all in one call; `lang` becomes `target`."""
    pages = [_SplitPage(text, language, target) for text in texts]
    segments = [each for page in pages for each in page.segments]
    done = iter(translate_sentences(segments, translate, language))
    return [page.render([next(done) for _ in page.segments]) for page in pages]


class _SplitPage:
    """A page split into parts; its segments are the texts between tags, then the attributes."""

    def __init__(self, text: str, language: str, target: str) -> None:
        self.language, self.target = language, target
        self.parts = list(_parts(list(_tokens(text)), language))
        self.tags = [token for part in self.parts for token in _tags(part)]
        self.values = [
            (number, value) for number, token in enumerate(self.tags) for value in _translatable_attributes(token)
        ]
        texts = [part.pieces for part in self.parts if isinstance(part, Segment)]
        self.segments = [*texts, *(parse(value.text) for _, value in self.values)]

    def render(self, done: Sequence[list[Piece]]) -> str:
        """The page with the translations of its segments."""
        tags = self._new_tags(done[len(done) - len(self.values) :])
        texts = iter(done)
        return "".join(
            _render(part, next(texts), tags) if isinstance(part, Segment) else tags.get(id(part), part.raw)
            for part in self.parts
        )

    def _new_tags(self, translations: Sequence[list[Piece]]) -> dict[int, str]:
        """The new spelling of changed tags, by the id of their tokens."""
        edits: dict[int, list[tuple[int, int, str]]] = {}
        for (number, value), pieces in zip(self.values, translations, strict=True):
            text = joined(pieces)
            if text.strip() and text != value.text:
                edits.setdefault(number, []).append((value.start, value.end, text))
        for number, token in enumerate(self.tags) if self.target else ():
            for value in _language_attributes(token, self.language):
                edits.setdefault(number, []).append((value.start, value.end, self.target))
        return {
            id(self.tags[number]): _replace_values(self.tags[number].raw, changes) for number, changes in edits.items()
        }


def _tags(part: Part) -> Iterator[Token]:
    if isinstance(part, Token):
        yield part
    else:
        yield from (mark.content for mark in marks_of(part.pieces) if isinstance(mark.content, Token))


# Attributes


def _attributes(raw: str) -> list[Attribute]:
    """The attributes of the tag at the beginning of a token."""
    tag = TOKEN.match(raw)
    if not tag or not tag["tag"] or tag["slash"]:
        return []
    found: dict[str, Attribute] = {}
    for match in ATTRIBUTE.finditer(raw, len(tag["name"]) + 1, tag.end() - 1):
        written = match[2] or ""
        text = unescape(written[1:-1] if written[:1] in ("'", '"') else written)
        place = match.span(2) if match[2] else (match.end(), match.end())
        name = match[1].lower()
        found.setdefault(name, Attribute(name, text, *place))  # browsers use the first of duplicates
    return list(found.values())


def _translatable_attributes(token: Token) -> Iterator[Attribute]:
    """The attributes to translate."""
    untranslated = token.kind == "text" or "=" not in token.raw or token.name in ("script", "style")
    if untranslated or UNTRANSLATED.search(token.raw):
        return
    values = _attributes(token.raw)
    by_name = {value.name: value.text.lower() for value in values}
    described = by_name.get("name", by_name.get("property", "")) in TRANSLATED_META
    for value in values:
        read = value.name in TRANSLATED_ATTRIBUTES
        read |= value.name == "value" and token.name == "input" and by_name.get("type") in BUTTON_TYPES
        read |= value.name == "content" and token.name == "meta" and described
        if read and any(map(str.isalnum, value.text)):
            yield value


def _language_attributes(token: Token, language: str) -> Iterator[Attribute]:
    """The attributes that declare the language of translated text; <html> gets one if it has none."""
    if token.kind == "text" or (token.name != "html" and "lang" not in token.raw.lower()):
        return
    values = _attributes(token.raw)
    stated = [value for value in values if value.name in ("lang", "xml:lang") and value.text]
    if token.name == "html" and token.kind == "open":
        yield from stated
        if not stated:
            yield Attribute("lang", "", 5, 5)
    elif token.name == "meta" and any(
        (value.name, value.text.lower()) == ("http-equiv", "content-language") for value in values
    ):
        yield from (value for value in values if value.name == "content")
    else:
        yield from (value for value in stated if same_language(value.text, language))


def _is_foreign(token: Token, language: str) -> bool:
    """Whether an element declares another language than the page's source language."""
    if not language or token.name in ("html", "body") or "lang" not in token.raw.lower():
        return False
    stated = [value.text for value in _attributes(token.raw) if value.name in ("lang", "xml:lang") and value.text]
    return bool(stated) and not any(same_language(code, language) for code in stated)


def _replace_values(raw: str, changes: Sequence[tuple[int, int, str]]) -> str:
    for start, end, text in sorted(changes, reverse=True):
        quote = raw[start] if raw[start : start + 1] in ("'", '"') else '"'
        written = quote + text.replace("&", "&amp;").replace(quote, "&quot;" if quote == '"' else "&#39;") + quote
        lead = "" if start < end else " lang="  # a new attribute
        raw = raw[:start] + lead + written + raw[end:]
    return raw


# Text to tokens


def _tokens(text: str) -> Iterator[Token]:
    end = 0
    while match := TOKEN.search(text, end):
        start, stop = match.span()
        if (match["tag"] or match["odd"]) and not match[0].endswith(">"):
            break  # never closed: a browser would hide it, here it counts as text
        token = _token(match)
        if token.name in RAW_TEXT_ELEMENTS and token.kind == "open":
            closing = RAW_TEXT_ELEMENTS[token.name].search(text, stop)
            stop = closing.end() if closing else len(text)
            token = Token(text[start:stop], "single", token.name)
        yield from (Token(text[end:start], "text"), token)
        end = stop
    yield Token(text[end:], "text")


def _token(match: re.Match[str]) -> Token:
    raw, name = match[0], (match["name"] or "").lower()
    if not name or name in VOID or raw.endswith("/>"):
        return Token(raw, "single", name)
    return Token(raw, "close" if match["slash"] else "open", name)


def _matching_tags(tokens: Sequence[Token]) -> dict[int, int]:
    """The index of each tag's partner: closing tags of opening ones, and the reverse."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    waiting: Counter[str] = Counter()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(number)
            waiting[token.name] += 1
        elif token.kind == "close" and waiting[token.name]:
            opening = -1
            while opening < 0 or tokens[opening].name != token.name:  # elements opened inside end here too
                opening = opened.pop()
                waiting[tokens[opening].name] -= 1
            if len(opened) < MAX_DEPTH:
                partners |= {opening: number, number: opening}
    return partners


# Tokens to segments, and back


def _parts(tokens: Sequence[Token], language: str) -> Iterator[Part]:
    for copied, group in groupby(_pieces(tokens, language), key=lambda item: isinstance(item[0], Token)):
        if copied:
            yield from (piece for piece, _ in group if isinstance(piece, Token))
        else:
            items = list(group)
            pieces = [piece for piece, _ in items if not isinstance(piece, Token)]
            yield Segment(pieces, "".join(raw for _, raw in items))


def _pieces(tokens: Sequence[Token], language: str) -> Iterator[tuple[Piece | Token, str]]:
    """Text and inline marks, each with its spelling, separated by the tokens that end a segment."""
    partners = _matching_tags(tokens)
    number = 0
    while number < len(tokens):
        token, after = tokens[number], number + 1
        if token.kind == "open" and (
            token.name in COPIED_ELEMENTS or UNTRANSLATED.search(token.raw) or _is_foreign(token, language)
        ):
            after = _end_of_element(tokens, number, partners)
            token = Token("".join(each.raw for each in tokens[number:after]), "text", token.name)
        if token.kind == "text" and not token.name:
            for place, piece in enumerate(parse(unescape(token.raw))):
                mark = piece if isinstance(piece, str) else Mark(_escape(piece.content))
                yield mark, "" if place else token.raw
        elif token.name in BLOCK_ELEMENTS or token.raw.startswith(("<!D", "<!d", "<?")):
            yield token, token.raw
        elif token.kind == "single" or token.kind == "text":
            yield Mark(token), token.raw
        else:
            key = min(number, partners.get(number, number))
            yield Mark(token, token.kind, key, firm=True, light=token.name in FORMATTING_ELEMENTS), token.raw
        number = after


def _end_of_element(tokens: Sequence[Token], number: int, partners: dict[int, int]) -> int:
    """The index of the token after an element; an unclosed element ends before the next block."""
    if number in partners:
        return partners[number] + 1
    after = number + 1
    while after < len(tokens) and tokens[after].name not in BLOCK_ELEMENTS:
        after += 1
    return after


def _render(source: Segment, pieces: Sequence[Piece], tags: dict[int, str]) -> str:
    if same_text(source.pieces, pieces) and not any(id(mark.content) in tags for mark in marks_of(pieces)):
        return source.raw
    bound = set(re.findall(rf"(?<!\S)(\S+){NO_BREAK}(?=(\S+))", text_of(source.pieces)))
    rendered = []
    for plain, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if plain:
            rendered.append(_escape(_restore_no_break_spaces(text_of(list(group)), bound)))
        else:
            contents = (piece.content for piece in group if isinstance(piece, Mark))
            rendered += [each if isinstance(each, str) else tags.get(id(each), each.raw) for each in contents]
    return "".join(rendered)


def _restore_no_break_spaces(text: str, bound: set[tuple[str, str]]) -> str:
    """Restore no-break spaces between words that had one in the source, such as a number and its unit."""
    if not bound:
        return text
    return re.sub(r"(\S+) (?=(\S+))", lambda pair: pair[1] + (NO_BREAK if pair.groups() in bound else " "), text)


def _escape(text: str) -> str:
    return escape(text, quote=False).replace(NO_BREAK, "&nbsp;")

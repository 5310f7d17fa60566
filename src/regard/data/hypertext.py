"""HTML in, HTML out: the text is translated, every tag comes back as it was written, around the words it belongs to.

Nothing is parsed into a tree, so nothing can be lost: the tokens of a page, put together, are the page. What a browser
shows as blocks are segments; inline tags become marks. Scripts, styles, code, preformatted text, SVG, formulas and
elements with translate="no" or class="notranslate" are copied.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape, unescape
from itertools import groupby
from typing import Literal, NamedTuple

from regard.data.markup import VOID, Mark, Piece, Translate, parse
from regard.data.passages import text_of, translate_sentences

# Every alternative may also run to the end of the text, so that no place is looked at twice; `_tokens` sorts these out
TOKEN = re.compile(
    r"""
      <!--.*?(?:-->|\Z) | <!\[CDATA\[.*?(?:\]\]>|\Z)
    | (?P<tag> <(?P<slash>/?)(?P<name>[A-Za-z][^\s/>]*) (?: =\s*"[^"]*" | =\s*'[^']*' | [^>] )*+ (?:>|\Z) )
    | (?P<odd> <[!?/][^>]*(?:>|\Z) )
    """,
    re.VERBOSE | re.DOTALL,
)
RAW = {
    name: re.compile(rf"</{name}(?=[\s/>])[^>]*(?:>|\Z)", re.IGNORECASE)
    for name in ("iframe", "noembed", "noframes", "script", "style", "textarea", "xmp")
}
KEPT = frozenset({"code", "kbd", "math", "pre", "samp", "svg", "tt", "var"})
BLOCKS = frozenset({
    "address", "article", "aside", "audio", "base", "blockquote", "body", "br", "button", "canvas", "caption",
    "center", "col", "colgroup", "dd", "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption",
    "figure", "footer", "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup",
    "hr", "html", "legend", "li", "link", "main", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup",
    "option", "p", "param", "picture", "pre", "search", "section", "select", "slot", "source", "summary", "svg",
    "table", "tbody", "td", "template", "tfoot", "th", "thead", "title", "tr", "track", "ul", "video", *RAW,
})  # fmt: skip
UNTRANSLATED = re.compile(
    r"""\s(?: translate\s*=\s*["']?no["'\s/>] | class\s*=\s*(?: (["'])(?:(?!\1).)*?(?<![\w-])notranslate(?![\w-])
    | notranslate[\s/>] ) )""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
MOST_OPEN = 200  # elements within one another; deeper ones stay where they are
NO_BREAK = "\xa0"


class Token(NamedTuple):
    """A stretch of a page: text, a tag, or something else that is copied; an element of `RAW` is one token."""

    raw: str
    kind: Literal["text", "open", "close", "single"]
    name: str = ""


Part = str | list[Piece]  # what is copied, or a segment to translate


def translate_html(texts: Sequence[str], translate: Translate, language: str) -> list[str]:
    """Translate the text of HTML pages or fragments from `language`, all in one call."""
    pages = [list(_parts(list(_tokens(text)))) for text in texts]
    segments = [part for page in pages for part in page if not isinstance(part, str)]
    done = zip(segments, translate_sentences(segments, translate, language), strict=True)
    return ["".join(part if isinstance(part, str) else _spell(*next(done)) for part in page) for page in pages]


# Text to tokens


def _tokens(text: str) -> Iterator[Token]:
    end = 0
    while match := TOKEN.search(text, end):
        start, stop = match.span()
        if (match["tag"] or match["odd"]) and not match[0].endswith(">"):
            break  # never closed: a browser would hide it, we rather take it for text
        token = _token(match)
        if token.name in RAW and token.kind == "open":
            closing = RAW[token.name].search(text, stop)
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


def _partners(tokens: Sequence[Token]) -> dict[int, int]:
    """The numbers of the tags that close those that open, and the other way round."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    waiting: Counter[str] = Counter()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(number)
            waiting[token.name] += 1
        elif token.kind == "close" and waiting[token.name]:
            opening = -1
            while opening < 0 or tokens[opening].name != token.name:  # what is open within it ends with it
                opening = opened.pop()
                waiting[tokens[opening].name] -= 1
            if len(opened) < MOST_OPEN:
                partners |= {opening: number, number: opening}
    return partners


# Tokens to segments, and back


def _parts(tokens: Sequence[Token]) -> Iterator[Part]:
    for copied, group in groupby(_pieces(tokens), key=lambda piece: isinstance(piece, Token)):
        if copied:
            yield "".join(piece.raw for piece in group if isinstance(piece, Token))
        else:
            yield [piece for piece in group if not isinstance(piece, Token)]


def _pieces(tokens: Sequence[Token]) -> Iterator[Piece | Token]:
    """Text and inline marks, parted by the tokens that end a segment."""
    partners = _partners(tokens)
    number = 0
    while number < len(tokens):
        token, past = tokens[number], number + 1
        if token.kind == "open" and (token.name in KEPT or UNTRANSLATED.search(token.raw)):
            past = _past_element(tokens, number, partners)
            token = Token("".join(each.raw for each in tokens[number:past]), "single", token.name)
        if token.kind == "text":
            yield from _text_pieces(token.raw)
        elif token.name in BLOCKS or token.raw.startswith(("<!D", "<!d", "<?")):
            yield token
        elif token.kind == "single":
            yield Mark(token.raw)
        else:
            key = min(number, partners.get(number, number))
            yield Mark(token.raw, token.kind, key, firm=True)
        number = past


def _past_element(tokens: Sequence[Token], number: int, partners: dict[int, int]) -> int:
    """The token after an element; one that is not closed ends before the next block."""
    if number in partners:
        return partners[number] + 1
    past = number + 1
    while past < len(tokens) and tokens[past].name not in BLOCKS:
        past += 1
    return past


def _text_pieces(raw: str) -> Iterator[Piece]:
    for piece in parse(unescape(raw)):
        yield piece if isinstance(piece, str) else Mark(_escape(piece.content))


def _spell(source: Sequence[Piece], pieces: Sequence[Piece]) -> str:
    bound = set(re.findall(rf"(?<!\S)(\S+){NO_BREAK}(?=(\S+))", text_of(source)))
    spelt = []
    for plain, group in groupby(pieces, key=lambda piece: isinstance(piece, str)):
        if plain:
            spelt.append(_escape(_bind(text_of(list(group)), bound)))
        else:
            spelt += [piece.content for piece in group if isinstance(piece, Mark)]
    return "".join(spelt)


def _bind(text: str, bound: set[tuple[str, str]]) -> str:
    """Put no-break spaces back between neighbours that had one between them, such as a number and its unit."""
    if not bound:
        return text
    return re.sub(r"(\S+) (?=(\S+))", lambda pair: pair[1] + (NO_BREAK if pair.groups() in bound else " "), text)


def _escape(text: str) -> str:
    return escape(text, quote=False).replace(NO_BREAK, "&nbsp;")

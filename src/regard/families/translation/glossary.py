"""Glossaries: how certain terms must be translated, or that they must not be.

A glossary is a file of lines `source TAB target`. Either side may list several forms, separated by `|`: forms of the
source that mean the same term, and inflected forms of the target of which one must be used. Where both sides list as
many, each form of the source becomes the one at its place: `door|doors TAB puerta|puertas`. A term whose target equals
its source is not translated. A third column holds the case rule of the term: `any` (the default) finds the term in
any case, and `case` only as it is written. Lines that begin with `#` are comments.
"""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from regard.data.formats.encodings import find_encoding, read_encoded
from regard.errors import DataError

FORMS, COMMENT, ANY, CASE = "|", "#", "any", "case"
# Scripts without spaces between words: Thai to Myanmar, Khmer, and Chinese and Japanese.
UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]"
WORD = re.compile(rf"{UNSPACED}|(?:(?!{UNSPACED})\w)+|[^\w\s]")  # a word, a character of such a script, or a mark


class Term(NamedTuple):
    """A term: its forms in the source and in the target, whether its case matters, and where it was given."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    case: bool = False
    where: str = ""

    @property
    def kept(self) -> bool:
        """Whether the term is not translated."""
        return self.sources == self.targets

    def becomes(self, place: int) -> tuple[str, ...]:
        """The forms that may translate the source form at a place: the one at the same place if both have as many."""
        return self.targets[place : place + 1] if len(self.sources) == len(self.targets) else self.targets


class Match(NamedTuple):
    """A term in a text, and the forms of which one must be in the translation."""

    term: Term
    start: int
    end: int
    forms: tuple[str, ...]
    capitalised: tuple[str, ...]  # forms that may only begin the translation


@dataclass(frozen=True)
class Glossary:
    """Terms; `find` says where a text has them."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def read(cls, path: str | Path, *, keep: Sequence[str] = ()) -> Glossary:
        """Read a file; the terms of `keep` are not translated."""
        path = Path(path)
        try:
            lines = list(read_encoded(path, find_encoding(path, "")))
        except OSError as error:
            raise DataError(f"cannot read the glossary {path}: {error.strerror}") from None
        if not any(_is_term(line) for line in lines):
            warnings.warn(f"{path}: has no terms; a line is the source term, a TAB and its translation", stacklevel=2)
        return cls.parse(lines, str(path), keep=keep)

    @classmethod
    def parse(cls, lines: Iterable[str], name: str = "glossary", *, keep: Sequence[str] = ()) -> Glossary:
        """The glossary of these lines; `name` is what messages call it."""
        rows = ((number, line.strip("\ufeff\r\n")) for number, line in enumerate(lines, 1))
        given = [_parse_term(line, f"{name}, line {number}") for number, line in rows if _is_term(line)]
        kept = [_term([each], [each], True, f"the term to keep {each!r}") for each in keep]
        return cls(tuple(_without_repetitions([*given, *kept])))

    @classmethod
    def of(cls, terms: Mapping[str, str | Sequence[str]]) -> Glossary:
        """The glossary of a mapping from source terms to their translations, or to several forms of these."""
        for source, target in terms.items():
            forms = [target] if isinstance(target, str) else target
            if not isinstance(source, str) or not _are_texts(forms):
                raise DataError(
                    f"{source!r}: {target!r} is no term; expected a text, and its translation or a list of forms"
                )
        given = [
            _term(source.split(FORMS), target.split(FORMS) if isinstance(target, str) else target, False, repr(source))
            for source, target in terms.items()
        ]
        return cls(tuple(_without_repetitions(given)))

    def find(self, text: str) -> list[Match]:
        """The terms of a text from left to right; of terms that overlap the first one, and there the longest."""
        words = list(WORD.finditer(text))
        folded = [word[0].casefold() for word in words]
        found, place = list[Match](), 0
        while self.terms and place < len(words):
            match = self._match(text, words, folded, place)
            if match is not None:
                found.append(match[0])
            place += match[1] if match else 1
        return found

    def _match(
        self, text: str, words: Sequence[re.Match[str]], folded: Sequence[str], place: int
    ) -> tuple[Match, int] | None:
        """The longest term that begins with this word, and its number of words."""
        for form, targets, term in self._by_first_word.get(folded[place], ()):
            if form == folded[place : place + len(form)]:
                start, end = words[place].start(), words[place + len(form) - 1].end()
                spelled = _normal(text[start:end])
                if not term.case or spelled in term.sources:
                    return Match(term, start, end, *_forms(term, targets, spelled)), len(form)
        return None

    def __bool__(self) -> bool:
        return bool(self.terms)

    @cached_property
    def _by_first_word(self) -> dict[str, list[tuple[list[str], tuple[str, ...], Term]]]:
        """The forms of terms, each with what it may become, by their first word; the longest first, and those with a
        case rule before."""
        found: dict[str, list[tuple[list[str], tuple[str, ...], Term]]] = {}
        for term in self.terms:
            for place, form in enumerate(term.sources):
                words = [word.casefold() for word in WORD.findall(form)]
                found.setdefault(words[0], []).append((words, term.becomes(place), term))
        for listed in found.values():
            listed.sort(key=lambda each: (-len(each[0]), not each[2].case))
        return found


NO_TERMS = Glossary()


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words."""
    return re.match(UNSPACED, character) is not None


def _are_texts(forms: object) -> bool:
    return isinstance(forms, Sequence) and all(isinstance(each, str) for each in forms)


def _is_term(line: str) -> bool:
    return bool(line.strip()) and not line.startswith(COMMENT)


def _parse_term(line: str, where: str) -> Term:
    columns = line.split("\t")
    if len(columns) < 2:
        raise DataError(f"{where}: no TAB in {line[:40]!r}; a line is the source term, a TAB and its translation")
    rule = columns[2].strip().lower() if len(columns) > 2 else ""
    if rule not in ("", ANY, CASE):
        raise DataError(f"{where}: the third column is {rule!r}; it is {ANY}, {CASE} or empty")
    return _term(columns[0].split(FORMS), columns[1].split(FORMS), rule == CASE, where)


def _term(sources: Sequence[str], targets: Sequence[str], case: bool, where: str) -> Term:
    for side, forms in (("source", sources), ("target", targets)):
        if not all(form.strip() for form in forms) or not forms:
            raise DataError(f"{where}: the {side} of the term is empty, or one of its forms is")
    return Term(tuple(map(_normal, sources)), tuple(map(_normal, targets)), case, where)


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def _without_repetitions(terms: Sequence[Term]) -> Iterator[Term]:
    """The terms without repeated ones, with a warning; a source with two translations is refused."""
    known: dict[str, Term] = {}
    for term in terms:
        earlier = next((known[key] for form in term.sources if (key := _key(form, term.case)) in known), None)
        if earlier is None:
            yield term
        elif {*earlier.targets} != {*term.targets}:
            raise DataError(
                f"{term.where}: {'|'.join(term.sources)!r} is to become {'|'.join(term.targets)!r}, but "
                f"{'|'.join(earlier.targets)!r} by {earlier.where}; keep one, or list both forms as "
                f"{'|'.join((*earlier.targets, *term.targets))!r}"
            )
        else:
            warnings.warn(f"{term.where}: repeats {earlier.where}", stacklevel=2)
        known |= {_key(form, term.case): term for form in term.sources}


def _key(form: str, case: bool) -> str:
    return f"={_normal(form)}" if case else _normal(form).casefold()


def _forms(term: Term, targets: tuple[str, ...], spelled: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The forms that may translate a term that was found in this spelling, and those for the first word only."""
    if term.kept:
        return (spelled,), ()
    if term.case:
        return targets, ()
    capitalised = tuple(form[0].upper() + form[1:] for form in targets)
    new = tuple(form for form in capitalised if form not in targets)
    if spelled in term.sources or not spelled[0].isupper():
        return targets, new
    loud = tuple(form.upper() for form in targets) if len(spelled) > 1 and spelled.isupper() else ()
    return (*dict.fromkeys((*targets, *capitalised, *loud)),), ()

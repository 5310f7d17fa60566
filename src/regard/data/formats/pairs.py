"""Sentence pairs from files: TSV, CSV, JSONL, TMX, PO, XLIFF and Moses pairs, each also `.gz`, all but PO streamed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from regard.data.formats.languages import same_language
from regard.data.formats.lines import REPLACEMENT, Errors, on_damage, read_lines
from regard.data.formats.tables import ROLES, find_columns, find_named, format_of, read_rows
from regard.errors import DataError

Links = tuple[tuple[int, int], ...]
PHARAOH = re.compile(r"\d+-\d+(?: \d+-\d+)*")
STYLE = re.compile(r"[a-z0-9]*")
LETTER = re.compile(r"[^\W\d_]")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
EXCHANGE = (".tmx", ".xlf", ".xliff", ".po")
SUGGESTION = {"q", "s", "source", "target"}  # the keys of LibreTranslate's suggestions: two texts and their languages
SUFFIXES = (".tsv", ".csv", ".jsonl", *EXCHANGE)


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation; `links` align whitespace words, counted from 0; `to` is the target language
    if a corpus has several."""

    source: str
    target: str
    links: Links | None = None
    to: str = ""
    possible: Links | None = None  # gold links that are optional; includes `links`
    style: str = ""  # such as formal, if the corpus says it
    source_language: str = ""  # if a corpus has several

    def swapped(self) -> Pair:
        """The pair of the other direction."""
        links, possible = _flipped(self.links), _flipped(self.possible)
        return Pair(self.target, self.source, links, possible=possible, style=self.style)


def _flipped(links: Links | None) -> Links | None:
    return None if links is None else tuple(sorted((target, source) for source, target in links))


@dataclass(frozen=True, slots=True)
class GoldPair:
    """A hand-aligned pair: words are separated by spaces and counted from 0; `possible` includes `sure`."""

    source: str
    target: str
    sure: frozenset[tuple[int, int]]
    possible: frozenset[tuple[int, int]]


def read_pairs(
    path: str | Path,
    source: str,
    target: str,
    *,
    style: str = "",
    errors: Errors = "strict",
    others: bool = False,
) -> Iterator[Pair]:
    """Stream the pairs of a corpus. Its suffix gives the format; without a known suffix it is a Moses prefix.

    `style` names the column of a table, or the key of JSONL objects, that has the style of each translation.
    `others` leaves out the lines of JSONL that lack one of the languages; then there may be no pair at all.
    `errors="replace"` replaces malformed UTF-8 by U+FFFD with a warning; XML files are always strict."""
    path = Path(path)
    suffix = format_of(path)
    if style and suffix not in (".tsv", ".csv", ".jsonl"):
        raise DataError(f"{path}: only TSV, CSV and JSONL have styles; leave out the style {style!r}")
    if suffix not in SUFFIXES:
        return _refuse_empty(_read_moses(*_moses_files(path, source, target), errors), path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    pairs: Iterator[Pair]
    if suffix in EXCHANGE:
        pairs = (Pair(*texts) for texts in _read_exchanged(path, suffix, source, target, errors))
    elif suffix == ".jsonl":
        pairs = _read_jsonl(path, source, target, style, errors, others=others)
        if others:
            return pairs
    else:
        pairs = _read_table(path, source, target, style, errors)
    return _refuse_empty(pairs, path)


def read_two_files(source: str | Path, target: str | Path, *, errors: Errors = "strict") -> Iterator[Pair]:
    """Stream the pairs of two files of any name, also `.gz`: line i of one translates line i of the other."""
    return _refuse_empty(_read_moses(Path(source), Path(target), errors), Path(source))


def _read_exchanged(path: Path, suffix: str, source: str, target: str, errors: Errors) -> Iterator[tuple[str, str]]:
    from regard.data.formats import exchange  # libraries of XML and PO, which other formats do not need

    if suffix == ".po":
        return exchange.read_po(path, target, errors)
    return (exchange.read_tmx if suffix == ".tmx" else exchange.read_xliff)(path, source, target)


def _refuse_empty(pairs: Iterable[Pair], path: Path) -> Iterator[Pair]:
    empty = True
    for pair in pairs:
        empty = False
        yield pair
    if empty:
        raise DataError(f"{path}: no sentence pairs in it; a corpus needs at least one")


# Moses pairs: one file per language; line i of one translates line i of the other


def _moses_files(path: Path, source: str, target: str) -> tuple[Path, Path]:
    name = str(path).removesuffix(".gz")
    for language in (source, target):
        if name.endswith(f".{language}"):
            name = name.removesuffix(f".{language}")
            break
    tried = [[Path(f"{name}.{language}{gz}") for gz in ("", ".gz")] for language in (source, target)]
    found = [next((file for file in files if file.is_file()), None) for files in tried]
    if found[0] and found[1]:
        return found[0], found[1]
    missing = ", ".join(str(file) for files, here in zip(tried, found, strict=True) if not here for file in files)
    hint = f"; {path} is there, but its suffix names no known format ({' '.join(SUFFIXES)})" if path.is_file() else ""
    raise DataError(f"{path}: no such corpus; tried {missing}{hint}")


def _read_moses(source: Path, target: Path, errors: Errors) -> Iterator[Pair]:
    sources, targets = (read_lines(file, on_damage(errors)) for file in (source, target))
    count = 0
    for source_line in sources:
        target_line = next(targets, None)
        if target_line is None:
            raise _misaligned(source, count + 1 + sum(1 for _ in sources), target, count)
        count += 1
        yield Pair(source_line, target_line)
    rest = sum(1 for _ in targets)
    if rest:
        raise _misaligned(source, count, target, count + rest)


def _misaligned(source: Path, source_lines: int, target: Path, target_lines: int) -> DataError:
    return DataError(
        f"misaligned files: {source} has {source_lines} lines, {target} has {target_lines}; "
        "line i of one must translate line i of the other"
    )


# TSV and CSV


def _read_table(path: Path, source: str, target: str, style: str, errors: Errors) -> Iterator[Pair]:
    rows = read_rows(path, source, target, errors)
    first = next(rows, None)
    if first is None:
        return
    columns = find_columns(first[1], source, target)
    if not columns.named:
        _refuse_numbers(first[1], f"{path}, line {first[0]}", source, target)
    names = [cell.strip().lower() for cell in first[1]] if columns.named else []
    if style and style.lower() not in names:
        shown = f"its columns are {', '.join(names)}" if names else "its first line names no columns"
        raise DataError(f"{path}: no column {style!r} for the style; {shown}")
    style_column = names.index(style.lower()) if style else 0
    needed = max(columns.source, columns.target, style_column) + 1
    for number, row in rows if columns.named else chain([first], rows):
        where = f"{path}, line {number}"
        if len(row) < needed:
            raise DataError(f"{where}: expected {needed} columns or more, {len(row)} came: {_shown(row)}")
        texts = row[columns.source], row[columns.target]
        links = row[columns.links] if 0 <= columns.links < len(row) else ""
        linked = _links(links, *texts, where) if columns.named or PHARAOH.fullmatch(links) else None
        yield Pair(*texts, linked, style=_style(row[style_column], where) if style else "")


def _refuse_numbers(row: Sequence[str], where: str, source: str, target: str) -> None:
    """Refuse a table without a header whose first two columns are not both texts, as in lists with ids."""
    if any(cell.strip().isdecimal() for cell in row[:2]) and any(map(LETTER.search, row[2:])):
        raise DataError(
            f"{where}: the first two columns are read as {source!r} and {target!r}, but one of them is a number: "
            f"{_shown(row)}; name the columns in a first line, such as id TAB {source} TAB {target}"
        )


def _style(given: object, where: str) -> str:
    """The style of a translation: one word of letters and digits, or none."""
    found = str(given or "").strip().lower()
    if not STYLE.fullmatch(found):
        raise DataError(f"{where}: a style is one word of the letters a to z and digits, {_shown(given)} came")
    return found


def _links(cell: str, source: str, target: str, where: str) -> Links | None:
    if not cell:
        return None
    if not PHARAOH.fullmatch(cell):
        raise DataError(f"{where}: word links look like '0-0 1-2', {_shown(cell)} came")
    links = tuple((int(i), int(j)) for i, j in (link.split("-") for link in cell.split()))
    _check_links(links, source, target, where)
    return links


def _check_links(links: Iterable[tuple[int, int]], source: str, target: str, where: str) -> None:
    words = len(source.split()), len(target.split())
    for i, j in links:
        if not (0 <= i < words[0] and 0 <= j < words[1]):
            raise DataError(
                f"{where}: a link joins words {i} and {j} (counted from 0), but the sentences have only "
                f"{words[0]} and {words[1]} words"
            )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# JSONL


def read_objects(path: Path, errors: Errors) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its file and line; empty lines are skipped."""
    for number, line in enumerate(read_lines(path, on_damage(errors)), 1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, parse_object(line, where)


def parse_object(line: str, where: str) -> dict[str, Any]:
    """The object in a line of JSONL."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}): {_shown(line)}") from None
    if not isinstance(value, dict):
        raise DataError(f'{where}: expected an object such as {{"en": .., "de": ..}}, {_shown(value)} came')
    return value


def sides(record: Mapping[str, Any]) -> Any:
    """The part of a JSONL object that maps languages (or 'source', 'target') to texts."""
    translation = record.get("translation")
    return translation if isinstance(translation, dict) else record


def find_key(texts: Mapping[str, Any], language: str, role: str) -> str | None:
    """The key of a language's text: its code or English name, or else its role 'source' or 'target'."""
    named = {key.lower(): key for key in texts}
    name = find_named(list(named), language) or next((name for name in ROLES[role] if name in named), "")
    return named.get(name)


def unusable_lines(path: str | Path, directions: Sequence[tuple[str, str]]) -> int:
    """How many lines of a JSONL file have no pair in these directions; an error that names the first if none has."""
    count, usable, first = 0, False, ""
    for where, record in read_objects(Path(path), "strict"):
        if any(_has(record, *direction) for direction in directions):
            usable = True
        else:
            count += 1
            wanted = ", ".join(f"{source} to {target}" for source, target in directions)
            first = first or f"{where}: no language of {wanted}; the keys are: {', '.join(sides(record))}"
    if first and not usable:
        raise DataError(first)
    return count


def _has(record: Mapping[str, Any], source: str, target: str) -> bool:
    if record.keys() >= SUGGESTION:
        return _is_between(record, source, target)
    texts = sides(record)
    return all(find_key(texts, *each) is not None for each in ((source, "source"), (target, "target")))


def _read_jsonl(
    path: Path, source: str, target: str, style: str, errors: Errors, *, others: bool = False
) -> Iterator[Pair]:
    for where, record in read_objects(path, errors):
        told = _style(record.get(style), where) if style else ""
        if record.keys() >= SUGGESTION:
            if not _is_between(record, source, target):
                continue
            record = {"source": record["q"], "target": record["s"]}
        if others and not _has(record, source, target):
            continue
        texts = sides(record)
        here = text_of(texts, source, "source", where, errors)
        there = text_of(texts, target, "target", where, errors)
        links = record.get("links")
        linked = _links(links, here, there, where) if isinstance(links, str) else None
        yield Pair(here, there, linked, style=told)


def _is_between(suggestion: Mapping[str, Any], source: str, target: str) -> bool:
    """Whether a suggested translation, from a server's file of all its language pairs, is in these two languages."""
    return same_language(str(suggestion["source"]), source) and same_language(str(suggestion["target"]), target)


def text_of(texts: Mapping[str, Any], language: str, role: str, where: str, errors: Errors) -> str:
    """The text of one language in a JSONL object."""
    key = find_key(texts, language, role)
    if key is None:
        raise DataError(f"{where}: no language {language!r}; the keys are: {', '.join(texts)}")
    text = texts[key]
    if not isinstance(text, str):
        raise DataError(f"{where}: the text of {key!r} should be a string, {_shown(text)} came")
    if errors == "strict" and LONE_SURROGATE.search(text):
        raise DataError(f"{where}: lone surrogate in the text of {key!r}; repair it")
    return LONE_SURROGATE.sub(REPLACEMENT, text)


# Gold alignments


def read_gold(path: str | Path, first: int) -> Iterator[GoldPair]:
    """Hand-aligned pairs: source TAB target TAB links, `i-j` sure and `ipj` possible, words counted from `first`."""
    for number, line in enumerate(read_lines(path, on_damage("strict")), 1):
        where = f"{path}, line {number}"
        cells = line.split("\t")
        if len(cells) != 3:
            raise DataError(f"{where}: expected source, target and links between tabs, {_shown(cells)} came")
        source, target, links = cells
        found = [re.fullmatch(r"(\d+)([-p])(\d+)", link) for link in links.split()]
        if None in found:
            raise DataError(f"{where}: links look like '1-2' (sure) or '1p2' (possible), {_shown(links)} came")
        kinds = {(int(link[1]) - first, int(link[3]) - first): link[2] for link in found if link}
        _check_links(kinds, source, target, f"{where} (read with first={first})")
        yield GoldPair(source, target, frozenset(k for k, kind in kinds.items() if kind == "-"), frozenset(kinds))

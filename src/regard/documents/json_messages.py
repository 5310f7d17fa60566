"""Message files in JSON: i18next, FormatJS, Vue, Chrome extensions and others (.json), Flutter's (.arb), Xcode's
string catalogues (.xcstrings).

JSON and ARB keep every byte but those of the translated strings: order of keys, indentation, escapes. Xcode's
catalogues get new entries, so they are written again, in Xcode's own layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regard.data.formats.languages import find_language, same_language
from regard.documents.document_job import DocumentJob, batches
from regard.documents.icu_messages import has_letters, sent_messages, translate_messages
from regard.documents.text_edits import Edit, FoundText, edited, translated_edits
from regard.errors import DataError

TOKEN = re.compile(r'(?P<string>"(?:[^"\\]|\\.)*+")|(?P<mark>[{}\[\],])')
# Where every entry is an object with one of these, it alone is the text: descriptions and examples are not
MESSAGE_KEYS = ("message", "defaultMessage")
LOCALE = "@@locale"  # ARB's name of its language


class Frame(NamedTuple):
    """An object or array that is being read, and the key or index reached in it; None before a key."""

    is_object: bool
    at: str | int | None


class JsonString(NamedTuple):
    """A string of a JSON text: the keys and indices that lead to it, its place, and whether it is a key."""

    path: tuple[str | int, ...]
    found: FoundText
    is_key: bool


def json_strings(text: str) -> Iterator[JsonString]:
    """All strings of a JSON text that is well-formed, in their order."""
    stack: list[Frame] = []
    for token in TOKEN.finditer(text):
        top = stack[-1] if stack else None
        if token["string"]:
            value = json.loads(token["string"])
            is_key = top is not None and top.is_object and top.at is None
            if top and is_key:
                stack[-1] = top._replace(at=value)
            path = tuple(frame.at for frame in stack if frame.at is not None)
            yield JsonString(path, FoundText(*token.span(), value), is_key)
        elif token["mark"] in "{[":
            stack.append(Frame(True, None) if token["mark"] == "{" else Frame(False, 0))
        elif token["mark"] in "}]":
            stack.pop()
        elif top:
            stack[-1] = top._replace(at=None if isinstance(top.at, str) else (top.at or 0) + 1)


def parsed_json(job: DocumentJob, text: str) -> Any:
    """The value of a JSON file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{job.path}, line {error.lineno}: not well-formed JSON ({error.msg})") from None
    except RecursionError:
        raise DataError(f"{job.path}: nested too deeply") from None


# JSON and ARB


def translate_json(job: DocumentJob) -> None:
    text = job.text()
    value = parsed_json(job, text)
    strings = list(json_strings(text))
    if _has_message_keys(value):
        todo = [each for each in strings if len(each.path) == 2 and each.path[1] in MESSAGE_KEYS]
    else:
        todo = strings
    _write(job, text, [each.found for each in todo if not each.is_key], _language_key(job, value, strings))


def _has_message_keys(value: Any) -> bool:
    entries = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(entries, list) or not entries:
        return False
    return all(isinstance(each, dict) and any(key in each for key in MESSAGE_KEYS) for each in entries)


def _language_key(job: DocumentJob, value: Any, strings: Sequence[JsonString]) -> list[FoundText]:
    """The only key of a file, if it is the code of the source language and has all messages in it."""
    if is_language_root(job, value):
        return [each.found for each in strings if each.is_key and len(each.path) == 1]
    return []


def is_language_root(job: DocumentJob, value: Any) -> bool:
    """Whether all messages stand below the code of the source language, as in {"en": {…}}; refuses a file that has the
    target's beside it, whose messages would be taken for source text."""
    if not isinstance(value, dict) or not job.target:
        return False
    groups = [key for key, inside in value.items() if isinstance(key, str) and isinstance(inside, dict)]
    source, target = find_language(groups, job.source), find_language(groups, job.target)
    if source and target and source != target:
        raise DataError(
            f"{job.path}: has messages of {source} and of {target}; translate a file that has {source} alone"
        )
    return len(value) == 1 and source is not None


def translate_arb(job: DocumentJob) -> None:
    text = job.text()
    if not isinstance(parsed_json(job, text), dict):
        raise DataError(f"{job.path}: not an ARB file; expected one JSON object of messages")
    values = [each for each in json_strings(text) if not each.is_key]
    todo = [each.found for each in values if len(each.path) == 1 and not str(each.path[0]).startswith("@")]
    _write(job, text, todo, [each.found for each in values if each.path == (LOCALE,) and job.target])


def _write(job: DocumentJob, text: str, todo: Sequence[FoundText], languages: Sequence[FoundText]) -> None:
    """Write the file with texts translated, and `languages` set to the target language."""
    escaped = text.isascii() and "\\u" in text

    def spelled(_: FoundText, new: str) -> str:
        return json.dumps(new, ensure_ascii=escaped)

    edits = translated_edits(job, todo, spelled)
    job.write(edited(text, [*edits, *(Edit(each.start, each.end, spelled(each, job.target)) for each in languages)]))


# Xcode's string catalogues


def translate_xcstrings(job: DocumentJob) -> None:
    text = job.text()
    catalogue = parsed_json(job, text)
    if not isinstance(catalogue, dict) or not isinstance(catalogue.get("strings"), dict):
        raise DataError(f'{job.path}: not a string catalogue; expected an object with "strings"')
    stated = str(catalogue.get("sourceLanguage") or job.source)
    if not same_language(stated, job.source):
        raise DataError(f"{job.path}: its source language is {stated!r}, not {job.source!r}")
    units = [unit for key, entry in catalogue["strings"].items() for unit in _new_units(job, key, entry, stated)]
    for batch in batches(units):
        done = translate_messages([unit["value"] for unit in batch], job.translate)
        for unit, new in zip(batch, done, strict=True):
            doubtful = job.review or job.doubt(sent_messages(unit["value"]))
            unit |= {"state": "needs_review" if doubtful else "translated", "value": new}
    job.report.translated += len(units)
    job.write(_xcode_layout(catalogue, text) if units else text)


def _new_units(job: DocumentJob, key: str, entry: Any, source: str) -> Iterator[dict[str, Any]]:
    """The units of an entry to translate, which are copied from the source language's into the target's."""
    if not isinstance(entry, dict) or not (has_letters(key) or entry.get("localizations")):
        return
    if entry.get("shouldTranslate") is False:
        job.report.skipped["marked shouldTranslate false"] += 1
        return
    known = entry.get("localizations") or {}
    target = find_language(known, job.target) or job.target
    if _is_translated(known.get(target)) and not job.overwrite:
        job.report.kept["already translated"] += 1
        return
    # An entry without a text of the source language has its key for it
    copied = json.loads(json.dumps(known.get(source) or {"stringUnit": {"state": "translated", "value": key}}))
    units = [unit for unit in _units(copied) if has_letters(unit["value"])]
    if units:
        entry["localizations"] = dict(sorted({**known, target: copied}.items()))
    yield from units


def _is_translated(localization: Any) -> bool:
    """Whether a language has a text; Xcode adds one that is empty or a copy of the source, of state "new"."""
    units = list(_units(localization))
    return localization is not None and not (units and all(unit.get("state") == "new" for unit in units))


def _units(value: Any) -> Iterator[dict[str, Any]]:
    """The string units of a localization: one, or one for each plural form and device."""
    if isinstance(value, dict):
        unit = value.get("stringUnit")
        if isinstance(unit, dict) and isinstance(unit.get("value"), str):
            yield unit
        for inside in value.values():
            yield from _units(inside)


def _xcode_layout(value: Any, before: str) -> str:
    xcode = '" : ' in before
    written = json.dumps(value, ensure_ascii=False, indent=2, separators=(",", " : " if xcode else ": "))
    if xcode:  # which writes an empty object in three lines
        written = re.sub(r"^( *)(.* : )\{\}(,?)$", r"\1\2{\n\n\1}\3", written, flags=re.MULTILINE)
    return written + before[len(before.rstrip()) :]

"""Message files in JSON: i18next, FormatJS, Vue, Chrome extensions and others (.json), Flutter's (.arb), Xcode's
string catalogues (.xcstrings); and in YAML, such as those of Rails.

JSON, ARB and YAML keep every byte but those of the translated strings: order of keys, comments, indentation, escapes.
Xcode's catalogues get new entries, so they are written again, in Xcode's own layout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regard.data.formats.languages import find_language, same_language
from regard.documents.document_job import DocumentJob, TextSpan, batches, edited
from regard.documents.icu_messages import has_letters, sent_messages, translate_messages, translated_edits
from regard.errors import DataError
from regard.optional import needed

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
    found: TextSpan
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
            yield JsonString(path, TextSpan(*token.span(), value), is_key)
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
    except ValueError:  # Python refuses to read more than 4300 digits
        raise DataError(f"{job.path}: has a number of thousands of digits; expected text") from None
    except RecursionError:
        raise DataError(f"{job.path}: nested too deeply") from None


# JSON and ARB


def translate_json(job: DocumentJob) -> None:
    text = job.text()
    value = parsed_json(job, text)
    strings = list(json_strings(text))
    todo, languages = strings, list[TextSpan]()
    if _has_message_keys(value):
        todo = [each for each in strings if len(each.path) == 2 and each.path[1] in MESSAGE_KEYS]
    if is_language_root(job, value):
        languages = [each.found for each in strings if each.is_key and len(each.path) == 1]
    _write(job, text, [each.found for each in todo if not each.is_key], languages)


def _has_message_keys(value: Any) -> bool:
    entries = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(entries, list) or not entries:
        return False
    return all(isinstance(each, dict) and any(key in each for key in MESSAGE_KEYS) for each in entries)


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


def _write(job: DocumentJob, text: str, todo: Sequence[TextSpan], languages: Sequence[TextSpan]) -> None:
    """Write the file with texts translated, and `languages` set to the target language."""
    escaped = text.isascii() and "\\u" in text

    def spelled(_: TextSpan, new: str) -> str:
        return json.dumps(new, ensure_ascii=escaped)

    edits = translated_edits(job, todo, spelled)
    job.write(edited(text, [*edits, *(span._replace(text=spelled(span, job.target)) for span in languages)]))


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


# YAML: ruamel.yaml says where each string is

YAML_STRING = "tag:yaml.org,2002:str"
# Words that one version of YAML or another takes for something else than a string
OTHER_VALUES = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false", "null", "~"})
RUBY_SYMBOL = re.compile(r":[A-Za-z_]\w*[?!]?")  # of Ruby, which reads it as a name: `order: [:year, :month, :day]`
YAML_PREFIX = re.compile(r"(?:[&!]\S*\s+)*")  # an anchor and a tag before a string
YAML_PLAIN = re.compile(
    r"[^\W\d_](?:(?!: | #)[^\r\n\t])*(?<![:\s])"
)  # what needs no quotes, outside of [a, b] and {a: b}
YAML_FLOW = re.compile(r"[,\[\]{}]")
YAML_BLOCK = re.compile(r"([|>][^\r\n]*(?:\r\n|\r|\n))((?:[ \t]*(?:\r\n|\r|\n))*)([ \t]*)")


class Scalar(NamedTuple):
    """A string: its node, and whether it stands in [a, b] or {a: b}."""

    node: Any
    in_flow: bool


def translate_yaml(job: DocumentJob) -> None:
    text = job.text()
    scalars = {}
    roots = _composed(job, text)
    for scalar in (scalar for root in roots for scalar in _scalars(root, set())):
        node = scalar.node
        start, end = node.start_mark.index, node.end_mark.index
        prefix = YAML_PREFIX.match(text, start, end)
        # without quotes it may be a value or a symbol, not a text
        is_name = node.style is None and (node.value.lower() in OTHER_VALUES or RUBY_SYMBOL.fullmatch(node.value))
        if node.tag == YAML_STRING and not is_name:
            scalars[TextSpan(prefix.end() if prefix else start, end, node.value)] = scalar
    edits = translated_edits(
        job, list(scalars), lambda found, new: _yaml_string(text[found.start : found.end], new, scalars[found])
    )
    new = edited(text, [*edits, *(edit for root in roots for edit in _yaml_language_key(job, root, text))])
    if _shape(_composed(job, new)) != _shape(roots):
        raise DataError(f"{job.path}: cannot be written with its translations; quote its strings, and try again")
    job.write(new)


def _composed(job: DocumentJob, text: str) -> list[Any]:
    """The documents of a YAML file as trees of nodes."""
    yaml = needed("ruamel.yaml", extra="documents")
    try:
        return [node for node in yaml.YAML(typ="safe", pure=True).compose_all(text) if node is not None]
    except yaml.error.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise DataError(f"{job.path}{line}: not well-formed YAML ({problem})") from None
    except RecursionError:
        raise DataError(f"{job.path}: nested too deeply") from None


def _scalars(node: Any, seen: set[int], in_flow: bool = False) -> Iterator[Scalar]:
    """The values that are scalars; one that several places refer to comes once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.id == "scalar":
        yield Scalar(node, in_flow)
        return
    for inside in node.value:
        value = inside[1] if node.id == "mapping" else inside
        yield from _scalars(value, seen, in_flow or bool(node.flow_style))


def _shape(roots: list[Any]) -> list[Any]:
    """The kinds and tags of all nodes; one that several places refer to, or that is inside itself, is its number."""
    shape: list[Any] = []
    numbers: dict[int, int] = {}
    todo = roots[::-1]
    while todo:
        node = todo.pop()
        if id(node) in numbers:
            shape.append(numbers[id(node)])
            continue
        numbers[id(node)] = len(numbers)
        inside = [] if node.id == "scalar" else list(node.value)
        if node.id == "mapping":
            inside = [part for pair in inside for part in pair]
        shape.append((node.id, node.tag, len(inside)))
        todo += inside[::-1]
    return shape


def _yaml_language_key(job: DocumentJob, root: Any, text: str) -> Iterator[TextSpan]:
    """The edit of the only key of a file, if it is the code of the source language, as in Rails."""
    if root.id != "mapping":
        return
    if is_language_root(
        job, {key.value: {} if value.id == "mapping" else None for key, value in root.value if key.id == "scalar"}
    ):
        key, _ = root.value[0]
        start, end = key.start_mark.index, key.end_mark.index
        quote = text[start] if text[start] in "\"'" else ""
        yield TextSpan(start, end, f"{quote}{job.target}{quote}")


def _yaml_string(raw: str, new: str, scalar: Scalar) -> str:
    """A translation in the style of its source: plain, in quotes of either kind, or as a block."""
    style = scalar.node.style
    if style in ("|", ">"):
        return _yaml_block(raw, new, style)
    plain = (
        YAML_PLAIN.fullmatch(new) and new.lower() not in OTHER_VALUES and not (scalar.in_flow and YAML_FLOW.search(new))
    )
    if style is None and plain:
        return new
    if style == "'" and "\n" not in new:
        return "'" + new.replace("'", "''") + "'"
    return json.dumps(new, ensure_ascii=False)


def _yaml_block(raw: str, new: str, style: str) -> str:
    found = YAML_BLOCK.match(raw)
    assert found is not None
    head, blank, indent = found.groups()
    end = "\r\n" if head.endswith("\r\n") else head[-1]
    lines = new.strip("\n")
    if style == ">":  # in which one line break is a space
        lines = re.sub(r"\n+", lambda breaks: breaks[0] + "\n", lines)
    body = end.join(f"{indent}{line}" if line else "" for line in lines.split("\n"))
    return head + blank + body + raw[len(raw.rstrip("\r\n")) :]

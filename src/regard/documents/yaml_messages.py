"""Message files in YAML, such as those of Rails: strings change where they stand; comments, anchors, order and layout
stay. ruamel.yaml says where each string is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from regard.documents.document_job import DocumentJob
from regard.documents.json_messages import is_language_root
from regard.documents.text_edits import Edit, FoundText, edited, translated_edits
from regard.errors import DataError
from regard.optional import needed

STRING = "tag:yaml.org,2002:str"
# Words that one version of YAML or another takes for something else than a string
OTHER_VALUES = frozenset({"yes", "no", "on", "off", "y", "n", "true", "false", "null", "~"})
SYMBOL = re.compile(r":[A-Za-z_]\w*[?!]?")  # of Ruby, which reads it as a name: `order: [:year, :month, :day]`
PREFIX = re.compile(r"(?:[&!]\S*\s+)*")  # an anchor and a tag before a string
PLAIN = re.compile(r"[^\W\d_](?:(?!: | #)[^\r\n\t])*(?<![:\s])")  # what needs no quotes, outside of [a, b] and {a: b}
FLOW = re.compile(r"[,\[\]{}]")
BLOCK = re.compile(r"([|>][^\r\n]*(?:\r\n|\r|\n))((?:[ \t]*(?:\r\n|\r|\n))*)([ \t]*)")


class Scalar(NamedTuple):
    """A string: its node, and whether it stands in [a, b] or {a: b}."""

    node: Any
    in_flow: bool


def translate_yaml(job: DocumentJob) -> None:
    text = job.text()
    scalars = {}
    roots = _composed(job, text)
    for scalar in (each for root in roots for each in _scalars(root, set())):
        raw = text[scalar.node.start_mark.index : scalar.node.end_mark.index]
        start = scalar.node.start_mark.index + _prefix_length(raw)
        if scalar.node.tag == STRING and not (scalar.node.style is None and _is_no_text(scalar.node.value)):
            scalars[FoundText(start, scalar.node.end_mark.index, scalar.node.value)] = scalar
    edits = translated_edits(
        job, list(scalars), lambda found, new: _spelled(text[found.start : found.end], new, scalars[found])
    )
    new = edited(text, [*edits, *(edit for root in roots for edit in _language_key(job, root, text))])
    if _shape(_composed(job, new)) != _shape(roots):
        raise DataError(f"{job.path}: cannot be written with its translations; quote its strings, and try again")
    job.write(new)


def _is_no_text(plain: str) -> bool:
    return plain.lower() in OTHER_VALUES or SYMBOL.fullmatch(plain) is not None


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
        inside = [] if node.id == "scalar" else [part for each in node.value for part in _parts(each)]
        shape.append((node.id, node.tag, len(inside)))
        todo += inside[::-1]
    return shape


def _parts(inside: Any) -> tuple[Any, ...]:
    return inside if isinstance(inside, tuple) else (inside,)


def _prefix_length(raw: str) -> int:
    found = PREFIX.match(raw)
    return found.end() if found else 0


def _language_key(job: DocumentJob, root: Any, text: str) -> Iterator[Edit]:
    """The edit of the only key of a file, if it is the code of the source language, as in Rails."""
    if root.id != "mapping":
        return
    if is_language_root(
        job, {key.value: {} if value.id == "mapping" else None for key, value in root.value if key.id == "scalar"}
    ):
        key, _ = root.value[0]
        start, end = key.start_mark.index, key.end_mark.index
        quote = text[start] if text[start] in "\"'" else ""
        yield Edit(start, end, f"{quote}{job.target}{quote}")


def _spelled(raw: str, new: str, scalar: Scalar) -> str:
    """A translation in the style of its source: plain, in quotes of either kind, or as a block."""
    style = scalar.node.style
    if style in ("|", ">"):
        return _block(raw, new, style)
    plain = PLAIN.fullmatch(new) and new.lower() not in OTHER_VALUES and not (scalar.in_flow and FLOW.search(new))
    if style is None and plain:
        return new
    if style == "'" and "\n" not in new:
        return "'" + new.replace("'", "''") + "'"
    return json.dumps(new, ensure_ascii=False)


def _block(raw: str, new: str, style: str) -> str:
    found = BLOCK.match(raw)
    assert found is not None
    head, blank, indent = found.groups()
    end = "\r\n" if head.endswith("\r\n") else head[-1]
    lines = new.strip("\n")
    if style == ">":  # in which one line break is a space
        lines = re.sub(r"\n+", lambda breaks: breaks[0] + "\n", lines)
    body = end.join(f"{indent}{line}" if line else "" for line in lines.split("\n"))
    return head + blank + body + raw[len(raw.rstrip("\r\n")) :]

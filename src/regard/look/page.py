"""A report as one HTML page that needs no network: style, script, description and weights in a single file.

It may load nothing, so its JavaScript modules are joined into one script: every module becomes a function that returns
its exports and is called when it is first imported, and its imports become constants. Modules are written for this:
imports are `import { a, b } from "./file.js";`, and exports are `export * from "./file.js";` or declarations that never
change. The page of the server is joined in the same way (`serve/routes/page.py`).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from regard.errors import DataError
from regard.families.catalog import VIEWS, family_script
from regard.look.neurons import LayerNeurons
from regard.look.panels import Tokens, axis_from_json
from regard.look.report import AttentionReport, describe

LEVELS = 255
INTEGERS = 2**15 - 1
MAX_NEURONS = 8 * 2**20  # numbers of queries, keys and biases in a page, two bytes each


def render_page(report: AttentionReport) -> str:
    """The whole page as text, under a policy that lets the browser run and load nothing else."""
    weights, neurons = [panel.weights for panel in report.all_panels], page_neurons(report)
    return fill_page(
        title=report.title or "Attention",
        style=read_web("page.css") + read_web("shared.css"),
        script=_script(report.view),
        data=page_data(report) | {"neurons": [each and each.form for each in neurons]},
        weights="\n".join(
            [
                *(_bytes_element(f"weights-{index}", quantise(each).tobytes()) for index, each in enumerate(weights)),
                *(_bytes_element(f"neurons-{index}", each.data) for index, each in enumerate(neurons) if each),
            ]
        ),
    )


def fill_page(*, title: str, style: str, script: str, data: dict[str, Any], weights: str = "") -> str:
    """A page of one file: nothing but its own style and script runs, and nothing is loaded."""
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "script": script,
        "report": _script_safe_json(data),
        "weights": weights,
    }
    # Split before filling in, so that a word such as {{style}} stays a word.
    pieces = read_web("page.html").split("{{")
    filled = (parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))
    return pieces[0] + "".join(filled)


def quantise(weights: Float[np.ndarray, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Weights as bytes, q = round(255 sqrt(w)): the root keeps the small weights of long inputs apart from 0."""
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * LEVELS).astype(np.uint8)


class PageNeurons(NamedTuple):
    """The neurons of a panel in a page: their shapes and scales, and the numbers themselves as 16-bit integers."""

    form: dict[str, Any]
    data: bytes


def page_neurons(report: AttentionReport) -> list[PageNeurons | None]:
    """The neurons of every panel but the alignment; none at all if there are too many numbers for a page."""
    known = [panel.neurons for panel in report.panels]
    if sum(each.size for each in known if each is not None) > MAX_NEURONS:
        return [None] * len(known)
    return [None if each is None else _page_neurons(each) for each in known]


def _page_neurons(neurons: LayerNeurons) -> PageNeurons:
    arrays = neurons.vectors
    units = [float(np.abs(each).max(initial=1e-9)) / INTEGERS for each in arrays]
    form = {
        "shapes": [list(each.shape) for each in arrays],
        "units": units,
        "scale": neurons.scale,
        "additive": None if neurons.additive is None else neurons.additive.round(6).tolist(),
        "cells": None if neurons.cells is None else [each.tolist() for each in neurons.cells],
        "groups": None if neurons.own is None else [each.tolist() for each in neurons.own.groups],
    }
    integers = (np.rint(each / unit).astype("<i2") for each, unit in zip(arrays, units, strict=True))
    return PageNeurons(form, b"".join(each.tobytes() for each in integers))


def page_data(report: AttentionReport) -> dict[str, Any]:
    """The description of a report, and which view shows it; for the labelled matrix every axis has its labels."""
    data = describe(report) | {"view": report.view}
    if report.view == Tokens.view:
        data["axes"] = [form | {"texts": axis_from_json(form).labels()} for form in data["axes"]]
    return data


@cache
def _script(view: str) -> str:
    """The script of pages with this view."""
    return bundle([view_module(view), "look/page.js"], read_module)


def view_module(view: str) -> str:
    """The address of the script of a view below `/lens/`; some are a family's."""
    return VIEWS.get(view, f"look/axes/{view}.js")


def read_module(address: str) -> str:
    """A script by its address below `/lens/`: look/FILE.js, or family/NAME/FILE.js."""
    place, _, name = address.partition("/")
    return family_script(*name.split("/")).read_text(encoding="utf-8") if place == "family" else read_web(name)


def read_web(name: str) -> str:
    """A file of the page."""
    return resources.files("regard.look").joinpath("web", *name.split("/")).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _script_safe_json(data: dict[str, Any]) -> str:
    """JSON in which no word can close the script element or open a comment in it."""
    text = json.dumps(data, ensure_ascii=False)
    for unsafe in "<>&\u2028\u2029":
        text = text.replace(unsafe, f"\\u{ord(unsafe):04x}")
    return text


def _bytes_element(name: str, content: bytes) -> str:
    packed = base64.b64encode(zlib.compress(content, 4)).decode()
    return f'<script type="application/octet-stream" id="{name}">{packed}</script>'


IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]*)";$', re.MULTILINE)
REEXPORT = re.compile(r'^export \* from "(\.[^"]*)";$\n?', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:class|function\*?|const) (\w+))", re.MULTILINE)
OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
START = """"use strict";
const $modules = {}, $made = {};
const $use = (name) => ($made[name] ??= $modules[name]());"""  # names that no module has for something of its own


def bundle(entries: Sequence[str], read: Callable[[str], str]) -> str:
    """One script that runs some modules in order, each after all that it imports; `read` gives the text of a module.

    An entry that fails is reported as any error of a page, and does not keep the next one from running.
    """
    parts: dict[str, str] = {}
    for entry in entries:
        _add(entry, read, parts)
    runs = (
        f"for (const name of {json.dumps(list(entries))}) try {{ $use(name); }} catch (error) {{ reportError(error); }}"
    )
    return "\n".join([START, *parts.values(), runs])


def _add(name: str, read: Callable[[str], str], parts: dict[str, str]) -> None:
    """Add a module and all that it imports; a module that is already there is not added again."""
    if name in parts:
        return
    parts[name] = ""  # what it imports may import it
    text = read(name)
    passed_on = [_resolve(name, path) for path in REEXPORT.findall(text)]
    for other in [*passed_on, *(_resolve(name, path) for _, path in IMPORT.findall(text))]:
        _add(other, read, parts)
    exports = ", ".join([f'...$use("{other}")' for other in passed_on] + [own for _, own in EXPORT.findall(text)])
    body = IMPORT.sub(
        lambda found: f'const {{{found[1]}}} = $use("{_resolve(name, found[2])}");', REEXPORT.sub("", text)
    )
    plain = EXPORT.sub(lambda found: found[1], body)
    if other_form := OTHER.search(plain):
        raise DataError(
            f"{name}: {other_form[0]!r} cannot be joined with other modules; write imports as "
            'import { a, b } from "./file.js"; and exports as declarations (export const, function or class)'
        )
    parts[name] = f'$modules["{name}"] = () => {{\n{plain}\nreturn {{ {exports} }};\n}};'


def _resolve(name: str, path: str) -> str:
    """The name of a module that another one imports by a relative path."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))

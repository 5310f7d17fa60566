"""Attention as one HTML page that needs no network: template, style, script and data in a single file."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import zlib
from collections.abc import Sequence
from importlib import resources
from typing import Any

import numpy as np

from regard.look.sight import Panel, Sight, foretold_to_json

LEVELS = 255
SCRIPTS = (
    "state.js",
    "data.js",
    "matrix.js",
    "atlas.js",
    "foretold.js",
    "page.js",
)  # joined in this order into one script


def render_page(sight: Sight) -> str:
    """The whole page as text."""
    every_panel = [*([sight.alignment] if sight.alignment else []), *sight.panels]
    return assemble(
        "page",
        SCRIPTS,
        title=sight.title or "Attention",
        data=_describe(sight, every_panel),
        weights=[panel.weights for panel in every_panel],
    )


def assemble(
    name: str, scripts: Sequence[str], *, title: str, data: dict[str, Any], weights: Sequence[np.ndarray]
) -> str:
    """NAME.html with page.css, scripts and data in one text, under a policy that lets nothing else in."""
    style, script = _read("page.css"), "\n".join(map(_read, scripts))
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title),
        "style": style,
        "script": script,
        "sight": _script_safe_json(data),
        "weights": "\n".join(_weights_element(index, each) for index, each in enumerate(weights)),
    }
    # Split before filling in, so that a word such as {{style}} stays a word.
    pieces = _read(f"{name}.html").split("{{")
    filled = (parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))
    return pieces[0] + "".join(filled)


def quantise(weights: np.ndarray) -> np.ndarray:
    """Weights as bytes, q = round(255 sqrt(w)): the root keeps the small weights of long inputs apart from 0."""
    return np.rint(np.sqrt(np.clip(weights, 0.0, 1.0)) * LEVELS).astype(np.uint8)


def _read(name: str) -> str:
    return resources.files("regard.look").joinpath("web", name).read_text(encoding="utf-8")


def _hash_source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _describe(sight: Sight, panels: list[Panel]) -> dict[str, Any]:
    """Everything but the weights; word lists are stored once, as most panels share theirs."""
    texts: list[list[str]] = []

    def text_number(words: list[str]) -> int:
        if words not in texts:
            texts.append(words)
        return texts.index(words)

    described = [
        {
            "name": panel.name,
            "kind": "alignment" if panel is sight.alignment else panel.kind,
            "heads": panel.heads,
            "queries": text_number(list(panel.queries)),
            "keys": text_number(list(panel.keys)),
        }
        for panel in panels
    ]
    foretold = [foretold_to_json(each) for each in sight.foretold]
    heading = {"title": sight.title, "model": sight.model, "meta": sight.meta}
    return {**heading, "panels": described, "texts": texts, "tokens": list(sight.tokens), "foretold": foretold}


def _script_safe_json(data: dict[str, Any]) -> str:
    """JSON in which no word can close the script element or open a comment in it."""
    text = json.dumps(data, ensure_ascii=False)
    for unsafe in "<>&\u2028\u2029":
        text = text.replace(unsafe, f"\\u{ord(unsafe):04x}")
    return text


def _weights_element(index: int, weights: np.ndarray) -> str:
    packed = zlib.compress(quantise(weights).tobytes(), 4)
    return f'<script type="application/octet-stream" id="weights-{index}">{base64.b64encode(packed).decode()}</script>'

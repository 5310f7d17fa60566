"""JavaScript modules as one script: the offline page may load nothing, so its modules are joined.

Every module becomes a function that returns its exports, and its imports become constants. Modules are written for
this: imports are `import { a, b } from "./file.js";` on a line, and exports are declarations.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence

IMPORT = re.compile(r'^import \{([^}]*)\} from "(\.[^"]*)";$', re.MULTILINE)
EXPORT = re.compile(r"^export ((?:async )?(?:class|function|const) (\w+))", re.MULTILINE)


def bundle(entries: Sequence[str], read: Callable[[str], str]) -> str:
    """One script that runs some modules in order, after all that they import; `read` gives the text of a module."""
    parts: dict[str, str] = {}
    for entry in entries:
        _add(entry, read, parts)
    return "\n".join(['"use strict";', "const modules = {};", *parts.values()])


def _add(name: str, read: Callable[[str], str], parts: dict[str, str]) -> None:
    """Add a module behind its imports; a module that is already there is not added again."""
    if name in parts:
        return
    text = read(name)
    for _, path in IMPORT.findall(text):
        _add(_resolve(name, path), read, parts)
    exports = ", ".join(declared for _, declared in EXPORT.findall(text))
    body = IMPORT.sub(lambda found: f'const {{{found[1]}}} = modules["{_resolve(name, found[2])}"];', text)
    plain = EXPORT.sub(lambda found: found[1], body)
    parts[name] = f'modules["{name}"] = (() => {{\n{plain}return {{ {exports} }};\n}})();'


def _resolve(name: str, path: str) -> str:
    """The name of a module that another one imports by a relative path."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path))

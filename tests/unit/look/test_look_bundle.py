"""The script of the offline page: modules joined in import order, each in its own scope."""

import shutil
import subprocess
from pathlib import Path

import pytest

from regard.look.bundle import bundle
from regard.look.page import render_page
from regard.look.panels import AXES
from regard.look.report import AttentionReport

MODULES = {
    "main.js": 'import { add } from "./parts/add.js";\nimport { SIDE } from "./side.js";\nconst told = add(1, SIDE);\n'
    "console.log(told);\n",
    "parts/add.js": 'import { SIDE } from "../side.js";\nconst told = SIDE;\n'
    "export function add(a, b) {\n  return a + b + told;\n}\n",
    "side.js": "export const SIDE = 20;\n",
}


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_joined_modules_do_what_the_modules_do(tmp_path: Path) -> None:
    script = bundle(["main.js"], MODULES.__getitem__)
    assert script.count("const SIDE = 20") == 1  # imported twice, included once
    (tmp_path / "page.js").write_text(script, encoding="utf-8")
    told = subprocess.run(["node", tmp_path / "page.js"], capture_output=True, text=True, check=True)
    assert told.stdout == "41\n"


@pytest.mark.parametrize("kind", AXES)
def test_every_axis_has_a_module(kind: str) -> None:
    web = Path(__file__).parents[3] / "src/regard/look/web"
    view = AXES[kind].view
    assert f'registerView("{view}"' in (web / "axes" / f"{view}.js").read_text(encoding="utf-8")
    assert "import {" not in render_page(AttentionReport("", "m"))


def test_no_module_is_there_twice() -> None:
    source = Path(__file__).parents[3] / "src/regard"
    shared, own = ({path.name for path in (source / place).rglob("*.js")} for place in ("look/web", "serve/lens"))
    assert shared & own == {"dom.js", "format.js"}  # they extend the shared modules
    for name in shared & own:
        assert f'export * from "./look/{name}";' in (source / "serve/lens" / name).read_text(encoding="utf-8")

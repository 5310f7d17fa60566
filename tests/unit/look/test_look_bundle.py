"""The script of the offline page: modules joined in import order, each in its own scope."""

import shutil
import subprocess
from pathlib import Path

import pytest

from regard.families import catalog
from regard.families.contract import Family
from regard.look.page import bundle, read_module, render_page, view_module
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
    view = AXES[kind].view
    assert f'registerView("{view}"' in read_module(view_module(view))
    page = render_page(AttentionReport("", "m", shown_as=view))
    assert "import {" not in page and f'registerView("{view}"' in page


def test_a_family_of_another_package_brings_its_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "their_family"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ring.js").write_text(
        'import { registerView } from "../../look/offline.js";\nregisterView("ring", {});\n'
    )
    (package / "page.js").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    theirs = Family("their_family", views={"ring": "ring.js"}, page="page.js")
    monkeypatch.setattr(catalog, "installed", lambda: (theirs,))
    assert view_module("ring") == "family/their_family/ring.js"
    assert 'registerView("ring"' in render_page(AttentionReport("", "m", shown_as="ring"))
    assert catalog.page_scripts()[-1] == "family/their_family/page.js"
    for name, file in (("their_family", "../ring.js"), ("their_family", "__init__.py"), ("nobody", "ring.js")):
        with pytest.raises(KeyError):
            catalog.family_script(name, file)


def test_no_module_is_there_twice() -> None:
    source = Path(__file__).parents[3] / "src/regard"
    shared, own = ({path.name for path in (source / place).rglob("*.js")} for place in ("look/web", "serve/lens"))
    assert shared & own == {"dom.js", "format.js"}  # they extend the shared modules
    for name in shared & own:
        assert f'export * from "./look/{name}";' in (source / "serve/lens" / name).read_text(encoding="utf-8")

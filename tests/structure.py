"""The structure of the package in figures: `python tests/structure.py`; with `--commands` also how many modules of the
package commands import, for which a model is trained for one step.

A family is named by a shared file that imports it, or that has the name of one of its models, tasks or pipelines as a
string. `claims` and `bench` compare models by name, which is their subject, and the package's own `__init__` lists the
public names, so these are counted apart.
"""

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from regard.families.catalog import FAMILIES

SOURCE = Path(__file__).parents[1] / "src" / "regard"
APART = ("claims", "bench", "__init__.py")  # their subject is names
COMMON = {"images", "language", "paths", "speech", "masked", "words"}  # tasks whose names are ordinary words too


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(tree: ast.AST, names: dict[str, Path], *, top: bool) -> set[str]:
    """The modules of the package that code imports; with `top`, those that are imported when the module is."""
    found: set[str] = set()
    for node in _executed(tree) if top else ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in names else node.module for name in whole}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & names.keys()


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """The statements that run when a module is imported: not those of functions, nor those for type checkers."""
    for child in ast.iter_child_nodes(node):
        checking = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not checking and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from _executed(child)


def cycles() -> list[list[str]]:
    """The groups of modules that import each other, by Tarjan's algorithm."""
    names = modules()
    edges = {name: imports(ast.parse(path.read_text("utf-8")), names, top=True) for name, path in names.items()}
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = lowest[name] = len(index)
        stack.append(name)
        for other in edges[name] - {name}:
            if other not in index:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            groups.append(group)

    sys.setrecursionlimit(10_000)
    for name in names:
        if name not in index:
            visit(name)
    return [sorted(group) for group in groups if len(group) > 1]


def named_by(family: str) -> list[str]:
    """The shared files that name a family."""
    row, package = FAMILIES[family], f"regard.families.{family}"
    words = {word for part in row[:3] for word in part.split()} - COMMON
    names, found = modules(), []
    for name, path in names.items():
        if name.startswith("regard.families.") and name.split(".")[2] in FAMILIES:
            continue
        tree = ast.parse(path.read_text("utf-8"))
        imported = any(each == package or each.startswith(f"{package}.") for each in imports(tree, names, top=False))
        strings = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if imported or strings & words or (name == "regard.families.catalog" and family in strings):
            found.append(path.relative_to(SOURCE).as_posix())
    return found


def imported_by(*arguments: str) -> int:
    """How many modules of the package a command has imported when it ends."""
    code = "import atexit, sys\nfrom regard.cli.main import main\n"
    code += "atexit.register(lambda: print(sum(n == 'regard' or n.startswith('regard.') for n in sys.modules)))\n"
    code += f"sys.argv = ['regard', *{list(arguments)!r}]\nmain()"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return int(output.splitlines()[-1])


def count_imports() -> None:
    """Print how many modules two commands import: a training, and a translation by the model it made."""
    with tempfile.TemporaryDirectory() as folder:
        few = ("training.steps=1", "training.validate_sentences=2", "data.phrasebook.count=60", "tokenizer.size=300")
        sets = [word for each in few for word in ("--set", each)]
        print(f"modules imported by train phrasebook: {imported_by('train', 'phrasebook', '-o', folder, *sets)}")
        words = ("translate", "we are eating bread", "-m", folder, "--to", "es")
        print(f"modules imported by translate: {imported_by(*words)}")


def main() -> None:
    files = list(modules().values())
    lines = sum(path.read_text("utf-8").count("\n") for path in files)
    print(f"Python files {len(files)}, lines {lines:,}; import cycles {len(cycles())}")
    print(f"{'family':16} files lines folders  shared files that name it")
    for family in FAMILIES:
        own = list((SOURCE / "families" / family).rglob("*.py"))
        shared = named_by(family)
        apart = [name for name in shared if name.startswith(APART)]
        listed = ", ".join(name for name in shared if name not in apart)
        count = sum(path.read_text("utf-8").count("\n") for path in own)
        folders = len({path.parent for path in own})
        print(f"{family:16} {len(own):5} {count:5} {folders:7}  {len(shared) - len(apart)} ({listed}) + {len(apart)}")
    if "--commands" in sys.argv:
        count_imports()


if __name__ == "__main__":
    main()

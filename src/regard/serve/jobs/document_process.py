"""A process that rewrites documents for a server: what strangers send is parsed where it can be killed.

It needs no model. It reads the translations that are known from a file beside the document, and writes the texts whose
translations it lacks to another; the server translates these and asks again. So a document is parsed at least twice,
and no process waits for a translation.

The server asks by a line of JSON on standard input and is answered by one on standard output. The system ends the
process if a document takes more than its time or memory, also inside a library.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.documents.known_answers import KnownAnswers
from regard.documents.limits import Limits
from regard.documents.markup import Translated
from regard.documents.translate import translate_document
from regard.errors import RegardError

KNOWN, MISSING = "known.jsonl", "missing.jsonl"  # beside the document
MEMORY = 640 << 20  # bytes of addresses
LARGE = 160 << 20  # bytes in memory after which the process ends, since Python keeps what it once had
NICENESS = 5  # short requests to the server have priority


class LimitedAnswers(KnownAnswers):
    """Known answers that refuse a document with too much text as soon as this is known."""

    def __init__(self, known: Mapping[str, Translated], path: Path, limits: Limits) -> None:
        super().__init__(known)
        self._path, self._limits, self._segments, self._characters = path, limits, 0, 0

    def __call__(self, texts: list[str]) -> list[Translated]:
        self._segments += len(texts)
        self._characters += sum(map(len, texts))
        self._limits.check_text(self._path, self._segments, self._characters)
        return super().__call__(texts)


def read_lines(path: Path) -> Iterator[Any]:
    """The values in a file of JSON lines, none without the file."""
    if path.exists():
        with path.open(encoding="ascii") as file:
            yield from map(json.loads, file)


def rewrite(path: Path, source: str, target: str, replace: bool, limits: Limits) -> dict[str, Any]:
    """Write the translation of a document as far as it is known, and the texts that are missing."""
    limits.check_file(path)
    known = read_lines(path.with_name(KNOWN))
    answers = LimitedAnswers({text: _translated(said, links) for text, said, links in known}, path, limits)
    output = path.with_name(f"translated{path.suffix}")
    report = translate_document(path, output, answers, source, target, overwrite=replace)
    with path.with_name(MISSING).open("w", encoding="ascii") as file:
        file.writelines(
            f"{json.dumps((text, count, text in answers.marked))}\n" for text, count in answers.missing.items()
        )
    return {
        "missing": answers.missing.total(),
        "kept": report.kept.total(),
        "new": report.translated,
        "skipped": report.skipped.total(),
    }


def _translated(text: str, links: Iterable[tuple[int, int]]) -> Translated:
    return Translated(text, [(source, target) for source, target in links])


def answer(task: Mapping[str, Any]) -> dict[str, Any]:
    path, name = Path(task["path"]), task["name"]
    try:
        return rewrite(path, task["source"], task["target"], task["replace"], Limits(*task["limits"]))
    except RecursionError:
        return {"error": f"{name}: nested too deeply to be translated here"}
    except MemoryError:
        return {"error": f"{name}: needs more memory than a document may have here; send it in parts"}
    except RegardError as error:
        return {"error": str(error).replace(str(path), name).replace(f"{path.parent}/", "")}
    except Exception:
        traceback.print_exc()
        return {"failed": True}


def main() -> None:
    """Rewrite documents until the server closes standard input."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this process
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        task = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])  # of computing, whatever else the machine does
        told = answer(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        large = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > LARGE
        print(json.dumps(told | {"last": large}), flush=True)
        if large:
            return


if __name__ == "__main__":
    main()

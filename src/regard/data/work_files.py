"""Processing a large file in numbered parts, with several processes, resumable after any of them is killed.

Each of n processes handles every n-th part and writes it atomically into a folder beside the output. Parts that exist
are not repeated. When all processes have finished, the first joins the parts in order.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from regard.data.whole_files import write_whole
from regard.errors import UsageError
from regard.processes import Share

PLAN = "plan.json"
Item = TypeVar("Item")


@dataclass(frozen=True)
class Parts:
    """The parts of an output; `about` identifies their input and options, so that other parts are not mixed in."""

    output: Path
    about: dict[str, Any]
    share: Share

    @classmethod
    def of(cls, output: Path, source: Path, **options: Any) -> Parts:
        """The parts of an output made from a file with these options, by the processes that torchrun started."""
        found = source.stat()
        about = {"input": str(source.resolve()), "bytes": found.st_size, "modified": found.st_mtime_ns, **options}
        return cls(output, about, Share.launched())

    @property
    def folder(self) -> Path:
        return self.output.with_name(f"{self.output.name}.parts")

    def wanted(self) -> bool:
        """Whether there are several processes, or parts that an earlier process left."""
        return self.share.count > 1 or self.folder.exists()

    def work(
        self,
        items: Iterable[Item],
        size: int,
        do: Callable[[list[Item]], bytes],
        join: Callable[[Sequence[Path]], None],
        wait: Callable[[], None],
    ) -> None:
        """Write this process's missing parts of `size` items each, `wait` for the other processes, and let the first
        process `join` all parts."""
        self._settle()
        places: list[Path] = []
        for number, chunk in enumerate(_chunks(items, size)):
            places.append(self.folder / f"part-{number:08d}")
            if number % self.share.count == self.share.rank and not places[-1].exists():
                write_whole(places[-1], do(chunk))
        wait()
        if self.share.rank == 0:
            join(places)
            shutil.rmtree(self.folder)

    def _settle(self) -> None:
        plan = json.dumps(self.about, sort_keys=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / PLAN).exists():
            write_whole(self.folder / PLAN, plan.encode())
        elif (self.folder / PLAN).read_text(encoding="utf-8") != plan:
            raise UsageError(
                f"{self.folder} holds parts of another input or of other options; repeat the command that began them, "
                "or remove the folder"
            )


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    stream = iter(items)
    while chunk := list(islice(stream, size)):
        yield chunk

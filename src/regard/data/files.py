"""Processing a large file in numbered parts, with several processes, resumable after any of them is killed.

Each of n processes handles every n-th part and writes it atomically into a folder beside the output. Parts that exist
are not repeated. When all processes have finished, the first joins the parts in order.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, TextIO, TypeVar, cast

from regard.errors import DataError, UsageError
from regard.processes import Share


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name only when it is complete and synced to disk; a name in .gz packs it.

    Folders that it needs are made.

    A link keeps pointing at its file. A device or a pipe (/dev/stdout) has no content to protect: it is written to.
    """
    place = path.resolve()
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    special = place.exists() and not place.is_file() and not place.is_dir()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with (place if special else partial).open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            partial.replace(place)
    except BrokenPipeError:
        raise  # the reader of a pipe has gone, and no file has failed
    except OSError as error:
        raise DataError(f"{path}: not written ({error.strerror or error})") from None
    finally:
        with suppress(NotADirectoryError):  # the folder of the path is a file
            partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically, text as UTF-8."""
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """`atomic_write` for UTF-8 text, with line ends as they are given."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # the file is still to be synced


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

    def work(
        self,
        items: Iterable[Item],
        size: int,
        do: Callable[[list[Item]], bytes],
        join: Callable[[Sequence[Path]], None],
        wait: Callable[[], None],
        skip: Callable[[list[Item]], object] = lambda chunk: None,
    ) -> None:
        """Write this process's missing parts of `size` items each, `wait` for the other processes, and let the first
        process `join` all parts. `skip` is called with the items of each part that is there."""
        self.settle()
        places: list[Path] = []
        for number, chunk in enumerate(_chunks(items, size)):
            places.append(self.place(number))
            if places[-1].exists():
                skip(chunk)
            elif number % self.share.count == self.share.rank:
                write_whole(places[-1], do(chunk))
        wait()
        if self.share.rank == 0:
            join(places)
            self.remove()

    def place(self, number: int) -> Path:
        """The file of a part."""
        return self.folder / f"part-{number:08d}"

    def begun(self) -> bool:
        """Whether there is a finished part."""
        return next(self.folder.glob("part-*"), None) is not None

    def remove(self) -> None:
        """Remove all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def settle(self) -> None:
        """Make the folder; refuse one with parts of another input or of other options."""
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

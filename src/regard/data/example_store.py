"""Examples of any kind as rows of whole numbers, one memory-mapped column for each part of an example."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from regard.data.columns import Column, ColumnWriter, in_groups, map_values
from regard.errors import DataError

INDEX = "examples.json"


@dataclass(frozen=True)
class ExampleStore:
    """Examples that are read from disk as they are needed; example i has row i of every column."""

    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0].offsets) - 1

    def __getitem__(self, number: int) -> tuple[NDArray[Any], ...]:
        return tuple(column[number] for column in self.columns)

    def let_go(self) -> None:
        """Release the pages of large files from memory."""
        for column in self.columns:
            column.let_go()

    @classmethod
    def write(cls, folder: Path, examples: Iterable[tuple[NDArray[Any], ...]], dtypes: Mapping[str, str]) -> None:
        """Write a stream of examples into a new folder."""
        folder.mkdir(parents=True)
        count = 0
        with ExitStack() as stack:
            writers = [stack.enter_context(closing(ColumnWriter(folder, name, dtypes[name]))) for name in dtypes]
            for some in in_groups(examples):
                count += len(some)
                for writer, rows in zip(writers, zip(*some, strict=True), strict=True):
                    writer.extend(rows)
        about = {writer.name: {"dtype": writer.dtype, "values": writer.length} for writer in writers}
        (folder / INDEX).write_text(json.dumps({"examples": count, "columns": about}))

    @classmethod
    def open(cls, folder: Path) -> ExampleStore:
        """Map the files of a written store."""
        try:
            about = json.loads((folder / INDEX).read_text())
            return cls(
                tuple(
                    Column(
                        map_values(folder / f"{name}.bin", column["dtype"], column["values"]),
                        map_values(folder / f"{name}.offsets", "<i8", about["examples"] + 1),
                    )
                    for name, column in about["columns"].items()
                )
            )
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} has no complete examples ({error}); prepare them again") from error

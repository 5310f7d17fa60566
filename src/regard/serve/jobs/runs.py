"""Run folders: their names, records and models. A name from a request is validated before it becomes a path."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from regard.checkpoints import complete_checkpoints
from regard.checkpoints.folder import is_sealed, newest_complete, publish
from regard.errors import UsageError
from regard.families.translation.demo import demo_folder
from regard.serve.http.errors import ConflictError, NotFoundError, StorageFullError
from regard.serve.jobs.progress import LOG, RECORD, JobRecord
from regard.serve.jobs.temp_folders import remove_abandoned

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
DEMO = "demo"
CURRENT = ".current"
DELETED = ".deleted-"
MODEL = "model"  # subfolder of an unfinished run: the checkpoint that is in use
CHUNK = 2**20


class RunFolders:
    """The run folders of a server under `root`; one of them may be the current one."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        remove_abandoned(self.root)
        for folder in self.root.glob(f"{DELETED}*"):  # left by a server that was killed while it deleted a run
            shutil.rmtree(folder, ignore_errors=True)

    # Records

    def folder(self, name: str) -> Path:
        return demo_folder() if name == DEMO else self.root / name

    def names(self) -> list[str]:
        """The runs that were started from a page, newest first."""
        files = [file for file in (*self.root.glob(f"*/{RECORD}"), demo_folder() / RECORD) if file.is_file()]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        names = [DEMO if file.parent == demo_folder() else file.parent.name for file in files]
        return [name for name in names if self.record(name) is not None]

    def record(self, name: str) -> JobRecord | None:
        """The record of a run, or None if there is none of that name."""
        if not NAME.fullmatch(name):
            return None
        try:
            return JobRecord.model_validate_json((self.folder(name) / RECORD).read_bytes())
        except (OSError, ValueError):
            return None

    def get(self, name: str) -> JobRecord:
        """The record of a run; raises NotFoundError if there is none of that name."""
        if (record := self.record(name)) is None:
            raise NotFoundError(f"there is no training called {name[:80]!r}")
        return record

    def write(self, record: JobRecord) -> None:
        _replace(self.folder(record.name) / RECORD, record.model_dump_json())

    @property
    def current(self) -> JobRecord | None:
        """The run that the page shows, if there is one."""
        try:
            return self.record((self.root / CURRENT).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    @current.setter
    def current(self, record: JobRecord | None) -> None:
        if record is None:
            (self.root / CURRENT).unlink(missing_ok=True)
        else:
            _replace(self.root / CURRENT, record.name)

    # Creating, renaming and deleting

    def create(self, name: str) -> Path:
        """Create the folder of a new run."""
        folder = self._new_folder(name)
        if (folder / RECORD).is_file() and not is_sealed(folder) and not complete_checkpoints(folder):
            shutil.rmtree(folder)  # the earlier run of this name saved nothing
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConflictError(f"there is already a training called {name}; choose another name") from None
        except OSError as error:
            raise StorageFullError(f"the folder of runs cannot be written: {error.strerror}") from error
        return folder

    def rename(self, record: JobRecord, name: str) -> JobRecord:
        """Give a run another name; its folder is renamed."""
        new_folder, is_current = self._new_folder(name), self.current == record
        if record.name == DEMO:
            raise UsageError("the demo translator cannot be renamed: the command line finds it by its name")
        if new_folder.exists():
            raise ConflictError(f"there is already a training called {name}; choose another name")
        self.folder(record.name).rename(new_folder)
        renamed = record.replace(name=name)
        self.write(renamed)
        if is_current:
            self.current = renamed
        return renamed

    def delete(self, record: JobRecord) -> None:
        """Delete a run and its models."""
        if record.name == DEMO:
            raise UsageError("the demo translator cannot be deleted here: the command line uses it too")
        if self.current == record:
            self.current = None
        trash = self.root / f"{DELETED}{record.name}"
        self.folder(record.name).rename(trash)  # atomic: a half-deleted folder must not look like a run
        shutil.rmtree(trash, ignore_errors=True)

    def _new_folder(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name == DEMO:
            raise UsageError(
                f"the name {name[:80]!r} cannot be used; expected up to 41 of a-z, 0-9 and -, not beginning with -, "
                f"and not {DEMO!r}"
            )
        return self.root / name

    # Models

    def models(self) -> dict[str, Path]:
        """The models trained here, by name: of finished runs, and checkpoints of unfinished runs that are in use."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        places = [(folder, each) for folder in folders if NAME.fullmatch(folder.name) for each in ("", MODEL)]
        return {folder.name: folder / each for folder, each in reversed(places) if is_sealed(folder / each)}

    def model(self, record: JobRecord) -> Path:
        """The model of a run: the finished one, or its newest checkpoint, copied to the subfolder `MODEL`."""
        folder = self.folder(record.name)
        if is_sealed(folder):
            return folder
        if (newest := newest_complete(folder)) is None:
            raise ConflictError(f"{record.name} has saved no checkpoint yet; resume its training")
        try:
            (folder / MODEL).mkdir(exist_ok=True)
            publish(newest, folder / MODEL)
        except OSError as error:
            raise StorageFullError(f"the model cannot be stored: {error.strerror}") from error
        return folder / MODEL

    def has_model(self, record: JobRecord) -> bool:
        """Whether there is a finished model or a checkpoint."""
        folder = self.folder(record.name)
        return is_sealed(folder) or bool(complete_checkpoints(folder))


def stream_zip(folder: Path, name: str) -> Iterator[bytes]:
    """The files of a model as a zip archive, in chunks while it is written."""
    sink = _WriteBuffer()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # it only needs `write` and `flush`
        for file in sorted(folder.iterdir()):
            if not file.is_file() or file.name.startswith(".") or file.name in (RECORD, LOG):
                continue
            entry = zipfile.ZipInfo.from_file(file, f"{name}/{file.name}")
            with file.open("rb") as content, archive.open(entry, "w", force_zip64=True) as packed:
                while chunk := content.read(CHUNK):
                    packed.write(chunk)
                    yield sink.take()
    yield sink.take()


class _WriteBuffer:
    """A write-only file without seeking; `take` returns and clears what was written."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def write(self, data: bytes) -> int:
        self._buffer += data
        return len(data)

    def flush(self) -> None:
        """Nothing to do: `take` returns everything written."""

    def take(self) -> bytes:
        taken = bytes(self._buffer)
        self._buffer.clear()
        return taken


def _replace(file: Path, text: str) -> None:
    """Replace a small file atomically: a reader sees the old or the new content."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)

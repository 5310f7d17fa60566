"""The folders of trainings: their names, records and models. A name from a request is checked before it is a path."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from regard.checkpoints import complete_checkpoints
from regard.checkpoints.folder import is_sealed, newest_complete, publish
from regard.errors import UsageError
from regard.serve.http.errors import ConflictError, NotFoundError, StorageFullError
from regard.serve.jobs.progress import LOG, RECORD, Record
from regard.serve.jobs.temp_folders import remove_abandoned
from regard.studies.demo import demo_folder

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
DEMO = "demo"
CURRENT = ".current"
DELETED = ".deleted-"
MODEL = "model"  # in the folder of a run that has not ended: the checkpoint that was taken into use
CHUNK = 2**20


class RunFolders:
    """The runs of a server, in the folder `root`; one of them may be the current one."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        remove_abandoned(self.root)
        for left in self.root.glob(f"{DELETED}*"):  # by a server that was killed while it deleted a run
            shutil.rmtree(left, ignore_errors=True)

    # Which runs there are

    def folder(self, name: str) -> Path:
        return demo_folder() if name == DEMO else self.root / name

    def names(self) -> list[str]:
        """The runs that were begun by a page, newest first."""
        files = [file for file in (*self.root.glob(f"*/{RECORD}"), demo_folder() / RECORD) if file.is_file()]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        names = [DEMO if file.parent == demo_folder() else file.parent.name for file in files]
        return [name for name in names if self.record(name) is not None]

    def record(self, name: str) -> Record | None:
        """What is kept of a run, if there is one of that name."""
        if not NAME.fullmatch(name):
            return None
        try:
            return Record.model_validate_json((self.folder(name) / RECORD).read_bytes())
        except (OSError, ValueError):
            return None

    def get(self, name: str) -> Record:
        """The record of a run; raises NotFoundError if there is none of that name."""
        if (record := self.record(name)) is None:
            raise NotFoundError(f"there is no training called {name[:80]!r}")
        return record

    def write(self, record: Record) -> None:
        _replace(self.folder(record.name) / RECORD, record.model_dump_json())

    @property
    def current(self) -> Record | None:
        """The run that the page shows, if there is one."""
        try:
            return self.record((self.root / CURRENT).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    @current.setter
    def current(self, record: Record | None) -> None:
        if record is None:
            (self.root / CURRENT).unlink(missing_ok=True)
        else:
            _replace(self.root / CURRENT, record.name)

    # Making, renaming and deleting them

    def create(self, name: str) -> Path:
        """The folder of a new run."""
        folder = self._place(name)
        if (folder / RECORD).is_file() and not is_sealed(folder) and not complete_checkpoints(folder):
            shutil.rmtree(folder)  # a run that never trained anything is nothing to keep
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConflictError(f"there is already a training called {name}; choose another name") from None
        except OSError as error:
            raise StorageFullError(f"nothing can be written into the folder of runs: {error.strerror}") from error
        return folder

    def rename(self, record: Record, name: str) -> Record:
        """Give a run another name; its folder moves."""
        place, is_current = self._place(name), self.current == record
        if record.name == DEMO:
            raise UsageError("the built-in translator keeps its name, by which the command line knows it")
        if place.exists():
            raise ConflictError(f"there is already a training called {name}; choose another name")
        self.folder(record.name).rename(place)
        renamed = record.replace(name=name)
        self.write(renamed)
        if is_current:
            self.current = renamed
        return renamed

    def delete(self, record: Record) -> None:
        """Remove a run and all that it has learnt."""
        if record.name == DEMO:
            raise UsageError("the built-in translator is not deleted here: the command line uses it as well")
        if self.current == record:
            self.current = None
        doomed = self.root / f"{DELETED}{record.name}"
        self.folder(record.name).rename(doomed)  # at once: what is half deleted must not look like a run
        shutil.rmtree(doomed, ignore_errors=True)

    def _place(self, name: str) -> Path:
        if not NAME.fullmatch(name) or name == DEMO:
            raise UsageError(
                f"the name {name[:80]!r} cannot be used; expected up to 41 of a-z, 0-9 and -, not beginning with -, "
                f"and not {DEMO!r}"
            )
        return self.root / name

    # Their models

    def models(self) -> dict[str, Path]:
        """The models trained here, by name: of finished runs, and those that were taken into use before the end."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        places = [(folder, each) for folder in folders if NAME.fullmatch(folder.name) for each in ("", MODEL)]
        return {folder.name: folder / each for folder, each in reversed(places) if is_sealed(folder / each)}

    def model(self, record: Record) -> Path:
        """The model of a run: the finished one, or else its newest checkpoint, which is put aside for use."""
        folder = self.folder(record.name)
        if is_sealed(folder):
            return folder
        if (newest := newest_complete(folder)) is None:
            raise ConflictError(f"{record.name} has saved nothing yet that could be used; let it go on training")
        try:
            (folder / MODEL).mkdir(exist_ok=True)
            publish(newest, folder / MODEL)
        except OSError as error:
            raise StorageFullError(f"the model cannot be stored: {error.strerror}") from error
        return folder / MODEL

    def has_model(self, record: Record) -> bool:
        """Whether there is something to use: a finished model, or a checkpoint."""
        folder = self.folder(record.name)
        return is_sealed(folder) or bool(complete_checkpoints(folder))


def zipped(folder: Path, name: str) -> Iterator[bytes]:
    """The files of a model as a zip archive, made piece by piece as it is sent."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # it needs no more than `write`
        for file in sorted(folder.iterdir()):
            if not file.is_file() or file.name.startswith(".") or file.name in (RECORD, LOG):
                continue
            entry = zipfile.ZipInfo.from_file(file, f"{name}/{file.name}")
            with file.open("rb") as content, archive.open(entry, "w", force_zip64=True) as packed:
                while chunk := content.read(CHUNK):
                    packed.write(chunk)
                    yield sink.take()
    yield sink.take()


class _Sink:
    """A file that cannot be read or moved in: what is written waits to be taken."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def take(self) -> bytes:
        taken = bytes(self._waiting)
        self._waiting.clear()
        return taken


def _replace(file: Path, text: str) -> None:
    """Write a small file so that whoever reads it finds the old or the new one, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)

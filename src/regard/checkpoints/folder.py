"""Download models named `hf:owner/name` from the Hugging Face hub; nothing else uses the network."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from regard.errors import CheckpointError

MANIFEST = "manifest.json"
TRAIN_STATE = "train_state"
CHECKPOINTS = "checkpoints"
WRITING, REPLACED = "writing", "replaced"
HIDDEN = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{8}}\.(?P<state>{WRITING}|{REPLACED})")
STEP = re.compile(r"step-(\d+)")
NOTES = ("*.md", "metrics.jsonl")  # files for people, which the manifest does not list
JSON_LIMIT = 32 * 2**20
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

log = logging.getLogger("regard.checkpoints")


def write_folder(folder: Path, write: Callable[[Path], None], *, needs: int = 0, sealed: bool = True) -> None:
    """Let `write` fill a temporary folder, then replace `folder` by it atomically; `needs` is the expected size."""
    with new_folder(folder, needs=needs, sealed=sealed) as temporary:
        write(temporary)


@contextlib.contextmanager
def new_folder(folder: Path, *, needs: int = 0, sealed: bool = True) -> Iterator[Path]:
    """A temporary folder that replaces `folder` atomically if the block ends without an error.

    A folder that is not sealed has no manifest: its files may be edited by hand.
    """
    with _hidden_folder(folder, needs) as temporary:
        yield temporary
        _seal(temporary) if sealed else _sync_all(temporary)
        _move_into_place(temporary, folder)


def publish(checkpoint: Path, run: Path) -> None:
    """Copy a complete checkpoint, without its training state, into a run folder that holds other things as well."""
    files = {name: entry for name, entry in _read_manifest(checkpoint).items() if not _is_train_state(name)}
    _check_sizes(checkpoint, files)
    names = [*files, *(name for name in _names(checkpoint) if _is_note(name) and not _is_train_state(name))]
    with _hidden_folder(run / "published", sum((checkpoint / name).stat().st_size for name in names)) as temporary:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(checkpoint / name, temporary / name)
        _seal(temporary)
        if _read_manifest(temporary) != files:
            raise CheckpointError(f"{checkpoint} is damaged and was not published; use another checkpoint")
        # From here until the new manifest is in place `run` is incomplete, and `resolve` answers with a checkpoint.
        (run / MANIFEST).unlink(missing_ok=True)
        _sync(run)
        for name in [*names, MANIFEST]:
            (run / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).replace(run / name)
            _sync((run / name).parent)


def verify(folder: Path) -> None:
    """Compare every file of the manifest with its entry; the error names the first that differs."""
    files = _read_manifest(folder)
    _check_sizes(folder, files)
    for name, entry in files.items():
        if _digest(folder / name) != entry["sha256"]:
            raise CheckpointError(
                f"{folder / name} is damaged, or was edited: its SHA-256 is not the one in {MANIFEST}, which seals "
                f"checkpoints; {_ADVICE}"
            )


def is_sealed(folder: Path) -> bool:
    """Whether a folder has a manifest, and so can be verified."""
    return (folder / MANIFEST).is_file()


def complete_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run whose files are all there with the right sizes, newest first."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        return []
    tidy(folder)
    steps = sorted((int(match[1]), path) for path in folder.iterdir() if (match := STEP.fullmatch(path.name)))
    return [path for _, path in reversed(steps) if _is_whole(path, _check_sizes_of)]


def newest_complete(run: Path) -> Path | None:
    """The newest checkpoint of a run that passes `verify`, or None; damaged ones are logged and passed over."""
    return next((path for path in complete_checkpoints(run) if _is_whole(path, verify)), None)


def resolve(folder: Path) -> Path:
    """The model folder for `folder`: itself, or the newest complete checkpoint of an unfinished run."""
    if not folder.exists() and folder.parent.is_dir():
        tidy(folder.parent)  # a writer killed between two renames left the folder under its hidden name
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is not a folder; expected a model folder or the --out folder of a training run"
        )
    if is_sealed(folder):
        return folder
    if (newest := newest_complete(folder)) is not None:
        return newest
    if (folder / "config.json").is_file():
        return folder
    raise CheckpointError(f"{folder} holds no model: neither {MANIFEST}, nor config.json, nor a complete checkpoint")


def tidy(parent: Path) -> None:
    """Clean up after killed writers: remove half-written folders, and restore a folder whose replacement is missing."""
    for path in parent.iterdir():
        match = HIDDEN.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        with _lock(path) as ours:
            if not ours:
                continue
            if match["state"] == REPLACED and not (parent / match["name"]).exists():
                with contextlib.suppress(OSError):  # a disk that is read-only stays as it is
                    path.rename(parent / match["name"])
            else:
                shutil.rmtree(path, ignore_errors=True)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a small file, or a CheckpointError that names it."""
    try:
        if file.stat().st_size > JSON_LIMIT:
            raise CheckpointError(f"{file} has {file.stat().st_size:,} bytes; expected at most {JSON_LIMIT:,}")
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; {_ADVICE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}; {_ADVICE}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a JSON {type(value).__name__}; expected an object")
    return value


_ADVICE = "the folder is incomplete or damaged: use another checkpoint or copy it again"


@contextlib.contextmanager
def _hidden_folder(folder: Path, needs: int) -> Iterator[Path]:
    """A temporary sibling of `folder`, locked while in use and gone afterwards; disk errors are explained."""
    temporary = _hidden_name(folder, WRITING)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        tidy(folder.parent)
        free = shutil.disk_usage(folder.parent).free
        if needs > free:
            raise CheckpointError(_full_disk(folder.parent, f"needed {needs:,} bytes", free))
        temporary.mkdir()
        with _lock(temporary):
            yield temporary
    except (OSError, RuntimeError) as error:
        _explain(error, folder, temporary, needs)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _hidden_name(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.{state}")


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[bool]:
    """Lock `folder` against other processes; the kernel releases it when the process dies. False if it is locked."""
    with contextlib.ExitStack() as stack:
        try:
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except OSError:  # held, gone, or on a file system without locks: in doubt nothing is cleared
            ours = False
        yield ours


def _full_disk(parent: Path, wanted: str, free: int) -> str:
    advice = "free some space or write elsewhere; complete checkpoints are untouched"
    return f"the disk of {parent} is full: {wanted}, free {free:,}; {advice}"


def _explain(error: OSError | RuntimeError, folder: Path, temporary: Path, needs: int) -> None:
    """Raise a clear error for a disk problem; return if the error has another cause."""
    if isinstance(error, OSError) and error.errno not in FULL:
        raise CheckpointError(f"{folder} cannot be written: {error}; complete checkpoints are untouched") from error
    free = shutil.disk_usage(folder.parent).free
    if isinstance(error, RuntimeError) and free > 2**20:  # torch.save reports a full disk as a RuntimeError
        return
    written = sum(path.stat().st_size for path in temporary.rglob("*") if path.is_file())
    needed = f"needed about {needs:,} bytes" if needs > written else f"needed more than {written:,} bytes"
    raise CheckpointError(_full_disk(folder.parent, needed, free + written)) from error  # `written` is freed


def _seal(folder: Path) -> None:
    """Sync every file and folder to disk, and write the manifest after them."""
    names = _names(folder)
    checked = (name for name in names if not _is_note(name))
    entries = {n: {"size": (folder / n).stat().st_size, "sha256": _digest(folder / n)} for n in checked}
    _sync_all(folder)
    (folder / MANIFEST).write_bytes(_render(entries))
    for path in (folder / MANIFEST, folder):
        _sync(path)


def _sync_all(folder: Path) -> None:
    """Sync every file and folder of a folder to disk, files first."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.is_dir()):
        _sync(path)
    _sync(folder)


def _names(folder: Path) -> list[str]:
    """All files of a folder but the manifest, by their paths in it."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path != folder / MANIFEST)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def _is_note(name: str) -> bool:
    return any(PurePosixPath(name).match(pattern) for pattern in NOTES)


def _is_train_state(name: str) -> bool:
    return PurePosixPath(name).parts[0] == TRAIN_STATE


def _sync(path: Path) -> None:
    """Sync a file, or the directory entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _move_into_place(temporary: Path, folder: Path) -> None:
    if not folder.exists():
        temporary.rename(folder)
        _sync(folder.parent)
        return
    replaced = _hidden_name(folder, REPLACED)
    with _lock(folder):
        folder.rename(replaced)  # killed here, `tidy` puts it back
        temporary.rename(folder)
        _sync(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _render(files: dict[str, Any]) -> bytes:
    return (json.dumps({"files": files}, indent=1, sort_keys=True) + "\n").encode()


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The files of a manifest, without the notes that older manifests list.

    The manifest must equal its own re-rendering byte by byte, so that any damage to it is found.
    """
    file = folder / MANIFEST
    files = read_json(file).get("files")
    if not isinstance(files, dict) or _render(files) != file.read_bytes():
        raise CheckpointError(f"{file} is damaged: it does not read as it was written; {_ADVICE}")
    for name, entry in files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise CheckpointError(f"{file} names {name!r}; expected only files inside the folder")
        if not isinstance(entry, dict) or set(entry) != {"size", "sha256"}:
            raise CheckpointError(f"{file} is damaged: the entry of {name!r} is {entry!r}; {_ADVICE}")
    return {name: entry for name, entry in files.items() if not _is_note(name)}


def _check_sizes(folder: Path, files: dict[str, Any]) -> None:
    for name, entry in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing, though {MANIFEST} names it; {_ADVICE}")
        if path.stat().st_size != entry["size"]:
            came, expected = path.stat().st_size, entry["size"]
            raise CheckpointError(f"{path} is damaged: it has {came:,} bytes instead of {expected}; {_ADVICE}")


def _check_sizes_of(folder: Path) -> None:
    _check_sizes(folder, _read_manifest(folder))


def _is_whole(folder: Path, check: Callable[[Path], None]) -> bool:
    try:
        check(folder)
    except CheckpointError as error:
        log.warning("passed over %s: %s", folder, error)
        return False
    return True


PREFIX, BUILT_IN = "hf:", "builtin:"
WEIGHTS = ["*.safetensors", "*.bin"]
WANTED = [*WEIGHTS, "*.json", "*.spm", "*.model", "*.txt"]


def local_folder(name: str | Path) -> Path:
    """The folder itself, that of the built-in model `builtin:name`, or the cached files of `hf:owner/name`, which are
    downloaded if they are missing."""
    if str(name).startswith(BUILT_IN):
        from regard.families.loading import default_model

        return Path(default_model(str(name).removeprefix(BUILT_IN)))
    if not str(name).startswith(PREFIX):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = str(name).removeprefix(PREFIX)
    try:
        cached = Path(snapshot_download(repository, allow_patterns=WANTED, local_files_only=True))
        if any(file for pattern in WEIGHTS for file in cached.glob(pattern)):  # otherwise a download was interrupted
            return cached
    except HFValidationError as error:
        raise CheckpointError(f"{name} is not a model name; write hf:owner/name ({error})") from None
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass
    print(f"fetching {repository} from the Hugging Face hub ({', '.join(WANTED)})", file=sys.stderr)
    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise CheckpointError(
            f"cannot fetch {repository} from the Hugging Face hub: {reason}. Without a network, give a local folder"
        ) from None

"""Uploaded sentence pairs: validated before training starts, and stored under fixed names."""

from __future__ import annotations

import gzip
import re
import shutil
import zlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from regard.data.formats.languages import find_language
from regard.data.formats.pairs import SUFFIXES, read_pairs
from regard.errors import DataError, UsageError
from regard.serve.http.errors import StorageFullError, TooLargeError

STEM = "pairs"
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(?:-[A-Za-z0-9]{2,8})*")
SUFFIX = re.compile(r"\.[A-Za-z0-9_-]{1,20}(?:\.gz)?\Z")
ABSOLUTE = re.compile(r"(?<![\w.:/])/(?:[^\s/:;,'\"]+/)+")
CHUNK = 2**20
MIN_PAIRS = 20  # some of them are held out for validation
MAX_COUNTED = 100_000  # pairs validated before training starts; the run itself finds errors after them
EXPECTED = f"send one file ({' '.join(SUFFIXES)}) or two that end in their languages, such as .en and .es"


def check_language(code: str) -> str:
    """The language code; raises an error if it is none."""
    if not LANGUAGE.fullmatch(code):
        raise UsageError(f"the language {code[:40]!r} is not understood; expected a code such as en, es or pt-BR")
    return code


def suffix_of(name: str) -> str:
    """The suffix of an uploaded file's name; no other part of the name becomes part of a path."""
    base = re.split(r"[/\\]", name)[-1]
    found = SUFFIX.search(base)
    if found is None:
        raise UsageError(f"the file name {base[:80]!r} has no known suffix; {EXPECTED}")
    return found[0]


def save_pairs(files: Sequence[Path], folder: Path, source: str, target: str, *, limit: int) -> Path:
    """Move uploaded files into `folder`, unpacked, under fixed names; returns the path for `read_pairs`."""
    names = _names([suffix_of(file.name) for file in files], source, target)
    try:
        folder.mkdir()
        for file, name in zip(files, names, strict=True):
            if file.suffix == ".gz":
                _unpack(file, folder / name, limit)
            else:
                shutil.move(file, folder / name)
    except OSError as error:
        raise StorageFullError(f"the training data cannot be stored: {error.strerror}") from error
    return folder / (names[0] if len(names) == 1 else STEM)


def _names(suffixes: Sequence[str], source: str, target: str) -> list[str]:
    plain = [suffix.removesuffix(".gz") for suffix in suffixes]
    if len(plain) == 1 and plain[0].lower() in SUFFIXES:
        return [STEM + plain[0].lower()]
    codes = [suffix[1:] for suffix in plain]
    sides = {find_language(codes, side): side for side in (source, target)}
    if len(codes) == 2 and set(sides) == set(codes):
        return [f"{STEM}.{sides[code]}" for code in codes]
    received = " and ".join(suffixes) or "no file"
    raise UsageError(f"received {received} for {source} → {target}; {EXPECTED}")


def _unpack(packed: Path, plain: Path, limit: int) -> None:
    """Unpack a `.gz` of any size into a file of at most `limit` bytes."""
    written = 0
    try:
        with gzip.open(packed) as stream, plain.open("wb") as file:
            while chunk := stream.read(CHUNK):
                written += len(chunk)
                if written > limit:
                    raise TooLargeError(f"the unpacked file has more than the limit of {limit:,} bytes; send less")
                file.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"damaged or truncated gzip file ({error}); compress it again") from None


def count_pairs(path: Path, source: str, target: str) -> int:
    """The number of pairs, counted up to `MAX_COUNTED`; raises an error for bad files and too few pairs."""
    try:
        count = sum(1 for _ in islice(read_pairs(path, source, target), MAX_COUNTED))
    except DataError as error:
        raise DataError(without_paths(str(error), path.parent)) from None
    if count < MIN_PAIRS:
        raise DataError(
            f"the files have {count} sentence pairs; at least {MIN_PAIRS} are needed, and thousands are better"
        )
    return count


def without_paths(text: str, folder: Path) -> str:
    """A message without the server's folders; file names stay."""
    return ABSOLUTE.sub("", text.replace(f"{folder}/", ""))

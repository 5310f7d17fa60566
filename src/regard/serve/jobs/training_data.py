"""Sentence pairs that a person sends: checked before anything is trained, kept under names of our own."""

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
FEWEST = 20  # pairs, of which some are set aside
COUNTED = 100_000  # pairs read before training begins; damage behind them is found by the run itself
EXPECTED = f"send one file ({' '.join(SUFFIXES)}) or two that end in their languages, such as .en and .es"


def check_language(code: str) -> str:
    """A language code, or an error in words."""
    if not LANGUAGE.fullmatch(code):
        raise UsageError(f"the language {code[:40]!r} is not understood; expected a code such as en, es or pt-BR")
    return code


def suffix_of(name: str) -> str:
    """The ending of a sent file's name, which is all of it that ever becomes part of a path."""
    base = re.split(r"[/\\]", name)[-1]
    found = SUFFIX.search(base)
    if found is None:
        raise UsageError(f"the format of {base[:80]!r} is not told by its name; {EXPECTED}")
    return found[0]


def keep_pairs(files: Sequence[Path], folder: Path, source: str, target: str, *, limit: int) -> Path:
    """Move sent files into `folder`, unpacked, under names of our own; returns what `read_pairs` reads."""
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
    came = " and ".join(suffixes) or "no file"
    raise UsageError(f"{came} came for {source} → {target}; {EXPECTED}")


def _unpack(packed: Path, plain: Path, limit: int) -> None:
    """Unpack a `.gz` of any size into a file of at most `limit` bytes."""
    written = 0
    try:
        with gzip.open(packed) as stream, plain.open("wb") as file:
            while chunk := stream.read(CHUNK):
                written += len(chunk)
                if written > limit:
                    raise TooLargeError(
                        f"unpacked, the file has more than the {limit:,} bytes that are taken; send less"
                    )
                file.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"damaged or truncated gzip file ({error}); compress it again") from None


def count_pairs(path: Path, source: str, target: str) -> int:
    """How many pairs there are, read to the end or to a number that is many in any case; bad files are refused."""
    try:
        count = sum(1 for _ in islice(read_pairs(path, source, target), COUNTED))
    except DataError as error:
        raise DataError(without_paths(str(error), path.parent)) from None
    if count < FEWEST:
        raise DataError(f"{count} sentence pairs came; at least {FEWEST} are needed, and thousands are better")
    return count


def without_paths(text: str, folder: Path) -> str:
    """A message for people elsewhere: file names stay, the folders of this machine go."""
    return ABSOLUTE.sub("", text.replace(f"{folder}/", ""))

"""What a training from the page begins with: its recipe, the settings that fit it to the data, and uploads.

Uploaded sentence pairs are validated before training starts, and stored under fixed names.
"""

from __future__ import annotations

import gzip
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

from regard.config import Config
from regard.data.formats.languages import find_language
from regard.data.formats.pairs import SUFFIXES, read_pairs
from regard.errors import DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.translation.recipe import TranslationTrainingSection
from regard.plan.plan import count_parameters
from regard.serve.http.responses import StorageFullError, TooLargeError
from regard.training.recipe.files import PHRASEBOOK, opening_comment, recipe_names, recipe_text, shipped_values
from regard.training.recipe.sections import ModelSection

DEMO_RECIPE = "phrasebook"
DEMO_SETS = ("training.log_every=10", "training.validate_every=130")  # often enough to watch the progress
ADAPT = "adapt"  # the recipe that improves a model, which is chosen instead of a recipe
HELD_OUT = 200  # pairs for validation, but at most a tenth of all pairs


class Offer(Config):
    """A recipe to choose; one with `own_data` trains on uploaded sentence pairs, the others have built-in data."""

    name: str
    description: str
    family: str
    title: str  # what people call the family
    parameters: int | None  # None if it depends on the uploaded data
    own_data: bool


@dataclass(frozen=True)
class SmallCorpus:
    """Settings for a corpus of fewer than `below` pairs: a tiny model that trains within minutes on two cores."""

    below: int
    pieces: int
    batch_tokens: int
    steps: int


SMALL_CORPORA = (
    SmallCorpus(3_000, 1000, 1024, 1500),
    SmallCorpus(30_000, 4000, 2048, 4000),
    SmallCorpus(100_000, 8000, 4096, 8000),
)


def offers() -> list[Offer]:
    """The recipes that run on any machine: first those for uploaded pairs, and of these the default model's first."""
    names = [name for name in recipe_names() if name != ADAPT]
    offered = [_offer(name) for name in names if needs_data(name) or has_builtin_data(name)]
    return sorted(offered, key=lambda each: (not each.own_data, each.family != ModelSection().name))


@cache
def _offer(name: str) -> Offer:
    own_data, family = needs_data(name), shipped_values(name)["model"]["name"]
    return Offer(
        name=name,
        description=opening_comment(recipe_text(name)),
        family=family,
        title=MODELS[family].title,
        parameters=None if own_data else count_parameters(name),
        own_data=own_data,
    )


def needs_data(name: str) -> bool:
    """Whether a recipe needs uploaded sentence pairs."""
    return "data" not in shipped_values(name)


def has_builtin_data(name: str) -> bool:
    """Whether a recipe generates its own sentence pairs."""
    return not needs_data(name) and shipped_values(name)["data"]["train"] == PHRASEBOOK


def settings_for(name: str, *, pairs: int | None = None, steps: int | None = None) -> tuple[str, ...]:
    """The `--set` values that fit a recipe to this number of pairs and steps, and log often enough for the page."""
    sizes = SMALL_CORPORA if name != ADAPT else ()  # the size of a model that is improved is its own
    size = next((size for size in sizes if pairs is not None and pairs < size.below), None)
    recipe = TranslationTrainingSection.parse(shipped_values(name)["training"])
    steps = steps or (size.steps if size else recipe.steps)
    often = min(recipe.validate_every, max(10, steps // 15))
    training = {
        "steps": steps,
        "warmup": min(recipe.warmup, steps // 8),
        "validate_every": often,
        "checkpoint_every": often,
        "log_every": max(1, min(5, steps // 100)),
    }
    changes = [f"training.{key}={value}" for key, value in training.items()]
    if pairs is not None:
        changes.append(f"data.split={min(0.1, max(0.01, HELD_OUT / pairs)):.3f}")
    if size is not None:
        changes += [
            "model.preset=tiny",
            f"tokenizer.size={size.pieces}",
            f"training.batch_tokens={size.batch_tokens}",
            "training.schedule=cosine",
            "training.lr=2e-3",
            "training.patience=0",
            "training.validate_sentences=100",
        ]
    return tuple(changes)


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

"""Cut the data of docs/results.md#adaptation and #more-data-from-less out of Hansards, Multi30k, Flickr8k and Tatoeba.

    python bench/domains.py ../shared/data slices

Debates of parliament are the old domain and captions of photographs the new one, English to French. Hansards has no
accents, so the captions lose theirs. Files of one name end in -dev (to choose by) and -test (to report).

  debates.tsv, debates-dev.tsv, debates-test.tsv      all of Hansards but 1,000 + 1,000 pairs
  captions.tsv, captions-dev.tsv, captions-test.tsv   2,000 pairs of Multi30k; its val; its test_2016
  pairs.tsv, few.tsv, german.txt                      Multi30k, English-German; 5,000 of it; the German of the rest
  english.txt                                         captions of Flickr8k that Multi30k does not have
  everyday-dev.tsv, everyday-test.tsv                 the two halves of Tatoeba's dev set, English-Spanish
"""

from __future__ import annotations

import gzip
import random
import re
import sys
import unicodedata
from pathlib import Path
from zlib import crc32

SLICE, FEW, HELD_OUT = 2_000, 5_000, 1_000


def main(data: Path, out: Path) -> None:
    """Write all files."""
    out.mkdir(parents=True, exist_ok=True)
    _debates(data, out)
    _captions(data, out)
    _few(data, out)
    _english(data, out)
    _everyday(data, out)


def _debates(data: Path, out: Path) -> None:
    rows = _shuffled(_lines(data / "word_alignment/hansards_train.tsv.gz"))
    _write(out / "debates-dev.tsv", rows[:HELD_OUT])
    _write(out / "debates-test.tsv", rows[HELD_OUT : 2 * HELD_OUT])
    _write(out / "debates.tsv", rows[2 * HELD_OUT :])


def _captions(data: Path, out: Path) -> None:
    for part, name in (("train", "captions"), ("val", "captions-dev"), ("test_2016_flickr", "captions-test")):
        rows = [_without_accents(row) for row in _pairs(data / "multi30k", part, "fr")]
        _write(out / f"{name}.tsv", _shuffled(rows)[:SLICE] if part == "train" else rows)


def _few(data: Path, out: Path) -> None:
    rows = _shuffled(_pairs(data / "multi30k", "train", "de"))
    _write(out / "pairs.tsv", rows)
    _write(out / "few.tsv", rows[:FEW])
    _write(out / "german.txt", [row.split("\t")[1] for row in rows[FEW:]])


def _english(data: Path, out: Path) -> None:
    """Flickr8k's captions are cut into words; here they are written as Multi30k writes them."""
    parts = ("train", "val", "test_2016_flickr")
    known = {_letters(row) for part in parts for row in _lines(data / f"multi30k/{part}.en.gz")}
    captions = (row.split("\t")[2] for row in _lines(data / "flickr8k/train_captions.tsv.gz"))
    written = [re.sub(r" ([.,!?;:'])", r"\1", caption).strip() for caption in captions]
    _write(out / "english.txt", list(dict.fromkeys(each for each in written if _letters(each) not in known)))


def _everyday(data: Path, out: Path) -> None:
    """The translations of one sentence stay in one half."""
    rows = _lines(data / "tatoeba_es_en/dev.tsv.gz")
    for name, half in (("everyday-dev", 0), ("everyday-test", 1)):
        _write(out / f"{name}.tsv", [row for row in rows if crc32(row.split("\t")[0].encode()) % 2 == half])


def _pairs(folder: Path, part: str, target: str) -> list[str]:
    sides = (_lines(folder / f"{part}.{language}.gz") for language in ("en", target))
    return [f"{source.strip()}\t{translation.strip()}" for source, translation in zip(*sides, strict=True)]


def _lines(file: Path) -> list[str]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in lines]


def _shuffled(rows: list[str]) -> list[str]:
    return random.Random(1).sample(rows, len(rows))


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text.replace("œ", "oe").replace("Œ", "Oe").replace("’", "'"))
    return "".join(each for each in parts if not unicodedata.combining(each))


def _letters(text: str) -> str:
    return "".join(each for each in text.casefold() if each.isalnum())


def _write(file: Path, rows: list[str]) -> None:
    file.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    print(f"{file}: {len(rows):,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

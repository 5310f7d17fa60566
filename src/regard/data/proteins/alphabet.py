"""Amino acids as letters and numbers, in the order of AlphaFold (Jumper et al. 2021).

Databases also write U, O, B, Z, J and lower case. `read_residues` replaces them and says so; anything else is an error
that names its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from regard.errors import DataError

RESIDUES = "ARNDCQEGHILKMFPSTWYV"
UNKNOWN, GAP, MASK = 20, 21, 22
LETTERS = RESIDUES + "X-#"
SYMBOLS = len(LETTERS)
REPLACED = {
    "U": ("C", "selenocysteine read as cysteine"),
    "B": ("D", "aspartic acid or asparagine, read as aspartic acid"),
    "Z": ("E", "glutamic acid or glutamine, read as glutamic acid"),
    "O": ("X", "pyrrolysine, read as unknown"),
    "J": ("X", "leucine or isoleucine, read as unknown"),
}
EXPECTED = f"expected the letters of amino acids: {RESIDUES}, X for unknown, also U, B, Z, O, J and lower case"
ALLOWED, COMMON = frozenset(RESIDUES + "X" + "".join(REPLACED)), frozenset(RESIDUES + "-")
BASES, FEWEST_BASES = frozenset("ACGTUN"), 10  # of nucleic acids; so many are hardly a protein
_THREE = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVALUNK"
NAMES = {letter: _THREE[3 * place : 3 * place + 3] for place, letter in enumerate(RESIDUES + "X")}

_NUMBERS = np.full(256, -1, dtype=np.int64)
_NUMBERS[[ord(letter) for letter in LETTERS]] = np.arange(SYMBOLS)


class Residues(NamedTuple):
    """A sequence of the 20 letters and X (and "-" where gaps are allowed), and what was changed to get it, in words."""

    sequence: str
    told: tuple[str, ...]


def read_residues(text: str, where: str = "", *, gaps: bool = False) -> Residues:
    """The residues of a written sequence; `where` names its place in errors."""
    written = "".join(text.split()).removesuffix("*")
    letters = written.upper()
    if strange := set(letters) - (ALLOWED | {"-"} if gaps else ALLOWED):
        place = min(letters.index(letter) for letter in strange)
        raise DataError(f"{where or 'the sequence'}: {written[place]!r} at residue {place + 1:,}; {EXPECTED}")
    if not letters.strip("-"):
        raise DataError(f"{where or 'the sequence'}: has no residue; {EXPECTED}")
    bases = len(letters) >= FEWEST_BASES and BASES.issuperset(letters)
    if letters == written and COMMON.issuperset(letters) and not bases:
        return Residues(letters, ())
    counts = Counter(letters)
    told = [f"{counts[letter]} {letter}: {reason}" for letter, (_, reason) in REPLACED.items() if counts[letter]]
    if bases:
        told.append("no letter but A, C, G, T, U, N: read as amino acids; if it is DNA or RNA, translate it first")
    if lower := sum(letter.islower() for letter in written):
        told.insert(0, f"{lower} in lower case")
    if counts["X"]:
        told.append(f"{counts['X']} X: unknown residues")
    plain = letters.translate({ord(letter): to for letter, (to, _) in REPLACED.items()})
    return Residues(plain, tuple(told))


def encode(sequence: str) -> Int[np.ndarray, L]:
    """The number of every letter of a sequence that `read_residues` returned."""
    return _NUMBERS[np.frombuffer(sequence.encode("latin-1"), dtype=np.uint8)]


def decode(numbers: Iterable[int]) -> str:
    """The letters of numbers."""
    return "".join(LETTERS[number] for number in numbers)

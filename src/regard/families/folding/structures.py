"""Chains of known structure and alignments of their families, in files (mmCIF, PDB, archives of many) or built in.

An archive of chains is an NPZ file with names, lengths, all sequences as one string, and the places of 14 atoms a
residue in AlphaFold's order (N, CA, C, O, CB, ...), NaN where one is missing. One of alignments is a JSON Lines file: a
line has a family's rows, the chain it belongs to, and the residue of that chain at each column (-1: none).
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from regard.data.files import write_whole
from regard.data.formats.lines import open_bytes, read_lines, refuse
from regard.data.proteins import GAP, NAMES, Alignment, encode, read_alignment, read_residues
from regard.errors import DataError
from regard.optional import needed

ATOMS = ("N", "CA", "C", "CB")
SUFFIXES = (".cif", ".mmcif", ".pdb", ".ent")
LARGEST = 512 << 20  # bytes of a file
CHAIN_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
CONTACT = 8.0  # Å between the CB atoms of residues in contact
FARTHEST = 9999.9  # Å that fit into the columns of a PDB file
FORMATS = "expected a structure as mmCIF or PDB"
ARCHIVE, ALIGNMENT_SUFFIXES = ".npz", (".a3m", ".afa", ".fasta", ".fa")
CHAINS, ALIGNMENTS = "_chains.npz", "_alignments.jsonl.gz"  # ends of the names of files that belong together
FEWEST_KNOWN = 8  # residues with a backbone, below which a chain has no structure to learn from
BUILT_IN = "builtin:chains"
Range = tuple[int, int]
LENGTHS: Range = (24, 64)  # residues of the built-in chains


@dataclass(frozen=True, eq=False)
class Chain:
    """A chain: its residues (20 letters and X), where their atoms are in Å, and which atoms are known."""

    name: str
    sequence: str
    atoms: Float[np.ndarray, "L 4 3"]  # N, CA, C, CB; 0 where an atom is not known
    known: Bool[np.ndarray, "L 4"]
    numbers: Int[np.ndarray, L]  # of the residues, increasing; a jump is a gap in the chain
    resolution: float = math.nan
    told: tuple[str, ...] = ()  # what was changed while it was read

    def __len__(self) -> int:
        return len(self.sequence)

    @classmethod
    def of(cls, name: str, sequence: str, atoms: Float[np.ndarray, "L A 3"], names: Sequence[str]) -> Chain:
        """A chain of which these atoms are known for all residues, numbered from 1."""
        places, known = np.zeros((len(sequence), len(ATOMS), 3), np.float32), np.zeros((len(sequence), 4), bool)
        columns = [ATOMS.index(each) for each in names]
        places[:, columns], known[:, columns] = atoms, True
        return cls(name, sequence, places, known, np.arange(1, len(sequence) + 1))

    @classmethod
    def trace(cls, name: str, sequence: str, points: Float[np.ndarray, "L 3"]) -> Chain:
        """A chain of Cα atoms."""
        return cls.of(name, sequence, points[:, None], ("CA",))

    @property
    def backbone(self) -> tuple[Float[np.ndarray, "L 3 3"], Bool[np.ndarray, L]]:
        """N, Cα and C of every residue, and whether all three are known."""
        return self.atoms[:, :3], np.logical_and.reduce(self.known[:, :3], axis=1)

    def contact_points(self) -> tuple[Float[np.ndarray, "L 3"], Bool[np.ndarray, L]]:
        """The points between which contacts are measured, Cβ or glycine's Cα, and whether they are known."""
        column = np.where(np.array(list(self.sequence)) == "G", ATOMS.index("CA"), ATOMS.index("CB"))
        rows = np.arange(len(self))
        return self.atoms[rows, column], self.known[rows, column]


def read_structure(path: str | Path) -> list[Chain]:
    """All protein chains of a file."""
    library = needed("gemmi", extra="proteins")
    with open_bytes(Path(path)) as stream:
        content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path}: is larger than {LARGEST >> 20} MiB, too large for a structure")
    structure = _parsed(library, content, str(path))
    chains = list(_chains(library, structure, str(path)))
    if not chains:
        raise DataError(f"{path}: has no chain of amino acids; {FORMATS} of a protein")
    return chains


def read_chain(path: str | Path, chain: str = "") -> Chain:
    """One chain of a file, by its name or the first."""
    chains = read_structure(path)
    for found in chains:
        if chain in ("", found.name):
            return found
    raise DataError(f"{path}: has no protein chain {chain!r}; it has {', '.join(found.name for found in chains)}")


def _parsed(library: ModuleType, content: bytes, where: str) -> Any:
    text = content.decode("utf-8", "replace")
    start = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    try:
        if start.lower().startswith("data_"):
            structure = library.make_structure_from_block(library.cif.read_string(text)[0])
        else:
            _check_places(text, where)
            structure = library.read_pdb_string(text)
    except (RuntimeError, ValueError) as error:
        told = str(error).replace("string:", "line ").splitlines()[0]
        raise DataError(f"{where}: cannot be read ({told}); {FORMATS}") from None
    if not len(structure) or not len(structure[0]):
        raise DataError(f"{where}: has no atoms; {FORMATS}")
    structure.setup_entities()
    structure.assign_label_seq_id()
    return structure


def _check_places(text: str, where: str) -> None:
    """Refuse coordinates that are not numbers: gemmi reads them as 0."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(("ATOM  ", "HETATM")):
            try:
                for start in (30, 38, 46):
                    float(line[start : start + 8])
            except ValueError:
                raise DataError(f"{where}, line {number}: {line[30:54]!r} are not coordinates") from None


def _chains(library: ModuleType, structure: Any, where: str) -> Iterator[Chain]:
    told = (f"the first of {len(structure)} models",) if len(structure) > 1 else ()
    peptides = (library.PolymerType.PeptideL, library.PolymerType.PeptideD)
    for chain in structure[0]:
        polymer = chain.get_polymer()
        if len(polymer) and polymer.check_polymer_type() in peptides:
            yield _chain(library, structure, chain.name, polymer, f"{where}, chain {chain.name}", told)


def _chain(library: ModuleType, structure: Any, name: str, polymer: Any, where: str, told: tuple[str, ...]) -> Chain:
    residues = list(polymer.first_conformer())
    entity = structure.get_entity_of(polymer)
    whole = [library.Entity.first_mon(each) for each in entity.full_sequence] if entity is not None else []
    if whole and all(residue.label_seq is not None for residue in residues):
        rows = [residue.label_seq - 1 for residue in residues]
        names, numbers = whole, np.arange(1, len(whole) + 1)
    else:
        rows, names = list(range(len(residues))), [residue.name for residue in residues]
        numbers = increasing([residue.seqid.num for residue in residues])
    atoms, known = np.zeros((len(names), len(ATOMS), 3), np.float32), np.zeros((len(names), len(ATOMS)), bool)
    for row, residue in zip(rows, residues, strict=True):
        for atom in residue:
            column = ATOMS.index(atom.name) if atom.name in ATOMS else None
            if column is None or known[row, column]:  # of alternative places the first, wherever the others stand
                continue
            place = (atom.pos.x, atom.pos.y, atom.pos.z)
            if not all(map(math.isfinite, place)):
                raise DataError(f"{where}: atom {atom.name} of residue {residue.seqid} has no finite place")
            atoms[row, column], known[row, column] = place, True
    letters, changed = _letters(library, names, where)
    lacking = int((~known[:, :3].all(axis=1)).sum())
    incomplete = (f"{lacking} of {len(names)} residues lack N, CA or C",) if lacking else ()
    return Chain(name, letters, atoms, known, numbers, structure.resolution or math.nan, (*told, *changed, *incomplete))


def _letters(library: ModuleType, names: Sequence[str], where: str) -> tuple[str, tuple[str, ...]]:
    """One letter for each residue name; a modified residue has the letter of its parent."""
    letters, modified = [], set()
    for each in names:
        letter = library.find_tabulated_residue(each).one_letter_code
        if letter.islower():
            modified.add(f"{each} read as {NAMES.get(letter.upper(), letter.upper())}")
        letters.append(letter.upper() if letter.strip() else "X")
    found = read_residues("".join(letters), where)
    return found.sequence, (*sorted(modified), *found.told)


def increasing(numbers: Iterable[int]) -> Int[np.ndarray, L]:
    """Residue numbers of a file, made to increase where insertion codes repeat them."""
    result: list[int] = []
    for number in numbers:
        result.append(max(number, result[-1] + 1) if result else number)
    return np.array(result, dtype=np.int64)


def pdb_text(chain: Chain, values: Float[np.ndarray, L] | None = None, letter: str = "A", first: int = 1) -> str:
    """The known atoms of a chain as the lines of a PDB file, with a value for each residue in the B column.

    `first` is the number of the first atom.
    """
    shown = np.zeros(len(chain)) if values is None else np.asarray(values, dtype=np.float64)
    if len(shown) != len(chain):
        raise ValueError(f"{len(shown)} values for {len(chain)} residues")
    if not -1000 < int(chain.numbers.min()) <= int(chain.numbers.max()) < 10_000:
        raise DataError(f"{chain.name}: residue {chain.numbers.max():,} does not fit into a PDB file (9,999)")
    if not (np.isfinite(chain.atoms).all() and np.isfinite(shown).all()):
        raise DataError(f"{chain.name}: a coordinate or a value for the B column is not finite")
    if np.abs(chain.atoms).max(initial=0) > FARTHEST or np.abs(shown).max(initial=0) > 999:
        raise DataError(f"{chain.name}: a coordinate or a value is too large for the columns of a PDB file")
    lines, serial = [], first
    for row, residue in enumerate(chain.sequence):
        for column in np.flatnonzero(chain.known[row]):
            x, y, z = chain.atoms[row, column].tolist()
            atom = ATOMS[column]
            lines.append(
                f"ATOM  {serial:5d}  {atom:<3} {NAMES[residue]} {letter}{chain.numbers[row]:4d}    "
                f"{x:8.3f}{y:8.3f}{z:8.3f}{1:6.2f}{shown[row]:6.2f}          {atom[0]:>2}  "
            )
            serial += 1
    last = f"{NAMES[chain.sequence[-1]]} {letter}{chain.numbers[-1]:4d}"
    return "\n".join([*lines, f"TER   {serial:5d}      {last}", ""])


def write_pdb(
    path: str | Path, chains: Sequence[Chain], values: Sequence[Float[np.ndarray, L] | None] | None = None
) -> None:
    """Write chains into a PDB file, named A, B, C and so on, atomically."""
    if len(chains) > len(CHAIN_LETTERS):
        raise DataError(f"{len(chains)} chains do not fit into a PDB file, which has {len(CHAIN_LETTERS)} names")
    texts, serial = [], 1
    for chain, shown, letter in zip(chains, values or [None] * len(chains), CHAIN_LETTERS, strict=False):
        texts.append(pdb_text(chain, shown, letter, serial))
        serial += int(chain.known.sum()) + 1
    if serial > 100_000:
        raise DataError(f"{serial:,} atoms do not fit into a PDB file (99,999); write fewer chains to a file")
    write_whole(Path(path), "".join([*texts, "END\n"]))


COLUMNS = (0, 1, 2, 4)  # of ATOMS among AlphaFold's 14 atoms
KEYS = ("names", "lengths", "sequence", "xyz", "residue_index", "resolution")


def read_chains(path: str | Path) -> list[Chain]:
    """The chains of an NPZ file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            names, lengths, sequence, xyz, numbers, resolution = (file[key] for key in KEYS)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{path}: is not an archive of chains ({error}); expected an NPZ file with {', '.join(KEYS)}"
        ) from None
    ends = np.cumsum(lengths)
    whole = str(sequence)
    if xyz.shape != (len(whole), 14, 3) or not len(ends) or ends[-1] != len(whole) or len(numbers) != len(whole):
        raise DataError(f"{path}: its lengths, sequence {len(whole):,} and places {xyz.shape} do not agree")
    chains = []
    for name, start, end, measured in zip(names, ends - lengths, ends, resolution, strict=True):
        atoms = xyz[start:end, COLUMNS]
        known = np.isfinite(atoms).all(axis=-1)
        found = read_residues(whole[start:end], f"{path}, {name}")
        chains.append(Chain(
            str(name), found.sequence, np.where(known[..., None], atoms, 0).astype(np.float32), known,
            increasing(numbers[start:end].tolist()), float(measured), found.told,
        ))  # fmt: skip
    return chains


def read_family_alignments(path: str | Path, chains: Iterable[Chain]) -> dict[str, Alignment]:
    """The alignment of each chain that has one, laid over the residues of the chain; the first row is the chain itself.

    A residue at which the family has no column is a gap in all other rows.
    """
    by_name = {chain.name: chain for chain in chains}
    found: dict[str, Alignment] = {}
    for number, line in enumerate(read_lines(path, refuse), 1):
        where = f"{path}, line {number}"
        try:
            family: Any = json.loads(line)
            chain = by_name.get(family["chain"])
            if chain is not None:
                found[chain.name] = _over_chain(chain, family, where)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DataError(
                f"{where}: is not an alignment ({error!r:.80}); expected chain, rows and column_to_residue"
            ) from None
    return found


def _over_chain(chain: Chain, family: dict[str, Any], where: str) -> Alignment:
    residues = np.array(family["column_to_residue"], dtype=np.int64)
    columns = residues >= 0
    rows = np.full((len(family["rows"]) + 1, len(chain)), GAP, dtype=np.int8)
    deletions = np.zeros(rows.shape, dtype=np.int32)
    rows[0] = encode(chain.sequence)
    for number, row in enumerate(family["rows"], 1):
        if len(row) != len(residues):
            raise DataError(f"{where}: row {number} has {len(row)} columns, expected {len(residues)}")
    whole = read_residues("".join(family["rows"]), f"{where}, all rows together", gaps=True)
    letters = encode(whole.sequence).reshape(-1, len(residues))
    rows[1:, residues[columns]] = letters[:, columns]
    skipped = np.cumsum(~columns & (letters != GAP), axis=1)[:, columns]
    deletions[1:, residues[columns]] = np.diff(skipped, axis=1, prepend=0)
    return Alignment([chain.name, *(f"{family['family']}/{number}" for number in range(1, len(rows)))], rows, deletions)


def find_chains(path: str | Path) -> list[Chain]:
    """The chains of an archive (.npz), of a structure file, or of all structure files of a folder."""
    path = Path(path)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if set(file.suffixes) & set(SUFFIXES))
        if not files:
            raise DataError(f"{path}: has no structure; expected files ending in {', '.join(SUFFIXES)}, also .gz")
    elif path.suffix == ARCHIVE:
        return read_chains(path)
    else:
        files = [path]
    return [
        replace(chain, name=f"{file.name.split('.')[0]}_{chain.name}")
        for file in files
        for chain in read_structure(file)
    ]


def find_alignments(path: str, chains: Sequence[Chain]) -> dict[str, Alignment]:
    """The alignments of chains, by name: of a JSON Lines file of families, or of NAME.a3m in a folder."""
    if not path:
        return {}
    place = Path(path)
    if not place.is_dir():
        return read_family_alignments(path, chains)
    aligned = (file for file in sorted(place.iterdir()) if set(file.suffixes) & {*ALIGNMENT_SUFFIXES})
    files = {file.name.split(".")[0]: file for file in aligned}
    return {chain.name: read_alignment(files[chain.name]) for chain in chains if chain.name in files}


def alignments_beside(path: str | Path) -> str:
    """Where the alignments of chains are, if they are beside them: NAME_alignments.jsonl.gz of NAME_chains.npz, or
    files in the same folder; empty if there are none."""
    path = Path(path)
    if path.is_dir():
        return str(path) if any(set(file.suffixes) & {*ALIGNMENT_SUFFIXES} for file in path.iterdir()) else ""
    beside = path.with_name(path.name.replace(CHAINS, ALIGNMENTS)) if path.name.endswith(CHAINS) else None
    return str(beside) if beside is not None and beside.is_file() else ""


def unusable(chain: Chain, longest: int) -> str:
    """Why a chain cannot be learnt from; empty if it can."""
    if len(chain) > longest:
        return f"{chain.name} has {len(chain)} residues, more than data.longest = {longest}"
    known = int(chain.backbone[1].sum())
    if known < FEWEST_KNOWN:
        return f"{chain.name} has {known} residues with N, CA and C; at least {FEWEST_KNOWN} are needed"
    return ""


# Built-in chains

N_CA, CA_C, C_N = 1.458, 1.525, 1.329  # Å (Engh and Huber 1991)
N_CA_C, CA_C_N, C_N_CA = (math.radians(each) for each in (111.0, 117.2, 121.7))
SEGMENTS = {  # of each kind: its residues, torsion angles phi and psi in degrees, fewest and most residues
    "helix": ("AELMQKRH", (-57.0, -47.0), (8, 16)),
    "strand": ("VIYCWFT", (-119.0, 113.0), (4, 9)),
}
TURNS = {"G": (57.0, 47.0), "N": (-60.0, -30.0), "P": (-75.0, 150.0), "S": (-70.0, -20.0), "D": (-90.0, 0.0)}
TURN = (2, 4)  # fewest and most residues
ANGLES = {letter: angles for letters, angles, _ in SEGMENTS.values() for letter in letters} | TURNS


def backbone_from_angles(phi: Float[np.ndarray, L], psi: Float[np.ndarray, L]) -> Float[np.ndarray, "L 3 3"]:
    """N, Cα and C of a chain by its torsion angles in radians, each atom placed after the three before it.

    The bonds between residues are flat (180°); phi[0] and psi[-1] have no effect.
    """
    start = np.array([[0, 0, 0], [N_CA, 0, 0], [N_CA - CA_C * math.cos(N_CA_C), CA_C * math.sin(N_CA_C), 0]])
    atoms = list(start.astype(np.float64))
    for number in range(1, len(phi)):
        atoms.append(_placed(atoms, C_N, CA_C_N, psi[number - 1]))
        atoms.append(_placed(atoms, N_CA, C_N_CA, math.pi))
        atoms.append(_placed(atoms, CA_C, N_CA_C, phi[number]))
    return np.stack(atoms).reshape(len(phi), 3, 3)


def _placed(atoms: list[np.ndarray], length: float, angle: float, torsion: float) -> np.ndarray:
    """The next atom, by its bond length, bond angle and torsion angle with the last three."""
    a, b, c = atoms[-3:]
    forward = (c - b) / np.linalg.norm(c - b)
    normal = np.cross(b - a, forward)
    normal /= np.linalg.norm(normal)
    side = np.cross(normal, forward)
    out = math.sin(angle) * (math.cos(torsion) * side + math.sin(torsion) * normal)
    return c + length * (-math.cos(angle) * forward + out)


def ideal_cb(backbone: Float[np.ndarray, "L 3 3"]) -> Float[np.ndarray, "L 3"]:
    """Where Cβ is in an ideal residue."""
    n, ca, c = backbone[:, 0], backbone[:, 1], backbone[:, 2]
    to_ca, to_c = ca - n, c - ca
    return ca - 0.58273431 * np.cross(to_ca, to_c) + 0.56802827 * to_ca - 0.54067466 * to_c


def chain_of(name: str, sequence: str) -> Chain:
    """The chain whose torsion angles follow from its letters; other letters than those of `ANGLES` are a KeyError."""
    phi, psi = np.radians(np.array([ANGLES[letter] for letter in sequence])).T
    backbone = backbone_from_angles(phi, psi)
    backbone = backbone - backbone[:, 1].mean(axis=0)
    chain = Chain.of(name, sequence, np.concatenate([backbone, ideal_cb(backbone)[:, None]], axis=1), ATOMS)
    glycine = [letter == "G" for letter in sequence], ATOMS.index("CB")  # it has no Cβ
    chain.known[glycine], chain.atoms[glycine] = False, 0
    return chain


def built_in_chain(seed: int, number: int, length: Range = LENGTHS) -> Chain:
    """One chain of segments with turns between them."""
    rng = np.random.default_rng([seed, 1, number])
    wanted, letters = int(rng.integers(length[0], length[1] + 1)), ""
    while len(letters) < wanted:
        pool, _, (fewest, most) = SEGMENTS[str(rng.choice(list(SEGMENTS)))]
        letters += "".join(rng.choice(list(pool), int(rng.integers(fewest, most + 1))))
        letters += "".join(rng.choice(list(TURNS), int(rng.integers(TURN[0], TURN[1] + 1))))
    return chain_of(f"chain-{seed}-{number:04d}", letters[:wanted])


EXAMPLES, EXAMPLE_SEED, EXAMPLE_LENGTH = 3, 7, (28, 48)


@cache
def examples() -> list[dict[str, str]]:
    """Generated chains to try a model with on the page: sequences, each with its structure as a PDB file."""
    chains = [built_in_chain(EXAMPLE_SEED, number, EXAMPLE_LENGTH) for number in range(EXAMPLES)]
    return [{"name": chain.name, "sequence": chain.sequence, "structure": pdb_text(chain)} for chain in chains]

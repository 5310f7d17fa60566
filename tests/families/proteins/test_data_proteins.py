"""Reading and writing proteins, beside biopython where it is installed, and by hand where it is not."""

import gzip
import io
import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.proteins import (
    GAP,
    LETTERS,
    NAMES,
    RESIDUES,
    UNKNOWN,
    decode,
    encode,
    given_proteins,
    read_alignment,
    read_fasta,
    read_proteins,
    read_residues,
)
from regard.errors import DataError, UsageError
from regard.families.folding.structures import (
    ANGLES,
    ATOMS,
    Chain,
    backbone_from_angles,
    built_in_chain,
    chain_of,
    pdb_text,
    read_chain,
    read_chains,
    read_family_alignments,
    read_structure,
    write_pdb,
)

SHARED = Path("../shared/data/proteins")
shared = pytest.mark.skipif(not SHARED.exists(), reason="the archives of proteins are not there")


@given(st.text(alphabet=RESIDUES + "X", min_size=1, max_size=50))
def test_letters_and_numbers_are_inverse(sequence):
    assert decode(encode(sequence)) == sequence
    assert read_residues(sequence).sequence == sequence


def test_other_letters_are_replaced_and_told():
    found = read_residues("acd U B\nZOJX*")
    assert found.sequence == "ACDCDEXXX"
    assert encode(found.sequence).tolist() == [LETTERS.index(letter) for letter in "ACDCDE"] + [UNKNOWN] * 3
    told = " ".join(found.told)
    for part in ("3 in lower case", "1 U: selenocysteine", "1 B:", "1 Z:", "1 O:", "1 J:", "1 X: unknown"):
        assert part in told
    assert read_residues("ACDX").told == ("1 X: unknown residues",)


def test_dna_is_told():
    assert read_residues("MKTAYIAKQR").told == () and read_residues("ACGT").told == ()
    (told,) = read_residues("ACGTACGTNN").told
    assert "if it is DNA or RNA, translate it first" in told


@pytest.mark.parametrize(
    ("text", "told"), [("AC1DE", "'1' at residue 3"), ("AC-D", "'-' at residue 3"), ("", "no residue")]
)
def test_what_is_no_residue_is_refused_with_its_place(text, told):
    with pytest.raises(DataError, match=told) as raised:
        read_residues(text, "x.fasta, line 7")
    assert "x.fasta, line 7" in str(raised.value)


def test_fasta_is_streamed_and_long_sequences_are_read(tmp_path):
    file = tmp_path / "a.fasta.gz"
    with gzip.open(file, "wt") as out:
        out.write(">one first protein\r\nACDE\r\nFGHI\r\n\n>two\n" + "acdU" * 1250 + "\n>three\n1\n")
    records = read_fasta(file)
    one = next(records)
    assert (one.name, one.description, one.sequence, one.line) == ("one", "first protein", "ACDEFGHI", 1)
    proteins = read_proteins(file)
    assert next(proteins).sequence == "ACDEFGHI"
    long = next(proteins)
    assert long.sequence == "ACDC" * 1250 and len(long.told) == 2
    with pytest.raises(DataError, match=r"a\.fasta\.gz, line 7, three: '1' at residue 1"):
        next(proteins)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("ACDE\n", "line 1: 'ACDE' is before the first header"),
        (">a\n>b\nAC\n", "line 1: a has no sequence"),
        (">a\nAC\n>\nAC\n", "line 3: the sequence has no name"),
        ("", "has no sequence"),
        (">a\n" + "A" * 60_000 + "\n" + "A" * 60_000, "line 3: the sequence of line 1 is longer than 100,000"),
    ],
)
def test_malformed_fasta_is_refused_with_its_line(tmp_path, content, told):
    file = tmp_path / "a.fasta"
    file.write_text(content)
    with pytest.raises(DataError, match=told):
        list(read_fasta(file))


def test_a3m_and_the_same_alignment_as_fasta_are_equal(tmp_path):
    """Both by hand: the second row has `xy` before column 3, the third lacks column 2."""
    a3m, aligned = tmp_path / "a.a3m", tmp_path / "a.fasta"
    a3m.write_text(">q\nACDE\n>one\nACefDE\n>two\nA-DEk\n")
    aligned.write_text(">q\nAC--DE-\n>one\nACEFDE-\n>two\nA---DEK\n")
    for file in (a3m, aligned):
        found = read_alignment(file)
        assert found.names == ["q", "one", "two"] and found.query == "ACDE" and len(found) == 3
        assert [decode(row) for row in found.rows] == ["ACDE", "ACDE", "A-DE"]
        assert found.deletions.tolist() == [[0, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert read_alignment(a3m, most=2).names == ["q", "one"]


def test_rows_of_different_lengths_are_refused_with_their_line(tmp_path):
    file = tmp_path / "a.a3m"
    file.write_text(">q\nACDE\n>one\nACeDE\n>two\nACD\n")
    with pytest.raises(DataError, match="line 5: two has 3 columns, but q has 4"):
        read_alignment(file)


def _atom_line(serial, atom, residue, chain, number, place, code=" "):
    x, y, z = (f"{each:8.3f}" for each in place)
    return (
        f"ATOM  {serial:5d}  {atom:<3} {residue} {chain}{number:4d}{code}   {x}{y}{z}  1.00 20.00           {atom[0]}"
    )


def _incomplete(tmp_path):
    """Residues 2 (no atoms), 3 (no C) and 5 (selenomethionine) of A C D E M, and a second chain without SEQRES."""
    lines = ["SEQRES   1 A    5  ALA CYS ASP GLU MSE"]
    serial = 1
    for number, residue in ((1, "ALA"), (3, "ASP"), (4, "GLU"), (5, "MSE")):
        for column, atom in enumerate(ATOMS):
            if (number, atom) != (3, "C"):
                lines.append(_atom_line(serial, atom, residue, "A", number, (number, column, 0.5)))
                serial += 1
    lines.append(_atom_line(serial, "O", "HOH", "A", 900, (0, 0, 0)).replace("ATOM  ", "HETATM"))
    for number, code in ((10, " "), (10, "A"), (13, " ")):
        lines += [_atom_line(serial + 1, atom, "GLY", "B", number, (number, 0, 0), code) for atom in ATOMS[:3]]
    file = tmp_path / "a.pdb"
    file.write_text("\n".join([*lines, "END", ""]))
    return file


def test_missing_residues_and_atoms_are_masked_and_told(tmp_path):
    pytest.importorskip("gemmi")
    first, second = read_structure(_incomplete(tmp_path))
    assert first.sequence == "ACDEM" and first.numbers.tolist() == [1, 2, 3, 4, 5]
    assert first.known.tolist() == [[True] * 4, [False] * 4, [True, True, False, True], [True] * 4, [True] * 4]
    assert first.atoms[3, 1].tolist() == [4, 1, 0.5] and not first.atoms[1].any()
    assert first.backbone[1].tolist() == [True, False, False, True, True]
    told = " ".join(first.told)
    assert "MSE read as MET" in told and "2 of 5 residues lack N, CA or C" in told
    assert second.sequence == "GGG" and second.numbers.tolist() == [10, 11, 13]
    points, known = second.contact_points()
    assert known.all() and (points == second.atoms[:, 1]).all()


@pytest.mark.parametrize("together", [True, False])
def test_of_alternative_places_the_first_is_read(tmp_path, together):
    """Some programs write all atoms of one conformation before those of the next."""
    pytest.importorskip("gemmi")
    lines = [
        (alternative, _atom_line(1, atom, "SER", "A", number, (number + 50 * (alternative == "B"), column, 0)))
        for number in (1, 2) for alternative in ("A", "B") for column, atom in enumerate(("N", "CA", "C", "CB"))
    ]  # fmt: skip
    marked = [line[:16] + alternative + line[17:] for alternative, line in lines]
    if together:
        marked.sort(key=lambda line: (line[22:26], line[12:16], line[16]))
    (tmp_path / "a.pdb").write_text("\n".join([*marked, "END", ""]))
    (chain,) = read_structure(tmp_path / "a.pdb")
    assert chain.sequence == "SS" and chain.known.all()
    assert chain.atoms[:, :, 0].tolist() == [[1] * 4, [2] * 4] and chain.atoms[0, :, 1].tolist() == [0, 1, 2, 3]


def test_a_chain_is_chosen_by_name(tmp_path):
    pytest.importorskip("gemmi")
    file = _incomplete(tmp_path)
    assert read_chain(file).name == "A" and read_chain(file, "B").sequence == "GGG"
    with pytest.raises(DataError, match="has no protein chain 'Z'; it has A, B"):
        read_chain(file, "Z")


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.pdb", "nothing of the kind\n", "has no atoms"),
        ("a.cif", "data_x\nloop_\n_atom_site.id\n_atom_site.Cartn_x\n1\n", "a.cif"),
        ("a.pdb", _atom_line(1, "P", " DA", "A", 1, (0, 0, 0)) + "\n", "no chain of amino acids"),
        ("a.pdb", "ATOM      1  CA  ALA A   1       x.xxx   0.000   0.000\n", "a.pdb, line 1: .* are not coordinates"),
    ],
)
def test_files_without_a_protein_are_refused(tmp_path, name, content, told):
    pytest.importorskip("gemmi")
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=told):
        read_structure(tmp_path / name)


def test_without_gemmi_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gemmi", None)
    with pytest.raises(UsageError, match=r"regard\[proteins\]"):
        read_structure(tmp_path / "a.pdb")


def test_written_pdb_is_read_back(tmp_path):
    pytest.importorskip("gemmi")
    chains = [built_in_chain(3, number) for number in range(2)]
    write_pdb(tmp_path / "a.pdb", chains, [np.linspace(0, 100, len(chain)) for chain in chains])
    for written, name, found in zip(chains, "AB", read_structure(tmp_path / "a.pdb"), strict=True):
        assert (found.name, found.sequence) == (name, written.sequence)
        assert (found.known == written.known).all() and (found.numbers == written.numbers).all()
        assert np.abs(found.atoms - written.atoms).max() <= 0.0005 + 1e-5
    assert list(tmp_path.iterdir()) == [tmp_path / "a.pdb"]


def test_biopython_reads_the_same_from_pdb_and_mmcif(tmp_path):
    """A trace of Cα with its values, and a backbone that gemmi writes as mmCIF."""
    gemmi, parsers = pytest.importorskip("gemmi"), pytest.importorskip("Bio.PDB")
    from Bio.SeqUtils import seq1

    chain = built_in_chain(5, 0)
    values = np.linspace(10, 90, len(chain))
    trace = Chain.trace("t", chain.sequence, chain.atoms[:, 1])
    theirs = parsers.PDBParser(QUIET=True).get_structure("t", io.StringIO(pdb_text(trace, values)))
    atoms = list(theirs.get_atoms())
    assert [atom.get_name() for atom in atoms] == ["CA"] * len(chain) and atoms[0].element == "C"
    assert np.allclose([atom.get_bfactor() for atom in atoms], values, atol=0.005 + 1e-6)
    assert np.allclose([atom.coord for atom in atoms], chain.atoms[:, 1], atol=0.001)
    write_pdb(tmp_path / "a.pdb", [chain])
    structure = gemmi.read_structure(str(tmp_path / "a.pdb"))
    structure.setup_entities()
    structure.make_mmcif_document().write_file(str(tmp_path / "a.cif"))
    (ours,) = read_structure(tmp_path / "a.cif")
    other = parsers.MMCIFParser(QUIET=True).get_structure("t", str(tmp_path / "a.cif"))
    assert ours.sequence == "".join(seq1(residue.get_resname()) for residue in other.get_residues())
    for row, residue in enumerate(other.get_residues()):
        for atom in residue:
            assert np.allclose(ours.atoms[row, ATOMS.index(atom.get_name())], atom.coord, atol=1e-4)


def test_what_does_not_fit_into_pdb_is_refused(tmp_path):
    far = Chain.trace("far", "AC", np.array([[0, 0, 0], [1e6, 0, 0]]))
    with pytest.raises(DataError, match="too large for the columns"):
        pdb_text(far)
    with pytest.raises(DataError, match="residue 10,001 does not fit"):
        pdb_text(Chain.trace("long", "A" * 10_001, np.zeros((10_001, 3))))
    with pytest.raises(DataError, match="not finite"):
        pdb_text(Chain.trace("nan", "AC", np.full((2, 3), np.nan)))
    assert pdb_text(Chain.trace("x", "A" * 5000, np.zeros((5000, 3)))).count("ATOM") == 5000
    assert not list(tmp_path.iterdir())


def _torsion(a, b, c, d):
    """The torsion angle by the formula of Blondel and Karplus."""
    f, g, h = a - b, b - c, d - c
    left, right = np.cross(f, g), np.cross(h, g)
    return math.atan2(np.dot(np.cross(right, left), g) / np.linalg.norm(g), np.dot(left, right))


def test_built_in_chains_have_the_angles_of_their_letters():
    for chain in (built_in_chain(7, number) for number in range(3)):
        backbone, complete = chain.backbone
        assert complete.all() and 24 <= len(chain) <= 64
        for (n, ca, c), (n2, ca2, c2), letter, after in zip(
            backbone, backbone[1:], chain.sequence, chain.sequence[1:], strict=False
        ):
            assert np.isclose(math.degrees(_torsion(n, ca, c, n2)), ANGLES[letter][1], atol=0.05)
            assert np.isclose(math.degrees(_torsion(c, n2, ca2, c2)), ANGLES[after][0], atol=0.05)
            assert abs(math.degrees(_torsion(ca, c, n2, ca2))) > 179.9
            assert np.isclose(np.linalg.norm(n2 - c), 1.329, atol=1e-4)
        steps = [np.linalg.norm(b - a) for a, b in pairwise(backbone[:, 1])]
        assert np.allclose(steps, 3.8, atol=0.05)
        assert (chain.known[:, 3] == (np.array(list(chain.sequence)) != "G")).all()
    assert built_in_chain(7, 2).sequence == built_in_chain(7, 2).sequence


def test_a_helix_rises_as_helices_do():
    """1.5 Å a residue (Pauling 1951), and 3.3 in a strand."""
    helix, strand = chain_of("helix", "A" * 37), chain_of("strand", "V" * 37)
    assert np.isclose(np.linalg.norm(helix.atoms[36, 1] - helix.atoms[0, 1]) / 36, 1.5, atol=0.1)
    assert np.isclose(np.linalg.norm(strand.atoms[36, 1] - strand.atoms[0, 1]) / 36, 3.3, atol=0.1)
    flat = backbone_from_angles(np.full(5, math.pi), np.full(5, math.pi))
    assert np.allclose(flat[..., 2], 0, atol=1e-9)  # all torsions 180 degrees: a plane


@shared
@pytest.mark.parametrize(("name", "count"), [("psicov_chains.npz", 120), ("pfam_chains.npz", 32)])
def test_archives_of_chains(name, count):
    chains = read_chains(SHARED / name)
    assert len(chains) == count and Counter(len(chain.name) > 0 for chain in chains) == {True: count}
    for chain in chains:
        backbone, complete = chain.backbone
        assert complete.all() and (np.diff(chain.numbers) > 0).all() and set(chain.sequence) <= set(NAMES)
        bonds = np.linalg.norm(backbone[:, 1] - backbone[:, 0], axis=-1)
        assert bonds.min() > 1.3 and bonds.max() < 1.6  # N to Cα
        assert chain.known[:, 3].sum() <= len(chain) - chain.sequence.count("G")


@shared
def test_alignments_lie_over_their_chains():
    import json

    chains = read_chains(SHARED / "pfam_chains.npz")
    found = read_family_alignments(SHARED / "pfam_alignments.jsonl.gz", chains)
    assert len(found) == 32
    with gzip.open(SHARED / "pfam_alignments.jsonl.gz", "rt") as file:
        family = json.loads(next(file))
    alignment, chain = found[family["chain"]], next(chain for chain in chains if chain.name == family["chain"])
    assert alignment.query == chain.sequence and len(alignment) == len(family["rows"]) + 1
    for column, residue in enumerate(family["column_to_residue"]):
        if residue >= 0:
            assert family["query"][column] == chain.sequence[residue]
            assert [LETTERS[number] for number in alignment.rows[1:, residue]] == [
                row[column] for row in family["rows"]
            ]
    without = np.setdiff1d(np.arange(len(chain)), family["column_to_residue"])
    assert (alignment.rows[1:, without] == GAP).all()


def test_damaged_archives_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK not really")
    (tmp_path / "a.jsonl").write_text('{"chain": "x"}\n')
    with pytest.raises(DataError, match="is not an archive of chains"):
        read_chains(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a.jsonl, line 1: is not an alignment"):
        read_family_alignments(tmp_path / "a.jsonl", [Chain.trace("x", "AC", np.zeros((2, 3)))])


def test_proteins_come_as_files_bytes_or_text(tmp_path):
    (tmp_path / "a.fasta").write_text(">one\nMKL\n>two\nMSV\n")
    for file in (tmp_path / "a.fasta", str(tmp_path / "a.fasta"), (tmp_path / "a.fasta").read_bytes()):
        assert [(each.name, each.sequence) for each in given_proteins(file)] == [("one", "MKL"), ("two", "MSV")]
    assert given_proteins(b" mkl\nMSV\n")[0].sequence == "MKLMSV"
    assert [each.name for each in given_proteins("MKLMKLMKLMKLMKL")] == ["MKLMKLMKLM…"]
    for text, told in (("", "has no residue"), ("MKL9", "MKL9: '9' at residue 4"), ("none.fasta", "no such file")):
        with pytest.raises(DataError, match=told):
            given_proteins(text)
    with pytest.raises(DataError, match="upload, line 1: one has no sequence"):
        given_proteins(b">one\n", "upload")

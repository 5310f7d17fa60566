"""Folding: sequences, FASTA and A3M files in, structures and their confidence out; the command and the report."""

import json

import numpy as np
import pytest
import torch

import regard
from regard.attention.record import attention_names
from regard.cli.main import run
from regard.errors import DataError
from regard.families.folding import pipeline as folding
from regard.families.folding.data import built_in_chain, pad_inputs
from regard.families.folding.pipeline import inference_bytes
from regard.look.inspection import GivenInput, inspect_input
from regard.look.panels import Residues
from regard.look.report import from_json, to_json
from regard.plan.recorder import peak_bytes

SEQUENCES = ["AELMQKRHGNVIYCWFT", "MKTAYIAKQR", "GPGSDDKAELLKKALEEVVIYTW"]


@pytest.fixture(scope="module")
def predictor(make_folder_of_structures):
    return regard.load(make_folder_of_structures())


def test_chains_of_different_length_together_are_as_each_alone(predictor):
    together = predictor.fold(SEQUENCES)
    for sequence, found in zip(SEQUENCES, together, strict=True):
        (alone,) = predictor.fold(sequence)
        assert found.given.sequence == sequence and found.places.shape == (len(sequence), 3)
        for name in ("places", "confidence", "distances", "contacts"):
            np.testing.assert_allclose(getattr(found, name), getattr(alone, name), rtol=1e-3, atol=2e-3)
    first = together[0]
    assert ((first.confidence > 0) & (first.confidence < 100)).all() and (
        (first.contacts >= 0) & (first.contacts <= 1)
    ).all()
    np.testing.assert_allclose(first.distances, first.distances.T, atol=1e-3)


def test_letters_that_databases_write_are_read_and_told(predictor):
    (plain,) = predictor.fold("ACCDX")
    (found,) = predictor.fold("acUbx*")
    assert found.given.sequence == "ACCDX"
    np.testing.assert_array_equal(found.places, plain.places)
    assert any("selenocysteine" in told for told in found.told) and any("lower case" in told for told in found.told)
    with pytest.raises(DataError, match="'1' at residue 3"):
        predictor.fold("AC1D")


def test_an_alignment_is_read_whole_and_fasta_one_by_one(predictor, tmp_path):
    rows = [SEQUENCES[1], "MKTSYIAKQR", "MKtTAYIA-QR", "MRTAYLAKQR", "MKTAYIAKHR", "LKTAYIAKQR"]
    text = "".join(f">row{number}\n{row}\n" for number, row in enumerate(rows))
    (tmp_path / "family.a3m").write_text(text)
    (tmp_path / "some.fasta").write_text(f">one first\n{SEQUENCES[0]}\n>two\n{SEQUENCES[1]}\n")
    (found,) = predictor.fold(str(tmp_path / "family.a3m"))
    assert found.name == "row0" and found.given.rows.shape == (6, 10)
    alone, second = predictor.fold(str(tmp_path / "some.fasta"))
    assert (alone.name, second.name) == ("one", "two")
    assert not np.allclose(found.places, second.places, atol=1e-3)  # the other rows count
    with pytest.raises(DataError, match="there is no file"):
        predictor.fold(str(tmp_path / "missing.fasta"))


def test_a_chain_too_long_for_memory_is_refused_in_words(predictor, monkeypatch):
    monkeypatch.setattr(folding, "free_bytes", lambda device: 2**30)
    with pytest.raises(DataError, match=r"5,000 residues, which need about .* GiB .*; 1.0 GiB are free"):
        predictor.fold("A" * 5000)


@pytest.mark.parametrize("changes", [{}, {"pair_width": 48, "growth": 4}, {"to_pairs": "products", "columns": False}])
def test_the_memory_of_a_prediction_is_known_beforehand(make_folder_of_structures, changes):
    found = regard.load(make_folder_of_structures(**changes))
    (protein,) = found.read("AELMQKRHGN" * 8)
    inputs = pad_inputs([protein], 4)
    with torch.inference_mode():
        peak = peak_bytes(lambda: found.model(*inputs, recycles=0), list(found.model.parameters()), torch.device("cpu"))
    assert inference_bytes(found.config, 80, 1) == pytest.approx(peak, rel=0.25)


def test_every_layer_between_residues_is_looked_at(predictor):
    (protein,) = predictor.read(SEQUENCES[0])
    seen = predictor.attention(protein)
    assert list(seen.weights) == [name for name in attention_names(predictor.model) if "column" not in name]
    for weights in seen.weights.values():
        assert weights.shape == (4, 17, 17)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-4)


def test_fold_writes_a_trace_with_the_confidence(make_folder_of_structures, tmp_path, capsys):
    folder = str(make_folder_of_structures())
    assert run(["fold", *SEQUENCES[:2], "-m", folder, "-o", str(tmp_path / "out.pdb")]) == 0
    out, err = capsys.readouterr()
    assert [line.split("\t")[1] for line in out.splitlines()] == ["17", "10"] and "no claim of folding" in err
    atoms = [line for line in (tmp_path / "out.pdb").read_text().splitlines() if line.startswith("ATOM")]
    assert len(atoms) == 27 and all(line[12:16].strip() == "CA" for line in atoms)
    assert float(atoms[0][60:66]) == pytest.approx(regard.load(folder).fold(SEQUENCES[0])[0].confidence[0], abs=0.01)
    assert run(["fold", SEQUENCES[0], "-m", folder, "--json", "-o", str(tmp_path / "out.json")]) == 0
    (written,) = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(capsys.readouterr().out) == written and len(written["places"]) == 17


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["AC1D"], 1, "'1' at residue 3"),
        (["nothing.fasta"], 1, "there is no file"),
        (["ACDE", "AC", "-o", "both.png"], 2, "of one protein, and 2 were given"),
        (["ACDE", "-o", "out.docx"], 2, "cannot write"),
    ],
)
def test_mistakes_are_one_line(make_folder_of_structures, tmp_path, monkeypatch, capsys, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    assert run(["fold", *arguments, "-m", str(make_folder_of_structures())]) == code
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out and not list(tmp_path.iterdir())


@pytest.fixture
def structure(tmp_path):
    """A PDB file of a generated chain that lacks some atoms."""
    pytest.importorskip("gemmi")
    from regard.families.folding.structures import write_pdb

    chain = built_in_chain(3, 0, (30, 30))
    chain.known[4], chain.known[10, 3] = False, False
    write_pdb(tmp_path / "true.pdb", [chain])
    return tmp_path / "true.pdb"


def test_the_sequence_of_a_structure_is_folded(make_folder_of_structures, structure, capsys):
    from regard.families.folding.structures import read_structure

    folder = str(make_folder_of_structures())
    assert run(["fold", str(structure), "-m", folder, "--json"]) == 0
    out, err = capsys.readouterr()
    assert "the sequence alone is read" in err
    (alone,) = regard.load(folder).fold(read_structure(structure)[0].sequence)
    assert json.loads(out)["places"][7] == pytest.approx(alone.places[7].tolist(), abs=2e-3)


@pytest.mark.parametrize(("name", "content"), [("a.fasta", b">x\nAC1\n"), ("a.fasta", b""), ("a.pdb", b"nothing")])
def test_errors_of_uploads_name_the_file_and_no_folder(predictor, name, content):
    with pytest.raises(DataError) as told:
        inspect_input(predictor, GivenInput(content, name))
    assert str(told.value).startswith(name) and "/" not in str(told.value).split(";")[0]


def test_look_shows_predicted_beside_true_distances(make_folder_of_structures, structure, tmp_path, capsys):
    folder = str(make_folder_of_structures())
    for suffix in ("json", "png", "html", "svg"):
        assert run(["look", str(structure), "-m", folder, "-o", str(tmp_path / f"out.{suffix}")]) == 0
        assert (tmp_path / f"out.{suffix}").stat().st_size > 1000
    report = from_json(json.loads((tmp_path / "out.json").read_text()))
    assert report.view == Residues.view and "lDDT" in report.meta
    truth = report.details["truth"]
    size = len(report.panels[0].queries)
    assert len(truth["distances"]) == size == len(report.details["places"])
    assert to_json(report)["details"] == json.loads((tmp_path / "out.json").read_text())["details"]


def test_evaluate_tells_the_fit_apart_and_gives_baselines(make_folder_of_structures, capsys):
    folder = str(make_folder_of_structures())
    assert run(["evaluate", "builtin:chains", "-m", folder, "--count", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    (values,) = [value for name, value in told.items() if name.startswith("other chains")]
    assert {"lddt", "rmsd", "distance loss", "its 95 % interval over chains"} <= values.keys()
    assert values["long-range L/5 precision, random"] >= 0 and len(values["each chain"]) == 3
    assert run(["evaluate", "nothing.npz", "-m", folder]) == 1
    assert "there is no file" in capsys.readouterr().err

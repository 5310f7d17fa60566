"""Back-translation and distillation: what is written, what is dropped, and that interrupted work goes on."""

import json
from pathlib import Path

import pytest
import sacrebleu

import regard
from regard.cli.main import run
from regard.data.files import Parts
from regard.data.formats.pairs import read_pairs
from regard.families.translation import synthetic_pairs
from regard.families.translation.synthetic_pairs import AnswerFilters, Synthesis
from regard.families.translation.translator import Translator
from regard.processes import Share

LINES = ["we eat bread", "the house is big", "she is reading", "we eat bread", "", "Lucas eats"]
NO_LIMITS = AnswerFilters(max_ratio=None, copies=True, any_language=True)


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text.txt"
    file.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    return file


def _made(synthesis: Synthesis, text: Path, output: Path) -> tuple[list, dict]:
    counts = synthesis.write(text, output, Parts(output, {}, Share(0, 1)), lambda: None)
    return list(read_pairs(output, *synthesis.languages)), counts


def test_back_translation_puts_tagged_answers_before_the_given_text(translator, text, tmp_path):
    synthesis = Synthesis(translator, "es", NO_LIMITS, backwards=True)
    pairs, counts = _made(synthesis, text, tmp_path / "made.tsv")
    answers = {line: translator.translate(line, to="es").text for line in LINES if line}
    assert [(pair.source, pair.target) for pair in pairs] == [(f"<bt> {answers[line]}", line) for line in answers]
    assert counts["kept"] == 4 and counts["duplicate"] == 1 and counts["empty"] == 1
    assert synthesis.languages == ("es", "en")


def test_distillation_keeps_the_sources_and_writes_jsonl(translator, text, tmp_path):
    synthesis = Synthesis(translator, "pt", NO_LIMITS, backwards=False, changes=(("beam", 2),))
    _made(synthesis, text, tmp_path / "made.jsonl")
    rows = [json.loads(line)["translation"] for line in (tmp_path / "made.jsonl").read_text("utf-8").splitlines()]
    assert rows[0] == {"en": LINES[0], "pt": translator.translate(LINES[0], to="pt", beam=2).text}


def test_of_several_answers_the_closest_to_the_reference_is_taken(translator, tmp_path):
    best = translator.translate(LINES[0], to="es", n_best=3)
    answers = [each.text for each in (best, *best.alternatives)]
    table = tmp_path / "pairs.tsv"
    table.write_text(f"{LINES[0]}\t{answers[-1]}\n", encoding="utf-8")
    pairs, _ = _made(Synthesis(translator, "es", NO_LIMITS, backwards=False, n_best=3), table, tmp_path / "made.tsv")
    scores = [sacrebleu.sentence_chrf(answer, [answers[-1]]).score for answer in answers]
    assert pairs[0].target == answers[scores.index(max(scores))] == answers[-1]


def test_each_filter_drops_and_counts_what_it_is_for(translator, text, tmp_path, monkeypatch):
    fixed = {"we eat bread": "we eat bread", "the house is big": "no", "she is reading": "the house is not very big"}
    plain = translator.translate("Lucas eats", to="es")

    def translate(texts, **options):
        from dataclasses import replace

        return [replace(plain, text=fixed.get(each, "ella está leyendo"), score=-1.0 * len(each)) for each in texts]

    monkeypatch.setattr(translator, "translate", translate)
    filters = AnswerFilters(max_ratio=3.0, min_score=-15.0)
    _, counts = _made(Synthesis(translator, "es", filters, backwards=False), text, tmp_path / "made.tsv")
    assert counts["score"] == 1 and counts["language"] >= 1 and counts["empty"] == 1 and counts["kept"] == 1
    loose = AnswerFilters(max_ratio=3.0, any_language=True)
    _, counts = _made(Synthesis(translator, "es", loose, backwards=False), text, tmp_path / "loose.tsv")
    assert counts["copy"] == 2 and counts["ratio"] == 1 and counts["kept"] == 2


def test_processes_share_the_parts_and_an_interrupted_command_goes_on(translator, text, tmp_path, monkeypatch):
    monkeypatch.setattr(synthetic_pairs, "PART", 2)
    synthesis = Synthesis(translator, "es", NO_LIMITS, backwards=True)
    whole, counts = _made(synthesis, text, tmp_path / "whole.tsv")
    output, done = tmp_path / "made.tsv", []

    def write(rank: int, count: int, wait) -> dict:
        return synthesis.write(text, output, Parts(output, {}, Share(rank, count)), wait)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(1, 2, interrupted)
    answers = synthesis._answers
    monkeypatch.setattr(Synthesis, "_answers", lambda self, items: done.extend(items) or answers(items))
    assert write(0, 1, lambda: None) == counts
    assert [item.text for item in done] == [*LINES[:2], *LINES[4:]]  # the other process's part was not repeated
    assert list(read_pairs(output, "es", "en")) == whole and not (tmp_path / "made.tsv.parts").exists()


def test_the_commands(translator_folder, text, tmp_path, capsys):
    made = tmp_path / "made.tsv"
    model = ["-m", str(translator_folder), "--to", "es", "--any-language", "--max-ratio", "99"]
    assert run(["data", "backtranslate", str(text), "-o", str(made), "--tag", "<b>", *model]) == 0
    assert "pairs" in capsys.readouterr().err and made.read_text("utf-8").startswith("<b> ")
    assert run(["data", "distill", str(text), "-o", str(tmp_path / "d.jsonl"), "--beam", "1", *model]) == 0
    for command, words in (
        (["backtranslate", str(text), "-o", str(made)], "exists already"),
        (["backtranslate", str(text), "-o", str(tmp_path / "made.xml")], ".tsv or .jsonl"),
        (["distill", str(tmp_path / "none"), "-o", str(tmp_path / "x.tsv")], "there is no file"),
        (["distill", str(text), "-o", str(tmp_path / "x.tsv"), "--n-best", "3"], "has none"),
    ):
        capsys.readouterr()
        assert run(["data", *command, *model]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} == {"text.txt", "made.tsv", "d.jsonl"}

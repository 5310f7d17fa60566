"""regard translate: one output line per input line, for any input."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.cli.main import run
from regard.documents import document_job, translate
from regard.families.translation.quality import Calibration, Curve, fingerprint
from regard.families.translation.translator import Translator

SENTENCE = "we are eating bread"
SHORT = {"to": "es", "beam": 1, "max_length": 6}  # what `command` asks for
pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # the command line prints them


class Typed:
    """Standard input with given bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)
        self.buffer.name = "<stdin>"

    def isatty(self) -> bool:
        return False


@pytest.fixture
def command(translator_folder: Path) -> list[str]:
    return ["translate", "-m", str(translator_folder), "--to", "es", "--beam", "1", "--max-length", "6"]


def piped(content: bytes, command: list[str], monkeypatch: pytest.MonkeyPatch, expect: int = 0) -> None:
    monkeypatch.setattr("sys.stdin", Typed(content))
    assert run(command) == expect


def test_lines_out_equal_lines_in(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(b"we are eating bread\r\n\r\n  \nshe reads\nwe are eating bread", command, monkeypatch)
    lines = capsys.readouterr().out.split("\n")
    assert lines[-1] == ""
    assert len(lines) == 6
    assert lines[0] == lines[4] != ""
    assert lines[1] == lines[2] == ""


def test_damaged_bytes_are_told_with_their_offset_in_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped(b"we \xff eat\nbread\0\n", command, monkeypatch)
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 2
    assert captured.err.splitlines()[:2] == [
        "regard: warning: <stdin>, line 1: malformed UTF-8 or NUL at byte 3; replaced by U+FFFD",
        "regard: warning: <stdin>, line 2: malformed UTF-8 or NUL at byte 14; replaced by U+FFFD",
    ]


def test_the_estimated_quality_is_a_column_or_a_value(
    command: list[str], translator_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = regard.load(translator_folder).translate(SENTENCE, to="es", beam=1, max_length=6)
    assert run([*command, SENTENCE, "--quality"]) == 0
    assert capsys.readouterr().out == f"{known.text}\t{' '.join([f'{known.quality:.4f}', *known.flags])}\n"
    assert run([*command, SENTENCE, "--quality", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["quality"] == pytest.approx(known.quality, abs=1e-3) and len(told["doubts"]) == len(known.target_words)
    assert told["flags"] == known.flags
    assert run([*command, SENTENCE, "--json"]) == 0
    assert "quality" not in json.loads(capsys.readouterr().out)


def test_a_reverse_model_estimates_quality_where_the_model_is_calibrated_for_it(
    translator_folder: Path, back_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(translator_folder, folder)
    curve = Curve(spearman=0.9, points=((0.5, 0.625),))
    weights = fingerprint(regard.load(folder).models[0])
    Calibration(estimators={"round_trip": curve}, weights=weights).save(folder)
    command = ["translate", SENTENCE, "-m", str(folder), "--to", "es", "--beam", "1", "--max-length", "6"]
    assert run([*command, "--quality", "--reverse", str(back_folder)]) == 0
    assert capsys.readouterr().out.split("\t")[1].startswith("0.6250")
    assert run([*command, "--reverse", str(back_folder)]) == 2
    assert "need --quality or --review-below" in capsys.readouterr().err
    assert run([*command, "--quality", "--reverse", str(folder)]) == 2
    assert "expected es, pt to en" in capsys.readouterr().err


def test_a_pair_without_a_model_goes_through_a_pivot_language(
    folders: list[Path], back_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["translate", "-m", str(folders[0]), "-m", str(back_folder), "--beam", "1", "--max-length", "6"]
    options = {"beam": 1, "max_length": 6}
    way = regard.load(back_folder).translate(SENTENCE, to="en", **options)
    expected = regard.load(folders[0]).translate(way.text, to="pt", **options).text
    assert run([*both, SENTENCE, "--from", "es", "--to", "pt", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["text"], told["source"]) == (expected, SENTENCE)
    assert told["pivot"] == {"language": "en", "text": way.text, "score": pytest.approx(way.score, abs=1e-4)}
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text(f"{SENTENCE}\n")
    assert run([*both, "-i", str(file), "-o", str(out), "--from", "es", "--to", "pt"]) == 0
    assert out.read_text() == f"{expected}\n"
    direct = regard.load(folders[0]).translate(SENTENCE, to="pt", **options).text
    capsys.readouterr()
    assert run([*both, SENTENCE, "--from", "en", "--to", "pt"]) == 0
    assert capsys.readouterr().out == f"{direct}\n"
    for more, said in (
        (["--from", "es", "--to", "de"], "do not lead from es to de"),
        (["--from", "es"], "give the other one with --to"),
        (["--from", "es", "--to", "pt", "--keep", "bread"], "goes through another language"),
    ):
        assert run([*both, SENTENCE, *more]) == 2
        assert said in capsys.readouterr().err


def test_an_answer_cut_by_a_limit_is_told(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, SENTENCE, "--max-length", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["truncated"]
    assert captured.err == "regard: warning: line 1: the translation reached the length limit and may lack its end\n"


def test_a_sentence_too_long_leaves_an_empty_line_a_message_and_exit_code_1(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = b"we eat\n" + b"bread " * 2000 + b"\nwe eat\n"
    piped(content, command, monkeypatch, expect=1)
    captured = capsys.readouterr()
    first, second, third = captured.out.splitlines()
    assert (first, second) == (third, "")
    assert "regard: line 2 is not translated: the sentence that begins with 'bread bread" in captured.err
    piped(content, [*command, "--json"], monkeypatch, expect=1)
    assert [json.loads(line) is None for line in capsys.readouterr().out.splitlines()] == [False, True, False]


def test_json_alignment_and_several_answers(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, SENTENCE, "--json", "--align", "--n-best", "2", "--beam", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["source"] == SENTENCE
    assert all(len(link) == 2 for link in answer["alignment"])
    assert len(answer["alternatives"]) == 1
    assert run([*command, SENTENCE, "--align"]) == 0
    text, links = capsys.readouterr().out.rstrip("\n").split("\t")
    assert text == regard.load(command[2]).translate(SENTENCE, to="es", beam=1, max_length=6).text
    assert all("-" in link for link in links.split())
    assert run([*command, SENTENCE, SENTENCE, "--n-best", "3", "--align", "--beam", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [len(line) for line in lines] == [3] * 6
    assert lines[:3] == lines[3:]


def test_sampling_repeats_itself_by_its_seed_and_streaming_ends_the_same(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for options in (["--sample", "--seed", "3"], ["--sample", "--seed", "3"], [], ["--stream"]):
        assert run([*command, SENTENCE, *options]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[2] == said[3]


@pytest.mark.parametrize("suffix", ["svg", "html", "json", "png"])
def test_attention_is_drawn(
    suffix: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"look.{suffix}"
    assert run([*command, SENTENCE, "--attention", str(file)]) == 0
    assert file.stat().st_size > 500
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_attention_of_several_sentences_or_of_nothing_is_refused(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "look.svg"
    assert run([*command, "We eat bread. " * 150, "--attention", str(file)]) == 2
    assert "150 sentences" in capsys.readouterr().err
    assert run([*command, "", "--attention", str(file)]) == 2
    assert "empty" in capsys.readouterr().err
    assert not file.exists()


def test_documents_keep_their_form(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "in.tsv", tmp_path / "out.tsv"
    table.write_text("en\tes\nwe are eating bread\t\nthe dog\tel perro\n", "utf-8")
    assert run([*command, "-i", str(table), "-o", str(out)]) == 0
    head, first, second = out.read_text("utf-8").splitlines()
    assert (head, second) == ("en\tes", "the dog\tel perro")
    assert first.split("\t")[1]
    assert capsys.readouterr().out == ""
    assert run([*command, "-i", str(table)]) == 2
    assert run([*command, "-i", str(table), "-o", str(out), "--json"]) == 2
    assert run([*command, "-i", str(table), "-o", str(tmp_path / "out.po")]) == 2


def test_documents_keep_their_encoding_and_what_was_done_is_told(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film, out = tmp_path / "in.srt", tmp_path / "out.srt"
    film.write_text("1\r\n00:00:01,000 --> 00:00:02,000\r\nwe are eating bread\r\n", "utf-16", newline="")
    assert run([*command, "-i", str(film), "-o", str(out)]) == 0
    assert out.read_bytes().decode("utf-16").startswith("1\r\n00:00:01,000 --> 00:00:02,000\r\n")
    assert capsys.readouterr().err == f"1 new, written to {out}\n"
    film.write_bytes(b"1\n00:01,0 --> 00:02,0\ncaf\xe9 \xff\n\0")
    assert run([*command, "-i", str(film), "-o", str(out)]) == 1
    assert "malformed UTF-8 or NUL at byte" in capsys.readouterr().err
    catalogue = tmp_path / "a.po"
    catalogue.write_text('msgid "we are eating bread"\nmsgstr ""\n\nmsgid "the dog"\nmsgstr "el perro"\n')
    assert run([*command, "-i", str(catalogue), "-o", str(catalogue), "--review"]) == 0
    assert "1 kept (1 already translated), 1 new, written to" in capsys.readouterr().err
    assert catalogue.read_text().startswith('#, fuzzy\nmsgid "we are eating bread"\nmsgstr "')
    catalogue.write_text('msgid "we are eating bread"\nmsgstr ""\n')
    assert run([*command, "-i", str(catalogue), "-o", str(catalogue), "--review-below", "1"]) == 0
    assert "# estimated quality 0." in catalogue.read_text() and "#, fuzzy" in catalogue.read_text()
    assert run([*command, SENTENCE, "--review"]) == run([*command, SENTENCE, "--encoding", "utf-8"]) == 2


def test_lines_in_another_encoding(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, SENTENCE]) == 0
    expected = capsys.readouterr().out
    file = tmp_path / "in.txt"
    file.write_text(f"{SENTENCE}\n", "utf-16")
    assert run([*command, "-i", str(file)]) == 0
    assert capsys.readouterr().out == expected
    piped(f"{SENTENCE}\n".encode("utf-16-le"), [*command, "--encoding", "utf-16-le"], monkeypatch)
    assert capsys.readouterr().out == expected


def test_a_plain_file_and_an_output_file(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, out = tmp_path / "in.txt", tmp_path / "out.txt"
    lines.write_text(f"{SENTENCE}\n\n", "utf-8")
    assert run([*command, "-i", str(lines)]) == 0
    printed = capsys.readouterr().out
    assert run([*command, SENTENCE, "", "-o", str(out)]) == 0
    assert out.read_text("utf-8") == printed


def test_a_file_given_as_a_text_is_told(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.txt"
    file.write_text(f"{SENTENCE}\n", "utf-8")
    assert run([*command, str(file), "bread " * 60]) == 0
    assert f"for its lines use --input {file}" in capsys.readouterr().err


def test_text_that_no_encoder_accepts(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "we \udcff eat", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "we \ufffd eat"


def test_wrong_targets_models_and_devices(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["translate", SENTENCE, "-m", command[2]]) == 2
    assert run(["translate", SENTENCE, "-m", command[2], "--to", "de"]) == 2
    assert run([*command, SENTENCE, "--device", "abacus"]) == 2
    assert run([*command, SENTENCE, "--beam", "0"]) == 2
    assert capsys.readouterr().out == ""


def test_unknown_words_are_marked(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "we are eating Ωμέγα", SENTENCE, "Привет мир", "--max-length", "60"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "unknown" in line]
    assert told == [
        "regard: unknown to this model, 31% of the text: we are eating *Ωμέγα*",
        "regard: warning: mostly unknown to this model, 100% of the text: *Привет* *мир*",
    ]
    for more in ([], ["--stream"]):
        assert run([*command, "\x1b[31mΩ\x1b", *more]) == 0
        captured = capsys.readouterr()
        assert "\x1b" not in captured.err and "Ω" in captured.err


def test_unknown_words_of_a_file_are_summed_up_in_one_line(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    piped("we are eating bread\nwe eat Ω\nПривет мир\n".encode(), [*command, "--json"], monkeypatch)
    captured = capsys.readouterr()
    (told,) = [line for line in captured.err.splitlines() if "lines have words" in line]
    assert told.startswith("regard: warning: 2 of 3 lines have words that this model does not know: Ω, Привет, мир")
    assert told.endswith("; mostly unknown: 1 (the first is 3: 100%)")
    answers = [json.loads(line) for line in captured.out.splitlines()]
    assert [each["unknown"] for each in answers] == [
        [],
        [{"word": "Ω", "start": 7, "end": 8}],
        [{"word": "Привет", "start": 0, "end": 6}, {"word": "мир", "start": 7, "end": 10}],
    ]


def test_a_glossary_and_kept_terms(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    terms, command = tmp_path / "terms.tsv", [*command[:-2], "--glossary", str(tmp_path / "terms.tsv")]
    terms.write_text("bread\ttortilla\n", "utf-8")
    assert run([*command, SENTENCE, "she eats bread", "--keep", "eats", "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert "tortilla" in first["text"].lower() and "tortilla" in second["text"].lower()
    assert "eats" in second["text"]
    (use,) = first["terms"]
    assert first["text"][use["target_start"] : use["target_end"]].lower() == "tortilla"
    document, output = tmp_path / "bread.txt", tmp_path / "bread.es.txt"
    document.write_text("we are eating bread\n\nbread\n", "utf-8")
    assert run([*command, "-i", str(document), "-o", str(output)]) == 0
    assert output.read_text("utf-8").lower().count("tortilla") == 2
    capsys.readouterr()
    terms.write_text("bread\ttortilla\nbread\tpan\n", "utf-8")
    assert run([*command, SENTENCE]) == 1
    assert "terms.tsv, line 2: 'bread' is to become 'pan'" in capsys.readouterr().err


def test_a_memory_is_shown_and_used_when_asked(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    memory, document = tmp_path / "memory.tsv", tmp_path / "day.txt"
    memory.write_text(f"{SENTENCE}\tcomemos pan\nbroken\nthey sleep at night\tduermen de noche\n", "utf-8")
    command = [*command, "--memory", str(memory)]
    assert run([*command, "they sleep at home"]) == 0
    shown = capsys.readouterr()
    assert "1 of 3 segments have no source or no translation" in shown.err
    assert "%: they sleep at [-night-] {+home+} → duermen de noche" in shown.err
    assert run([*command, SENTENCE, "--memory-use", "exact", "--json", "--align"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == "comemos pan" and told["memory"][0]["similarity"] == 1.0 and told["alignment"]
    memory.write_text(f"{SENTENCE}\tzzz (qqq)\n", "utf-8")  # words that the model does not know, and need not know
    assert run([*command, SENTENCE, "--memory-use", "exact", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == []
    memory.write_text(f"{SENTENCE}\tcomemos pan\nthey sleep at night\tduermen de noche\n", "utf-8")
    document.write_text(f"{SENTENCE}\nthey sleep at night!\n", "utf-8")
    outputs = [tmp_path / name for name in ("once.txt", "twice.txt")]
    for output in outputs:
        more = ["--memory-use", "0.9", "--insert-fuzzy"]
        assert run([*command, "-i", str(document), "-o", str(output), *more]) == 0
    assert outputs[0].read_text("utf-8") == outputs[1].read_text("utf-8") == "comemos pan\nduermen de noche\n"
    capsys.readouterr()
    own, output = regard.load(command[2]).translate("they sleep at night!", **SHORT).text, tmp_path / "marked.txt"
    assert run([*command, "-i", str(document), "-o", str(output), "--memory-use", "0.9"]) == 0
    assert output.read_text("utf-8") == f"comemos pan\n{own}\n" != outputs[0].read_text("utf-8")
    assert "--insert-fuzzy takes them nevertheless" in capsys.readouterr().err
    assert run([*command[:-2], SENTENCE, "--memory-use", "exact"]) == 2
    assert "give its file with --memory" in capsys.readouterr().err


def test_similar_segments_of_a_memory_are_marked_for_review(command: list[str], tmp_path: Path) -> None:
    memory = tmp_path / "memory.tsv"
    memory.write_text(f"{SENTENCE}\tcomemos pan\nthey sleep at night\tduermen de noche\n", "utf-8")
    command = [*command, "--memory", str(memory), "--memory-use", "0.9"]
    sources = (SENTENCE, "they sleep at night!")

    def translated(name: str, content: str) -> str:
        (tmp_path / name).write_text(content, "utf-8")
        assert run([*command, "-i", str(tmp_path / name), "-o", str(tmp_path / f"out-{name}")]) == 0
        return (tmp_path / f"out-{name}").read_text("utf-8")

    out = translated("a.po", "\n\n".join(f'msgid "{each}"\nmsgstr ""' for each in sources))
    exact, similar = out.split("\n\n")[-2:]
    assert exact == f'msgid "{SENTENCE}"\nmsgstr "comemos pan"'
    assert "# memory match 0.97\n#, fuzzy\n" in similar and 'msgstr "duermen de noche"' in similar
    for version, unit, mark in (
        ("1.2", "<trans-unit id='{}'><source>{}</source></trans-unit>", 'state="needs-review-translation"'),
        ("2.0", "<unit id='u{}'><segment><source>{}</source></segment></unit>", 'subState="regard:memory-match-0.97"'),
    ):
        units = "".join(unit.format(number, each) for number, each in enumerate(sources))
        head = f"<xliff version='{version}' xmlns='urn:oasis:names:tc:xliff:document:{version}'"
        old = " source-language='en' target-language='es' datatype='plaintext' original='x'"
        body = f"<body>{units}</body>" if version == "1.2" else units
        attributes = (">", f"<file{old}>") if version == "1.2" else (" srcLang='en' trgLang='es'>", "<file id='f'>")
        out = translated("a.xlf", f"{head}{attributes[0]}{attributes[1]}{body}</file></xliff>")
        assert out.count(mark) == 1 and out.index("comemos pan") < out.index(mark) + 200
    catalogue = {"sourceLanguage": "en", "strings": {each: {} for each in sources}, "version": "1.0"}
    strings = json.loads(translated("a.xcstrings", json.dumps(catalogue)))["strings"]
    states = [strings[each]["localizations"]["es"]["stringUnit"]["state"] for each in sources]
    assert states == ["translated", "needs_review"]


def test_a_text_file_gives_the_answers_of_standard_input(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["She studies 24 / 7.", "", "  see http://a.example/x %s", "We eat. They sleep.", "* * *", "we " * 600]
    lines += ["We eat bread. They sleep. We read. She eats. They read the book."]
    content = "".join(f"{line}\n" for line in lines)
    piped(content.encode(), command, monkeypatch, expect=1)
    printed = capsys.readouterr()
    file, out = tmp_path / "in.txt", tmp_path / "out.txt"
    file.write_text(content.replace("\n", "\r\n"), "utf-16", newline="")
    assert run([*command, "-i", str(file), "-o", str(out)]) == 1
    told = capsys.readouterr()
    written = out.read_bytes().decode("utf-16")
    assert written.count("\r\n") == len(lines) == written.count("\n")
    assert [line.strip() for line in written.splitlines()] == [line.strip() for line in printed.out.splitlines()]
    assert written.splitlines()[2].startswith("  ") and written.splitlines()[4] == "* * *"
    assert "line 6 is not translated" in printed.err and told.err.startswith(printed.err)
    assert f"5 new, 1 skipped (1 refused), written to {out}" in told.err
    model = regard.load(command[2])
    assert printed.out.splitlines()[6] == model.translate(lines[6], **SHORT).text
    assert len(model.sentences(lines[6])) == 5 and len(model.sentences(lines[3])) == 1


@pytest.mark.parametrize("suffix", [".txt", ".html"])
def test_an_interrupted_file_goes_on(
    suffix: str,
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(translate, "BATCH", 4)
    monkeypatch.setattr(document_job, "BATCH", 4)
    lines = [f"{who} {what} <b>{how}</b>" for who in ("we", "they", "she") for what in ("eat", "read") for how in "abc"]
    file, whole, out = (tmp_path / f"{name}{suffix}" for name in ("in", "whole", "out"))
    file.write_text("".join(f"{line}<p>\n" for line in lines))
    assert run([*command, "-i", str(file), "-o", str(whole)]) == 0
    begin, batches = Translator.translate, list[int]()

    def interrupted(self: Translator, texts: list[str], **options: object) -> object:
        batches.append(len(texts))
        if len(batches) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return begin(self, texts, **options)

    words = [*command, "-i", str(file), "-o", str(out)]
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", interrupted)
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            run(words)
    assert not out.exists() and "with --resume goes on" in capsys.readouterr().err
    assert run(words) == 2
    assert "go on with --resume, or remove" in capsys.readouterr().err
    assert run([*words, "--resume", "--length-penalty", "0"]) == 2
    assert "other options" in capsys.readouterr().err
    done, batches[:] = sum(batches[:2]), []
    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", lambda *args, **kw: batches.append(len(args[1])) or begin(*args, **kw))
        assert run([*words, "--resume"]) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert done == 8 and sum(batches) == len(lines) - done
    assert not (tmp_path / f"out{suffix}.parts").exists()
    assert run([*words, "--resume"]) == 0 and "nothing to resume" in capsys.readouterr().err
    assert run([*command, SENTENCE, "--resume"]) == 2


def test_a_translation_imports_no_distributed_training(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text(f"{SENTENCE}\n")
    words = [*command, "-i", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out.txt")]
    code = f"import sys; from regard.cli.main import run; assert run({words}) == 0; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert "regard.training.distributed" not in done.stdout.split()
    assert "rich.progress" not in done.stdout.split()


def test_a_catalogue_that_is_there_is_not_lost(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "en.json", tmp_path / "es.json"
    source.write_text(json.dumps({"a": SENTENCE}))
    out.write_text('{"a": "mi pan"}')
    assert run([*command, "-i", str(source), "-o", str(out)]) == 2
    assert "its translations would be lost" in capsys.readouterr().err
    assert out.read_text() == '{"a": "mi pan"}' and not (tmp_path / "es.json.parts").exists()
    assert run([*command, "-i", str(source), "-o", str(out), "--overwrite"]) == 0
    assert json.loads(out.read_text()) == {"a": regard.load(command[2]).translate(SENTENCE, **SHORT).text}

"""Answers that are kept in a file: after a restart, after a crash, by several threads."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regard.data.formats.pairs import read_pairs
from regard.documents.memory import RECENT, KeptAnswers, TranslationMemory
from regard.errors import DataError

PAIR = ("en", "es")


def test_answers_outlive_the_server_and_corrections_outlive_answers(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "kept.jsonl"
    kept = KeptAnswers(file)
    kept.keep(PAIR, [("we eat  bread", "comemos pan"), ("we sleep", "dormimos"), (" ", "nothing")], model="m")
    assert kept.correction(PAIR, "we eat bread") is None
    kept.keep(PAIR, [("we eat bread", "comemos el pan")], corrected=True)
    kept.keep(PAIR, [("we eat bread", "comemos pan")], model="m")  # the model says it again
    for memory in (kept, KeptAnswers(file)):
        assert memory.correction(PAIR, "we eat  bread") == "comemos el pan"
        assert memory.correction(("en", "pt"), "we eat bread") is None
        assert [each.target for each in memory.find(PAIR, "we eat bread")] == ["comemos el pan"]
        assert memory.find(PAIR, "we sleep") == []  # its own answer is no news
        assert [each.target for each in memory.find(PAIR, "we sleep.")] == ["dormimos"]
        assert memory.find(("en", "pt"), "we sleep.") == []
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [(row["s"], row["model"], row["corrected"]) for row in rows] == [
        ("comemos pan", "m", False), ("dormimos", "m", False), ("comemos el pan", "", True),
    ]  # fmt: skip
    assert [pair.target for pair in read_pairs(file, "en", "es")] == [row["s"] for row in rows]
    assert TranslationMemory.read([file], "en", "es").exact("we eat bread").target == "comemos el pan"


def test_what_is_found_is_what_a_memory_of_all_answers_finds(tmp_path: Path) -> None:
    kept = KeptAnswers(tmp_path / "kept.jsonl")
    every = {f"text number {number}": f"texto {number}" for number in range(RECENT + 300)}
    for number, (text, said) in enumerate(every.items()):
        kept.keep(PAIR, [(text, said)])
        if number % 500 == 0:
            kept.find(PAIR, "text")  # indexed now and then
    asked = "text number 77 and"
    known = TranslationMemory(every.items()).find(asked)
    assert [each.similarity for each in kept.find(PAIR, asked)] == [each.similarity for each in known]


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    kept = KeptAnswers(tmp_path / "kept.jsonl")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: kept.keep(PAIR, [(f"text {n}", "ñ" * n)]), range(1, 200)))
    rows = [json.loads(line) for line in kept.path.read_text("utf-8").splitlines()]
    assert {row["q"]: row["s"] for row in rows} == {f"text {n}": "ñ" * n for n in range(1, 200)}


def test_after_kill_nine_only_the_last_line_may_be_lost(tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    code = (
        "import sys; from pathlib import Path; from regard.documents.memory import KeptAnswers\n"
        "kept, n = KeptAnswers(Path(sys.argv[1])), 0\n"
        "while True:\n    n += 1; kept.keep(('en', 'es'), [(f'text {n}', f'texto {n}')]); print(n, flush=True)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(next(process.stdout)) for _ in range(50)][-1]
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with file.open("ab") as end:
        end.write(b'{"q": "cut sho')
    KeptAnswers(file).keep(PAIR, [("after", "después")])
    texts = [json.loads(line)["q"] for line in file.read_text("utf-8").splitlines()]
    assert texts[:told] == [f"text {n}" for n in range(1, told + 1)] and texts[-1] == "after"


def test_bad_files_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "kept.jsonl").write_text('{"q": 1}\nno json\n{"q":"a","s":"b","source":"en","target":"es"}\n', "utf-8")
    with pytest.warns(UserWarning, match="2 of 3 lines are not kept answers"):
        kept = KeptAnswers(tmp_path / "kept.jsonl")
    assert [each.target for each in kept.find(PAIR, "aa")] == []
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"cannot keep answers in .*folder"):
        KeptAnswers(tmp_path / "folder")

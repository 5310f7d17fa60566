"""Translation memories: every match that a full comparison finds, what differs, and broken segments."""

import random
from pathlib import Path

import pytest
from rapidfuzz import fuzz

from regard.documents.memory import Change, TranslationMemory, memory_use
from regard.errors import DataError, UsageError

WORDS = "the a cat dog sees eats reads big small house book in on with and never straße Ωmega 東京 10,000"


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS.split(), k=draw.randint(1, 40)))


@pytest.mark.parametrize("least", [0.5, 0.7, 0.95])
def test_the_index_loses_no_match_of_a_full_comparison(least: float) -> None:
    draw = random.Random(1)
    segments = {sentence(draw): str(number) for number in range(400)}
    memory = TranslationMemory(segments.items())
    for query in [sentence(draw) for _ in range(20)] + draw.sample(sorted(segments), 10):
        every = sorted((fuzz.ratio(query, segment) / 100 for segment in segments), reverse=True)
        expected = [each for each in every if each >= least][:5]
        found = memory.find(query, count=5, least=least)
        assert [match.similarity for match in found] == pytest.approx(expected)
        for match in found:
            assert fuzz.ratio(query, match.source) / 100 == pytest.approx(match.similarity)
            assert segments[match.source] == match.target


def test_exact_matches_and_those_that_may_be_used() -> None:
    memory = TranslationMemory([("We eat  bread.", "Comemos pan."), ("We eat bread.", "Comemos el pan.")])
    assert memory.exact("We eat bread. ") == ("We eat bread.", "Comemos el pan.", 1.0)
    assert memory.exact("we eat bread.") is None
    assert memory.used("We eat bread", 1.0) is None
    assert memory.used("We eat bread", 0.9) == memory.find("We eat bread")[0]
    assert memory.used("They sleep", 0.5) is None
    assert memory.find("") == TranslationMemory([]).find("bread") == []


def test_what_differs_is_told_word_by_word() -> None:
    (match,) = TranslationMemory([("the old cat sees a dog", "…")]).find("the cat sees a big dog")
    assert match.changes("the cat sees a big dog") == [
        Change("same", "the"), Change("gone", "old"), Change("same", "cat sees a"), Change("new", "big"),
        Change("same", "dog"),
    ]  # fmt: skip


TMX = """<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en"><seg>a <bpt i="1">b</bpt>house</seg></tuv><tuv xml:lang="es"><seg>una casa</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg></seg></tuv><tuv xml:lang="es"><seg>nada</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>a dog</seg></tuv><tuv xml:lang="es"><seg>un perro</seg></tuv></tu>
</body></tmx>"""


def test_broken_segments_are_counted_and_the_rest_is_used(tmp_path: Path) -> None:
    tmx, table = tmp_path / "memory.tmx", tmp_path / "memory.tsv"
    tmx.write_text(TMX, "utf-8")
    table.write_text("a cat\tun gato\nbroken\n\n\tnothing\nan owl\tun búho\n", "utf-8")
    with pytest.warns(UserWarning, match="have no source") as told:
        memory = TranslationMemory.read([tmx, table], "en", "es")
    assert [str(each.message).rpartition("/")[2] for each in told] == [
        "memory.tmx: 1 of 3 segments have no source or no translation",
        "memory.tsv: 2 of 4 segments have no source or no translation",
    ]
    assert len(memory) == 4 and memory.broken == 3
    assert memory.exact("a dog") == ("a dog", "un perro", 1.0)
    assert memory.exact("an owl") == ("an owl", "un búho", 1.0)
    with pytest.raises(DataError, match=r"none\.tmx: there is no such translation memory"):
        TranslationMemory.read([tmp_path / "none.tmx"], "en", "es")
    table.write_bytes(b"")
    with pytest.warns(UserWarning, match=r"memory\.tsv: has no segments from en into es"):
        TranslationMemory.read([table], "en", "es")


def test_how_a_memory_is_used() -> None:
    assert (memory_use(""), memory_use("exact"), memory_use("0.9")) == (None, 1.0, 0.9)
    for wrong in ("never", "0.2", "1.5", "nan"):
        with pytest.raises(UsageError, match=r"a similarity from 0\.5 to 1"):
            memory_use(wrong)
    with pytest.raises(UsageError, match="above 0"):
        TranslationMemory([("a", "b")]).find("a", least=0.0)

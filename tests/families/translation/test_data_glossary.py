"""Glossaries: what is read, what is refused, and which terms a text has."""

from pathlib import Path

import pytest

from regard.errors import DataError
from regard.families.translation.glossary import Glossary


def found(glossary: Glossary, text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(text[match.start : match.end], match.forms) for match in glossary.find(text)]


def test_terms_are_found_as_whole_words_and_the_longest_first() -> None:
    lines = [
        "station\testación",
        "train station\testación de tren\n",
        "# a comment",
        "",
        "car|cars\tcoche|coches\tany\r\n",
    ]
    glossary = Glossary.parse(lines)
    assert found(glossary, "The train\u00a0station, a space station and stations; Cars.") == [
        ("train\u00a0station", ("estación de tren",)),
        ("station", ("estación",)),
        ("Cars", ("coches", "Coches")),
    ]
    assert found(glossary, "CARS") == [("CARS", ("coches", "Coches", "COCHES"))]
    assert [match.capitalised for match in glossary.find("a car")] == [("Coche",)]
    assert found(Glossary(), "a car") == []


def test_forms_are_paired_by_place_where_both_sides_have_as_many() -> None:
    glossary = Glossary.parse(["door|doors\tportal|portales", "house|houses\tcasa|casas|hogar", "shut\tcierra|cierran"])
    assert found(glossary, "Shut the door, the doors and the house; DOORS") == [
        ("Shut", ("cierra", "cierran", "Cierra", "Cierran")),
        ("door", ("portal",)),
        ("doors", ("portales",)),
        ("house", ("casa", "casas", "hogar")),
        ("DOORS", ("portales", "Portales", "PORTALES")),
    ]


def test_case_and_kept_terms() -> None:
    glossary = Glossary.parse(["US\tEE. UU.\tcase", "us\tnosotros"], keep=["Regard", "C++"])
    assert found(glossary, "US, us and regard with Regard in C++.") == [
        ("US", ("EE. UU.",)),
        ("us", ("nosotros",)),
        ("Regard", ("Regard",)),
        ("C++", ("C++",)),
    ]


def test_scripts_without_spaces() -> None:
    assert found(Glossary.of({"東京": "Tokyo"}), "私は東京に行く") == [("東京", ("Tokyo",))]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["ok\tbien", "\tnada"], "g.tsv, line 2: the source of the term is empty"),
        (["house\t "], "g.tsv, line 1: the target of the term is empty"),
        (["house\tcasa||casas"], "line 1: the target of the term is empty, or one of its forms is"),
        (["house casa"], "g.tsv, line 1: no TAB in 'house casa'"),
        (["house\tcasa\tnoun"], "line 1: the third column is 'noun'; it is any, case or empty"),
        (["house\tcasa", "House\thogar"], "g.tsv, line 2: 'House' is to become 'hogar', but 'casa' by "),
    ],
)
def test_bad_terms_are_refused_with_their_line(lines: list[str], message: str, tmp_path: Path) -> None:
    file = tmp_path / "g.tsv"
    file.write_text("\n".join(lines), "utf-8")
    with pytest.raises(DataError) as caught:
        Glossary.read(file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("terms", [{"bread": 5}, {"bread": ["pan", None]}, {5: "pan"}, {"bread": b"pan"}])
def test_terms_that_are_no_texts_are_refused(terms: dict) -> None:
    with pytest.raises(DataError, match="is no term; expected a text"):
        Glossary.of(terms)


def test_repeated_terms_are_told_and_used_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"line 2: repeats .*line 1"):
        glossary = Glossary.parse(["house\tcasa", "house\tcasa"], "g.tsv")
    assert len(glossary.terms) == 1
    with pytest.raises(DataError, match=r"missing\.tsv"):
        Glossary.read(tmp_path / "missing.tsv")
    with pytest.raises(DataError, match="is a folder; expected a file"):
        Glossary.read(tmp_path)
    (tmp_path / "empty.tsv").write_text("# nothing yet\n\n", "utf-8")
    with pytest.warns(UserWarning, match=r"empty\.tsv: has no terms"):
        assert Glossary.read(tmp_path / "empty.tsv", keep=["Regard"]).terms[0].kept

"""The built-in translator says what it knows; other and older models are not mistaken for it."""

from regard.families.translation import demo


def test_only_the_built_in_translator_tells_what_it_knows(tmp_path, monkeypatch):
    for name, recipe in {
        "everyday": '[data]\ntrain = "phrasebook"\n[data.phrasebook]\neveryday = true\n',
        "lectures": '[data]\ntrain = "phrasebook"\n',
        "own": '[data]\ntrain = "my.tsv"\n',
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.toml").write_text(recipe, encoding="utf-8")
    told = {name: demo.about([str(tmp_path / name)]) for name in ("everyday", "lectures", "own", "missing")}
    assert "small built-in model" in told.pop("everyday")
    assert set(told.values()) == {""}
    monkeypatch.setattr(demo, "demo_folder", lambda: tmp_path / "everyday")
    assert demo.about([])


def test_another_phrasebook_is_another_model(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / name / "data" / "synthetic" / "phrasebook").mkdir(parents=True)
        (tmp_path / name / "data" / "synthetic" / "phrasebook" / "lexicon.toml").write_text(
            f"{name} = 1\n", encoding="utf-8"
        )
    folders = []
    for name in ("first", "first", "second"):
        monkeypatch.setattr("regard.__file__", str(tmp_path / name / "__init__.py"))
        folders.append(demo.demo_folder())
    assert folders[0] == folders[1] != folders[2]
    assert {folder.name for folder in folders} == {"demo"}  # the name on servers: demo:es

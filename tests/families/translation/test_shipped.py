"""The built-in translators: found, chosen by languages and text, and used where no model is named."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard.checkpoints.folder import local_folder
from regard.cli.main import run
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.translation import shipped
from regard.families.translation.shipped import find_direction, shipped_models
from regard.serve.run import served_models
from regard.training.recipe.load import load_recipe

pytestmark = pytest.mark.filterwarnings("default::UserWarning")  # the command line prints them
ENGLISH, SPANISH, GERMAN = "where is the station?", "¿dónde está la estación?", "wo ist der Bahnhof?"
LANGUAGES = ["en", "es", "pt", "fr", "de", "it"]
BRIEF = {"max_length": 6}


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    """What `regard translate` prints, and what it says beside it."""
    assert run(["translate", *words, "--max-length", "6"]) == 0
    captured = capsys.readouterr()
    return captured.out.strip("\n"), captured.err


@pytest.mark.parametrize(
    ("text", "source", "to", "expected"),
    [
        (ENGLISH, "", "fr", "from en (detected) to fr"),
        (SPANISH, "", "", "from es (detected) to en"),
        (SPANISH, "", "fr", "from es (detected) to fr through en"),
        (GERMAN, "de", "", "from de to en"),
        ("Station", "", "de", "from en (detected) to de"),  # a word of several languages is English
        ("", "", "es", "from en (detected) to es"),
        (ENGLISH, "", "en", "from es to en"),  # the text is in the target language already
        (ENGLISH, "en-GB", "pt-BR", "from en to pt"),
    ],
)
def test_a_direction_is_found(built_in: Path, text: str, source: str, to: str, expected: str) -> None:
    assert str(find_direction(text, source, to)) == expected


def test_every_direction_has_a_route(built_in: Path) -> None:
    assert shipped.shipped_languages() == LANGUAGES
    for source in LANGUAGES:
        for to in set(LANGUAGES) - {source}:
            models = find_direction("", source, to).models
            assert len(models) == (1 if "en" in (source, to) else 2)
            assert source in models[0].source_languages
            assert to in models[-1].target_languages


def test_what_has_no_direction_is_refused(built_in: Path) -> None:
    for given, message in (
        ((ENGLISH, "", ""), "es, pt, fr, de, it"),
        ((ENGLISH, "", "ja"), "do not know 'ja'"),
        ((ENGLISH, "es", "es"), "Spanish"),
    ):
        with pytest.raises(UsageError, match=message):
            find_direction(*given)


def test_without_weights_the_demos_translator_is_the_default(
    tmp_path: Path, translator_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    monkeypatch.setattr(shipped, "learner_folder", lambda: tmp_path / "learner")
    assert shipped_models() == []
    for use in (shipped.shipped_folder, regard.load().translate, lambda text: local_folder("builtin:en-many")):
        with pytest.raises(CheckpointError, match="`regard demo` trains a small one"):
            use(ENGLISH)
    monkeypatch.setattr(shipped, "learner_folder", lambda: translator_folder)
    own = regard.load(translator_folder)
    assert regard.load().translate(ENGLISH, to="pt", **BRIEF).text == own.translate(ENGLISH, to="pt", **BRIEF).text
    assert served_models([]) == [f"builtin:{translator_folder.name}"]
    with pytest.raises(UsageError, match="do not lead from es to en"):
        regard.load().translate(SPANISH, source="es", to="en")


def test_load_translates_all_directions(built_in: Path) -> None:
    translator = regard.load()
    en_many, many_en = (regard.load(f"builtin:{name}") for name in ("en-many", "many-en"))
    assert translator.translate(ENGLISH, to="fr", **BRIEF).text == en_many.translate(ENGLISH, to="fr", **BRIEF).text
    both = translator.translate([SPANISH, ENGLISH], to="it", **BRIEF)
    way = many_en.translate(SPANISH, to="en", **BRIEF).text
    assert [each.text for each in both] == [en_many.translate(text, to="it", **BRIEF).text for text in (way, ENGLISH)]
    assert translator.translate(GERMAN, source="de", **BRIEF).text == many_en.translate(GERMAN, **BRIEF).text
    assert regard.load(precision="int8").translate(ENGLISH, to="de", **BRIEF).text


def test_the_command_needs_no_model(built_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    translator = regard.load()
    out, err = answered(capsys, ENGLISH, "--to", "fr")
    assert out == translator.translate(ENGLISH, to="fr", **BRIEF).text and "from en (detected)" in err
    out, err = answered(capsys, SPANISH)
    assert out == translator.translate(SPANISH, **BRIEF).text and "from es (detected) to en" in err
    out, err = answered(capsys, SPANISH, "--from", "es", "--to", "fr", "--json")
    assert json.loads(out)["pivot"]["language"] == "en" and "detected" not in err
    assert run(["translate", ENGLISH]) == 2
    assert "es, pt, fr, de, it" in capsys.readouterr().err


def test_lines_and_documents_are_detected_too(
    built_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = f"{GERMAN}\nwir essen Brot.\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    out, err = answered(capsys)
    assert len(out.split("\n")) == 2 and "from de (detected)" in err
    for name, content in (("a.txt", lines), ("a.html", f"<p>{GERMAN}</p>")):
        (tmp_path / name).write_text(content, encoding="utf-8")
        target = tmp_path / f"out-{name}"
        assert run(["translate", "-i", str(tmp_path / name), "-o", str(target), "--max-length", "6"]) == 0
        assert "from de (detected) to en" in capsys.readouterr().err
        assert target.is_file()


def test_look_and_evaluate_use_them(built_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["look", ENGLISH, "--to", "fr", "-o", str(tmp_path / "look.json")]) == 0
    assert json.loads((tmp_path / "look.json").read_text(encoding="utf-8"))["model"] == "en-many"
    assert run(["look", SPANISH, "--to", "fr", "-o", str(tmp_path / "two.json")]) == 2
    assert "look at each step" in capsys.readouterr().err
    assert regard.look(regard.load(), ENGLISH, to="de").said
    (tmp_path / "pairs.tsv").write_text(f"en\tfr\n{ENGLISH}\toù est la gare ?\n", encoding="utf-8")
    assert run(["evaluate", str(tmp_path / "pairs.tsv"), "--to", "fr", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentences"] == 1


def test_adaptation_starts_from_them(built_in: Path, tmp_path: Path) -> None:
    data = ["data.train=x.tsv", "data.source=en", "data.target=fr"]
    assert load_recipe("adapt", data).model.init == "builtin:en-many"
    assert load_recipe("adapt", ["data.train=x.tsv", "data.source=fr", "data.target=en"]).model.init == (
        "builtin:many-en"
    )
    assert load_recipe("adapt", [*data, "model.init=runs/mine"]).model.init == "runs/mine"


@pytest.mark.skipif(not shipped_models(), reason="the weights of the built-in translators are not here")
def test_the_real_models_translate_everyday_sentences() -> None:
    translator = regard.load()
    assert translator.translate("where is the station?", to="es").text.lower().startswith("¿dónde está la estación")
    assert translator.translate("¿dónde está la estación?").text.lower().startswith("where is the station")
    assert "gare" in translator.translate("¿dónde está la estación?", to="fr").text


@pytest.mark.parametrize(
    "text",
    ["", "  \n ", "😀😀😀", "x = f(y)[0];  // ok", "https://example.org/a?b=1", "Привет, мир", "你好"],
)
def test_odd_texts_have_an_answer_without_a_loop(built_in: Path, text: str) -> None:
    answer = regard.load().translate(text, to="fr", max_length=12, avoid_loops=True)
    assert bool(answer.text) == bool(text.strip())
    assert not answer.repeated


def test_a_word_without_end_is_a_clear_error(built_in: Path) -> None:
    with pytest.raises(DataError, match="shorter sentences"):
        regard.load().translate("a" * 3000, to="fr")


UNUSED = (
    "regard.families.translation.pivot", "regard.families.translation.glossary", "regard.families.translation.memory",
    "regard.families.translation.quality", "regard.documents.translate", "py3langid", "PIL", "sentencepiece", "polib",
    "lxml", "transformers", "scipy", "sympy", "sacrebleu", "jinja2", "fastapi", "torch._dynamo", "huggingface_hub",
)  # fmt: skip


def test_the_plain_way_imports_little(built_in: Path) -> None:
    code = f"""
import subprocess
import sys
from pathlib import Path
import regard.families.translation.shipped as shipped
from regard.cli.main import run
shipped.FOLDER = Path({str(built_in)!r})
assert run(["translate", {ENGLISH!r}, "--to", "fr", "--max-length", "6"]) == 0
print([name for name in {UNUSED!r} if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == "[]"

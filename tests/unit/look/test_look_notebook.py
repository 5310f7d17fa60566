"""`regard.look(...)`: a package that can be called as a function."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import regard
from regard.families.translation.view import inspect_translation
from regard.look.inspection import GivenInput, inspect_input
from regard.look.page import render_page

SENTENCE = "we are eating bread"


def test_a_look_shows_itself_as_a_page_in_a_frame(translator_folder: Path):
    translator = regard.load(translator_folder)
    seen = regard.look(translator, SENTENCE, to="es")
    answer = translator.translate(SENTENCE, to="es")
    assert seen.said == answer.text
    framed = re.fullmatch(r'<iframe sandbox="allow-scripts" .* srcdoc="([^"]*)"></iframe>', seen._repr_html_(), re.S)
    assert framed and html.unescape(framed[1]) == render_page(inspect_translation(translator, answer).report())


def test_a_look_is_saved_and_can_be_given_a_translation(translator_folder: Path, tmp_path: Path):
    seen = regard.look(translator_folder, SENTENCE, to="es", target="el pan")
    saved = json.loads(seen.save(tmp_path / "look.json").read_text("utf-8"))
    assert saved["alignment"]["queries"] == ["el", "pan"] and seen.said == "el pan"


def test_an_image_is_looked_at_as_well(make_classifier, tmp_path: Path):
    classifier = regard.load(make_classifier("vit"))
    picture = tmp_path / "noise.png"
    Image.effect_noise((40, 40), 90).convert("RGB").save(picture)
    seen = regard.look(classifier, picture)
    assert seen.said == classifier.classify(picture)[0].label
    found = inspect_input(classifier, GivenInput(picture, "noise.png"))
    assert found is not None
    page = render_page(found.report)
    assert html.escape(page, quote=True) in seen._repr_html_()
    saved = json.loads(seen.save(tmp_path / "look.json").read_text("utf-8"))
    assert np.allclose(np.sum(saved["layers"][0]["weights"], axis=-1), 1, atol=1e-4)


@pytest.mark.parametrize("first", ["", "import regard.look.figures;"])
def test_the_package_can_be_called_before_and_after_it_is_imported(first: str):
    code = f"import regard; {first} assert callable(regard.look); import regard.look.report; print('both')"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "both\n"


def test_nothing_else_appears_by_itself():
    with pytest.raises(AttributeError, match="nothing"):
        regard.nothing  # noqa: B018

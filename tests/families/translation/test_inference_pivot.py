"""Translation through a pivot language: two translations in a row, and what is known of both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.errors import UsageError
from regard.families.translation.pivot import Pivot
from regard.families.translation.routes import find_route
from regard.look.word_alignment import compose_links

TEXTS = ["we are eating bread", "she is reading a long book"]


def test_both_hops_and_their_attention_are_known(folders: list[Path]) -> None:
    first, second = (regard.load(folder) for folder in folders[:2])
    second.tokenizer = replace(second.tokenizer, source_languages=("es",))
    answers = Pivot(first, second).translate(TEXTS, to="pt", max_length=8, n_best=2)
    for text, answer in zip(TEXTS, answers, strict=True):
        way = first.translate(text, to="es", max_length=8)
        there = second.translate(way.text, to="pt", max_length=8, n_best=2)
        assert (answer.source, answer.text, answer.to) == (text, there.text, "pt")
        assert [each.text for each in answer.alternatives] == [each.text for each in there.alternatives]
        assert answer.source_words == text.split()
        assert answer.quality == pytest.approx(way.quality * there.quality, abs=1e-5)
        assert answer.doubts == pytest.approx(there.doubts, abs=1e-5)
        np.testing.assert_allclose(answer.attention, there.attention @ way.attention, atol=1e-5)
        assert answer.alignment == compose_links(way.alignment, there.alignment)
        assert answer.truncated == (way.truncated or there.truncated)


def test_routes_prefer_one_model_and_name_what_is_missing(folders: list[Path], back_folder: Path) -> None:
    there, back = regard.load(folders[0]), regard.load(back_folder)
    assert find_route([back, there], "en", "pt") == (there,)
    assert find_route([there, back], "es", "pt") == (back, there)
    with pytest.raises(UsageError, match="en to es/pt, es to en"):
        find_route([there, back], "de", "pt")
    with pytest.raises(UsageError, match="reads en"):
        Pivot(there, there)

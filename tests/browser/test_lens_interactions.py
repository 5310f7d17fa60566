"""The Protein tab with a model of pairs: the answer, the residues it weighs, and the attention between the two."""

import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

import regard
from regard.checkpoints import save_model
from regard.families.catalog import MODELS
from regard.families.proteins.data import InteractionSettings, ProteinPairs
from regard.families.proteins.view import residue_weights


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model of pairs with random weights."""
    torch.manual_seed(4)
    entry, place = MODELS["interactor"], tmp_path_factory.mktemp("pairs") / "yeast"
    model = entry.model(entry.config.parse(entry.presets["tiny"]))
    torch.nn.init.normal_(model.query, std=3.0)  # at first it pools evenly, and no residue would stand out
    known = ProteinPairs(["a", "b"], ["MKL", "MSV"], np.array([[0, 1]]), np.array([1]))
    settings = InteractionSettings.of(known, "pairs", 0.1, 0.1)
    save_model(place, "interactor", model, settings.save)
    return place


def test_two_generated_proteins_are_compared(open_lens, start_server, folder):
    server, predictor = start_server([folder]), regard.load(folder)
    with open_lens(f"{server.url}/#protein") as page:
        view = page.locator("#protein-view")
        expect(view).to_have_attribute("data-state", "done")
        first, second = page.locator("#protein-text").input_value().split("\n")[1::2]
        (answer,) = predictor.interact(first, second)
        told = page.locator("#protein-answer")
        expect(told.locator("h2")).to_have_text(re.compile(r"^[\d.]+\s?% that the two bind$"))
        assert float(re.search(r"[\d.]+", told.locator("h2").inner_text())[0]) == pytest.approx(
            100 * answer.probability, abs=1
        )
        expect(told.locator(".residues")).to_have_text([first, second])
        weights = residue_weights(predictor.attention(first, second))[0]
        shares = (
            told.locator(".residues")
            .first.locator("span")
            .evaluate_all("all => all.map((each) => Number(each.style.getPropertyValue('--share')))")
        )
        np.testing.assert_allclose(shares, weights / weights.max(), atol=0.002)
        expect(view).to_contain_text("Link 1, cross first")


def test_one_protein_and_letters_that_are_none_are_refused_in_words(open_lens, start_server, folder):
    with open_lens(f"{start_server([folder]).url}/#protein") as page:
        page.fill("#protein-text", "MKLV")
        page.click("#protein-go")
        expect(page.locator("#protein-error")).to_have_text(re.compile("1 protein came; give two proteins"))
        page.fill("#protein-text", ">a\nMKLV\n>b\nMK9V")
        page.click("#protein-go")
        expect(page.locator("#protein-error")).to_have_text(re.compile("line 3, b: '9' at residue 3"))
        page.fill("#protein-text", ">a\nmklvU\n>b\nMKV")
        page.click("#protein-go")
        expect(page.locator("#protein-answer")).to_contain_text("selenocysteine read as cysteine")

"""The Protein tab, and the offline page of a structure."""

import re

import pytest
from playwright.sync_api import expect

import regard
from regard.families.folding.view import structure_report
from regard.look.save import save
from score_cards import check_score

pytest.importorskip("gemmi")
LOOKS = re.compile(r"looks most at ([A-Z]\d+) \((\S+)%\)")


def pointed_at(view, row, length):
    """Point at the middle of the diagonal cell of a residue on the map."""
    canvas = view.locator("[data-part=map]")
    box = canvas.bounding_box()
    place = (row + 0.5) / length
    canvas.hover(position={"x": place * box["width"], "y": place * box["height"]})
    return view.locator("[data-part=readout]")


def check(view, predictor, sequence):
    """A residue that is pointed at names the one that it looks at most in the last layer, in the mean of its heads."""
    (protein,) = predictor.read(sequence)
    seen = predictor.attention(protein)
    last = list(seen.weights)[-1]
    weights = seen.weights[last].mean(axis=0)
    for row in (2, 7):
        readout = pointed_at(view, row, len(sequence))
        expect(readout).to_have_text(re.compile(f"^{sequence[row]}{row + 1}: confidence"))
        residue, share = LOOKS.search(readout.inner_text()).groups()
        assert float(share) == pytest.approx(100 * weights[row].max(), abs=0.8)
        assert weights[row, int(residue[1:]) - 1] == pytest.approx(weights[row].max(), abs=0.01)
    for layer in (last, next(name for name in seen.weights if name.endswith("starting.attention"))):
        view.locator("[data-part=layer]").select_option(str(list(seen.weights).index(layer)))
        view.locator("[data-part=head]").select_option("1")
        pointed_at(view, 7, len(sequence))
        check_score(view.page, seen.neurons[layer], seen.weights[layer], (1, 7))
    view.locator("[data-part=layer]").select_option(str(len(seen.weights) - 1))
    view.locator("[data-part=head]").select_option("-1")


def pixels(view):
    return view.locator("[data-part=chain]").evaluate("canvas => canvas.toDataURL()")


def test_a_generated_chain_is_folded_beside_its_truth_and_turns(open_lens, start_server, make_folder_of_structures):
    folder = make_folder_of_structures()
    server, predictor = start_server([folder]), regard.load(folder)
    with open_lens(f"{server.url}/#protein") as page:
        expect(page.locator("#protein-content")).to_be_visible()
        view = page.locator("#protein-view")
        expect(view).to_have_attribute("data-state", "done")
        sequence = page.locator("#protein-text").input_value()
        check(view, predictor, sequence)
        expect(page.locator("#protein-answer")).to_contain_text("no claim of folding")
        before = pixels(view)
        chain = view.locator("[data-part=chain]")
        chain.focus()
        page.keyboard.press("ArrowRight")
        turned = pixels(view)
        assert turned != before
        box = chain.bounding_box()
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, box["y"] + 60)
        page.mouse.up()
        assert pixels(view) != turned
        for colour in ("attention", "error"):
            last = pixels(view)
            view.locator("[data-part=colour]").select_option(colour)
            assert pixels(view) != last
        page.fill("#protein-text", "ACD1")
        page.click("#protein-go")
        expect(page.locator("#protein-error")).to_have_text(re.compile("'1' at residue 4"))


def test_the_tab_says_when_no_model_reads_proteins(page, served):
    page.goto(f"{served.url}/#protein")
    expect(page.locator("#protein-none")).to_be_visible()


def test_the_offline_page_needs_no_server(context, make_folder_of_structures, tmp_path):
    predictor, sequence = regard.load(make_folder_of_structures()), "AELMQKRHGNVIYCWFTAEL"
    (prediction,) = predictor.fold(sequence)
    save(structure_report(predictor, prediction), tmp_path / "look.html")
    page, troubles = context.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(f"file://{tmp_path / 'look.html'}")
    check(page.locator("body"), predictor, sequence)
    expect(page.locator("[data-part=truths]")).to_be_hidden()
    assert not troubles

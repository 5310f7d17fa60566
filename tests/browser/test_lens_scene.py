"""The Scene tab, and the offline page of a scene."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

import regard
from regard.families.trajectories.view import forecast_report
from regard.look.save import save
from score_cards import check_score

LOOKS = re.compile(r"Agent (\S+) \((\S+)\) looks most at agent (\S+) \((\S+)\): (\S+)%")


def check(view, forecaster, answer):
    """An agent that is pointed at names whom and when it looks at most in the last layer that fits."""
    seen, agents = forecaster.attention(answer), answer.agents
    view.locator("[data-part=canvas]").focus()
    view.page.keyboard.press("ArrowRight")  # the first agent, now
    for name, title, row, steps in (
        ("encoder.layers.1.attention", "Encoder layer 2", 7, range(-7, 1)),
        ("decoder.layers.1.cross", "Decoder layer 2, cross-attention", 0, range(-7, 1)),
    ):
        expect(view.locator("[data-part=layerName]")).to_have_text(title)
        weights = seen.weights[name].mean(axis=0)[row]
        readout = view.locator("[data-part=readout]")
        expect(readout).to_have_text(LOOKS)
        _, _, whom, when, share = LOOKS.search(readout.inner_text()).groups()
        assert float(share) == pytest.approx(100 * weights.max(), abs=0.8)
        step = 0 if when == "now" else int(when.replace("−", "-"))
        told = agents.index(whom) * 8 + list(steps).index(step)
        assert weights[told] == pytest.approx(weights.max(), abs=0.01)
        sums = weights.reshape(len(agents), 8).sum(axis=1)
        expect(view.locator("[data-part=whom] li").first).to_have_text(
            re.compile(f"agent {agents[int(sums.argmax())]}")
        )
        view.page.keyboard.press("ArrowRight")  # one step later
    view.locator("[data-part=head]").select_option("1")
    check_score(view.page, seen.neurons[name], seen.weights[name], (1, 1))  # head 1, the first agent two steps later
    expect(view.locator("[data-part=clock]")).to_have_text("+12")
    view.locator("[data-part=time]").fill("-3")
    expect(view.locator("[data-part=clock]")).to_have_text("−3")
    view.locator("[data-part=play]").click()
    expect(view.locator("[data-part=clock]")).to_have_text("+12", timeout=15000)
    expect(view.locator("[data-part=play]")).to_have_text("Play")


def test_a_built_in_scene_is_forecast_and_pointed_at(open_lens, start_server, make_forecaster):
    folder = make_forecaster(width=16, outputs="velocity")
    forecaster = regard.load(folder)
    server = start_server([folder])
    with open_lens(f"{server.url}/#scene") as page:
        expect(page.locator("#scene-content")).to_be_visible()
        view = page.locator("#scene-view")
        expect(view).to_have_attribute("data-state", "done")
        name = page.locator("#scene-examples button").first.get_attribute("data-scene")
        frame = float(page.locator("#scene-at").input_value())
        tracks = next(each for each in server.client.get("/api/inspect/examples").json() if each["name"] == name)
        (page_answer,) = forecaster.forecast(tracks["tracks"].encode(), at=frame)
        check(view, forecaster, page_answer)
        page.fill("#scene-at", "-10")
        page.locator("#scene-at").blur()
        expect(page.locator("#scene-error")).to_have_text(re.compile("has no frame -10"))


def test_the_tab_refuses_other_files_and_says_when_no_model_forecasts(
    page, served, open_lens, start_server, make_forecaster, tmp_path
):
    page.goto(f"{served.url}/#scene")
    expect(page.locator("#scene-none")).to_be_visible()
    (tmp_path / "notes.csv").write_text("a,b\n1,2\n")
    with open_lens(f"{start_server([make_forecaster(width=16)]).url}/#scene") as other:
        other.set_input_files("#scene-file", tmp_path / "notes.csv")
        expect(other.locator("#scene-error")).to_have_text(re.compile("no column 'frame'"))


def test_the_offline_page_needs_no_server(context, make_forecaster, tmp_path):
    forecaster = regard.load(make_forecaster(width=16, decoder="autoregressive"))
    (answer,) = forecaster.forecast("builtin:walkers#1", at=200.0)
    assert np.isfinite(answer.truth).any()
    save(forecast_report(forecaster, answer), tmp_path / "look.html")
    page, troubles = context.new_page(), []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.goto(f"file://{tmp_path / 'look.html'}")
    check(page.locator("body"), forecaster, answer)
    assert not troubles

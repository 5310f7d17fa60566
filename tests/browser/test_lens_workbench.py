"""The Workbench tab: the lectures' numbers, and numbers that a reader changes."""

import re

import numpy as np
from playwright.sync_api import expect


def cells(page, name, head=0):
    texts = page.locator(f"#workbench-view figure[data-name='{name}'] table[data-head='{head}'] td").all_inner_texts()
    return [None if text == "−∞" else float(text.replace("−", "-")) for text in texts]


def test_numbers_that_are_changed_change_the_weights(page, served):
    page.goto(f"{served.url}/#workbench")
    view = page.locator("#workbench-view")
    expect(view).to_have_attribute("data-state", "done")
    assert cells(page, "Attention weights")[:3] == [1, 0, 0]  # opens with the causal mask
    page.uncheck("[data-switch=causal]")
    expect(view.locator("figure[data-name='Masked']")).to_have_count(0)
    expect(view).to_have_attribute("data-state", "done")
    assert cells(page, "Attention weights")[:3] == [0.905, 0.09, 0.005]
    page.locator("table[data-matrix=query_weights] input").first.fill("20")
    expect(view.locator("figure[data-name='Similarities'] td").first).to_have_text("20")
    powers = np.exp((np.array([20, 27, 22]) - 27) / np.sqrt(3))
    assert cells(page, "Attention weights")[:3] == (powers / powers.sum()).round(3).tolist()
    page.uncheck("[data-switch=scaled]")
    expect(view.locator("figure[data-name='Scaled']")).to_have_count(0)


def test_steps_heads_order_and_mistakes(page, served):
    page.goto(f"{served.url}/#workbench")
    view = page.locator("#workbench-view")
    page.click("#workbench-steps [data-step='8']")
    expect(view.locator("figure[data-name='Attention weights'] table")).to_have_count(3)
    expect(page.locator("#workbench-notes")).to_have_text(re.compile("fused kernel gives the same"))
    page.check("[data-switch=reversed]")
    expect(page.locator("#workbench-notes")).to_have_text(re.compile("do not follow"))
    page.uncheck("[data-switch=causal]")
    expect(page.locator("#workbench-notes")).to_have_text(re.compile("does not know positions"))
    page.fill("#workbench-heads", "2")
    page.locator("#workbench-heads").blur()
    expect(page.locator("#workbench-error")).to_have_text(re.compile("2 heads do not divide"))
    page.fill("#workbench-width", "4")
    page.locator("#workbench-width").blur()
    expect(page.locator("#workbench-error")).to_be_hidden()
    expect(view.locator("figure[data-name='Attention weights'] table")).to_have_count(2)
    page.click("#workbench-steps [data-step='1']")
    expect(view.locator("figure[data-name='Similarities']")).to_contain_text("tanh")
    assert len(cells(page, "Attention weights")) == 3


def test_a_late_answer_does_not_replace_the_step_that_was_chosen(page, served):
    """The tab asks for step 7 when it is opened; a reader may choose another one before that answer arrives."""
    held = []
    page.route("**/api/workbench/examples/7", lambda route: held.append(route))
    page.goto(f"{served.url}/#workbench")
    while not held:
        page.wait_for_timeout(50)
    expect(page.locator("[data-switch=causal]")).to_be_disabled()  # there is no layer to change yet
    page.click("#workbench-steps [data-step='8']")
    weights = page.locator("#workbench-view figure[data-name='Attention weights'] table")
    expect(weights).to_have_count(3)
    held[0].continue_()
    page.wait_for_timeout(500)
    expect(weights).to_have_count(3)
    expect(page.locator("#workbench-about")).to_have_text("Step 8: Several heads")


def test_a_step_chosen_before_the_models_are_known_stays(page, served):
    """The tab is opened when the models are known; by then a step may be on its way."""
    page.goto(f"{served.url}/#workbench")
    expect(page.locator("#workbench-view")).to_have_attribute("data-state", "done")
    models, steps = [], []
    page.route("**/api/models", lambda route: models.append(route))
    page.route("**/api/workbench/examples/*", lambda route: steps.append(route))
    page.reload()
    while not models:
        page.wait_for_timeout(50)
    page.evaluate("document.querySelector('#workbench-steps [data-step=\"8\"]').click()")  # its panel is not shown yet
    for route in models:
        route.continue_()
    expect(page.locator("#tab-workbench")).to_have_attribute("aria-current", "page")
    page.wait_for_timeout(300)
    for route in steps:
        route.continue_()
    expect(page.locator("#workbench-view figure[data-name='Attention weights'] table")).to_have_count(3)
    assert [route.request.url[-1] for route in steps] == ["8"]

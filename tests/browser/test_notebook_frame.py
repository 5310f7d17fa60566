"""The notebook output: the offline page in a sandboxed frame that may only run its own script."""

from pathlib import Path

from playwright.sync_api import expect

import regard


def test_the_frame_of_a_notebook_draws(open_lens, translator_folder: Path, tmp_path: Path):
    seen = regard.look(translator_folder, "we are eating bread", to="es")
    cell = tmp_path / "cell.html"
    cell.write_text(f"<!doctype html><link rel=icon href='data:,'>{seen._repr_html_()}", encoding="utf-8")
    with open_lens(cell.as_uri()) as page:
        frame = page.frame_locator("iframe")
        expect(frame.locator("#view-name")).to_have_text("Word alignment")
        frame.locator("#queries-text span").first.hover()
        expect(frame.locator("#readout")).to_contain_text("looks at")

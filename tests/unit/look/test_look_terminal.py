"""The terminal's heat map fits its width, falls back to plain ASCII, and words cannot control the terminal."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from regard.look.panels import Panel, Tokens
from regard.look.terminal import alignment_table, arrow_line, print_alignment

SOURCE, TARGET = ["we", "are", "eating", "bread"], ["estamos", "comiendo", "pan"]
WEIGHTS = np.array([[0.5, 0.46, 0.04, 0.0], [0.0, 0.02, 0.97, 0.01], [0.0, 0.0, 0.2, 0.8]])
PANEL = Panel("alignment", "cross", WEIGHTS[None], Tokens(TARGET), Tokens(SOURCE))
LINKS = [(0, 0), (1, 0), (2, 1), (3, 2)]


def printed(panel: Panel, links: list[tuple[int, int]], *, terminal: bool, no_color: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    console = Console(file=stream, width=80, force_terminal=terminal, no_color=no_color, color_system="truecolor")
    print_alignment(panel, links, console)
    stream.seek(0)
    return stream.read()


@pytest.mark.parametrize(("terminal", "no_color"), [(False, False), (True, True)])
def test_without_colour_it_is_plain_ascii_digits(terminal: bool, no_color: bool) -> None:
    output = printed(PANEL, LINKS, terminal=terminal, no_color=no_color)
    assert output.isascii()
    assert [line.split() for line in output.splitlines()] == [
        ["we", "are", "eating", "bread"],
        ["estamos", "5", "5", ".", "."],
        ["comiendo", ".", ".", "9", "."],
        ["pan", ".", ".", "2", "8"],
        ["we->estamos", "are->estamos", "eating->comiendo", "bread->pan"],
    ]


def test_on_a_terminal_heavier_cells_are_denser() -> None:
    output = printed(PANEL, LINKS, terminal=True)
    row = next(line for line in output.splitlines() if line.startswith("     pan"))
    assert row.index("·") < row.index("▒") < row.index("█")
    assert "we→estamos" in output


@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=70),
    st.lists(st.text(max_size=30), min_size=1, max_size=4),
    st.integers(20, 100),
    st.booleans(),
)
def test_every_line_fits_and_every_cell_is_there(source, target, width, coloured) -> None:
    weights = np.full((len(target), len(source)), 1.0)
    lines = alignment_table(weights, target, source, width=width, coloured=coloured)
    assert all(cell_len(line.plain) <= width for line in lines)
    assert all(line.plain.isprintable() for line in lines)


def test_long_sentences_continue_below() -> None:
    source = [f"w{index}" for index in range(60)]
    lines = [line.plain for line in alignment_table(np.eye(60)[:1], ["one"], source, width=80, coloured=False)]
    rows = [line.split() for line in lines if line.startswith("one")]
    assert len(rows) == 2
    assert [cell for row in rows for cell in row[1:]] == ["9", *["."] * 59]


def test_long_words_are_written_downwards() -> None:
    source = ["internationalisation", *["to"] * 20]
    lines = [line.plain.rstrip() for line in alignment_table(np.zeros((1, 21)), ["a"], source, coloured=False)]
    column = "".join(line[2:3] or " " for line in lines[:-1])
    assert column == "internation."
    assert cell_len(lines[-1]) <= 80


def test_arrows_and_control_characters() -> None:
    assert arrow_line(LINKS, SOURCE, TARGET) == "we→estamos are→estamos eating→comiendo bread→pan"
    assert "\x1b" not in arrow_line([(0, 0)], ["\x1b[2Jx"], ["y"])
    output = printed(
        Panel("a", "cross", np.ones((1, 1, 1)), Tokens(["[red]x[/red]"]), Tokens(["\x1b[2J"])), [(0, 0)], terminal=False
    )
    assert "[red]x" in output and "\x1b" not in output

"""Word alignment in the terminal: a heat map of shaded blocks, or of digits where blocks would not show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from regard.data.tokenizers.unknown_words import MOSTLY, UnknownWord, named, unknown_share
from regard.look.panels import Panel

LABEL_WIDTH = 16  # columns for the target words
HEADER_HEIGHT = 12  # letters of a source word that is written downwards
SHADES = ((0.7, "█"), (0.45, "▓"), (0.2, "▒"), (0.05, "░"))  # weight from which a block is used
BLUE = Style(color="#4a86d8")  # shows on dark and on light terminals
FAINT, UNDERLINED = Style(dim=True), Style(underline=True)
SHOWN_WORDS = 60  # of longer texts only the unknown words are printed


def print_alignment(
    panel: Panel, links: Iterable[tuple[int, int]] = (), console: Console | None = None, *, width: int | None = None
) -> None:
    """Print the heat map of a word alignment and, below it, one arrow for each link."""
    console = console or Console()
    coloured = console.is_terminal and not console.no_color and console.encoding.startswith("utf")
    room = min(width or console.width, console.width)
    targets, sources = panel.queries.labels(), panel.keys.labels()
    lines = alignment_table(panel.weights[0], targets, sources, width=room, coloured=coloured)
    arrows = arrow_line(links, sources, targets, arrow="→" if coloured else "->")
    for line in lines:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    if arrows:
        console.print(Text(arrows))


def print_unknown(text: str, unknown: Sequence[UnknownWord], console: Console | None = None) -> None:
    """Print on stderr the words that a model does not know: underlined on a terminal, elsewhere between asterisks."""
    console = console or Console(stderr=True)
    share, words = unknown_share(text, unknown), sum(1 for _ in text.split())
    lead = "regard: warning: mostly unknown to this model" if share >= MOSTLY else "regard: unknown to this model"
    line = Text(f"{lead}, {share:.0%} of the text: ")
    if words > SHOWN_WORDS:
        line.append(named(UnknownWord(_clean(each.word), each.start, each.end) for each in unknown))
    else:
        line.append_text(_marked(text, unknown, underlined=console.is_terminal))
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _marked(text: str, unknown: Sequence[UnknownWord], *, underlined: bool) -> Text:
    marked, last = Text(), 0
    for word, start, end in unknown:
        marked.append(_clean(text[last:start]))
        marked.append(_clean(word) if underlined else f"*{_clean(word)}*", UNDERLINED if underlined else "")
        last = end
    return marked.append(_clean(text[last:]))


def alignment_table(
    weights: np.ndarray,
    target_words: Sequence[str],
    source_words: Sequence[str],
    *,
    width: int = 80,
    coloured: bool = True,
) -> list[Text]:
    """Target rows by source columns in lines of at most `width`: blocks, or without colour the tenths of each weight.

    A sentence with too many source words for one block continues in further blocks below.
    """
    targets = [_clean(word) for word in target_words]
    sources = [_clean(word) for word in source_words]
    label = min(max((cell_len(word) for word in targets), default=0), LABEL_WIDTH, width // 3)
    per_block = max(1, (width - label - 1) // 2)
    lines: list[Text] = []
    for first in range(0, len(sources), per_block):
        block = slice(first, first + per_block)
        cell = _cell_width(sources[block], width - label - 1)
        if lines:
            lines.append(Text())
        lines += [Text(" " * (label + 1) + row) for row in _header(sources[block], cell)]
        for word, row in zip(targets, weights[:, block], strict=True):
            lines.append(Text(_fit(word, label, align_right=True) + " ") + _cells(row, cell, coloured))
    return lines


def arrow_line(
    links: Iterable[tuple[int, int]], source_words: Sequence[str], target_words: Sequence[str], arrow: str = "→"
) -> str:
    """Links as `we→estamos eating→comiendo`."""
    return " ".join(f"{_clean(source_words[source])}{arrow}{_clean(target_words[target])}" for source, target in links)


def _clean(word: str) -> str:
    """The word without control characters, which could change the state of the terminal."""
    composed = unicodedata.normalize("NFC", word)
    return "".join(letter if letter.isprintable() else "?" for letter in composed)


def _cell_width(words: Sequence[str], room: int) -> int:
    """As wide as the widest word if all fit side by side, else two columns under words written downwards."""
    widest = max(max((cell_len(word) for word in words), default=1) + 1, 4)
    return widest if widest * len(words) <= room else 2


def _header(words: Sequence[str], cell: int) -> list[str]:
    if cell > 2:
        return ["".join(_fit(word, cell - 1) + " " for word in words)]
    downwards = [_letters(_shorten(word, HEADER_HEIGHT)) for word in words]
    height = max(len(letters) for letters in downwards)
    padded = [[""] * (height - len(letters)) + letters for letters in downwards]
    return ["".join(_fit(letter, cell) for letter in row) for row in zip_longest(*padded, fillvalue="")]


def _letters(word: str) -> list[str]:
    """Letters with their combining marks."""
    letters: list[str] = []
    for character in word:
        if letters and cell_len(character) == 0:
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def _shorten(word: str, length: int) -> str:
    letters = _letters(word)
    return word if len(letters) <= length else "".join(letters[: length - 1]) + "."


def _fit(word: str, width: int, *, align_right: bool = False) -> str:
    if cell_len(word) > width:
        return set_cell_size(word, width - 1) + "." if width > 1 else set_cell_size(word, width)
    padding = " " * (width - cell_len(word))
    return padding + word if align_right else word + padding


def _cells(row: np.ndarray, cell: int, coloured: bool) -> Text:
    text = Text()
    for weight in row:
        if coloured:
            block = next((shade for least, shade in SHADES if weight >= least), None)
            text.append((block or "·") * (cell - 1) + " ", BLUE if block else FAINT)
        else:
            tenths = min(9, int(float(weight) * 10 + 0.5))  # rounded; a dot for less than 0.05
            text.append(f"{tenths or '.':<{cell}}")
    return text

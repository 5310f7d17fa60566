"""How often the language of a text is told right, by the length of the text: where a warning about it is worth having.

    python bench/languages.py FOLDER

FOLDER has pairs `en-XX.dev.tsv.gz` (Tatoeba's). Every sentence is given to a model that reads its language, where any
warning is wrong, and to one that reads each of the other languages, where the warning should name the right one.
"""

import argparse
from pathlib import Path
from random import Random

from regard.data.formats.pairs import read_pairs
from regard.documents.language_id import choose_language, foreign_language, letters

EDGES = (0, 5, 10, 15, 20, 25, 30, 40, 50, 70, 100, 10_000)  # letters


def sentences(folder: Path, most: int) -> dict[str, list[str]]:
    """Distinct sentences by language."""
    found: dict[str, dict[str, None]] = {}
    for file in sorted(folder.glob("en-*.dev.tsv.gz")):
        other = file.name[3:5]
        for pair in read_pairs(file, "en", other):
            found.setdefault("en", {})[pair.source] = None
            found.setdefault(other, {})[pair.target] = None
    return {code: Random(1).sample(sorted(texts), min(most, len(texts))) for code, texts in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sentences", type=int, default=1500, help="most of a language")
    asked = parser.parse_args()
    by_language = sentences(asked.folder, asked.sentences)
    counts = {low: [0] * 6 for low in EDGES[:-1]}
    for code, texts in by_language.items():
        others = [each for each in by_language if each != code]
        for number, text in enumerate(texts):
            row = counts[max(low for low in EDGES[:-1] if low <= letters(text))]
            own, other = [code], [others[number % len(others)]]
            guess, said = choose_language(text, other).language, foreign_language(text, other)
            row[0] += 1
            row[1] += choose_language(text, own).language != code
            row[2] += guess == code
            row[3] += foreign_language(text, own) != ""
            row[4] += said != ""
            row[5] += said == code
    print("letters      sentences | any guess: own taken for another, other named | warned: own, other; of these right")
    for (low, (count, strange, named, false, warned, right)), high in zip(counts.items(), EDGES[1:], strict=True):
        if count:
            shares = (strange / count, named / count, false / count, warned / count, right / max(warned, 1))
            print(f"{low:4} to {high - 1:4}  {count:9,} |", *(f"{each:8.2%}" for each in shares))


if __name__ == "__main__":
    main()

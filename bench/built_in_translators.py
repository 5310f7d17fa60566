"""The translators that the package brings, made from their recipes: trained, stored in int8, measured, and installed.

    python bench/built_in_translators.py runs/built-in --device cuda                     # both at once on one GPU
    python bench/built_in_translators.py runs/built-in --device cuda --minutes 20        # stops in time; goes on later
    python bench/built_in_translators.py runs/built-in --install                         # into this package, if whole

Every stage is a command of `regard`, is printed, and is skipped where its result is there: an interrupted training
resumes. Figures go to FOLDER/figures.json: BLEU and chrF on the dev file of every direction, greedy and with beam 5, in
fp32 and in int8. The card of each model names its data, their licence, and these figures.
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from itertools import product
from pathlib import Path

from regard.data.sources import located

LANGUAGES = ("es", "pt", "fr", "de", "it")
RECIPES = {"en-many": "tatoeba-en-many", "many-en": "tatoeba-many-en"}
SHIPPED = Path(__file__).parents[1] / "src" / "regard" / "families" / "translation" / "shipped"
MOST_BYTES = 25 << 20  # of one model in the package
SOURCES = """Trained on Tatoeba's sentences with human translations: everyday sentences, CC BY 2.0 FR, from
[tatoeba.org](https://tatoeba.org), [ManyThings.org](https://www.manythings.org/anki/) and the
[Tatoeba Challenge](https://github.com/Helsinki-NLP/Tatoeba-Challenge) (Helsinki-NLP); and on greetings, names and
numbers of Regard's own phrasebook. No sentence of the Tatoeba Challenge's test sets was used.

Limits: everyday sentences, nine of ten with at most ten words. Long sentences and technical terms are translated worse,
and Portuguese is a mixture of Brazil's and Portugal's. What was learnt from volunteers' sentences may be wrong or
biased: do not rely on it where a mistake does harm.
"""


def regard(*words: str) -> list[str]:
    """A command line of this package, printed as one would type it."""
    print("regard", *words, flush=True)
    return [sys.executable, "-m", "regard", *words]


def train(folder: Path, device: str, sets: Sequence[str], minutes: float | None) -> bool:
    """Train both models at the same time; whether both are finished. The next call goes on with what the time cut."""
    running = []
    for name, recipe in RECIPES.items():
        run = folder / name
        if not (run / "manifest.json").is_file():
            resume = ["--resume"] if run.exists() else []
            options = [f"--set={each}" for each in (f"training.device={device}", *sets)]
            with (folder / f"{name}.log").open("a", encoding="utf-8") as log:
                running.append(subprocess.Popen(regard("train", recipe, "-o", str(run), *resume, *options), stderr=log))
    end = time.monotonic() + 60 * minutes if minutes else None
    for process in running:
        try:
            process.wait(max(1, end - time.monotonic()) if end else None)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)  # the run is saved
            process.wait()
    return all((folder / name / "manifest.json").is_file() for name in RECIPES)


def store(folder: Path) -> None:
    """Write both models as int8 rows and scales."""
    for name in RECIPES:
        if not (place := folder / f"{name}-int8").exists():
            subprocess.run(regard("convert", str(folder / name), str(place), "--store", "int8"), check=True)
        if (size := sum(file.stat().st_size for file in place.rglob("*") if file.is_file())) > MOST_BYTES:
            raise SystemExit(f"{place} has {size:,} bytes; at most {MOST_BYTES:,} go into the package")


def measure(folder: Path, count: int | None) -> dict[str, dict[str, float]]:
    """BLEU and chrF of every direction on its dev file: of the stored models, in fp32 and int8, greedy and beam 5."""
    file = folder / "figures.json"
    figures: dict[str, dict[str, float]] = json.loads(file.read_bytes()) if file.is_file() else {}
    for name, other, precision, beam in product(RECIPES, LANGUAGES, ("fp32", "int8"), (1, 5)):
        source, to = ("en", other) if name == "en-many" else (other, "en")
        key = f"{source}-{to} {precision} beam {beam}"
        if key not in figures:
            pairs = dev_pairs(folder, source, to, count)
            model, options = str(folder / f"{name}-int8"), ["--precision", precision, "--beam", str(beam), "--json"]
            words = regard("evaluate", str(pairs), "-m", model, "--from", source, "--to", to, *options)
            scores = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            figures[key] = {metric: round(scores[metric], 2) for metric in ("bleu", "chrf")}
            print(f"  BLEU {figures[key]['bleu']}, chrF {figures[key]['chrf']}", flush=True)
            file.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return figures


def dev_pairs(folder: Path, source: str, to: str, count: int | None) -> Path:
    """The dev file of a direction, with its languages named on the first line."""
    other = to if source == "en" else source
    with gzip.open(located(f"data:tatoeba/en-{other}.dev.tsv.gz"), "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines][:count]
    table = folder / f"dev-{source}-{to}.tsv"
    ordered = [(row[0], row[1]) if source == "en" else (row[1], row[0]) for row in rows]
    table.write_text("".join(f"{first}\t{second}\n" for first, second in [(source, to), *ordered]), encoding="utf-8")
    return table


def install(folder: Path, figures: dict[str, dict[str, float]]) -> None:
    """Copy the int8 models into the package, each with its card."""
    for name in RECIPES:
        place = SHIPPED / name
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(folder / f"{name}-int8", place)
        (place / "README.md").write_text(card(name, figures), encoding="utf-8")
        print(f"installed {place}", flush=True)


def card(name: str, figures: dict[str, dict[str, float]]) -> str:
    """A model card: data, licence, figures, limits."""
    mine = {key: scores for key, scores in figures.items() if key.startswith("en-") == (name == "en-many")}
    rows = [f"| {key} | {scores['bleu']} | {scores['chrf']} |" for key, scores in mine.items()]
    table = "\n".join(["| Direction | BLEU | chrF |", "|---|---|---|", *rows])
    return (
        f"# {name}: a translator of Regard\n\nMade by `regard train {RECIPES[name]}` (seed 1), stored in int8; "
        f"licence CC BY 2.0 FR, as its data. {date.today():%Y-%m-%d}.\n\n{SOURCES}\n## Dev files\n\n{table}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where runs, stored models and figures are kept")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, help="stop the trainings after so many minutes; call again to go on")
    parser.add_argument("--set", action="append", default=[], help="changes of both recipes, as of `regard train`")
    parser.add_argument("--count", type=int, help="measure on so many pairs of each dev file")
    parser.add_argument("--install", action="store_true", help="copy the models into this package")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if not train(given.folder, given.device, given.set, given.minutes):
        raise SystemExit(f"the trainings are not finished (logs: {given.folder}/*.log); the same command goes on")
    store(given.folder)
    figures = measure(given.folder, given.count)
    if given.install:
        install(given.folder, figures)


if __name__ == "__main__":
    main()

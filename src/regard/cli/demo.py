"""regard demo: the built-in translator at work, and a small one that learns before your eyes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from regard.families.translation.translator import Translator

LONGEST, COUNT = 12, 250  # words of the held-out sentences that are measured, and how many for each language
Asked = tuple[str, str]  # a sentence, and the language to translate it into
SENTENCES: tuple[Asked, ...] = (
    ("The book is on the table.", "es"),
    ("Lucas is visiting Rio in December.", "pt"),
    ("The agreement on the European Economic Area was signed in August 1992.", "fr"),
    ("Where is the train station?", "de"),
    ("We are eating bread.", "it"),
)
LECTURES: tuple[Asked, ...] = (("we are eating bread", "es"), ("Lucas is visiting Rio in December", "pt"))
NEXT = """
what to type next:
  regard translate "she is reading a book" --to es    # a sentence of yours
  regard serve                                        # the same in the browser, and every head
  regard train pairs-transformer --set data.train=pairs.tsv --set data.source=en --set data.target=es  # your pairs"""


def demo(
    text: Annotated[list[str] | None, typer.Argument(help="Your own sentences, after ours.")] = None,
    to: Annotated[str, typer.Option(help="The language of the translation, for your own sentences.")] = "es",
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the heat maps.")] = Path(),
) -> None:
    """Train a small translator (once), translate, and show where it looks; before that, the built-in one if it is here.

    Example: regard demo "the red house is big"
    """
    from regard.families.loading import load_pipeline
    from regard.families.translation.shipped import learner_folder, shipped_models

    own = [(each, to) for each in text or []]
    if shipped_models():
        print("the built-in translator:")
        _show(load_pipeline(), (*SENTENCES, *own), output / "built-in")
        own = []
    translator = _learnt()
    print("\nthe translator you have trained, on sentences that it has never seen:")
    _show(translator, (*LECTURES, *own), output / "trained")
    print(f"\n{_measured(translator)}\nmodel: {learner_folder()}\n{NEXT}")


def _show(translator: Any, asked: Iterable[Asked], files: Path) -> None:
    """Translate sentences, print their word alignments, and draw a heat map of each."""
    from regard.families.translation.view import inspect_translator
    from regard.look.save import save
    from regard.look.terminal import print_alignment

    for number, (sentence, to) in enumerate(asked, start=1):
        answer = translator.translate(sentence, to=to)
        print(f"\n{sentence}\n→ {answer.text}")
        report = inspect_translator(translator, sentence, to=to, target=answer.text).report()
        if report.alignment is not None:
            print_alignment(report.alignment, answer.alignment)
        print(f"heat map: {save(report, files.with_name(f'{files.name}-{number}.svg'))}", flush=True)


def _learnt() -> Translator:
    """The small translator: trained now if it is missing, resumed if its training was interrupted."""
    from regard.families.translation.shipped import LEARNER, learner_folder
    from regard.families.translation.translator import Translator

    folder = learner_folder()
    if not (folder / "manifest.json").is_file():
        from regard.training.loop import train
        from regard.training.recipe.load import load_recipe

        recipe = load_recipe(LEARNER)
        print(f"\na small translator learns from sentence pairs ({recipe.takes}):", flush=True)
        train(recipe, folder, resume=folder.exists())
    return Translator.load(folder)


def _measured(translator: Translator) -> str:
    """How good the translator is on held-out sentences of the phrasebook."""
    from regard.families.translation.evaluate import evaluate_pairs, held_out_pairs
    from regard.families.translation.shipped import LEARNER

    scores, _ = evaluate_pairs(translator, held_out_pairs(translator, LEARNER, max_words=LONGEST, count=COUNT))
    return (
        f"held-out sentences of up to {LONGEST} words: {scores['exact']:.1%} exactly right of {scores['sentences']}, "
        f"BLEU {scores['bleu']:.1f}, alignment error rate {scores['alignment_error_rate']:.3f}"
    )

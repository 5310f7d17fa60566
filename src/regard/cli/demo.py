"""regard demo: train, translate and look, in a few minutes on a laptop."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.verbs.inputs import Unknown


def demo(
    text: Annotated[list[str] | None, typer.Argument(help="Your own sentences, after ours.")] = None,
    to: Annotated[str, typer.Option(help="es or pt, for your own sentences.")] = "es",
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for the heat maps.")] = Path(),
) -> None:
    """Train the built-in translator (once), translate, and show where it looks.

    Example: regard demo "the red house is big"
    """
    from regard.families.loading import default_model
    from regard.families.translation.demo import EXAMPLES, about
    from regard.families.translation.evaluate import evaluate_pairs, held_out_pairs
    from regard.families.translation.translator import Translator
    from regard.families.translation.view import inspect_translation
    from regard.look.save import save
    from regard.look.terminal import print_alignment

    folder = default_model()
    translator = Translator.load(folder)
    unknown = Unknown(translator.unknown_words, typed=True, about=about([folder]))
    for number, (sentence, language) in enumerate([*EXAMPLES, *((each, to) for each in text or [])], start=1):
        answer = translator.translate(sentence, to=language)
        print(f"\n{sentence}\n→ {answer.text}")
        report = inspect_translation(translator, answer).report()
        if report.alignment is not None:
            print_alignment(report.alignment, answer.alignment)
        file = save(report, output / f"regard-demo-{number}.svg")
        print(f"heat map: {file}")
        unknown.note(sentence, answer.unknown)
    pairs = held_out_pairs(translator, "phrasebook", max_words=12, count=250, everyday=True)
    scores, _ = evaluate_pairs(translator, pairs)
    print(
        f"\nheld-out sentences of up to 12 words: {scores['exact']:.1%} exactly right of {scores['sentences']}, "
        f"BLEU {scores['bleu']:.1f}, alignment error rate {scores.get('alignment_error_rate', float('nan')):.3f}"
    )
    print(f'model: {folder}   try: regard translate "Good morning! Where is the train station?" --to es')

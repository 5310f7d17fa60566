"""The options of `regard evaluate` that translators have: held-out pairs, gold alignments, estimates of quality."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.families.translation.shipped import model_into
from regard.families.translation.verbs import Passes, Reverse, ask_opinions, load_translator
from regard.verbs.options import To, listed, located_file

if TYPE_CHECKING:
    from regard.data.formats.pairs import Pair
    from regard.families.contract import EvaluationOptions
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator

LONGEST = 60  # words of a sentence of the phrasebook


@dataclass(kw_only=True)
class TranslatorEvaluation:
    """How translators are measured."""

    of: ClassVar[str] = "models that translate"

    to: To = ""
    source: Annotated[str, typer.Option("--from", help="Source language, for models that read several.")] = ""
    min_words: Annotated[int, typer.Option(min=1, help="Phrasebook: shortest sentences.")] = 1
    max_words: Annotated[int, typer.Option(min=1, help="Phrasebook: longest sentences.")] = LONGEST
    gold: Annotated[
        str, typer.Option(help="Hand-made alignments, TSV: source, target, links (i-j sure, ipj possible).")
    ] = ""
    gold_first: Annotated[int, typer.Option(min=0, help="What the gold counts its words from.")] = 1
    backward: Annotated[str, typer.Option(help="A model of the opposite direction: align with both, merged.")] = ""
    merge: Annotated[
        str,
        typer.Option(
            help="How: mutual (of the mean weights), intersection, union, grow-diag, grow-diag-final, "
            "grow-diag-final-and (of the links)."
        ),
    ] = "mutual"
    layers: Annotated[
        bool, typer.Option("--layers", help="Also the AER of every layer and head, best first, against --gold.")
    ] = False
    strip_accents: Annotated[bool, typer.Option("--strip-accents", help="Remove accents from the gold text.")] = False
    quality: Annotated[
        bool, typer.Option("--quality", help="Also how well each estimate of quality follows the sentences' chrF.")
    ] = False
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Fit the estimate to these pairs; it is kept in the model's quality.json."),
    ] = False
    passes: Passes = 0
    reverse: Reverse = ""

    def measure(
        self, models: Sequence[str], data: str, options: EvaluationOptions, **loading: Any
    ) -> dict[str, object]:
        """BLEU, chrF and exact match on pairs; the alignment error rate against gold; estimates of quality."""
        from regard.families.translation import evaluate
        from regard.families.translation.metrics import direction_scores

        gold = located_file(self.gold)
        of_run = [] if data or gold else _held_out_of_run(models, self.to, self.source)
        self._check(models, bool(data or of_run), evaluate.MERGES)
        by_hand = evaluate.gold_pairs(gold, first=self.gold_first, strip_accents=self.strip_accents) if gold else []
        translator = load_translator(models or [model_into(self.to)], **loading)
        exact = {name: value for name, value in loading.items() if name != "precision"}
        ask_opinions(translator, self.passes, self.reverse, **exact)
        results: dict[str, object] = {}
        if data or of_run:
            pairs = of_run or evaluate.held_out_pairs(
                translator, data, self.to, source=self.source, count=options.count, min_words=self.min_words,
                max_words=self.max_words, seed=options.seed,
            )  # fmt: skip
            beam = {} if options.beam is None else {"beam": options.beam}
            results, answers = evaluate.evaluate_pairs(translator, pairs, options.measured, **beam)
            results |= direction_scores([answer.text for answer in answers], pairs)
            if self.quality or self.calibrate:
                results |= _estimates(translator, pairs, answers, models[0] if self.calibrate else "")
            if options.output:
                write_whole(options.output, "".join(f"{answer.text}\n" for answer in answers))
        if gold:
            merge: Any = self.merge  # one of the known ones, which was checked
            other = load_translator([self.backward], **exact) if self.backward else None
            results |= evaluate.evaluate_alignment(translator, by_hand, self.to, backward=other, merge=merge)
        if self.layers:
            results["layers"] = evaluate.error_rates_by_reading(translator, by_hand, self.to)
        return results

    def _check(self, models: Sequence[str], data: bool, merges: Sequence[str]) -> None:
        if not data and not self.gold:
            raise UsageError(
                "say what to measure on: pairs (a path or `phrasebook`), --gold FILE or --text FILE; only a run that "
                "still has its data is measured on its own held-out pairs"
            )
        if (self.backward or self.layers) and not self.gold:
            raise UsageError("--backward and --layers measure alignments; give hand-made ones with --gold FILE")
        if self.merge not in merges:
            raise UsageError(f"cannot merge by {self.merge!r}; expected {listed(merges)}")
        if (self.quality or self.calibrate) and not data:
            raise UsageError("--quality and --calibrate need held-out pairs: give a path or `phrasebook`")
        if (self.passes or self.reverse) and not (self.quality or self.calibrate):
            raise UsageError("--passes and --reverse are for estimates of quality; give --quality or --calibrate too")
        if self.calibrate and len(models) != 1:
            raise UsageError(f"--calibrate writes into the folder of one model, and {len(models)} were given with -m")


def _held_out_of_run(models: Sequence[str], to: str, source: str) -> list[Pair]:
    """The held-out pairs of the run that trained the only model; none if its folder has no data."""
    from regard.checkpoints.folder import local_folder
    from regard.families.translation.prepare import held_out_of_run

    pairs = held_out_of_run(local_folder(models[0]), to) if len(models) == 1 else []
    return [pair for pair in pairs if not source or source == pair.source_language]


def _estimates(
    translator: Translator, pairs: list[Pair], answers: list[Translation], calibrated: str
) -> dict[str, object]:
    """Correlations of the estimates of quality with chrF; with `calibrated`, fit the estimate of this model folder."""
    from regard.checkpoints.folder import local_folder, resolve
    from regard.families.translation.evaluate import calibrate, quality_correlations, sentence_chrf

    scores = sentence_chrf(answers, pairs)
    if calibrated:
        fitted = calibrate(translator, answers, scores)
        fitted.save(resolve(local_folder(calibrated)))
        print(f"the estimate of quality was fitted, and kept in {calibrated}/{fitted.file_name}", file=sys.stderr)
    return quality_correlations(translator, answers, scores)

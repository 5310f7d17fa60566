"""regard evaluate: measure a translator, its word alignments, a language model or a classifier."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.errors import UsageError
from regard.verbs.options import (
    AllowPickle,
    AsJson,
    DataRoot,
    Device,
    Models,
    Passes,
    Precision,
    Reverse,
    To,
    ask_opinions,
    input_of,
    load_translator,
    load_writer,
    located_file,
    refuse_given,
    use_data_root,
)

if TYPE_CHECKING:
    from regard.data.formats.pairs import Pair
    from regard.families.contract import Evaluate
    from regard.families.translation.translation import Translation
    from regard.families.translation.translator import Translator

LAYERS = "layers"  # key of the alignment error rates by layer
ON_ONE_LINE = 5  # numbers
LONGEST = 60  # words of a sentence of the phrasebook


def evaluate(
    data: Annotated[
        str,
        typer.Argument(
            help="Held-out pairs, labelled texts or images: a path, data:NAME as in recipes, `phrasebook` or `scenes`."
        ),
    ] = "",
    model: Models = [],  # noqa: B006 - typer's way to say "none given"
    to: To = "",
    beam: Annotated[int | None, typer.Option(help="Beam width. Default: the model's own.")] = None,
    count: Annotated[
        int, typer.Option(min=1, help="Built-in data: how many; of the phrasebook, per target language.")
    ] = 500,
    min_words: Annotated[int, typer.Option(min=1, help="Phrasebook: shortest sentences.")] = 1,
    max_words: Annotated[int, typer.Option(min=1, help="Phrasebook: longest sentences.")] = LONGEST,
    seed: Annotated[int, typer.Option(min=0, help="Built-in data: which draw.")] = 1,
    gold: Annotated[
        str, typer.Option(help="Hand-made alignments, TSV: source, target, links (i-j sure, ipj possible).")
    ] = "",
    gold_first: Annotated[int, typer.Option(min=0, help="What the gold counts its words from.")] = 1,
    backward: Annotated[str, typer.Option(help="A model of the opposite direction: align with both, merged.")] = "",
    merge: Annotated[
        str,
        typer.Option(
            help="How: mutual (of the mean weights), intersection, union, grow-diag, grow-diag-final, "
            "grow-diag-final-and (of the links)."
        ),
    ] = "mutual",
    layers: Annotated[
        bool, typer.Option("--layers", help="Also the AER of every layer and head, best first, against --gold.")
    ] = False,
    strip_accents: Annotated[bool, typer.Option("--strip-accents", help="Remove accents from the gold text.")] = False,
    quality: Annotated[
        bool, typer.Option("--quality", help="Also how well each estimate of quality follows the sentences' chrF.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Fit the estimate to these pairs; it is kept in the model's quality.json."),
    ] = False,
    passes: Passes = 0,
    reverse: Reverse = "",
    text: Annotated[str, typer.Option(help="A text file (also .gz): how well a language model predicts it.")] = "",
    stride: Annotated[
        int | None, typer.Option(min=1, help="With --text: tokens from one window to the next. Default: half a window.")
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Futures that a forecaster draws; the best is measured. Default: 20."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write the translations, or curves of precision (.png, .svg), here."),
    ] = None,
    as_json: AsJson = False,
    device: Device = "cpu",
    precision: Precision = "fp32",
    allow_pickle: AllowPickle = False,
    data_root: DataRoot = "",
) -> None:
    """Measure a translator on held-out pairs (BLEU, chrF, exact match) or its alignments against gold (AER), a language
    model on a text (perplexity), and any other model by the metrics of its kind: images, texts, captions, boxes,
    speech, paths, tracks, structures, pairs of proteins, dictionaries.

    Example: regard evaluate ../shared/data/multi30k/test_2016_flickr -m runs/en-de --beam 5
    Example: regard evaluate data:glue/RTE/dev.tsv.gz -m runs/glue-rte-minilm
    """
    from regard.families.translation import evaluate as translation

    use_data_root(data_root)
    data, gold, text = located_file(data), located_file(gold), located_file(text)
    if text:
        if data or gold or len(model) != 1:
            raise UsageError("--text measures one language model: give it with -m, and no pairs and no --gold")
        _print(translation.evaluate_text(load_writer(model[0], device, allow_pickle, precision), text, stride), as_json)
        return
    if model and all(_find_evaluation(each) for each in model):
        if precision != "fp32":
            raise UsageError("--precision is for models that write or translate; this one is measured in fp32")
        if not data:
            raise UsageError("say what to measure on: a file as in data.test, a table of labelled texts, or `scenes`")
        of_translators = {
            "--to": to, "--min-words": min_words > 1, "--max-words": max_words != LONGEST, "--gold": gold,
            "--backward": backward, "--layers": layers, "--strip-accents": strip_accents, "--quality": quality,
            "--calibrate": calibrate, "--passes": passes, "--reverse": reverse, "--stride": stride,
        }  # fmt: skip
        refuse_given(of_translators, f"is for models that translate or write, and {model[0]} does not")
        _print_evaluations(model, data, count, seed, beam, samples, output, device, allow_pickle, as_json)
        return
    if len(model) == 1 and (read := input_of(model[0])) != "text":
        raise UsageError(f"{model[0]} reads a file of kind {read!r}, and there is no evaluation of such a model")
    if not data and not gold:
        raise UsageError("say what to measure on: held-out pairs (a path or `phrasebook`), --gold FILE or --text FILE")
    if stride is not None:
        raise UsageError("--stride is for language models; give a text with --text FILE")
    if (backward or layers) and not gold:
        raise UsageError("--backward and --layers measure alignments; give hand-made ones with --gold FILE")
    if merge not in translation.MERGES:
        raise UsageError(f"cannot merge by {merge!r}; known: {', '.join(translation.MERGES)}")
    if (quality or calibrate) and not data:
        raise UsageError("--quality and --calibrate need held-out pairs: give a path or `phrasebook`")
    if (passes or reverse) and not (quality or calibrate):
        raise UsageError("--passes and --reverse are for estimates of quality; give --quality or --calibrate too")
    if calibrate and len(model) != 1:
        raise UsageError(f"--calibrate writes into the folder of one model, and {len(model)} were given with -m")
    by_hand = translation.gold_pairs(gold, first=gold_first, strip_accents=strip_accents) if gold else []
    translator = load_translator(model, device, allow_pickle, precision)
    ask_opinions(translator, passes, reverse, device, allow_pickle)
    results: dict[str, object] = {}
    if data:
        pairs = translation.held_out_pairs(
            translator, data, to, count=count, min_words=min_words, max_words=max_words, seed=seed
        )
        scores, answers = translation.evaluate_pairs(translator, pairs, **({} if beam is None else {"beam": beam}))
        results |= scores
        if quality or calibrate:
            results |= _estimates(translator, pairs, answers, model[0] if calibrate else "")
        if output:
            write_whole(output, "".join(f"{answer.text}\n" for answer in answers))
    if gold:
        other = load_translator([backward], device, allow_pickle) if backward else None
        results |= translation.evaluate_alignment(translator, by_hand, to, backward=other, merge=merge)
    if layers:
        results[LAYERS] = translation.error_rates_by_reading(translator, by_hand, to)
    _print(results, as_json)


def _estimates(
    translator: Translator, pairs: list[Pair], answers: list[Translation], calibrated: str
) -> dict[str, object]:
    """Correlations of the estimates of quality with chrF; with `calibrated`, fit the estimate of this model folder."""
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.families.translation.evaluate import calibrate, quality_correlations, sentence_chrf

    scores = sentence_chrf(answers, pairs)
    if calibrated:
        fitted = calibrate(translator, answers, scores)
        fitted.save(resolve(local_folder(calibrated)))
        print(f"the estimate of quality was fitted, and kept in {calibrated}/{fitted.file_name}", file=sys.stderr)
    return quality_correlations(translator, answers, scores)


def _find_evaluation(model: str) -> Evaluate | None:
    """The evaluation of a model in the catalog; None for the others."""
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.families.catalog import PIPELINES
    from regard.families.loading import find_pipeline

    entry = PIPELINES[find_pipeline(resolve(local_folder(model)))]
    return entry.load(entry.evaluate) if entry.evaluate else None


def _print_evaluations(
    models: list[str],
    data: str,
    count: int,
    seed: int,
    beam: int | None,
    samples: int | None,
    output: Path | None,
    device: str,
    allow_pickle: bool,
    as_json: bool,
) -> None:
    """Measure models one by one, print their metrics, and name what could not be read."""
    import regard
    from regard.checkpoints.folder import resolve
    from regard.checkpoints.hub import local_folder
    from regard.families.catalog import PIPELINES
    from regard.families.contract import EvaluationOptions

    results: dict[str, dict[str, object]] = {}
    unread: dict[str, None] = {}
    for model in models:
        evaluation, pipeline = _find_evaluation(model), regard.load(model, device=device, allow_pickle=allow_pickle)
        assert evaluation is not None
        taken = PIPELINES[pipeline.pipeline].evaluate_options
        if output and (len(models) > 1 or "output" not in taken):
            raise UsageError(
                "-o is for translations, or for the precision of one model that finds objects; leave it out"
            )
        others = {"--beam": "beam" not in taken and beam, "--samples": "samples" not in taken and samples}
        refuse_given(others, f"does not apply to {model}")
        drawn = {} if samples is None else {"samples": samples}
        options = EvaluationOptions(resolve(local_folder(model)), count, seed, beam, output, **drawn)
        found = evaluation(pipeline, data, options)
        results[model], unread = found.scores, unread | dict.fromkeys(found.unread)
    for each in unread:
        print(f"regard: {each}", file=sys.stderr)
    _print(results if len(models) > 1 else results[models[0]], as_json)
    if unread:
        raise typer.Exit(1)


def _print(results: Mapping[str, object], as_json: bool) -> None:
    from regard.data.tokenizers.unknown_words import MOSTLY

    share = results.get("unknown")
    if isinstance(share, float) and share >= MOSTLY:
        warnings.warn(f"{share:.0%} of what was measured on is unknown to this model", stacklevel=1)
    if as_json:
        print(json.dumps(results, ensure_ascii=False))
        return
    for line in _lines(results):
        print(line)


def _lines(results: Mapping[str, object], indent: str = "") -> Iterator[str]:
    """Metrics as lines: a few numbers of one subject on one line, groups below their names."""
    for key, value in results.items():
        name = f"{indent}{key}"
        if not isinstance(value, dict):
            yield f"{name:32} {value:.4f}" if isinstance(value, float) else f"{name:32} {value}"
        elif key != LAYERS and len(value) <= ON_ONE_LINE and all(isinstance(each, float) for each in value.values()):
            yield f"{name:32} {'  '.join(f'{inner} {each:.4f}' for inner, each in value.items())}"
        else:
            yield f"{name}, alignment error rate" if key == LAYERS else name
            yield from _lines(value, f"{indent}  ")

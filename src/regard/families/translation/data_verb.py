"""regard data: prepare the data of a recipe before training, and make more of them with a translator."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.errors import UsageError
from regard.families.translation.verbs import load_translator
from regard.verbs.options import (
    Beam,
    DataRoot,
    Device,
    Models,
    Precision,
    Sets,
    To,
    as_command,
    existing,
    use_data_root,
)

data = typer.Typer(help="Work on data: prepare, backtranslate, distill.", rich_markup_mode=None)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a verb of `regard data`."""
    data.command(function.__name__)(as_command(function))
    return function


@dataclass(frozen=True)
class Making:
    """The options of all commands that make pairs with a translator."""

    output: Annotated[Path, typer.Option("-o", "--output", help="Where the pairs go: a .tsv or .jsonl file.")]
    model: Models = field(default_factory=list)
    to: To = ""
    beam: Beam = None
    max_ratio: Annotated[float, typer.Option(help="Drop pairs whose lengths in characters differ by more.")] = 3.0
    min_score: Annotated[
        float | None,
        typer.Option(help="Drop answers below this score, as `regard translate --json` gives it: 0 is best."),
    ] = None
    copies: Annotated[bool, typer.Option("--copies", help="Keep answers that are their input.")] = False
    any_language: Annotated[bool, typer.Option("--any-language", help="Keep answers that are in another language.")] = (
        False
    )
    device: Device = "cpu"
    precision: Precision = "fp32"

    @property
    def filters(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("max_ratio", "min_score", "copies", "any_language")}


@command
def prepare(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe (see `regard models`) or a TOML file.")],
    sets: Sets = [],  # noqa: B006 - typer's way to say "none given"
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Run folder. Default: runs/RECIPE.")] = None,
    data_root: DataRoot = "",
) -> None:
    """Read, filter and encode the data of a recipe into its run folder, as `regard train` would first of all.

    For corpora that take long, or machines that cost much: `regard train RECIPE -o OUT --resume` then trains at once.
    The encoded data are memory-mapped, so they may be larger than memory. The same command goes on with a preparation
    that was cut short, after the last stage it had finished.

    Example: regard data prepare pairs-transformer --set data.train=a.tsv --set data.source=en --set data.target=fr
    """
    from regard.training.loop import prepare as run
    from regard.training.recipe.load import load_recipe

    use_data_root(data_root)
    folder = out or Path("runs") / Path(recipe).stem
    print(run(load_recipe(recipe, sets), folder), file=sys.stderr)
    print(folder)


@command
def backtranslate(
    text: Annotated[str, typer.Argument(help="Text in the language to translate into, one sentence a line; also .gz.")],
    making: Making,
    tag: Annotated[str, typer.Option(help="Put before every source sentence; '' for none.")] = "<bt>",
    sample: Annotated[bool, typer.Option("--sample", help="Draw answers at random: more varied sources.")] = False,
    seed: Annotated[int, typer.Option(help="Of --sample: same seed, same answers.")] = 0,
) -> None:
    """Make training pairs from text in the target language, with a model that translates it back into the source.

    Train on them together with real pairs: `cat real.tsv made.tsv > all.tsv`. The tag tells a model which sources a
    machine wrote. The same command goes on where an interrupted one stopped; torchrun shares the work.

    Example: regard data backtranslate news.es -m runs/es-en -o made.tsv
    """
    changes: dict[str, Any] = {"sample": True, "seed": seed} if sample else {}
    _synthesise(text, making, changes, {"backwards": True, "tag": tag})


@command
def distill(
    corpus: Annotated[str, typer.Argument(help="Sentences one a line, or pairs (TSV, JSONL, TMX, …); also .gz.")],
    making: Making,
    n_best: Annotated[
        int, typer.Option(min=1, help="Of pairs: take the one of so many answers that is closest to the reference.")
    ] = 1,
) -> None:
    """Make training pairs of sentences and a teacher's translations of them, for a smaller and faster student.

    The same command goes on where an interrupted one stopped; torchrun shares the work.

    Example: regard data distill corpus.tsv -m runs/teacher --beam 5 -o distilled.tsv
    """
    from regard.data.formats.pairs import SUFFIXES
    from regard.data.formats.tables import format_of

    if n_best > 1 and format_of(Path(corpus)) not in SUFFIXES:
        raise UsageError(f"--n-best compares answers with references, but {corpus} has none; give a file of pairs")
    _synthesise(corpus, making, {}, {"backwards": False, "n_best": n_best})


def _synthesise(text: str, making: Making, changes: dict[str, Any], options: dict[str, Any]) -> None:
    """Make pairs with a translator, alone or as one of the processes that torchrun started."""
    import torch

    from regard.data.files import Parts
    from regard.families.translation.synthetic_pairs import AnswerFilters, Synthesis, check_output
    from regard.training.distributed import joined

    output, to, filters = making.output, making.to, making.filters
    changes |= {} if making.beam is None else {"beam": making.beam}
    check_output(output)
    source, kept = existing(text), AnswerFilters.parse(filters)
    translator = load_translator(making.model, device=making.device, precision=making.precision)
    translator.search_settings(changes)
    parts = Parts.of(output, source, models=making.model, to=to, search=changes, filters=filters, **options)
    synthesis = Synthesis(translator, translator.target_language(to), kept, changes=tuple(changes.items()), **options)
    with joined(torch.device("cpu")) as ranks:
        counts = synthesis.write(source, output, parts, ranks.wait)
        first = ranks.first
    if first:
        print(f"{_counted(counts)}, written to {output}", file=sys.stderr)


def _counted(counts: Counter[str]) -> str:
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items()) if count and reason != "kept")
    return f"{counts['kept']:,} pairs" + (f" (dropped: {dropped})" if dropped else "")

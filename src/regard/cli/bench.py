"""regard bench: Regard compared with other engines and with the limits of the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.data.files import write_whole
from regard.verbs.options import existing, finite, numbers

if TYPE_CHECKING:
    from regard.bench.run import Result


def bench(
    job: Annotated[str, typer.Argument(help="translate, train, generate or encode.")] = "translate",
    model: Annotated[
        str, typer.Option("-m", "--model", help="A trained model. Default: random weights of --shape.")
    ] = "",
    texts: Annotated[
        Path | None, typer.Option("-i", "--input", help="A text a line for -m. Default: phrasebook sentences.")
    ] = None,
    references: Annotated[
        Path | None, typer.Option("-r", "--reference", help="The translation of every line of -i: prints BLEU too.")
    ] = None,
    shape: Annotated[str, typer.Option(help="tiny, small (3+3 x 256), base (6+6 x 512); gpt2 for generate.")] = "small",
    batch: Annotated[str, typer.Option(help="How many at once, one measurement each. For train, 125.")] = "",
    beam: Annotated[str, typer.Option(help="Hypotheses of translate and generate, one measurement each.")] = "1,5",
    engines: Annotated[str, typer.Option(help="Only these beside regard, comma between.")] = "",
    seconds: Annotated[float, typer.Option(min=0, callback=finite, help="For each measurement.")] = 6.0,
    threads: Annotated[int, typer.Option(min=1, help="Of each engine.")] = 2,
    joeynmt_python: Annotated[
        str, typer.Option(help="For train: the Python of an environment that has JoeyNMT, to compare with.")
    ] = "",
    output: Annotated[Path | None, typer.Option("--json", help="Also write everything measured to this file.")] = None,
) -> None:
    """Time the same work in Regard and in other libraries, and compare what they compute.

    Use an otherwise idle machine; measurements that other processes disturbed are marked. Needs the extra `bench`.

    Example: regard bench translate -m runs/en-fr --batch 1,32 --beam 1,5 --json speed.json
    """
    from regard.bench.run import measure
    from regard.plan.machine import describe

    setting = describe(threads)
    weights = f"the weights of {model}" if model else f"random weights, shape {shape}"
    print(f"{job}: {weights}; " + "; ".join(f"{name} {value}" for name, value in setting.items()))
    results = []
    for result in measure(
        job, model=model, texts=_lines(texts), references=_lines(references), shape=shape,
        batches=numbers(batch or ("125" if job == "train" else "1,32"), ","), beams=numbers(beam, ","),
        engines=[name.strip() for name in engines.split(",") if name.strip()], seconds=seconds, threads=threads,
        joeynmt=joeynmt_python,
    ):  # fmt: skip
        _print(result)
        results.append(result.to_json())
    if output:
        document = {"setting": setting, "model": model, "shape": "" if model else shape, "results": results}
        write_whole(output, json.dumps(document, indent=2) + "\n")


def _lines(file: Path | None) -> list[str]:
    lines = existing(str(file)).read_text("utf-8").splitlines() if file else []
    return [line for line in lines if line.strip()]


def _print(result: Result) -> None:
    from regard.plan.plan import scaled

    beam = f", beam {result.beam}, {result.length} tokens" if result.length > 1 else ""
    print(f"\nbatch {result.batch}{beam}" + (f"  ({result.disturbed})" if result.disturbed else ""))
    for row in result.rows:
        if row.seconds is None or row.speed is None:
            print(f"  {row.engine:18}  {row.problem}")
        else:
            speed = "" if row.engine == "regard" else f"{row.speed:6.2f}x as fast as regard, {row.agreement}"
            bleu = "" if row.bleu is None else f"BLEU {row.bleu:5.2f}  "
            print(f"  {row.engine:18}{1000 * row.seconds:9.1f} ms  {bleu}{speed}")
    bound = {name: round(value) for name, value in result.lower_bound.items() if name != "seconds"}
    work = f"{scaled(bound['flops'])}FLOPs at {scaled(bound['flops_per_second'])}/s"
    moved = f"{scaled(bound['bytes'])}B at {scaled(bound['bytes_per_second'])}B/s"
    print(f"  {'at the very least':18}{1000 * result.lower_bound['seconds']:9.1f} ms  {work}, {moved}", flush=True)

"""Golden runs: every shipped recipe, trained for a few tiny steps, and what came out of it as exact numbers.

Two source trees that behave the same give the same file. So a change that must not change any result is proved in two
runs: one on the tree before it, one on the tree after it. Only the command line is used, and files that a run writes:

    python golden_runs.py --source before/src --data DATA --out before.json
    python golden_runs.py --source after/src --data DATA --out after.json --compare before.json

Both belong on one machine with one installation of torch: other processors round otherwise. All runs have one thread.
Without --source nothing is trained: --out is compared as it is.
"""

from __future__ import annotations

import argparse
import fnmatch
import gzip
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

TIMES = ("tokens_per_second", "seconds", "waiting")  # of a row of metrics.jsonl
LIMIT = int(os.environ.get("LIMIT", "300"))  # seconds; a run that takes longer is recorded as skipped
RUN = re.compile(r"runs/([\w-]+)")  # how recipes, and the tables below, name the folder of another run

# Files of the data folder of which only so much is read, because most of the time would pass with them: lines of texts
# and tables, members of archives, entries of JSON. All other files are read whole.
EXCERPTS = {
    "bccd/*.json": 3,
    "cifar10_jpeg/train.tar.gz": 200,
    "eth_ucy/*/students*.txt": 1500,
    "eth_ucy/*/*.txt": 160,
    "flickr8k/*_captions.tsv.gz": 60,
    "fsdd/recordings.tar.xz": 180,
    "glue/*/*.tsv.gz": 120,
    "multi30k/*.gz": 200,
    "ppi_yeast/pairs_*.tsv.gz": 120,
    "r2r/R2R_*.json.gz": 120,
    "tatoeba/*.tsv.gz": 200,
    "tatoeba_es_en/*.tsv.gz": 200,
    "tinyshakespeare/input.txt": 300,
    "wikitext2/*.txt.gz": 150,
    "word_alignment/hansards_*.tsv.gz": 200,
}

IMAGES = "training.batch=4"
FILES_OF_IMAGES = "data.count=32 data.split=20"
SCENES = "data.scenes.count=48 data.scenes.valid_count=12 data.scenes.test_count=8"
REGIONS = f"training.batch=8 {SCENES} data.skip_bad=true"
HOUSES = "training.batch=4 tokenizer.size=150"
TEXTS = "training.batch_tokens=256 tokenizer.size=300 data.block=32"

TRACKS = (
    "training.batch=16 training.samples=3 data.walkers.count=6 data.walkers.valid_count=1 data.walkers.test_count=1"
)

# What makes the recipes of a task quick.
TASKS = {
    "answers": "training.batch_tokens=256 data.count=60 data.held_out=10",
    "captioning": f"training.batch=4 training.validate_images=4 data.skip_bad=true {SCENES}",
    "classification": "training.batch_tokens=256",
    "detection": f"training.batch=1 {SCENES}",
    "dictionary": "training.batch=64 data.count=40 data.contexts=20",
    "folding": "training.batch=2 model.preset=tiny data.count=12",
    "forecast_sampler": TRACKS,
    "forecasting": TRACKS,
    "gan": f"{IMAGES} training.validate_pictures=16",
    "images": f"{IMAGES} {SCENES}",
    "interactions": "training.batch=2 data.longest=200",
    "language": TEXTS,
    "masked": TEXTS,
    "path_pairs": HOUSES,
    "paths": HOUSES,
    "pixels": f"{IMAGES} {SCENES} training.probe=20 training.validate_pictures=4",
    "pointing": REGIONS,
    "prompts": "training.batch_tokens=256 training.validate_sentences=4 tokenizer.size=300 data.count=60"
    " data.held_out=4",
    "questions": REGIONS,
    "retrieval": f"{REGIONS} data.pool=10",
    "segmentation": f"training.batch=8 {SCENES}",
    "spans": TEXTS,
    "speech": "training.batch=4 training.validate_utterances=4",
    "tags": "training.batch_tokens=256 data.count=60 data.held_out=10",
    "translation": "training.batch_tokens=256 training.validate_sentences=4 tokenizer.size=400 decoding.max_length=12"
    " data.phrasebook.count=120 data.phrasebook.valid_count=4 data.phrasebook.test_count=4",
    "vision_language": REGIONS,
    "words": "training.batch_tokens=256 tokenizer.min_frequency=1",
}

# What single recipes need beside that: data where they leave them open, and runs that they build on.
PAIRS = "data.train=data:tatoeba_es_en/train.tsv.gz data.source=en data.target=es"
RECIPES = {
    "adapt": f"tokenizer={{}} model.init=runs/pairs-transformer {PAIRS} data.old=data:tatoeba_es_en/dev.tsv.gz",
    "eth-ucy-agentformer-sampler": "model.init=runs/eth-ucy-agentformer",
    "cifar10-*": FILES_OF_IMAGES,
    "fashion-mnist-[!d]*": FILES_OF_IMAGES,
    "fashion-mnist-igpt": "data.judge=runs/fashion-mnist-resnet",
    "flickr8k-vilbert-retrieval": "model.init=runs/flickr8k-vilbert",
    "glue-[cms]*-minilm": "model.init=runs/wikitext2-bert",
    "houses-vlnbert": "model.init=runs/houses-vlnbert-pairs",
    "houses-vlnbert-pairs": "words.init=runs/houses-bert",
    "pairs-*": PAIRS,
    "r2r-vlnbert": "model.init=runs/r2r-vlnbert-pairs",
    "r2r-vlnbert-pairs": "words.init=runs/r2r-bert",
    "scenes-vilbert-retrieval": "model.init=runs/scenes-vilbert",
    "wikitext2-t5": "tokenizer.size=400",  # its hundred sentinels are pieces too
    "walkers-agentformer-sampler": "model.init=runs/walkers-agentformer",
}


# Which recipes there are, and what to change in them


def shipped(source: Path) -> dict[str, dict[str, Any]]:
    """The recipes below a source tree by their names, wherever their folders are."""
    files = sorted(source.glob("**/recipes/*.toml"))
    return {file.stem: tomllib.loads(file.read_text(encoding="utf-8")) for file in files}


def task_of(name: str, recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """The task of a recipe, or of the one that it is based on."""
    recipe = recipes[name]
    return recipe["task"] if "task" in recipe else task_of(recipe["base"], recipes)


def changes(name: str, task: str, steps: int) -> list[str]:
    """Everything that --set changes in a recipe; where a key is named twice, the later value counts."""
    every = (
        f"training.device=cpu training.workers=0 training.steps={steps} training.warmup=2 training.log_every=1"
        f" training.validate_every={steps} training.checkpoint_every={max(1, steps // 2)}"
    )
    own = [sets for pattern, sets in RECIPES.items() if fnmatch.fnmatchcase(name, pattern)]
    return " ".join([every, TASKS[task], *own]).split()


def needs(name: str, recipes: Mapping[str, Mapping[str, Any]], steps: int) -> list[str]:
    """The recipes whose run folders this one reads, by its own values or by those of --set."""
    sets = changes(name, task_of(name, recipes), steps)
    replaced = {key for key, _, _ in (each.partition("=") for each in sets)}
    values = [str(value) for key, value in flat(recipes[name]) if key not in replaced]
    return RUN.findall(" ".join([*values, *sets]))


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables with their dotted keys."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def in_order(names: Sequence[str], recipes: Mapping[str, Mapping[str, Any]], steps: int) -> list[str]:
    """The named recipes and those that they need, which come before them."""
    ordered: list[str] = []
    for name in names:
        before = in_order(needs(name, recipes, steps), recipes, steps)
        ordered += [each for each in [*before, name] if each not in ordered]
    return ordered


# Data


def excerpts(data: Path, folder: Path) -> None:
    """A data folder that holds parts of long files, and links to all others."""
    for file in sorted(path for path in data.rglob("*") if path.is_file()):
        name = file.relative_to(data).as_posix()
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        counts = [count for pattern, count in EXCERPTS.items() if fnmatch.fnmatchcase(name, pattern)]
        if not counts:
            place.symlink_to(file.resolve())
        elif ".tar" in file.suffixes:
            some_members(file, place, counts[0])
        elif ".json" in file.suffixes:
            some_entries(file, place, counts[0])
        else:
            first_lines(file, place, counts[0])


def first_lines(file: Path, place: Path, count: int) -> None:
    """The beginning of a text or a table."""
    with opened(file, "rb") as whole, opened(place, "wb") as part:
        part.writelines(itertools.islice(whole, count))


def some_members(file: Path, place: Path, count: int) -> None:
    """So many members of an archive, from its beginning to its end, so that all classes are there."""
    with tarfile.open(file) as whole, tarfile.open(place, f"w:{file.suffix.lstrip('.')}") as part:
        for member in spread(whole.getmembers(), count):
            part.addfile(member, whole.extractfile(member))


def some_entries(file: Path, place: Path, count: int) -> None:
    """So many entries of a list, or images of COCO's annotations."""
    with opened(file, "rb") as whole:
        content = json.load(whole)
    if isinstance(content, list):
        content = spread(content, count)
    else:
        content["images"] = spread(content["images"], count)
        kept = {image["id"] for image in content["images"]}
        content["annotations"] = [each for each in content["annotations"] if each["image_id"] in kept]
    with opened(place, "wb") as part:
        part.write(json.dumps(content).encode())


def opened(file: Path, mode: str) -> IO[bytes]:
    """A file or what is compressed in it."""
    return gzip.open(file, mode) if file.suffix == ".gz" else file.open(mode)


def spread(values: Sequence[Any], count: int) -> list[Any]:
    """So many of the values at even distances."""
    return list(values[:: max(1, len(values) // count)][:count])


# One run


def train(name: str, sets: Sequence[str], source: Path, work: Path) -> str:
    """Train a recipe in the folder `work`, into runs/NAME; returns why it failed, or nothing."""
    command = [sys.executable, "-m", "regard", "train", name, "--out", f"runs/{name}"]
    command += [part for each in sets for part in ("--set", each)]
    own = {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1", "REGARD_DATA": "data"}
    try:
        ended = subprocess.run(
            command, cwd=work, env={**os.environ, **own}, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return f"it ran for more than {LIMIT} seconds"
    if ended.returncode == 0:
        return ""
    told = ended.stderr.strip().splitlines() or [f"it ended with {ended.returncode}"]
    return told[-1]


def recorded(run: Path) -> dict[str, Any]:
    """What a run left behind, without its times: exact losses and metrics, and hashes of all that it wrote."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [repr(row["loss"]) for row in rows if row["kind"] == "train"]
    rest = {row["kind"]: exact(row) for row in rows if row["kind"] not in ("train", "samples", "run")}
    return {
        "losses": losses,
        "metrics": rest,
        "weights": weights_hash(run / "model.safetensors"),
        "log": text_hash([exact(row) for row in rows]),
        "files": {
            file.relative_to(run).as_posix(): file_hash(file)
            for file in sorted(run.rglob("*"))
            if file.is_file() and belongs(file.relative_to(run).as_posix())
        },
    }


def exact(row: Mapping[str, Any]) -> dict[str, str]:
    """The values of a row as Python writes them, which is exact for floats."""
    return {name: repr(value) for name, value in row.items() if name not in TIMES}


def belongs(name: str) -> bool:
    """Whether a file of a run is compared byte by byte: it has no times in it, and no other entry covers it."""
    apart = ("metrics.jsonl", "manifest.json", "model.safetensors", ".lock")
    return not name.startswith(("checkpoints/", "tensorboard/")) and Path(name).name not in apart


def weights_hash(file: Path) -> str:
    """SHA-256 of the tensors of a safetensors file: their sorted names, types, shapes and bytes."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, tensors = json.loads(content[8 : 8 + size]), memoryview(content)[8 + size :]
    found = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        entry = header[name]
        begin, end = entry["data_offsets"]
        found.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
        found.update(tensors[begin:end])
    return found.hexdigest()


def file_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def text_hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


# All runs


def golden(source: Path, data: Path, work: Path, out: Path, names: Sequence[str], steps: int) -> dict[str, Any]:
    """Train all recipes, or the named ones, and write what came out after each of them."""
    recipes = shipped(source)
    if unknown := sorted(set(names) - recipes.keys()):
        raise SystemExit(f"there is no recipe {', '.join(unknown)} below {source}")
    excerpts(data, work / "data")
    results: dict[str, Any] = {}
    for name in in_order(names or sorted(recipes), recipes, steps):
        began = processor_seconds()
        result = one(name, recipes, source, work, steps)
        results[name] = result
        out.write_text(json.dumps(dict(sorted(results.items())), indent=1), encoding="utf-8")
        told = result.get("skipped") or f"losses {' '.join(loss[:8] for loss in result['losses'])}"
        print(f"{len(results):3}  {processor_seconds() - began:5.1f} s  {name}: {told}", flush=True)
    return results


def processor_seconds() -> float:
    """CPU time of all runs so far: it hardly depends on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one(name: str, recipes: Mapping[str, Mapping[str, Any]], source: Path, work: Path, steps: int) -> dict[str, Any]:
    """The result of one recipe, or why it has none."""
    missing = [
        each for each in needs(name, recipes, steps) if not (work / "runs" / each / "model.safetensors").exists()
    ]
    if missing:
        return {"skipped": f"there is no run of {', '.join(missing)}"}
    shutil.rmtree(work / "runs" / name, ignore_errors=True)
    failed = train(name, changes(name, task_of(name, recipes), steps), source, work)
    if failed:
        return {"skipped": failed}
    result = recorded(work / "runs" / name)
    for folder in ("checkpoints", "data"):
        shutil.rmtree(work / "runs" / name / folder, ignore_errors=True)
    return result


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """One line for each recipe whose results are not the same."""
    lines = []
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            lines.append(f"{name}: only in the {'second' if name in second else 'first'} file")
            continue
        one, other = first[name], second[name]
        keys = [key for key in sorted(one.keys() | other.keys()) if one.get(key) != other.get(key)]
        if keys:
            lines.append(f"{name}: {'; '.join(told(key, one.get(key), other.get(key)) for key in keys)}")
    return lines


def told(key: str, one: Any, other: Any) -> str:
    """How the values of a key differ, in short."""
    if key == "files" and one and other:
        return (
            f"files {', '.join(name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))}"
        )
    return f"{key} {shortened(one)} and {shortened(other)}"


def shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 100 else f"{text[:100]}…"


def compare(out: Path, other: Path, names: Sequence[str]) -> int:
    """Print what differs between two files; the number of recipes for which something does."""
    first, second = (json.loads(file.read_text(encoding="utf-8")) for file in (other, out))
    if names:
        first = {name: value for name, value in first.items() if name in second}
    lines = differences(first, second)
    print("\n".join(lines) or f"{len(second)} recipes: all results are the same")
    return len(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="names of recipes; default: all")
    parser.add_argument("--source", type=Path, help="the folder that holds the package regard, such as src")
    parser.add_argument("--data", type=Path, help="the data folder; default: that of REGARD_DATA")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument("--compare", type=Path, help="the JSON file of another tree; the exit status tells differences")
    parser.add_argument("--steps", type=int, default=4, help="updates of each run")
    parser.add_argument("--work", type=Path, help="a folder that keeps the runs; default: a temporary one")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    if given.source:
        data = given.data or Path(os.environ["REGARD_DATA"])
        with tempfile.TemporaryDirectory() as temporary:
            work = given.work or Path(temporary)
            golden(given.source, data, work, given.out, given.recipes, given.steps)
    return min(1, compare(given.out, given.compare, given.recipes)) if given.compare else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""A model's name occurs only in its own file, in the two catalogs and in a few kinds of tables."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import regard
from regard.checkpoints import tables
from regard.inference.pipelines.catalog import FEATURES, PIPELINES, TEXT
from regard.layers.vision import BackboneConfig
from regard.look.adapters.catalog import FILE_ADAPTERS
from regard.models.catalog import MODELS, models_for, models_run_by
from regard.training.tasks.catalog import TASKS

SOURCE = Path(regard.__file__).parent
TABLES = (  # files and folders with one row, or one file, for each model
    "models/catalog.py",
    "inference/pipelines/catalog.py",
    "studies/costs/models.py",
    "studies/costs/images.py",
    "checkpoints/tables.py",
    "checkpoints/marian.py",  # the name table of the Marian layout, which also needs code
    "mappings",
    "recipes",
    "training/recipe",  # the default model of each task
    "training/tasks",  # recipes of tasks name a default model
    "studies/lectures",  # claims compare models
)
CELL = "the kind of a recurrent cell"
FINDER = "a way of finding regions"
KERNEL = "the kernel whose time is measured"
EXCEPTIONS = {  # (file, name): the meaning of the word there
    ("data/vision_language/finders.py", "detector"): FINDER,
    ("layers/agents.py", "lstm"): CELL,
    ("layers/recurrent.py", "lstm"): CELL,
    ("models/elmo.py", "lstm"): CELL,
    ("models/path_lstm.py", "lstm"): CELL,
    ("models/seq2seq.py", "lstm"): CELL,
    ("studies/costs/captions.py", "transformer"): "the kind of a decoder",
    ("studies/costs/parts.py", "lstm"): KERNEL,
    ("studies/costs/recurrent.py", "lstm"): KERNEL,
    ("studies/costs/machine_limits.py", "lstm"): KERNEL,
    ("cli/plan.py", "lstm"): KERNEL,
    ("models/detector.py", "resnet"): "the body of a preset",
    ("models/detector.py", "swin"): "the body of a preset",
    ("models/detector.py", "vit"): "the body of a preset",
    ("models/segmenter.py", "resnet"): "the body of a preset",
    ("models/segmenter.py", "swin"): "the body of a preset",
    ("models/segmenter.py", "vit"): "the body of a preset",
    ("models/captioner.py", "lstm"): CELL,
    ("models/captioner.py", "resnet"): "the body of a preset",
    ("models/captioner.py", "transformer"): "the kind of a decoder",
    ("inference/conversion.py", "word2vec"): "a file format",
    ("cli/convert.py", "word2vec"): "a file format",
    ("inference/pipelines/sentence_embedding.py", "bert"): "a part of file names of sentence-transformers",
    ("studies/bench/joey_step.py", "transformer"): "a value in the configuration of JoeyNMT",
    ("studies/bench/run.py", "bert"): "what a job of the benchmark measures",
    ("studies/bench/run.py", "gpt"): "what a job of the benchmark measures",
    ("studies/bench/run.py", "transformer"): "what a job of the benchmark measures",
}


WHOLE_NAMES = re.compile(rf"(?<![\w/-])(?:{'|'.join(MODELS)})(?![\w/-])")


def names_in(text: str) -> set[str]:
    """The models that a text names as whole words. Parts of Hugging Face's names (google-bert/…) do not count."""
    return set(WHOLE_NAMES.findall(text))


def named_in_python(source: str) -> set[str]:
    """The models that code names, in strings and keywords. Docstrings and comments do not count."""
    tree = ast.parse(source)
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node) is not None
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found |= names_in(node.value)
        elif isinstance(node, ast.keyword) and node.arg in MODELS:
            found.add(node.arg)
    return found


def named_in(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return named_in_python(text)
    return names_in(re.sub(r"/\*.*?\*/|<!--.*?-->|//[^\n]*", "", text, flags=re.DOTALL))


@cache
def misplaced(root: Path) -> set[tuple[str, str]]:
    """Every (file, model) where the file names the model but is neither the model's own nor one of the tables."""
    found = set()
    for file in sorted(path for suffix in ("py", "js", "html") for path in root.rglob(f"*.{suffix}")):
        place = file.relative_to(root).as_posix()
        if not any(place == table or place.startswith(f"{table}/") for table in TABLES):
            found |= {(place, name) for name in named_in(file) if place != f"models/{name}.py"}
    return found


def test_models_are_named_in_their_files_and_tables_alone():
    assert misplaced(SOURCE) - EXCEPTIONS.keys() == set()


def test_every_exception_is_needed():
    assert EXCEPTIONS.keys() - misplaced(SOURCE) == set()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('KINDS = {"bert": 1}', {"bert"}),
        ('if name == "t5":\n    pass', {"t5"}),
        ('raise ValueError(f"{name}: expected a gpt or lstm")', {"gpt", "lstm"}),
        ("dict(sagan=1)", {"sagan"}),
        ('"""A bert reads texts."""\nx = 1  # as a gpt does', set()),
        ('example = "hf:google-bert/bert-base-uncased"', set()),
        ('x = "vitality"', set()),
    ],
)
def test_the_search_finds_names_in_code_and_not_in_prose(source, found):
    assert named_in_python(source) == found


def test_the_search_finds_names_in_scripts(tmp_path):
    (tmp_path / "a.js").write_text('const T = { transformer: "T" }; // swin\nif (x === "t5") go();\n')
    assert misplaced(tmp_path) == {("a.js", "transformer"), ("a.js", "t5")}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_pipeline_and_tasks(name):
    entry = MODELS[name]
    assert entry.title and entry.pipeline in PIPELINES
    assert set(entry.tasks) <= set(TASKS)
    assert entry.tasks or name in {tables.read_table(each).model for each in tables.TABLES}, (
        "neither trained nor read from elsewhere"
    )
    assert set(entry.vocabulary) <= {"", *entry.presets}
    assert name in models_run_by(entry.pipeline) and all(name in models_for(task) for task in entry.tasks)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_trains_a_model(task):
    assert models_for(task)


@pytest.mark.parametrize("key", PIPELINES)
def test_every_pipeline_exists_and_runs_a_model(key):
    pipeline = PIPELINES[key]
    assert callable(pipeline.load_class().load)
    assert models_run_by(key) or key in {each.for_images for each in PIPELINES.values()}
    if not pipeline.not_served and pipeline.input not in (TEXT, FEATURES):
        assert key in FILE_ADAPTERS  # the page shows the answer and the attention that an adapter makes


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if issubclass(entry.config, BackboneConfig)])
def test_image_configs_know_the_maps_of_their_models(name):
    import torch

    entry = MODELS[name]
    for size in (28, 32, 37):
        config = entry.config.parse({**entry.presets["tiny"], "image_size": size, "channels": 1, "classes": 2})
        maps = entry.model(config).eval().features(torch.zeros(1, 1, size, size))
        assert [each.shape[1] for each in maps] == config.map_widths()
        assert [each.shape[2] for each in maps] == config.map_sides()

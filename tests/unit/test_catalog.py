"""The catalog: every name stands for something, and models, tasks and pipelines fit together."""

import pytest

from regard.checkpoints import tables
from regard.families.catalog import FAMILIES, MODELS, PIPELINES, TASKS, Row, family, imported, models_for, models_run_by
from regard.families.contract import FEATURES, TEXT
from regard.layers.vision import BackboneConfig


@pytest.mark.parametrize("name", FAMILIES)
def test_the_row_of_a_family_lists_what_it_brings(name):
    brought, row = family(name), FAMILIES[name]
    for part in Row._fields:
        assert set(getattr(row, part).split()) == set(getattr(brought, part)), part
    for path in brought.figures.values():
        assert callable(imported(path))
    for verb in brought.verbs.values():
        assert callable(verb.verb)


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
        assert pipeline.view  # the page shows the answer and the attention that a view makes


@pytest.mark.parametrize("name", [name for name, entry in MODELS.items() if issubclass(entry.config, BackboneConfig)])
def test_image_configs_know_the_maps_of_their_models(name):
    import torch

    entry = MODELS[name]
    for size in (28, 32, 37):
        config = entry.config.parse({**entry.presets["tiny"], "image_size": size, "channels": 1, "classes": 2})
        maps = entry.model(config).eval().features(torch.zeros(1, 1, size, size))
        assert [each.shape[1] for each in maps] == config.map_widths()
        assert [each.shape[2] for each in maps] == config.map_sides()

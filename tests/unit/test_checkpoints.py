"""Model folders: written completely or not at all, and loaded with exactly the saved tensors."""

import errno
import hashlib
import json
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from regard import checkpoints
from regard.checkpoints import folder as folders
from regard.checkpoints import models, weights
from regard.checkpoints.int8 import from_int8, quantize_rows, to_int8
from regard.errors import CheckpointError
from regard.families.catalog import MODELS
from regard.families.language.word_vectors import Word2Vec
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.runtime.convert import fast_model

SMALL = TransformerConfig(
    source_vocab=11, target_vocab=13, width=8, heads=2, encoder_depth=1, decoder_depth=1, ffn_width=8
)


def text(content):
    return lambda folder: (folder / "a.txt").write_text(content) and None


def nested(folder):
    (folder / "train_state").mkdir()
    (folder / "train_state" / "b.bin").write_bytes(b"\x00\x01")
    (folder / "a.txt").write_text("first")


def hidden(parent):
    return [path.name for path in parent.iterdir() if path.name.startswith(".")]


# --- folders ---


def test_the_manifest_holds_size_and_sha256_of_every_file(tmp_path):
    checkpoints.write_folder(tmp_path / "m", nested)
    listed = json.loads((tmp_path / "m" / "manifest.json").read_text())["files"]
    assert listed == {
        "a.txt": {"size": 5, "sha256": hashlib.sha256(b"first").hexdigest()},
        "train_state/b.bin": {"size": 2, "sha256": hashlib.sha256(b"\x00\x01").hexdigest()},
    }
    checkpoints.verify(tmp_path / "m")
    assert hidden(tmp_path) == []


def test_a_folder_is_replaced_whole(tmp_path):
    checkpoints.write_folder(tmp_path / "m", nested)
    checkpoints.write_folder(tmp_path / "m", text("second"))
    checkpoints.verify(tmp_path / "m")
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["a.txt", "manifest.json"]
    assert hidden(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "raised", "says"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            CheckpointError,
            "disk .* is full: needed more than 4 bytes, free [0-9,]+;",
        ),
        (OSError(errno.EACCES, "Permission denied"), CheckpointError, "cannot be written: .*Permission denied"),
        (RuntimeError("something else"), RuntimeError, "something else"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failed_write_leaves_the_old_folder_and_nothing_else(fault, raised, says, tmp_path):
    checkpoints.write_folder(tmp_path / "m", text("old"))

    def fail(folder):
        (folder / "a.txt").write_text("half")
        raise fault

    with pytest.raises(raised, match=says):
        checkpoints.write_folder(tmp_path / "m", fail)
    checkpoints.verify(tmp_path / "m")
    assert (tmp_path / "m" / "a.txt").read_text() == "old"
    assert hidden(tmp_path) == []


def test_too_little_space_is_found_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointError, match=r"is full: needed 1,000,000,000,000,000,000 bytes, free [\d,]+"):
        checkpoints.write_folder(tmp_path / "m", text("never"), needs=10**18)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_are_cleared_but_not_work_in_progress(tmp_path):
    dead, alive = tmp_path / ".m.0123abcd.writing", tmp_path / ".m.4567abcd.writing"
    dead.mkdir()
    alive.mkdir()
    with folders._lock(alive):
        checkpoints.write_folder(tmp_path / "n", text("new"))
        assert hidden(tmp_path) == [alive.name]


def test_a_writer_killed_between_the_two_renames_loses_nothing(tmp_path):
    checkpoints.write_folder(tmp_path / "m", text("old"))
    (tmp_path / "m").rename(tmp_path / ".m.0123abcd.replaced")
    assert checkpoints.resolve(tmp_path / "m") == tmp_path / "m"
    checkpoints.verify(tmp_path / "m")


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda m: (m / "a.txt").write_text("forst"), r"a\.txt is damaged, or was edited: its SHA-256"),
        (lambda m: (m / "a.txt").write_text("firs"), r"a\.txt is damaged: it has 4 bytes instead of 5"),
        (lambda m: (m / "train_state" / "b.bin").unlink(), r"b\.bin is missing"),
        (lambda m: (m / "manifest.json").write_text("{}"), r"manifest\.json is damaged"),
        (lambda m: (m / "manifest.json").write_text("[" * 100_000), r"manifest\.json cannot be read"),
        (lambda m: (m / "manifest.json").unlink(), r"manifest\.json is missing"),
    ],
)
def test_verify_names_the_damaged_file(damage, named, tmp_path):
    checkpoints.write_folder(tmp_path / "m", nested)
    damage(tmp_path / "m")
    with pytest.raises(CheckpointError, match=named):
        checkpoints.verify(tmp_path / "m")


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
def test_a_manifest_may_only_name_files_inside_its_folder(name, tmp_path):
    entry = {"size": 1, "sha256": "0" * 64}
    (tmp_path / "manifest.json").write_bytes(folders._render({name: entry}))
    with pytest.raises(CheckpointError, match="only files inside the folder"):
        checkpoints.verify(tmp_path)


def run_with_steps(run, *steps):
    for step in steps:
        checkpoints.write_folder(run / "checkpoints" / f"step-{step:08}", text(f"at {step}"))
    return [run / "checkpoints" / f"step-{step:08}" for step in steps]


def test_checkpoints_come_newest_first_and_damaged_ones_are_passed_over(tmp_path):
    first, second, third, fourth = run_with_steps(tmp_path, 5, 20, 100, 1000)
    assert checkpoints.complete_checkpoints(tmp_path) == [fourth, third, second, first]
    (fourth / "a.txt").write_text("")  # detected by its size
    (third / "a.txt").write_text("at 101")  # detected only by its hash
    assert checkpoints.complete_checkpoints(tmp_path) == [third, second, first]
    assert checkpoints.newest_complete(tmp_path) == second
    assert checkpoints.newest_complete(tmp_path / "elsewhere") is None


def test_publishing_leaves_out_the_training_state_and_keeps_what_else_the_run_holds(tmp_path):
    run = tmp_path / "run"
    checkpoints.write_folder(run / "checkpoints" / "step-00000001", nested)
    (run / "metrics.jsonl").write_text("{}")
    checkpoints.publish(run / "checkpoints" / "step-00000001", run)
    checkpoints.verify(run)
    assert sorted(path.name for path in run.iterdir()) == ["a.txt", "checkpoints", "manifest.json", "metrics.jsonl"]
    assert checkpoints.resolve(run) == run


def with_notes(folder):
    nested(folder)
    (folder / "README.md").write_text("a card")
    (folder / "metrics.jsonl").write_text("{}")


def name_notes_in_the_manifest(folder):
    """As earlier versions wrote the manifest."""
    entries = {name: folders._read_manifest(folder)[name] for name in ("a.txt", "train_state/b.bin")}
    for name in ("README.md", "metrics.jsonl"):
        content = (folder / name).read_bytes()
        entries[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_bytes(folders._render(entries))


@pytest.mark.parametrize("older", [False, True])
def test_what_nothing_is_computed_with_may_be_edited_and_removed(older, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoints.write_folder(checkpoint, with_notes)
    if older:
        name_notes_in_the_manifest(checkpoint)
    (checkpoint / "README.md").write_text("a better card")
    (checkpoint / "metrics.jsonl").unlink()
    checkpoints.verify(checkpoint)
    assert checkpoints.newest_complete(tmp_path / "run") == checkpoint
    checkpoints.publish(checkpoint, tmp_path / "run")
    checkpoints.verify(tmp_path / "run")
    assert (tmp_path / "run" / "README.md").read_text() == "a better card"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    (checkpoint / "a.txt").write_text("other")
    with pytest.raises(CheckpointError, match=r"a\.txt is damaged"):
        checkpoints.verify(checkpoint)


@pytest.mark.parametrize("survived", range(3))
def test_publishing_cut_short_leaves_a_run_that_resolves_to_its_checkpoint(survived, tmp_path, monkeypatch):
    (first, second) = run_with_steps(tmp_path, 1, 2)
    checkpoints.publish(first, tmp_path)
    moves = iter(range(10))
    replace = type(tmp_path).replace

    def cut_short(path, target):
        if next(moves) == survived:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(type(tmp_path), "replace", cut_short)
    if survived < 2:
        with pytest.raises(KeyboardInterrupt):
            checkpoints.publish(second, tmp_path)
        assert checkpoints.resolve(tmp_path) == second
    else:
        checkpoints.publish(second, tmp_path)
        assert (checkpoints.resolve(tmp_path) / "a.txt").read_text() == "at 2"


def test_a_damaged_checkpoint_is_not_published(tmp_path):
    (first, second) = run_with_steps(tmp_path, 1, 2)
    checkpoints.publish(first, tmp_path)
    (second / "a.txt").write_text("at 3")
    with pytest.raises(CheckpointError, match="damaged and was not published"):
        checkpoints.publish(second, tmp_path)
    checkpoints.verify(tmp_path)


def test_a_place_that_cannot_be_written_is_explained(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoints.write_folder(tmp_path / "file" / "m", text("x"))


def test_resolving_nothing_says_what_was_expected(tmp_path):
    with pytest.raises(CheckpointError, match="holds no model"):
        checkpoints.resolve(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        checkpoints.resolve(tmp_path / "absent")


# --- models ---


def tiny(name):
    torch.manual_seed(1)
    entry = MODELS[name]
    sizes = {key: 11 for key in ("vocab", "source_vocab", "target_vocab") if key in entry.config.model_fields}
    return entry.model(entry.config.parse({**sizes, **entry.presets["tiny"]})).eval()


def given_to(model):
    """A sentence, a sentence pair, an image, the latent vector of an image, a spectrogram, a sentence with regions or
    steps, two proteins, or vectors."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    if hasattr(config, "social"):  # a scene of walking agents
        torch.manual_seed(0)  # the model draws samples
        tracks = torch.randn(1, 3, config.past + config.future, 2).cumsum(dim=2).split([config.past, config.future], 2)
        return [part for track in tracks for part in (track, torch.ones(track.shape[:3], dtype=torch.bool))]
    if hasattr(config, "bands"):
        frames = torch.randn(1, 20, config.bands, generator=generator)
        return (frames, torch.tensor([[1, 4]])) if hasattr(config, "max_frames") else (frames,)
    if hasattr(config, "features"):
        return (torch.randn(3, config.width, generator=generator),)
    if hasattr(config, "latent"):
        return torch.randn(1, config.latent, generator=generator), torch.tensor([1])
    if hasattr(config, "image_size"):
        image = torch.randn(1, config.channels, config.image_size, config.image_size, generator=generator)
        return (image, torch.tensor([[1, 4]])) if hasattr(config, "vocab") else (image,)
    source, mask, inputs = torch.tensor([[1, 2, 3]]), torch.tensor([[True, True, True]]), torch.tensor([[1, 4]])
    if hasattr(config, "region_places"):
        steps = [
            torch.randn(1, 4, size, generator=generator) for size in (config.region_features, config.region_places)
        ]
        return source, mask, *steps, torch.ones(1, 4, dtype=torch.bool)
    if hasattr(config, "symbols"):
        return source, mask, inputs, mask[:, :2]
    if isinstance(model, Word2Vec):
        return source[0], source.expand(3, 3), mask.expand(3, 3), source.expand(3, 3)
    return (source, mask, inputs) if hasattr(config, "target_vocab") else (source, mask)


def tensors(answer):
    """The tensors of an answer, those of its parts included."""
    if isinstance(answer, tuple):
        return [each for part in answer for each in tensors(part)]
    return [answer]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_bit_equal_without_touching_the_random_state(name, tmp_path):
    model = tiny(name)
    checkpoints.save_model(tmp_path / "m", name, model, extras=text("more"))
    before = torch.random.get_rng_state()
    loaded = checkpoints.load_model(tmp_path / "m")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (loaded.name, loaded.config, loaded.folder) == (name, model.config, tmp_path / "m")
    assert not loaded.model.training
    expected = model.state_dict()
    assert loaded.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in loaded.model.state_dict().items())
    for ours, theirs in zip(tensors(loaded.model(*given_to(model))), tensors(model(*given_to(model))), strict=True):
        assert torch.equal(ours, theirs) if ours is not None else theirs is None


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path):
    model = Transformer(SMALL.replace(target_vocab=11, tie="all"))
    checkpoints.save_model(tmp_path / "m", "transformer", model)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert sum(tensor.shape == (11, 8) for tensor in stored.values()) == 1
    loaded = checkpoints.load_model(tmp_path / "m").model
    assert loaded.output_weight is loaded.source_embedding.weight


def test_a_compiled_model_is_saved_under_its_own_names(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self, module):
            super().__init__()
            self._orig_mod = module

    model = Transformer(SMALL)
    assert models.own_tensors(Wrapped(model)).keys() == models.own_tensors(model).keys()
    model.encoder[0] = Wrapped(model.encoder[0])
    with pytest.raises(CheckpointError, match="compile the whole model"):
        models.own_tensors(model)


def rewrite(folder, change):
    """Change the weights of a folder and update its manifest: the content is then wrong, but not damaged."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    folders._seal(folder)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda t: t.pop("encoder.0.attention.query.bias"), r"lacks the tensor encoder\.0\.attention\.query\.bias"),
        (lambda t: t.update(stray=torch.zeros(2)), "does not know: stray"),
        (lambda t: t.update({"encoder.0.attention.key.bias": torch.zeros(9)}), r"key\.bias .* \[9\].* expects \[8\]"),
        (lambda t: t.update({"encoder.0.attention.key.bias": torch.zeros(8).long()}), r"key\.bias .*int64"),
        (lambda t: t.update({"target_embedding.weight": torch.zeros(13, 8)}), "different values for .*output_weight"),
    ],
)
def test_missing_stray_and_misshapen_tensors_are_named(change, named, tmp_path):
    checkpoints.save_model(tmp_path / "m", "transformer", Transformer(SMALL))
    rewrite(tmp_path / "m", change)
    with pytest.raises(CheckpointError, match=named):
        checkpoints.load_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "bort"}, "model_type 'bort'; known are marian"),
        ({}, "names no model"),
        ({"model_type": "marian"}, "lacks d_model"),
        ({"regard": {"model": "gpt9", "config": {}}}, r"no manifest\.json"),
    ],
)
def test_a_folder_that_is_no_model_of_ours_is_explained(config, says, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=says):
        checkpoints.load_model(tmp_path)


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"model": "gpt9", "config": {}}, "asks for the model 'gpt9'; known are"),
        ({"model": "transformer", "config": {"widht": 3}}, "widht|source_vocab"),
        ({"model": "transformer", "config": {**SMALL.model_dump(), "heads": 3}}, "heads = 3: must divide width"),
    ],
)
def test_a_config_that_makes_no_model_is_explained(about, says, tmp_path):
    checkpoints.write_folder(
        tmp_path / "m", lambda t: (t / "config.json").write_text(json.dumps({"regard": about})) and None
    )
    with pytest.raises(CheckpointError, match=says):
        checkpoints.load_model(tmp_path / "m")


def test_an_exported_folder_may_be_edited_by_hand(gpt_folder, tmp_path):
    folder = shutil.copytree(gpt_folder, tmp_path / "exported")
    assert not (folder / "manifest.json").exists()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"layer_norm_epsilon": 1e-6}, indent=4))
    assert checkpoints.load_model(folder).config.norm_eps == 1e-6


def test_the_card_tells_data_results_and_use():
    card = checkpoints.model_card(
        "transformer",
        SMALL,
        use="model.translate()",
        title="English to Spanish",
        data="10 pairs",
        metrics={"BLEU": 31.256},
    )
    for part in (
        "# English to Spanish",
        "10 pairs",
        "| BLEU | 31.26 |",
        '"width": 8',
        "regard.load",
        "model.translate()",
        "## Licence",
    ):
        assert part in card


# --- tensors ---


def test_shards_are_read_together_and_must_agree_with_their_index(tmp_path):
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")
    places = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    assert {name: list(t.shape) for name, t in weights.read_weights(tmp_path).items()} == {"a": [2], "b": [3]}
    index.write_text(json.dumps({"weight_map": {**places, "c": places["a"]}}))
    with pytest.raises(CheckpointError, match="disagree about c"):
        weights.read_weights(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        weights.read_weights(tmp_path)


def test_views_and_non_contiguous_tensors_are_written_as_they_look(tmp_path):
    block = torch.arange(12.0)
    tensors = {"front": block[:4], "back": block[4:].view(2, 4).T}
    checkpoints.write_tensors(tmp_path / "t.safetensors", tensors)
    assert all(
        torch.equal(t, tensors[name]) for name, t in checkpoints.read_tensors(tmp_path / "t.safetensors").items()
    )


entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BOOL", "F4", "I64"]),
        "shape": st.lists(st.integers(-1, 3), max_size=3),
        "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3),
    }
)


@given(header=st.dictionaries(st.sampled_from("abc"), entries, max_size=3), data=st.binary(max_size=40))
def test_whatever_header_the_library_refuses_we_refuse_too(header, data, tmp_path_factory):
    file = tmp_path_factory.mktemp("header") / "t.safetensors"
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    try:
        load_file(file)
    except (SafetensorError, OSError, OverflowError):
        with pytest.raises(CheckpointError, match=r"t\.safetensors"):
            checkpoints.read_tensors(file)


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=5),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool]),
)
def test_every_honest_file_is_read(shapes, dtype, tmp_path_factory):
    file = tmp_path_factory.mktemp("honest") / "t.safetensors"
    tensors = {f"tensor {number}": torch.ones(shape).to(dtype) for number, shape in enumerate(shapes)}
    checkpoints.write_tensors(file, tensors)
    assert checkpoints.read_tensors(file).keys() == tensors.keys()


def test_a_pickle_is_refused_unless_allowed(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle.*--allow-pickle"):
        weights.read_weights(tmp_path)
    assert torch.equal(weights.read_weights(tmp_path, allow_pickle=True)["a"], torch.ones(2))


def test_permissions_follow_the_umask(tmp_path):
    checkpoints.write_folder(tmp_path / "m", text("x"))
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "m").stat().st_mode & 0o777 == 0o777 & ~umask


# --- int8 ---


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 70), st.floats(-35, 20))
def test_stored_rows_are_quantized_to_themselves(seed, rows, columns, exponent):
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, columns, generator=generator) * 10**exponent
    matrix[0] = 0
    stored = to_int8({"a.weight": matrix})
    again, scales = quantize_rows(from_int8(stored, "here")["a.weight"])
    assert torch.equal(again, stored["a.weight"].float())
    assert torch.equal(scales[:, 0], stored["a.weight_scale"])


def test_every_scale_is_stable():
    largest = torch.arange(1, 2, 2**-20, dtype=torch.float32)[:, None]
    stored = to_int8({"weight": largest})
    _, scales = quantize_rows(from_int8(stored, "here")["weight"])
    assert torch.equal(scales[:, 0], stored["weight_scale"])
    assert torch.allclose(scales[:, 0] * 127, largest[:, 0], rtol=2**-22)


def test_a_model_is_stored_in_int8_and_computes_the_same(tmp_path):
    torch.manual_seed(0)
    model = Transformer(SMALL).eval()
    models.save_model(tmp_path / "fp32", "transformer", model)
    models.save_model(tmp_path / "int8", "transformer", model, storage="int8")
    stored = load_file(tmp_path / "int8" / "model.safetensors")
    assert stored["output_weight"].dtype == torch.int8
    assert stored["encoder.0.feed_forward.up.bias"].dtype == torch.float32
    exact, rounded = (models.load_model(tmp_path / name).model for name in ("fp32", "int8"))
    source, mask = torch.tensor([[4, 5, 6]]), torch.ones(1, 3, dtype=torch.bool)
    say = torch.tensor([[1, 3]])
    assert torch.allclose(exact(source, mask, say), rounded(source, mask, say), atol=0.1)
    fast = [fast_model(each, "int8") for each in (model, exact, rounded)]
    answers = [each.encoder[0].attention.query.weight for each in fast]
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    models.save_model(tmp_path / "again", "transformer", rounded, storage="int8")
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "int8" / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize("wrong", [{"weight_scale": torch.ones(2)}, {"weight": torch.ones(2, 2, dtype=torch.int8)}])
def test_rows_and_scales_that_do_not_fit_are_an_error(wrong):
    fitting = to_int8({"weight": torch.ones(3, 2)})
    with pytest.raises(CheckpointError, match="one row for each of"):
        from_int8(fitting | wrong, "here")

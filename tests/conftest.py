"""Shared fixtures: small trained translators, models with random weights, and a server; each is made once."""

import gc
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
import tokenizers
import torch
import uvicorn
from fastapi import FastAPI
from filelock import FileLock
from hypothesis import settings
from tokenizers import decoders, models, pre_tokenizers, trainers

import forked
import shape_checks
from regard.checkpoints import export_model, save_model
from regard.checkpoints.folder import write_folder
from regard.data.images.reading import Preprocessing
from regard.data.synthetic.shapes import scenes
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.families.catalog import MODELS
from regard.families.dictionaries.model import SparseAutoencoder, SparseAutoencoderConfig
from regard.families.dictionaries.pipeline import Subject, find_contexts
from regard.families.folding.data import FoldingSettings
from regard.families.images.reader import ImageReader
from regard.families.language.bert import Bert, BertConfig
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.language.t5 import T5, T5Config
from regard.families.loading import load_pipeline
from regard.families.navigation.data import LengthPrior, PathSettings
from regard.families.navigation.features import CandidateConfig
from regard.families.navigation.synthetic import built_in_house, built_in_routes
from regard.families.trajectories.tracks import SceneSettings
from regard.look.reader import Example, Site, observe, reader_of
from regard.serve.app import create_app
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.models.registry import ModelRegistry
from regard.serve.run import listen
from regard.serve.settings import ServeSettings
from regard.training.loop import train
from regard.training.recipe.load import load_recipe
from stand_ins import write_stand_ins
from workers import pytest_addoption, pytest_runtestloop  # noqa: F401  (pytest finds its hooks here)

# `make test` draws the same examples every time, so its result is reproducible; `make faults` draws new and more ones.
settings.register_profile("steady", max_examples=50, derandomize=True, deadline=None)
settings.register_profile("searching", max_examples=2000, deadline=None)
settings.load_profile("searching" if "REGARD_FAULT_COUNT" in os.environ else "steady")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked `full`, except in `make faults`."""
    if "REGARD_FAULT_COUNT" not in os.environ:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("full")])
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end, so the garbage collector need not look at them again and again."""
    gc.collect()
    gc.freeze()


TINY = (
    "data.phrasebook.count=400", "data.phrasebook.valid_count=20", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=6", "model.width=64", "model.heads=2", "model.ffn_width=128",
    "model.encoder_depth=1", "model.decoder_depth=2", "model.dropout=0.0",
    "model.norm=post", "tokenizer.kind=bpe", "tokenizer.size=600", "tokenizer.min_frequency=2",
    "tokenizer.mark_case=true", "training.label_smoothing=0.1",
    "decoding.beam=4", "training.steps=100", "training.warmup=20", "training.lr=5e-3", "training.batch_tokens=1024",
    "training.validate_every=0", "training.checkpoint_every=0", "training.device=cpu",
)  # fmt: skip


def trained(folder: Path, *changes: str, recipe: str = "phrasebook") -> Path:
    """The folder of a tiny translator."""
    return train(load_recipe(recipe, [*TINY, *changes]), folder)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this name. The first worker that needs it makes it, and every worker gets a copy."""
    place = factory.getbasetemp() / "made-once"
    place.mkdir(exist_ok=True)
    with FileLock(place / f"{name}.lock"):
        if not (place / name).exists():
            make(place / "unfinished" / name)
            (place / "unfinished" / name).rename(place / name)
    return Path(shutil.copytree(place / name, factory.mktemp("copy") / name))


@pytest.fixture(scope="session", autouse=True)
def forked_processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    forked.start_server(request.session, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="session", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    """A training calls fsync a hundred times; what it protects from, a loss of power, does not happen in a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True)
def checked_shapes() -> None:
    """Every test checks the shapes of the functions that it calls, from their first calls on."""
    shape_checks.begin_test()


@pytest.fixture
def bf16() -> Iterator[None]:
    """bf16 products on any CPU: oneDNN is off if it does not support them, since torch would otherwise disable it for
    good."""
    able = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    with torch.backends.mkldnn.flags(enabled=able, allow_tf32=None):
        yield


@pytest.fixture(scope="session")
def translator_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Transformer from English to Spanish and Portuguese whose positions fit the Marian layout."""
    return made_once(tmp_path_factory, "run", lambda folder: trained(folder, "model.positions=sinusoidal_halves"))


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for the built-in translators."""
    return made_once(tmp_path_factory, "shipped", write_stand_ins)


@pytest.fixture
def built_in(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins in place of the built-in translators."""
    monkeypatch.setattr("regard.families.translation.shipped.FOLDER", stand_ins)
    return stand_ins


WORDS = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "we", "are", "eating", "bread", "the", "house", "is", "big", "she",
    "##s", "read", "##ing", ".", ",", "(", ")",
)  # fmt: skip


@pytest.fixture(scope="session")
def make_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of small BERT models with random weights and a vocabulary of a few words."""

    def make(head: str = "none", **changes: object) -> Path:
        torch.manual_seed(3)
        sizes = {"width": 16, "heads": 2, "depth": 2, "ffn_width": 24, "max_length": 24}
        model = Bert(BertConfig.parse({"vocab": len(WORDS), "head": head, **sizes, **changes}))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        folder = tmp_path_factory.mktemp("encoder") / head
        save_model(folder, "bert", model, lambda place: write_text(place / "vocab.txt", "\n".join(WORDS) + "\n"))
        return folder

    return make


END, PAD = "<|endoftext|>", "<pad>"
SIZES = {"width": 32, "heads": 4, "depth": 2, "max_length": 64}


def byte_pairs(folder: Path) -> None:
    """The files of a byte-level BPE tokenizer with a few merges."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=[END, PAD], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(["the fox saw the owl and the owl saw the fox"], trainer)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END}))


@pytest.fixture(scope="session")
def make_writer(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of a small GPT-2 as Hugging Face writes it, and of a Llama, a T5 and an LSTM of ours, with random
    weights."""

    def make(kind: str) -> Path:
        torch.manual_seed(3)
        t5 = {"source_vocab": 290, "target_vocab": 290, "pad": 1, "width": 32, "heads": 4, "head_width": 6}
        model = {
            "gpt": lambda: Gpt(GptConfig(vocab=290, **SIZES)),
            "llama": lambda: Gpt(GptConfig(vocab=290, **SIZES, **LLAMA, kv_heads=2)),
            "t5": lambda: T5(T5Config(**t5, ffn_width=48, encoder_depth=2, decoder_depth=2)),
            "lstm": lambda: Lstm(LstmConfig(vocab=290, embedding=16, width=24)),
        }[kind]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
        folder = tmp_path_factory.mktemp("writers") / f"{kind}-writer"
        if kind == "gpt":
            export_model("gpt", model, folder, values={"bos_token_id": 0, "eos_token_id": 0}, extras=byte_pairs)
        else:
            save_model(folder, "gpt" if kind == "llama" else kind, model, extras=byte_pairs)
        return folder

    return make


@pytest.fixture(scope="session")
def gpt_folder(make_writer: Callable[[str], Path]) -> Path:
    return make_writer("gpt")


def write_text(file: Path, text: str) -> None:
    file.write_text(text)


CLASSIFIERS = {
    "vit": {"image_size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 24},
    "vit-mean": {"image_size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 24, "pool": "mean"},
    "vit-stem": {
        "image_size": 16, "patch": 4, "width": 16, "heads": 2, "depth": 2, "ffn_width": 24, "stem": "convolutions",
    },
    "swin": {"image_size": 20, "patch": 2, "width": 8, "depths": (2, 1), "heads": (1, 2), "window": 4},
    "swin-stem": {
        "image_size": 20, "patch": 2, "width": 8, "depths": (2, 1), "heads": (1, 2), "window": 4,
        "stem": "convolutions",
    },
    "mvit": {**MODELS["mvit"].presets["tiny"], "image_size": 16},
    "resnet": {**MODELS["resnet"].presets["tiny"], "image_size": 14, "widths": (8, 16), "depths": (1, 1)},
    "resnet-local": {
        **MODELS["resnet"].presets["tiny"], "image_size": 14, "widths": (8,), "depths": (1,), "spatial": "local",
        "stem_width": 8, "heads": 2, "window": 3,
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def make_classifier(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small image models with random weights and the classes a, b and c; each is made once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            name, size = kind.partition("-")[0], CLASSIFIERS[kind]["image_size"]
            torch.manual_seed(1)
            config = MODELS[name].config(**CLASSIFIERS[kind], classes=3, class_names=("a", "b", "c"))
            made[kind] = tmp_path_factory.mktemp("classifier") / kind
            preprocessing = Preprocessing(size=(size, size), resize=size, mean=(0.4,) * 3, std=(0.2,) * 3)
            save_model(made[kind], name, MODELS[name].model(config), preprocessing.save)
        return made[kind]

    return make


TEXTS = ("the fox saw the owl", "the owl saw the fox", "we are eating bread", "the bread saw the fox")


@pytest.fixture(scope="session")
def make_dictionary(
    tmp_path_factory: pytest.TempPathFactory, gpt_folder: Path, make_classifier: Callable[[str], Path]
) -> Callable[[str], Path]:
    """Dictionaries of 24 features of a GPT and of a ViT, as they begin: no step was trained. Each is made once."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            model, place = (
                (gpt_folder, "decoder.0.residual") if kind == "gpt" else (make_classifier(kind), "encoder.1.residual")
            )
            reader = reader_of(load_pipeline(str(model)))
            site = Site(reader.model, place)
            examples = [reader.given(text) for text in TEXTS] if kind == "gpt" else _random_images(reader)
            rows = torch.cat([observe(reader, site, [each]).rows for each in examples])
            torch.manual_seed(1)
            dictionary = SparseAutoencoder(SparseAutoencoderConfig(width=rows.shape[1], features=24, k=4))
            dictionary.initialise(rows)

            def extras(folder: Path) -> None:
                Subject(model=str(model), place=place).save(folder)
                find_contexts(reader, site, dictionary.eval(), examples).save(folder)

            made[kind] = tmp_path_factory.mktemp("dictionary") / f"features-of-{kind}"
            save_model(made[kind], "sparse_autoencoder", dictionary, extras)
        return made[kind]

    return make


def _random_images(reader: ImageReader) -> list[Example]:
    random = np.random.default_rng(0)
    size = int(np.prod(reader.shape))
    return [(random.integers(256, size=size, dtype=np.uint8), np.array([0], dtype=np.int32)) for _ in range(6)]


CAPTIONERS = {
    "soft": {},
    "hard": {"attention": "hard"},
    "blind": {"attention": "none"},
    "heads": {"decoder": "transformer", "depth": 2},
}


@pytest.fixture(scope="session")
def make_captioner(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small captioners with random weights and the words of scenes; each is made once."""
    made: dict[str, Path] = {}
    texts = [scene.caption for scene in scenes(part="train", count=60, seed=1, size=16)]
    tokenizer = train_vocabulary(texts, VocabularyConfig(kind="word", size=60, min_frequency=1), "terminated")
    preprocessing = Preprocessing(size=(16, 16), resize=(16, 16), mean=(0.4,) * 3, std=(0.2,) * 3)

    def save(folder: Path) -> None:
        tokenizer.save(folder)
        preprocessing.save(folder)
        (folder / "recipe.toml").write_text("[decoding]\nmax_length = 9\n")

    def make(kind: str) -> Path:
        if kind not in made:
            torch.manual_seed(1)
            body = {"stem": "small", "stem_width": 8, "block": "basic", "widths": [8, 16], "depths": [1, 1]}
            config = MODELS["captioner"].config(
                vocab=tokenizer.size, image_size=16, body="resnet", body_values=body, embedding=12, width=16, heads=2,
                ffn_width=24, **CAPTIONERS[kind],
            )  # fmt: skip
            made[kind] = tmp_path_factory.mktemp("captioner") / kind
            save_model(made[kind], "captioner", MODELS["captioner"].model(config), save)
        return made[kind]

    return make


@pytest.fixture(scope="session")
def make_navigator(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small models of paths with random weights, which know the words of the built-in instructions."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("navigator") / name
            _write_navigator(made[name], name)
        return made[name]

    return make


def _write_navigator(folder: Path, name: str) -> None:
    houses = [built_in_house(1, number) for number in range(3)]
    texts = [text for house in houses for route in built_in_routes(house, 1, 5) for text in route.instructions]
    words = VocabularyConfig.parse({"kind": "wordpiece", "size": 120, "lowercase": True})
    tokenizer = train_vocabulary(texts, words, "enclosed")
    settings = PathSettings(
        longest=64, candidates=CandidateConfig(count=12, walks=3), trained=("house-1-000",), validated=("house-1-001",),
        tested=(), prior=LengthPrior(viewpoints={4: 0.5, 5: 0.5}, mean=9.0, deviation=2.0),
    )  # fmt: skip

    def extras(place: Path) -> None:
        tokenizer.save(place)
        settings.save(place)

    torch.manual_seed(0)
    entry = MODELS[name]
    model = entry.model(entry.config.parse({**entry.presets["tiny"], "vocab": tokenizer.size}))
    save_model(folder, name, model, extras)


@pytest.fixture(scope="session")
def make_folder_of_structures(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of tiny models of structures with random weights, by the changes of their configuration."""
    made: dict[str, Path] = {}

    def make(**changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("structures") / "evoformer"
            entry = MODELS["evoformer"]
            torch.manual_seed(0)
            model = entry.model(entry.config.parse({**entry.presets["tiny"], **changes}))
            for parameter in model.parameters():  # layers that begin with zeros would hide mistakes
                parameter.data += 0.1 * torch.randn(parameter.shape)
            settings = FoldingSettings(rows=4, trained=("chain-1-0000",), validated=(), prior=(0.0, 1.0, 0.5, 0.1))
            save_model(made[key], "evoformer", model, settings.save)
        return made[key]

    return make


@pytest.fixture(scope="session")
def make_forecaster(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of small models of tracks with random weights."""

    def make(**changes: Any) -> Path:
        torch.manual_seed(0)
        entry = MODELS["agentformer"]
        model = entry.model(entry.config.parse({**entry.presets["tiny"], **changes}))
        folder = tmp_path_factory.mktemp("forecaster") / "walkers"
        save_model(folder, "agentformer", model, SceneSettings(leave_out="zara1", trained=("a_train",)).save)
        return folder

    return make


# A real server on a free local port

RNN = (
    "model.preset=tiny", "data.phrasebook.count=300", "data.phrasebook.valid_count=10", "data.phrasebook.test_count=2",
    "data.phrasebook.max_words=6", "tokenizer.size=400", "training.steps=15", "training.batch_tokens=1024",
    "training.average=0", "training.validate_every=0", "training.metric=loss", "training.device=cpu",
)  # fmt: skip


class Served(NamedTuple):
    """A running server: its address, its application, and a client for it."""

    url: str
    app: FastAPI
    registry: ModelRegistry
    client: httpx.Client


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, translator_folder: Path) -> list[Path]:
    """From English to Spanish and Portuguese: a Transformer, an RNN with attention, and an RNN without attention."""
    recipes = {
        "rnn": load_recipe("phrasebook-rnn", RNN),
        "fixed": load_recipe("phrasebook-rnn-fixed", [*RNN, "data.target=es"]),
    }
    made = [made_once(tmp_path_factory, name, partial(train, recipe)) for name, recipe in recipes.items()]
    return [translator_folder, *made]


@pytest.fixture(scope="session")
def back_folder(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that claims to translate Spanish into English: the RNN without attention, with its languages changed."""
    back = tmp_path_factory.mktemp("opposite") / "back"

    def write(folder: Path) -> None:
        for file in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.copyfile(folders[2] / file, folder / file)
        config = json.loads((folders[2] / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(config | {"source": "es", "targets": ["en"]}))

    write_folder(back, write)
    return back


def serving(folders: list[Path], runs: Path, **settings: object) -> Iterator[Served]:
    """Run a server in a thread until the fixture ends."""
    chosen = ServeSettings.parse({"port": 0, **settings})
    registry = ModelRegistry(folders, memory=chosen.memory)
    app = create_app(registry, TrainingJobs(runs, on_finished=registry.add, on_removed=registry.remove), chosen)
    listening = listen(chosen)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, proxy_headers=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield Served(url, app, registry, client)
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="session")
def served(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serving(folders, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def locked(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with an API key and small limits."""
    limits = {"api_keys": ["sesame", "опен"], "body": 20_000, "characters": 200, "texts": 3}
    yield from serving(folders[:1], tmp_path_factory.mktemp("runs"), **limits)


@pytest.fixture(scope="session")
def roomy(translator_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with limits large enough for whole books."""
    limits = {"body": 64 * 2**20, "characters": 2**24, "seconds": 3600.0}
    yield from serving([translator_folder], tmp_path_factory.mktemp("runs"), **limits)


def starting(place: Path) -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:

        def start(folders: list[Path], **settings: object) -> Served:
            return stack.enter_context(contextmanager(serving)(folders, place / "runs", **settings))

        yield start


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Start servers with other settings: `start_server(folders, queue=2)`."""
    yield from starting(tmp_path)


@pytest.fixture(scope="module")
def start_server_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """Start servers that all tests of a module share."""
    yield from starting(tmp_path_factory.mktemp("module"))

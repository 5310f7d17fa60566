"""Dictionary learning: planted features recovered, formulas, streaming within a buffer, exact resume, every reader."""

import json
import math
import shutil

import numpy as np
import pytest
import tokenizers
import torch
from PIL import Image
from tokenizers import models, pre_tokenizers
from torch.nn import functional

import regard
from regard.attention.places import record_activations
from regard.checkpoints import save_model
from regard.cli.main import run
from regard.errors import ConfigError, UsageError
from regard.families.dictionaries.data import read_examples
from regard.families.dictionaries.model import SparseAutoencoder, SparseAutoencoderConfig
from regard.families.dictionaries.pipeline import FeatureDictionary, fingerprint
from regard.families.dictionaries.task import DictionaryTask, measure_dictionary, resample
from regard.families.language.gpt import PRESETS, Gpt, GptConfig
from regard.families.speech.ctc import JOINT
from regard.families.speech.manifest import utterances
from regard.look.reader import Site, Source, observe, reader_of
from regard.training.loop import train
from regard.training.metrics_log import METRICS, read_metrics
from regard.training.recipe.load import load_recipe
from tiny_speech import AUDIO, save_recognizer, tiny_recognizer, write_wav
from tiny_whisper import sounds, whisper_folder

LOOP = (
    "training.device=cpu",
    "data.contexts=12",
    "training.checkpoint_every=0",
    "training.log_every=1000",
    "training.warmup=20",
)
WIDTH, PLANTED, ACTIVE, WORDS = 24, 40, 2, 1500


def recipe(model, place, train_on, *more):
    values = (f"data.model={model}", f"data.place={place}", f"data.train={train_on}", "data.documents=line")
    return load_recipe("stories260k-dictionary", [*LOOP, *values, *more])


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A GPT whose embeddings are sparse sums of known directions, a text of its words, and these directions."""
    torch.manual_seed(0)
    directions = functional.normalize(torch.randn(PLANTED, WIDTH), dim=-1)
    codes = torch.zeros(WORDS, PLANTED)
    for row in codes:
        row[torch.randperm(PLANTED)[:ACTIVE]] = 1 + torch.rand(ACTIVE)
    sizes = {"width": WIDTH, "heads": 2, "depth": 1, "max_length": 64, "ffn_width": 16}
    model = Gpt(GptConfig(**{**PRESETS["llama-7b"], **sizes, "vocab": WORDS}))
    with torch.no_grad():
        model.embedding.weight.copy_(codes @ directions)
    library = tokenizers.Tokenizer(models.WordLevel({f"w{n}": n for n in range(WORDS)}, unk_token="w0"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    place = tmp_path_factory.mktemp("planted")
    save_model(place / "model", "gpt", model, lambda folder: library.save(str(folder / "tokenizer.json")))
    text = np.random.default_rng(0).integers(WORDS, size=(400, 40))
    (place / "text.txt").write_text("\n".join(" ".join(f"w{n}" for n in row) for row in text) + "\n")
    return place / "model", place / "text.txt", directions


@pytest.mark.parametrize("activation", ["topk", "relu"])
def test_planted_features_are_recovered(activation, planted, tmp_path):
    model, text, directions = planted
    own = ("model.features=48", "model.k=2", f"model.activation={activation}", "training.l1=1.2", "training.batch=256")
    steps = ("training.steps=700", "training.lr=2e-2", "training.validate_every=700", "training.dead_after=20000")
    train(recipe(model, "decoder.0.input", text, *own, *steps, "training.resample_every=200"), tmp_path / "run")
    found = regard.load(tmp_path / "run")
    cosines = (directions @ found.model.directions.T).amax(dim=1)
    assert cosines.mean() >= 0.95
    (measured,) = (row for row in read_metrics(tmp_path / "run" / METRICS) if "l0" in row)
    assert measured["explained_variance"] > 0.85 and measured["l0"] < 4
    assert measured["dead"] <= (48 - PLANTED) / 48  # of the planted ones, none


def test_the_forward_pass_is_its_formula():
    torch.manual_seed(0)
    model = SparseAutoencoder(SparseAutoencoderConfig(width=6, features=20, k=4))
    vectors = 3 * torch.randn(50, 6) + 1
    model.initialise(vectors)
    scaled = vectors / vectors.sub(vectors.mean(0)).square().mean().sqrt()
    torch.testing.assert_close(model.bias, scaled.mean(0))
    torch.nn.init.normal_(model.encoder.bias)
    scores = ((scaled - model.bias) @ model.encoder.weight.T + model.encoder.bias).clamp(min=0)
    expected = torch.where(scores >= scores.sort(dim=-1).values[:, -4:-3], scores, 0)
    coded = model(vectors)
    torch.testing.assert_close(coded.features, expected)
    columns = model.atoms / model.atoms.norm(dim=1, keepdim=True)
    torch.testing.assert_close(coded.vectors / model.scale, expected @ columns + model.bias)
    assert torch.allclose(model.directions.norm(dim=1), torch.ones(20))


def test_every_feature_begins_alive_where_vectors_lie_in_few_dimensions():
    torch.manual_seed(0)
    vectors = torch.randn(3000, 3) @ torch.randn(3, 32) + 5 + 0.05 * torch.randn(3000, 32)
    model = SparseAutoencoder(SparseAutoencoderConfig(width=32, features=256, k=4))
    model.initialise(vectors)
    alive = (model.encode(vectors) > 0).any(dim=0).float().mean()
    with torch.no_grad():
        model.atoms.copy_(torch.randn(256, 32))
        model.encoder.weight.copy_(model.directions)
    at_random = (model.encode(vectors) > 0).any(dim=0).float().mean()
    assert alive > 0.98 and at_random < 0.7
    model.initialise(vectors[:100].repeat(2, 1))  # fewer vectors than features, each of them twice
    assert len(model.directions.detach().unique(dim=0)) == 256


def test_no_gradient_goes_along_a_direction():
    torch.manual_seed(0)
    model = SparseAutoencoder(SparseAutoencoderConfig(width=6, features=20, activation="relu"))
    model(torch.randn(30, 6)).vectors.square().sum().backward()
    along = (model.atoms.grad * model.directions).sum(dim=1)
    assert model.atoms.grad.norm() > 1
    torch.testing.assert_close(along, torch.zeros(20), atol=1e-4, rtol=0)


def test_a_feature_set_to_a_value_has_it_and_nothing_else_is_lost():
    torch.manual_seed(0)
    model = SparseAutoencoder(SparseAutoencoderConfig(width=6, features=6, activation="relu"))
    with torch.no_grad():  # orthogonal directions: each feature alone decides its own value
        model.atoms.copy_(torch.linalg.qr(torch.randn(6, 6)).Q)
        model.encoder.weight.copy_(model.atoms)
        model.scale.fill_(2.0)
    vectors = 2 * torch.rand(9, 6) @ model.atoms.detach() + 2 * model.bias.detach()
    before, after = model.encode(vectors), model.encode(model.with_feature(vectors, 2, 1.5))
    torch.testing.assert_close(after[:, 2], torch.full((9,), 1.5))
    torch.testing.assert_close(after[:, [0, 1, 3, 4, 5]], before[:, [0, 1, 3, 4, 5]], atol=1e-5, rtol=1e-5)


def test_dead_features_begin_anew_at_bad_vectors():
    torch.manual_seed(0)
    model = SparseAutoencoder(SparseAutoencoderConfig(width=8, features=12, activation="relu"))
    vectors = 1e-3 * torch.randn(40, 8)
    vectors[7] = 50.0  # nothing reconstructs it
    length = float(model.encoder.weight.norm(dim=1)[:9].mean().detach())
    resample(model, vectors, torch.tensor([9, 10]), torch.Generator().manual_seed(1), 0.2)
    expected = functional.normalize(vectors[7], dim=0)
    similar = model.directions[[9, 10]] @ expected
    assert similar.max() > 0.999
    lengths = model.encoder.weight.detach()[[9, 10]].norm(dim=1)
    torch.testing.assert_close(lengths, torch.full((2,), 0.2 * length), rtol=0.05, atol=0)
    assert model.encoder.bias[[9, 10]].tolist() == [0, 0]


def test_dead_features_learn_from_what_the_others_leave_although_their_scores_are_negative(planted, tmp_path):
    model, text, _ = planted
    opened = recipe(model, "decoder.0.residual", text, "data.count=40", "model.features=24", "model.k=3")
    DictionaryTask.prepare(opened, tmp_path / "data", lambda: None)
    task = DictionaryTask.open(opened, tmp_path / "data", torch.device("cpu"))
    dictionary, batch = task.build(), next(task.batches({}))[1]
    with torch.no_grad():
        dictionary.encoder.bias[[5, 6]] = -100.0
    alone = task.loss(dictionary, batch).total.item()
    task.carried["idle"][[5, 6]] = opened.training.dead_after
    loss = task.loss(dictionary, batch).total
    loss.backward()
    assert dictionary.encoder.weight.grad[[5, 6]].abs().amin(dim=1).min() > 0
    coded, width = dictionary(batch.vectors), dictionary.config.width
    left = (batch.vectors - coded.vectors) / dictionary.scale
    left = left - coded.scores[:, [5, 6]] @ dictionary.directions[[5, 6]]
    expected = 2 / (width // 2) * left.square().sum().item() / width  # two of half the width count less
    assert loss.item() - alone == pytest.approx(expected, rel=1e-4)


def test_activations_are_streamed_within_the_buffer_and_every_vector_comes_once(planted, tmp_path, monkeypatch):
    model, text, _ = planted
    opened = recipe(model, "decoder.0.residual", text, "data.count=200", "data.buffer=400", "training.batch=50")
    DictionaryTask.prepare(opened, tmp_path / "data", lambda: None)
    task = DictionaryTask.open(opened, tmp_path / "data", torch.device("cpu"))
    held = []
    read = task.stream.read
    monkeypatch.setattr(task.stream, "read", lambda chosen: held.append(read(chosen)) or held[-1])
    examples, taken, batches = len(task.train), [], task.batches({})
    for place, batch in batches:
        if place["epoch"] == 1:
            break
        taken.append(batch.vectors)
    sizes = [len(part) for part in held[:-1]]
    assert max(sizes) <= 400 and len(sizes) == math.ceil(examples / task.stream.at_once)
    every = torch.cat(taken)
    assert len(every) == sum(size // 50 * 50 for size in sizes)
    assert len(every.unique(dim=0)) > 0.99 * len(every)  # a text may begin with the same word as another
    assert not torch.equal(every[:50], held[0][:50])  # shuffled
    direct = observe(task.reader, task.site, [task.train[0]]).rows
    assert (torch.cdist(direct, torch.cat(held), compute_mode="donot_use_mm_for_euclid_dist").amin(dim=1) < 1e-4).all()


def test_what_fits_the_buffer_is_read_once_and_shuffled_anew_in_every_epoch(planted, tmp_path, monkeypatch):
    model, text, _ = planted
    opened = recipe(model, "decoder.0.residual", text, "data.count=20", "data.buffer=5000", "training.batch=50")
    DictionaryTask.prepare(opened, tmp_path / "data", lambda: None)
    task = DictionaryTask.open(opened, tmp_path / "data", torch.device("cpu"))
    calls, read = [], task.stream.read
    monkeypatch.setattr(task.stream, "read", lambda chosen: calls.append(chosen) or read(chosen))
    epochs = {0: [], 1: []}
    for place, batch in task.batches({}):
        if place["epoch"] == 2:
            break
        epochs[place["epoch"]].append(batch.vectors)
    assert len(calls) == 1
    one, two = (torch.cat(each) for each in epochs.values())
    assert not torch.equal(one, two)
    every = read(range(len(task.train)))
    for each in (one, two):  # all vectors of the examples, but for those that fill no batch
        away = torch.cdist(each, every, compute_mode="donot_use_mm_for_euclid_dist")
        assert len(each) == len(every) // 50 * 50 and (away.amin(dim=1) < 1e-5).all()


@pytest.mark.parametrize("activation", ["topk", "relu"])
def test_a_run_that_resumes_continues_bit_for_bit(activation, planted, tmp_path):
    model, text, _ = planted
    own = (f"model.activation={activation}", "model.features=24", "model.k=3", "data.count=60", "data.buffer=500")
    more = ("training.batch=64", "training.dead_after=100", "training.resample_every=5", "training.validate_every=40")
    whole = recipe(model, "decoder.0.residual", text, *own, *more, "training.steps=40", "training.schedule=constant")
    train(whole, tmp_path / "whole")
    half = whole.replace(training=whole.training.replace(steps=17))
    train(half, tmp_path / "half")
    train(whole, tmp_path / "half", resume=True)
    one, two = (regard.load(tmp_path / name).model.state_dict() for name in ("whole", "half"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_metrics_are_their_definitions(gpt_folder, tmp_path):
    torch.manual_seed(0)
    pipeline = regard.load(gpt_folder)
    reader = reader_of(pipeline)
    site = Site(reader.model, "decoder.0.residual")
    examples = [reader.given(text) for text in ("the fox saw the owl", "the owl")]
    rows = torch.cat([observe(reader, site, [each]).rows for each in examples])
    dictionary = SparseAutoencoder(SparseAutoencoderConfig(width=32, features=50, k=5))
    dictionary.initialise(rows)
    values = measure_dictionary(reader, site, dictionary, examples)
    with torch.no_grad():
        coded = dictionary(rows)
    error, spread = (rows - coded.vectors).square().sum(), (rows - rows.mean(0)).square().sum()
    assert values["explained_variance"] == pytest.approx(float(1 - error / spread), abs=1e-4)
    assert values["l0"] == pytest.approx(float((coded.features > 0).sum(1).float().mean()))
    assert values["dead"] == pytest.approx(float((coded.features == 0).all(0).float().mean()))

    def loss(change):  # by a hook of torch's own
        hook = (lambda _, args, output: change(output)) if change else (lambda *_: None)
        handle = reader.model.decoder[0].register_forward_hook(hook)
        sums, count = 0.0, 0
        for (ids,) in examples:
            tokens = torch.tensor(ids[None], dtype=torch.long)
            logits = reader.model(tokens)[0, :-1]
            sums += float(functional.cross_entropy(logits, tokens[0, 1:], reduction="sum"))
            count += len(ids) - 1
        handle.remove()
        return sums / count

    with torch.inference_mode():
        whole, zero = loss(None), loss(torch.zeros_like)
        mean = loss(lambda x: dictionary.mean.expand_as(x))
        replaced = loss(lambda x: dictionary(x[0]).vectors[None])
    assert values["loss_recovered"] == pytest.approx((zero - replaced) / (zero - whole), rel=1e-3)
    assert values["loss_recovered_mean"] == pytest.approx((mean - replaced) / (mean - whole), rel=1e-3)


def test_heads_side_by_side_are_put_back_as_they_were(gpt_folder):
    model = regard.load(gpt_folder).model
    tokens = torch.tensor([[5, 9, 11, 3]])
    site = Site(model, "decoder.1.attention.heads")
    with torch.inference_mode(), record_activations(model, site.name) as seen:
        expected = model(tokens)
    assert site.vectors(seen[site.name]).shape == (1, 4, 32)
    with torch.inference_mode(), activations_replaced(site, lambda vectors: vectors.clone()):
        assert torch.equal(model(tokens), expected)


def activations_replaced(site, change):
    from regard.attention.intervene import intervene

    return intervene(site.model, site.replaced(change))


@pytest.fixture(scope="module")
def read(tmp_path_factory, gpt_folder, translator_folder, make_encoder, make_classifier, make_writer, make_captioner):
    """A short dictionary of each kind of model, by its kind; each is trained once."""
    made = {}

    def make(kind):
        if kind not in made:
            place = tmp_path_factory.mktemp(kind)
            (place / "text.txt").write_text("the fox saw the owl\nthe owl saw the fox\nwe are eating bread\n" * 8)
            save_recognizer(place / "speech", tiny_recognizer(decoder_depth=1))
            whisper_folder(place / "whisper")
            (place / "sounds").mkdir()
            for number, samples in enumerate(sounds(8)):
                write_wav(place / "sounds" / f"{number}.wav", samples, 16_000)
                (place / "sounds" / f"{number}.txt").write_text("a b c"[: number + 1])
            for number, label in enumerate("abc" * 4):
                (place / "images" / label).mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(number).integers(256, size=(16, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / "images" / label / f"{number}.png")
            model, where, data = {
                "gpt": (gpt_folder, "decoder.0.residual", place / "text.txt"),
                "writer": (gpt_folder, "decoder.1.feed_forward.hidden", "samples"),
                "encoder": (make_encoder("masked"), "encoder.1.residual", place / "text.txt"),
                "translator": (translator_folder, "decoder.0.residual", "phrasebook"),
                "reader": (translator_folder, "encoder.0.residual", "phrasebook"),
                "vit": (make_classifier("vit"), "encoder.1.residual", place / "images"),
                "swin": (make_classifier("swin"), "stages.0.0.residual", place / "images"),
                "speech": (place / "speech", "encoder.1.residual", "speech"),
                "speaker": (place / "speech", "decoder.decoder.0.residual", "speech"),
                "t5": (make_writer("t5"), "encoder.0.residual", "builtin:reverse"),
                "t5 answers": (make_writer("t5"), "decoder.1.residual", "builtin:reverse"),
                "captioner": (make_captioner("soft"), "body.stages.1.blocks.0.residual", "scenes"),
                "captions": (make_captioner("soft"), "decoder.recurrent.states", "scenes"),
                "whisper": (place / "whisper", "encoder.0.residual", place / "sounds"),
                "whispered": (place / "whisper", "decoder.1.residual", place / "sounds"),
            }[kind]
            own = ("model.features=24", "model.k=4", "data.count=24", "data.block=24", "data.to=", "data.split=0.25")
            steps = ("training.steps=12", "training.batch=16", "training.validate_every=12")
            train(recipe(model, where, data, *own, *steps), place / "run")
            made[kind] = place / "run"
        return made[kind]

    return make


@pytest.mark.parametrize(
    "kind",
    [
        "gpt", "writer", "encoder", "translator", "reader", "vit", "swin", "speech", "speaker", "t5", "t5 answers",
        "captioner", "captions", "whisper", "whispered",
    ],
)  # fmt: skip
def test_every_kind_of_model_can_be_read(kind, read):
    dictionary = regard.load(read(kind))
    assert isinstance(dictionary, FeatureDictionary)
    (measured,) = (row for row in read_metrics(read(kind) / METRICS) if "l0" in row)
    assert 0 < measured["l0"] <= 4 and math.isfinite(measured["loss_recovered"])
    known = [feature for feature in dictionary.contexts.features if feature.contexts]
    assert known and all(feature.share > 0 for feature in known)
    for context in known[0].contexts:  # what is shown is what the model does
        example = dictionary.contexts.examples[context.example].unpack(list(dictionary.reader.columns.values()))
        with torch.inference_mode():
            seen = observe(dictionary.reader, dictionary.site, [example])
            values = dictionary.model.encode(seen.rows)[:, known[0].number]
        assert float(values.max()) == pytest.approx(context.strongest, abs=1e-3)
        assert int(values.argmax()) == context.position
        assert context.tokens or (context.rows > 1 and dictionary.contexts.examples[context.example].image)
    (effect,) = dictionary.effects(known[0].number, 1)
    assert all(isinstance(answer, str) for answer in (effect.whole, effect.off, effect.up))


def test_a_wrong_place_or_model_is_one_line(gpt_folder, make_writer, tmp_path):
    with pytest.raises(UsageError, match=r"there is no place 'decoder\.9\.residual' in this model; it has decoder"):
        train(recipe(gpt_folder, "decoder.9.residual", "samples"), tmp_path / "a")
    with pytest.raises(UsageError, match=r"matches 2 places, such as decoder\.0\.residual; name one of them"):
        train(recipe(gpt_folder, "decoder.*.residual", "samples"), tmp_path / "b")
    with pytest.raises(
        UsageError, match="'samples' is nothing that a T5 reads; give files, or what is built in for it"
    ):
        train(recipe(make_writer("t5"), "decoder.0.residual", "samples"), tmp_path / "c")
    with pytest.raises(ConfigError, match=r"model\.k is 30, but there are 20 features"):
        recipe(gpt_folder, "decoder.0.residual", "samples", "model.features=20", "model.k=30")


def test_evaluate_measures_a_dictionary_on_other_data(read, tmp_path, capsys):
    text = tmp_path / "other.txt"
    text.write_text("the owl saw the fox\n" * 4)
    assert run(["evaluate", str(text), "-m", str(read("gpt")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 4 and 0 < found["l0"] <= 4
    assert found["loss_recovered"] != found["loss_recovered_mean"]


# The verb


def told(capsys, *arguments):
    assert run(["features", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_features_are_listed_named_and_told(read, capsys):
    folder = read("gpt")
    rows = [json.loads(line) for line in told(capsys, "-m", folder, "--json", "--top", 5).splitlines()]
    assert rows == sorted(rows, key=lambda row: -row["share"]) and len(rows) == 5
    number = rows[-1]["number"]
    assert told(capsys, "-m", folder, "--name", f"{number}=the owl") == ""
    first = told(capsys, "-m", folder).splitlines()[0]
    assert first.split()[0] == str(number) and first.endswith("the owl")
    assert told(capsys, number, "-m", folder).startswith(f"feature {number}  the owl\n  active at ")
    more = json.loads(told(capsys, number, "-m", folder, "--json"))
    assert more["name"] == "the owl" and len(more["outputs"]["raised"]) == 8
    values = [context["values"][context["at"]] for context in more["contexts"]]
    assert values == sorted(values, reverse=True) and values[0] == pytest.approx(more["largest"], abs=1e-3)
    told(capsys, "-m", folder, "--name", f"{number}=")
    assert "the owl" not in told(capsys, "-m", folder)


def test_features_of_a_text_are_those_of_its_activations(read, capsys):
    folder, text = read("gpt"), "the fox saw the owl"
    found = json.loads(told(capsys, "-m", folder, "--text", text, "--json", "--top", 100))
    dictionary = regard.load(folder)
    model = dictionary.reader.model
    ids = torch.tensor([dictionary.reader.pipeline.opened(text)])
    with torch.inference_mode(), record_activations(model, "decoder.0.residual") as seen:
        model(ids)
        values = dictionary.model.encode(seen["decoder.0.residual"][0])
    active = {number for number in range(24) if float(values[:, number].max()) > 0}
    assert {each["number"] for each in found["features"]} == active
    one = found["features"][0]
    assert one["values"] == pytest.approx(values[:, one["number"]].tolist(), abs=1e-5)
    assert len(found["units"]) == ids.shape[1]
    changed = [
        json.loads(told(capsys, each["number"], "-m", folder, "--text", text, "--value", 500, "--json"))
        for each in found["features"][:12]
    ]
    (whole,) = {each["whole"] for each in changed}
    assert any(each["changed"] != whole for each in changed)


def test_the_direct_effect_is_that_of_the_unembedding(read):
    dictionary = regard.load(read("gpt"))
    number = dictionary.contexts.features.index(max(dictionary.contexts.features, key=lambda each: each.largest))
    model, sae = dictionary.reader.model, dictionary.model
    with torch.inference_mode():
        moved = sae.mean + dictionary.feature(number).largest * sae.scale * sae.directions[number]
        logits = [model.output(model.norm(each[None]), model.embedding.weight)[0] for each in (sae.mean, moved)]
    change = logits[1] - logits[0]
    best = int(change.argmax())
    name, value = dictionary.outputs(number).raised[0]
    assert name == dictionary.reader.output_names()(best)
    assert value == pytest.approx(float(change[best] - change.mean()), abs=1e-4)
    assert regard.load(read("reader")).outputs(0) is None  # an encoder's stream does not reach the output by itself


@pytest.mark.parametrize("kind", ["gpt", "vit"])
def test_a_page_has_every_feature_and_loads_nothing(kind, read, tmp_path, capsys):
    page, plain = tmp_path / "features.html", tmp_path / "features.json"
    for output in (page, plain):
        told(capsys, "-m", read(kind), "--top", 3, "-o", output)
    report, text = json.loads(plain.read_text()), page.read_text()
    assert len(report["features"]) == 3 and "default-src 'none'" in text
    for feature in report["features"]:
        assert f'"number": {feature["number"]}' in text
        assert feature["effects"] and {"whole", "off", "up", "prompt"} == feature["effects"][0].keys()
        assert all(context["tokens"] or context["example"] in report["images"] for context in feature["contexts"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["99"], "there is no feature 99; there are 0 to 23"),
        (["--name", "owl"], "--name 'owl' is not understood; write a number and a name"),
        (["--value", "2"], "--value needs one feature and --text"),
        (["-o", "features.pdf"], "cannot write features as 'features.pdf'; name a file ending in .html or .json"),
        (["1", "--of", "nowhere"], "which is not there; name its folder with --of"),
    ],
)
def test_wrong_use_is_one_line(arguments, says, read, capsys):
    assert run(["features", *arguments, "-m", str(read("gpt"))]) != 0
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_a_dictionary_of_other_weights_is_told(read, gpt_folder, tmp_path, capsys):
    dictionary, model = regard.load(read("gpt")), regard.load(gpt_folder).model
    assert dictionary.subject.weights == fingerprint(model)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 1
    trained_again = dictionary.subject.replace(weights=fingerprint(model))
    with pytest.raises(UsageError, match=rf"the features of d are of another model than {gpt_folder}: its weights"):
        _ = FeatureDictionary(dictionary.model, trained_again, dictionary.folder, name="d").reader
    copied = shutil.copytree(gpt_folder, tmp_path / "copied")
    assert run(["features", "--text", "the fox", "-m", str(read("gpt")), "--of", str(copied)]) == 0


def test_frames_of_recordings_are_read_with_their_times_and_losses(read, tmp_path):
    """Against a pass by hand over one recording; in a batch, padded frames do not count."""
    (long, short) = utterances(part="test", count=2, seed=4, digits=(2, 3), rate=AUDIO.rate)
    for number, said in enumerate((long, short)):
        write_wav(tmp_path / f"{number}.wav", said.samples, AUDIO.rate)
        (tmp_path / f"{number}.txt").write_text(said.text)
    recognizer = regard.load(save_recognizer(tmp_path / "model", tiny_recognizer(decoder_depth=1)))
    reader = reader_of(recognizer)
    examples = list(reader.examples(Source(str(tmp_path))))
    assert [len(samples) for samples, _ in examples] == [len(long.samples), len(short.samples)]
    site = Site(reader.model, "encoder.1.residual")
    together = observe(reader, site, examples, loss=True)
    alone = [observe(reader, site, [each], loss=True) for each in examples]
    torch.testing.assert_close(together.rows, torch.cat([each.rows for each in alone]), atol=1e-4, rtol=1e-4)
    assert together.loss == pytest.approx(sum(each.loss for each in alone), rel=1e-4)
    samples, ids = examples[0]
    features = recognizer._features([samples.astype(np.float32) / 32767])
    with torch.inference_mode():
        heard = recognizer.model(features.values, None, torch.tensor([[recognizer.tokenizer.pad, *ids[:-1]]]))
    logs, said = heard.frames[0].log_softmax(-1), torch.tensor(ids[None, :-1]).long()
    by_labels = functional.ctc_loss(logs[:, None], said, [len(logs)], [len(ids) - 1], blank=0, reduction="sum")
    by_decoder = functional.cross_entropy(heard.taught[0], torch.tensor(ids).long(), reduction="sum")
    assert recognizer.tokenizer.pad == 0
    assert alone[0].loss == pytest.approx(float(JOINT * by_labels + (1 - JOINT) * by_decoder), rel=1e-3)  # as trained
    units = reader.units(examples[0], site.name)
    assert len(units) == len(alone[0].rows) == len(logs) and units.tokens[10].startswith(" 0.40s")
    given = reader.given(str(tmp_path / "0.wav"))
    assert np.array_equal(given[0], samples)
    assert reader.answer(given, 0) == recognizer.transcribe(tmp_path / "0.wav")[0].text
    drawn = [[row.tolist() for row in next(read_examples(reader, Source(name, count=1)))]
             for name in ("speech", "builtin:speech")]  # fmt: skip
    assert drawn[0] == drawn[1]

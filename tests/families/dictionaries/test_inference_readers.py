"""Models while they read, beside passes by hand: losses, and the vectors that hooks of torch see."""

import json
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import regard
from regard.attention.intervene import intervene
from regard.attention.places import record_activations
from regard.checkpoints import save_model
from regard.data.images.reading import Preprocessing
from regard.data.synthetic.scene_texts import ANSWERS, phrases, questions
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import DataError, UsageError
from regard.families.catalog import MODELS, PIPELINES
from regard.families.detection.proposals import Truth
from regard.families.dictionaries.data import read_examples
from regard.families.dictionaries.model import SparseAutoencoder, SparseAutoencoderConfig
from regard.families.dictionaries.page import lines_of
from regard.families.dictionaries.pipeline import find_contexts
from regard.families.folding.data import ProteinInput, built_in_chain, pad_inputs
from regard.families.folding.metrics import distogram_loss
from regard.families.folding.model import distance_edges
from regard.families.images.generation import Palette, PixelGenerator
from regard.families.language.elmo import Elmo, ElmoConfig
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import facts
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.proteins.data import InteractionSettings
from regard.families.proteins.pipeline import InteractionPredictor
from regard.families.speech.features import log_mel
from regard.families.vision_language.model import PRESETS as VILBERTS
from regard.families.vision_language.model import Vilbert, VilbertConfig
from regard.families.vision_language.pipeline import VisionLanguageModel
from regard.families.vision_language.regions import FinderConfig, overlapping, places, region_reader
from regard.look.reader import (
    BoxUnits,
    ImageUnits,
    Site,
    Source,
    TokenUnits,
    observe,
    reader_of,
)
from regard.training.loop import train
from regard.training.recipe.load import load_recipe
from tiny_speech import write_wav
from tiny_whisper import sounds, whisper_folder


def check_site(reader, name, examples, expected):
    """The vectors of a batch are those that a hook saw for each example alone, the loss is the same in a batch, and
    neither changes if the place is given what it has; other values change the loss."""
    site = Site(reader.model, name)
    together, alone = observe(reader, site, examples, loss=True), [observe(reader, site, [each]) for each in examples]
    torch.testing.assert_close(torch.cat([each.rows for each in alone]), torch.cat(expected), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.rows, torch.cat(expected), atol=1e-4, rtol=1e-3)
    batch = reader.batch(examples)
    with torch.inference_mode(), intervene(site.model, site.replaced(lambda vectors: vectors.clone())):
        assert reader.loss(batch)[0] == pytest.approx(together.loss, rel=1e-6)
    with torch.inference_mode(), intervene(site.model, site.replaced(torch.zeros_like)):
        assert reader.loss(batch)[0] != pytest.approx(together.loss, rel=1e-4)
    for each, seen in zip(examples, alone, strict=True):
        assert len(reader.units(each, name)) == len(seen.rows)
    return together


def hooked(module, run):
    """What a module returns while something runs."""
    seen = []
    handle = module.register_forward_hook(lambda _, args, output: seen.append(output))
    with torch.inference_mode():
        run()
    handle.remove()
    return seen


def entropy(logits, labels):
    return float(functional.cross_entropy(logits, torch.as_tensor(np.array(labels), dtype=torch.long), reduction="sum"))


def test_prompts_and_answers_of_a_t5(make_writer, tmp_path):
    pipeline = regard.load(make_writer("t5"))
    (tmp_path / "table.tsv").write_text("Say: the fox\tthe owl saw\nSay it: we are eating bread\tbread\n")
    reader, model = reader_of(pipeline), pipeline.model
    examples = list(reader.examples(Source(str(tmp_path / "table.tsv"))))
    total, encoded, decoded = 0.0, [], []
    for text, answer in (("Say: the fox", "the owl saw"), ("Say it: we are eating bread", "bread")):
        source, target = (pipeline.read(each) for each in (text, answer))
        inputs, mask = torch.tensor([[model.config.pad, *target[:-1]]]), torch.ones(1, len(source), dtype=torch.bool)

        def run(source=source, mask=mask, inputs=inputs):
            return model(torch.tensor([source]), mask, inputs)

        encoded += [each[0] for each in hooked(model.encoder[1], run)]
        decoded += [each[0] for each in hooked(model.decoder[0], run)]
        with torch.inference_mode():
            total += entropy(run()[0], target)
    assert check_site(reader, "encoder.1.residual", examples, encoded).loss == pytest.approx(total, rel=1e-4)
    seen = check_site(reader, "decoder.0.residual", examples, decoded)
    assert seen.answers == sum(len(target) for _, target in examples)
    given = reader.given("Say: the fox")
    assert given[0].tolist() == examples[0][0].tolist()
    assert reader.answer(given, 0) == pipeline.generate("Say: the fox", temperature=0.0).text.strip()
    with pytest.raises(
        UsageError, match=r"'samples' is nothing that a T5 reads; .* built in for it: builtin:translate"
    ):
        read_examples(reader, Source("samples"))


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """Folders of a recurrent translator with attention, trained for one step."""
    folder = tmp_path_factory.mktemp("recurrent") / "rnn"
    sizes = ("model.width=32", "model.embedding=16", "data.phrasebook.count=60", "data.phrasebook.test_count=2")
    more = ("training.steps=1", "training.validate_every=0", "training.device=cpu", "data.phrasebook.max_words=6")
    train(load_recipe("phrasebook-rnn", [*sizes, *more, "training.average=0", "training.metric=loss"]), folder)
    return folder


def test_states_of_a_recurrent_translator(recurrent):
    """Its decoder is read step by step; a pass over the whole text gives the same loss."""
    pipeline = regard.load(recurrent)
    reader, (model,) = reader_of(pipeline), pipeline.models
    examples = list(reader.examples(Source("phrasebook", count=3, block=30)))
    encoded, decoded, total = [], [], 0.0
    for source, target in examples:
        tokens = torch.tensor(source[None], dtype=torch.long)
        inputs = torch.tensor([[pipeline.vocabulary.start, *target[:-1]]])
        mask = torch.ones_like(tokens, dtype=torch.bool)
        seen = []

        def run(tokens=tokens, mask=mask, inputs=inputs, seen=seen):
            state = model.start(tokens, mask)
            for token in inputs.unbind(1):
                model.step(token[:, None], state)
                seen.append(state.hidden[0, -1, 0])

        encoded += [each[0][0] for each in hooked(model.encoder, run)]
        decoded.append(torch.cat(seen))
        with torch.inference_mode():
            total += entropy(model(tokens, mask, inputs)[0], target)
    assert check_site(reader, "encoder.states", examples, encoded).loss == pytest.approx(total, rel=1e-4)
    check_site(reader, "decoder.states", examples, decoded)
    assert len(reader.units(examples[0], "cross.keys")) == len(examples[0][0])
    forwards = reader.units(examples[0], "encoder.states").tokens
    model.config = model.config.replace(reverse_source=True)
    assert reader.units(examples[0], "encoder.states").tokens == forwards[::-1]
    assert reader.units(examples[0], "cross.keys").tokens == forwards


def test_states_of_a_recurrent_language_model(make_writer):
    pipeline = regard.load(make_writer("lstm"))
    reader, model = reader_of(pipeline), pipeline.model
    examples = [reader.given(text) for text in ("the fox saw the owl", "bread")]
    states, total = [], 0.0
    for (ids,) in examples:
        tokens = torch.tensor(ids[None], dtype=torch.long)
        states += [each[0][0] for each in hooked(model.decoder[-1], lambda tokens=tokens: model(tokens))]
        with torch.inference_mode():
            total += entropy(model(tokens)[0, :-1], ids[1:])
    name = f"decoder.{len(model.decoder) - 1}.states"
    assert check_site(reader, name, examples, states).loss == pytest.approx(total, rel=1e-4)
    assert len(next(reader.examples(Source("samples", count=2, block=7)))[0]) <= 7


@pytest.mark.parametrize("kind", ["soft", "heads"])
def test_images_and_words_of_a_captioner(kind, make_captioner, tmp_path):
    pipeline = regard.load(make_captioner(kind))
    reader, model = reader_of(pipeline), pipeline.model
    examples = list(reader.examples(Source("scenes", count=3)))
    maps, words, total = [], [], 0.0
    last = model.decoder.recurrent if kind == "soft" else model.decoder.decoder[1]
    for pixels, ids in examples:
        image = pipeline.preprocessing.normalise(torch.tensor(pixels.reshape(1, 3, 16, 16)))
        inputs = torch.tensor([[pipeline.tokenizer.pad, *ids[:-1]]])

        def steps(image=image, inputs=inputs):
            state = model.start(image)
            for token in inputs.unbind(1):
                model.step(token[:, None], state)

        def whole(image=image, inputs=inputs):
            return model(image, inputs)

        seen = hooked(last, steps if kind == "soft" else whole)
        words.append(torch.cat([each[0][0] for each in seen]) if kind == "soft" else seen[0][0])
        maps += [each[0].flatten(1).T for each in hooked(model.body.stages[1].blocks[0], whole)]
        with torch.inference_mode():
            total += entropy(whole()[0][0], ids)
    body = check_site(reader, "body.stages.1.blocks.0.residual", examples, maps)
    assert body.loss == pytest.approx(total, rel=1e-4)
    name = "decoder.recurrent.states" if kind == "soft" else "decoder.decoder.1.residual"
    check_site(reader, name, examples, words)
    begin, *fed = reader.units(examples[0], name).tokens
    assert begin == "<s>" and "".join(fed).split() == reader.tokenizer.decode(examples[0][1]).split()
    assert isinstance(reader.units(examples[0], "body.stages.1.blocks.0.residual"), ImageUnits)
    Image.fromarray(examples[0][0].reshape(3, 16, 16).transpose(1, 2, 0)).save(tmp_path / "one.png")
    given = reader.given(str(tmp_path / "one.png"))
    assert np.array_equal(given[0], examples[0][0])
    assert reader.answer(given, 0) == pipeline.caption(tmp_path / "one.png")[0].text


def test_frames_and_tokens_of_a_whisper(tmp_path):
    """What asks for a language has no loss, and silence behind a recording is read by the model but is no frame."""
    pipeline = regard.load(whisper_folder(tmp_path / "model"))
    for number, (seconds, text) in enumerate(((0.5, "a b c"), (0.3, "dog"))):
        write_wav(tmp_path / f"{number}.wav", sounds(1, seconds, number)[0], pipeline.rate)
        (tmp_path / f"{number}.txt").write_text(text)
    reader, model, tokens = reader_of(pipeline), pipeline.model, pipeline.tokens
    examples = list(reader.examples(Source(str(tmp_path), to="pt")))
    frames, words, total = [], [], 0.0
    for (samples, row), seconds, text in zip(examples, (0.5, 0.3), ("a b c", "dog"), strict=True):
        asked = tokens.prompt("pt", [], times=False, places=40)
        said = [*pipeline.tokenizer.library.encode(f" {text}", add_special_tokens=False).ids, tokens.end]
        assert row.tolist() == [*asked, *said]
        wave = np.zeros(8000, dtype=np.float32)
        wave[: len(samples)] = samples / 32767
        inputs = torch.tensor([[*asked, *said[:-1]]])

        def run(wave=wave, inputs=inputs):
            return model(log_mel(torch.from_numpy(wave), pipeline.audio)[None], inputs)

        frames += [each[0, : round(seconds * 50)] for each in hooked(model.encoder[1], run)]
        words += [each[0] for each in hooked(model.decoder[0], run)]
        with torch.inference_mode():
            total += entropy(run()[0, len(asked) - 1 :], said)
    assert check_site(reader, "encoder.1.residual", examples, frames).loss == pytest.approx(total, rel=1e-4)
    check_site(reader, "decoder.0.residual", examples, words)
    shown = reader.units(examples[1], "encoder.1.residual").tokens
    assert len(shown) == 15 and shown[10].startswith(" 0.20s") and any("dog" in each for each in shown)
    given = reader.given(str(tmp_path / "0.wav"))
    assert np.array_equal(given[0], examples[0][0])
    assert reader.answer(given, 0) == pipeline.tokenizer.decode(given[1][reader.asked : -1].tolist()).strip()
    with pytest.raises(UsageError, match="does not know the language 'xx'"):
        list(reader.examples(Source(str(tmp_path), to="xx")))


@pytest.mark.parametrize("decoder", ["parallel", "autoregressive"])
def test_agents_at_steps_of_a_forecaster(decoder, make_forecaster, tmp_path):
    pipeline = regard.load(make_forecaster(decoder=decoder))
    reader, model = reader_of(pipeline), pipeline.model
    examples = sorted(reader.examples(Source("builtin:walkers", count=9)), key=lambda each: len(each[1]))[::8]
    assert len(examples[0][1]) < len(examples[1][1])  # in a batch, the first has agents that are padding
    pasts, futures, total = [], [], 0.0
    for row, seen in examples:
        tracks, there = torch.tensor(row).view(1, -1, 20, 2), torch.tensor(seen).view(1, -1, 20).bool()
        assert there.all()

        def run(tracks=tracks, there=there):
            return model.forecast(tracks[:, :, :8], there[:, :, :8], torch.zeros(1, 0, tracks.shape[1], 8))[1]

        pasts += [each[0] for each in hooked(model.encoder.layers[1], run)]
        futures.append(torch.cat([each[0] for each in hooked(model.decoder.layers[0], run)]))
        with torch.inference_mode():
            total += float((run() - tracks[:, :, 8:]).square().sum())
    past = check_site(reader, "encoder.layers.1.residual", examples, pasts)
    assert past.loss == pytest.approx(total, rel=1e-4)
    assert past.answers == sum(len(seen) for _, seen in examples) * 12 // 20
    check_site(reader, "decoder.layers.0.residual", examples, futures)
    agents = len(examples[0][1]) // 20
    tokens = reader.units(examples[0], "encoder.layers.1.residual").tokens
    assert [token[:5] for token in tokens[8:10]] == [" 2@-7", " 2@-6"]
    second = " 1@+2" if decoder == "parallel" else " 2@+1"
    tokens = reader.units(examples[0], "decoder.layers.0.residual").tokens
    assert [token[:5] for token in tokens[:2]] == [" 1@+1", second]
    walk = np.array([[0, 0], [1, 0], [1, 1], [1, 1], [0, 1], [0, 0], [2, -2], [1, -3]], dtype=np.float32)
    seen = np.array([1] * 7 + [0], dtype=np.uint8)
    walk, seen = np.pad(walk, ((0, 12), (0, 0))).ravel(), np.pad(seen, (0, 12))
    assert "".join(token[-1] for token in reader.units((walk, seen), "encoder.layers.0.input").tokens) == "→→↑·←↓↘"
    given = reader.given("builtin:walkers#3")
    (told,) = pipeline.forecast("builtin:walkers#3")
    moved = (told.likeliest[:, -1] - told.past[:, -1]).round(1)
    assert reader.answer(given, 0).startswith(f"1: {moved[0, 0]:+.1f} {moved[0, 1]:+.1f} m, 2: ")
    assert agents >= 2 and len(reader.units(given, "decoder.layers.0.residual")) == 12 * len(told.agents)


def test_residues_and_pairs_of_a_model_of_structures(make_folder_of_structures):
    pipeline = regard.load(make_folder_of_structures(recycles=0))
    reader, model = reader_of(pipeline), pipeline.model
    examples = sorted(reader.examples(Source("builtin:chains", count=3)), key=lambda each: len(each[1]))[::2]
    assert len(examples[0][1]) < len(examples[1][1])
    chains = [built_in_chain(1, 3 * number) for number in range(3)]
    chains = [next(each for each in chains if len(each) == len(numbers)) for _, numbers, *_ in examples]
    rows, pairs, places, total = [], [], [], 0.0
    for chain in chains:
        given = ProteinInput.of("one", chain.sequence)

        def run(given=given):
            return model(*pad_inputs([given], 4))

        seen = hooked(model.blocks[1], run)
        rows += [state[0].flatten(0, 1) for state, _ in seen]
        pairs += [between[0].flatten(0, 1) for _, between in seen]
        places.append(torch.cat([each[0] for each in hooked(model.structure.after_transition, run)]))
        with torch.inference_mode():
            answer = run()
        points, ca = torch.tensor(chain.contact_points()[0]), torch.tensor(chain.atoms[:, 1])
        edges = distance_edges(answer.distances.shape[-1])
        known = torch.ones(1, len(chain), dtype=torch.bool)
        total += float(distogram_loss(answer.distances, points[None], known, edges)) * len(chain) ** 2
        wrong = (torch.cdist(answer.frames.translation[-1], answer.frames.translation[-1]) - torch.cdist(ca, ca)).abs()
        total += float(wrong.clamp(max=10).sum()) / 10
    seen = check_site(reader, "blocks.1.residual_pairs", examples, pairs)
    assert seen.loss == pytest.approx(total, rel=1e-3) and seen.answers == sum(len(chain) ** 2 for chain in chains)
    check_site(reader, "blocks.1.residual", examples, rows)
    check_site(reader, "structure.residual", examples, places)
    given, letters = reader.given("mktayiakqrqisfv"), "MKTAYIAKQRQISFV"
    assert reader.units(given, "blocks.1.residual").tokens[:3] == [" M1", " K2", " T3"]
    assert reader.units(given, "blocks.1.residual_pairs").tokens[15:17] == [" K2:M1", " K2:K2"]
    (folded,) = pipeline.fold(letters)
    assert reader.answer(given, 0).startswith(f"confidence {folded.mean_confidence:.0f}%, contacts ")
    with pytest.raises(UsageError, match="which is not one vector for each of"):
        observe(reader, Site(model, "blocks.0.column.attention.heads"), examples)
    with pytest.raises(DataError, match="expected the letters of amino acids"):
        reader.given("/etc/passwd")


def test_maps_of_a_segmenter(tmp_path):
    torch.manual_seed(0)
    entry, names = MODELS["segmenter"], ("background", *SHAPE_NAMES)
    model = entry.model(entry.config.parse({**entry.presets["tiny"], "classes": len(names), "class_names": names}))
    preprocessing = Preprocessing(size=(32, 32), resize=32, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "model", "segmenter", model, preprocessing.save)
    pipeline = regard.load(tmp_path / "model")
    reader, model = reader_of(pipeline), pipeline.model
    examples = list(reader.examples(Source("scenes", count=2)))
    maps, total = [], 0.0
    for scene in scenes(part="train", count=2, seed=1, size=32):
        image = preprocessing.normalise(torch.from_numpy(scene.pixels)[None])
        maps += [each[0].flatten(0, 1) for each in hooked(model.body.stages[0][1], lambda image=image: model(image))]
        with torch.inference_mode():
            total += entropy(model(image)[0].flatten(1).T, scene.mask.ravel())
    seen = check_site(reader, "body.stages.0.1.residual", examples, maps)
    assert seen.loss == pytest.approx(total, rel=1e-4) and seen.answers == 2 * 32 * 32
    Image.fromarray(examples[0][0].reshape(3, 32, 32).transpose(1, 2, 0)).save(tmp_path / "one.png")
    given = reader.given(str(tmp_path / "one.png"))
    (shares,) = (each.shares for each in pipeline.segment(tmp_path / "one.png"))
    first, share = next(iter(shares.items()))
    assert reader.answer(given, 0).startswith(f"{first} {share:.0%}")
    with pytest.raises(UsageError, match="masks of images are known of 'scenes' alone"):
        list(reader.examples(Source(str(tmp_path))))


@pytest.mark.parametrize("kind", ["tiny", "tiny-vit"])
def test_maps_of_a_detector(kind, tmp_path):
    """Losses are those of its training with the same draws; images of different canvases are read apart."""
    torch.manual_seed(0)
    entry = MODELS["detector"]
    model = entry.model(entry.config.parse({**entry.presets[kind], "class_names": SHAPE_NAMES}))
    preprocessing = Preprocessing(size=(64, 64), resize=64, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(tmp_path / "model", "detector", model, preprocessing.save)
    pipeline = regard.load(tmp_path / "model")
    reader, model = reader_of(pipeline), pipeline.model
    examples = list(reader.examples(Source("scenes", count=2)))
    drawn = list(scenes(part="train", count=2, seed=1, size=64))
    images = preprocessing.normalise(torch.from_numpy(np.stack([scene.pixels for scene in drawn])))
    most = max(len(scene.things) for scene in drawn)
    boxes, labels = torch.zeros(2, most, 4), torch.zeros(2, most, dtype=torch.long)
    for row, scene in enumerate(drawn):
        for number, thing in enumerate(scene.things):
            boxes[row, number] = 64 * torch.tensor(thing.box)
            labels[row, number] = 1 + SHAPE_NAMES.index(thing.shape)
    module, name = (
        (model.body.stages[1].blocks[0], "body.stages.1.blocks.0.residual")
        if kind == "tiny"
        else (model.body.encoder[1], "body.encoder.1.residual")
    )
    (seen,) = hooked(module, lambda: model(images))
    maps = seen.movedim(1, -1).flatten(1, 2) if kind == "tiny" else seen
    torch.manual_seed(0)
    with torch.inference_mode():
        total = float(sum(each.sum() for each in model(images, None, Truth(boxes, labels))))
    assert check_site(reader, name, examples, list(maps)).loss == pytest.approx(total, rel=1e-4)
    Image.fromarray(np.zeros((40, 120, 3), np.uint8)).save(tmp_path / "wide.png")
    wide = reader.given(str(tmp_path / "wide.png"))
    assert list(reader.batches([examples[0], wide, examples[1]])) == [[0, 2], [1]]
    units = reader.units(wide, name)
    assert reader.image(wide).shape == (3, 32, 64) and units.columns == 2 * units.rows and units.extra == 0
    assert reader.answer(wide, 0) == (", ".join(
        f"{each.label} {each.score:.0%}" for each in pipeline.detect(str(tmp_path / "wide.png"), 0.5)[0].objects[:4]
    ) or "no object")  # fmt: skip
    with pytest.raises(UsageError, match="has a vector for each box, and boxes depend on the pass"):
        observe(reader, Site(model, "regions.hidden"), examples)


@pytest.fixture(scope="module")
def scene_words():
    texts = [
        text
        for scene in scenes(part="train", count=40, seed=1, size=16)
        for text in (scene.caption, *(each.text for make in (phrases, questions) for each in make(scene)))
    ]
    return train_vocabulary(texts, VocabularyConfig.parse({"kind": "wordpiece", "size": 200}), "enclosed")


@pytest.mark.parametrize("head", ["score", "pretraining", "point", "answer"])
def test_words_and_regions_of_a_vilbert(head, scene_words, tmp_path):
    torch.manual_seed(0)
    values = {**VILBERTS["tiny"], "vocab": scene_words.size, "pad": scene_words.pad, "head": head}
    answers = {"labels": len(ANSWERS), "label_names": ANSWERS} if head == "answer" else {}
    finder = FinderConfig(most=4)
    model = Vilbert(VilbertConfig.parse({**values, **answers, "initial_gain": 2.0}))
    pipeline = VisionLanguageModel(model, scene_words, region_reader(finder))
    reader = reader_of(pipeline)
    examples = list(reader.examples(Source("scenes", count=8)))
    drawn = list(scenes(part="train", count=8, seed=1, size=48))
    texts = [scene_words.decode(ids.tolist()) for ids, *_ in examples]
    if head in ("score", "pretraining"):  # every second text is read with the image before it
        assert [int(target[0]) for *_, target, _ in examples] == [1, 0] * 4
        assert texts[1] == drawn[1].caption
    words, regions, total = [], [], 0.0
    for number, ((*_, target, pixels), text) in enumerate(zip(examples, texts, strict=True)):
        scene = drawn[number - number % 2 if head in ("score", "pretraining") else number]
        image = Image.fromarray(scene.pixels.transpose(1, 2, 0))
        assert np.array_equal(pixels, np.asarray(image.resize((96, 96))).transpose(2, 0, 1).ravel())
        found, right = finder.read(image), int(target[0])
        ids = torch.tensor([scene_words.encode([text])[0].ids])
        inputs = (
            ids, torch.ones_like(ids).bool(), torch.tensor(found.features[None]).float(),
            torch.tensor(places(found.boxes)[None]), torch.ones(1, len(found.boxes), dtype=torch.bool),
        )  # fmt: skip

        def run(inputs=inputs):
            return model(*inputs)

        words += [each[0] for each in hooked(model.words.encoder[1], run)]
        regions += [each[0] for each in hooked(model.links[0].regions, run)]
        with torch.inference_mode():
            output = run()
        if head in ("point", "answer"):
            total += entropy(output.logits, [right])
            options = {each.text: each.target for each in (phrases if head == "point" else questions)(scene)}
            meant = options[text]
            assert right == (
                overlapping(found.boxes, scene.things[meant].box) if head == "point" else ANSWERS.index(meant)
            )
        else:
            total -= float(functional.logsigmoid(output.score if right else -output.score))
    assert check_site(reader, "words.encoder.1.residual", examples, words).loss == pytest.approx(total, rel=1e-3)
    check_site(reader, "links.0.regions.residual", examples, regions)
    assert isinstance(reader.units(examples[0], "links.0.words.cross.keys"), BoxUnits)
    assert isinstance(reader.units(examples[0], "links.0.regions.cross.keys"), TokenUnits)
    Image.fromarray(drawn[0].pixels.transpose(1, 2, 0)).save(tmp_path / "one.png")
    given = reader.given(f"{tmp_path / 'one.png'}:{texts[0]}")
    assert all(np.array_equal(one, other) for one, other in zip(given[:3], examples[0][:3], strict=True))
    expected = {
        "point": lambda: pipeline.point(tmp_path / "one.png", texts[0])[0].region,
        "answer": lambda: pipeline.answer(tmp_path / "one.png", texts[0])[0].label,
    }.get(head, lambda: f"{pipeline.match(tmp_path / 'one.png', texts[0])[0].score:+.2f}")()
    text, _, said = reader.answer(given, 0).rpartition(": ")
    assert text == texts[0] and str(expected) in said
    with pytest.raises(UsageError, match="write FILE:TEXT"):
        reader.given("one.png")


def test_features_of_regions_are_boxes_on_their_images(scene_words):
    torch.manual_seed(0)
    values = {**VILBERTS["tiny"], "vocab": scene_words.size, "pad": scene_words.pad, "head": "point"}
    pipeline = VisionLanguageModel(
        Vilbert(VilbertConfig.parse(values)), scene_words, region_reader(FinderConfig(most=4))
    )
    reader, site = reader_of(pipeline), Site(pipeline.model, "regions.1.residual")
    examples = list(reader.examples(Source("scenes", count=6)))
    rows = torch.cat([observe(reader, site, [each]).rows for each in examples])
    dictionary = SparseAutoencoder(SparseAutoencoderConfig(width=rows.shape[1], features=12, k=3))
    dictionary.initialise(rows)
    found = find_contexts(reader, site, dictionary.eval(), examples)
    feature = max(found.features, key=lambda each: each.largest)
    context = feature.contexts[0]
    boxes = examples[int(context.example)][1].reshape(-1, 4)
    assert len(context.values) == len(boxes) and found.examples[context.example].image
    np.testing.assert_allclose(context.boxes, boxes, atol=1e-4)
    box = "-".join(f"{side:.2f}" for side in boxes[context.at])
    told = {"number": 0, "name": "", "share": 0.1, "largest": 1.0, "contexts": [asdict(context)], "outputs": None}
    assert box in "\n".join(lines_of({**told, "effects": []}))


@pytest.mark.parametrize("kind", ["one", "value"])
def test_texts_with_labels(kind, make_encoder, tmp_path):
    names = {"labels": 3, "label_names": ["bad", "fine", "good"]} if kind == "one" else {"labels": 1}
    pipeline = regard.load(make_encoder("classify", label_kind=kind, **names))
    reader, model = reader_of(pipeline), pipeline.model
    targets = ("good", "bad") if kind == "one" else ("1.5", "-2")
    (tmp_path / "table.tsv").write_text(f"the fox\tthe owl saw\t{targets[0]}\nthe owl\t{targets[1]}\n")
    examples = list(reader.examples(Source(str(tmp_path / "table.tsv"))))
    states, total = [], 0.0
    for text, pair, target in (("the fox", ["the owl saw"], targets[0]), ("the owl", None, targets[1])):
        (row,) = pipeline.tokenizer.encode([text], pair)
        ids, segments = torch.tensor([row.ids]), torch.tensor([row.segments])

        def run(ids=ids, segments=segments):
            return model(ids, torch.ones_like(ids).bool(), segments)

        states += [each[0] for each in hooked(model.encoder[0], run)]
        with torch.inference_mode():
            logits = run().logits
        right = names.get("label_names", []).index(target) if kind == "one" else float(target)
        total += entropy(logits, [right]) if kind == "one" else float((logits[0, 0] - right) ** 2)
    assert check_site(reader, "encoder.0.residual", examples, states).loss == pytest.approx(total, rel=1e-4)
    (told,) = pipeline.classify("the owl")
    shown = f"{told.label} {told.probability:.0%}" if kind == "one" else f"{told.value:.2f}"
    assert reader.answer(reader.given("the owl"), 0) == shown
    for line, message in (
        ("the owl", "1 columns; expected text TAB label"),
        ("the owl\tgreat", "the label 'great' is none of the model's" if kind == "one" else "'great' is not a number"),
    ):
        (tmp_path / "bad.tsv").write_text(f"{line}\n")
        with pytest.raises(DataError, match=message):
            list(reader.examples(Source(str(tmp_path / "bad.tsv"))))


@pytest.mark.parametrize("head", ["none", "classify"])
def test_an_encoder_without_a_loss_is_refused(head, make_encoder):
    more = {"labels": 3, "label_kind": "several"} if head == "classify" else {}
    with pytest.raises(UsageError, match="guesses no hidden words and has no head that says one thing about a text"):
        reader_of(regard.load(make_encoder(head, **more)))


def test_words_with_tags(make_encoder, tmp_path):
    names = ["O", "B-X", "I-X"]
    pipeline = regard.load(make_encoder("tags", labels=3, label_names=names))
    reader, model = reader_of(pipeline), pipeline.model
    (tmp_path / "tags.txt").write_text("the O\nfox B-X\n\nthe O\nowl B-X\nsaw I-X\n")
    examples = list(reader.examples(Source(str(tmp_path / "tags.txt"))))
    states, total = [], 0.0
    for text, tags in (("the fox", [0, 1]), ("the owl saw", [0, 1, 2])):
        ids = torch.tensor([pipeline.tokenizer.encode([text])[0].ids])

        def run(ids=ids):
            return model(ids, torch.ones_like(ids).bool(), torch.zeros_like(ids))

        states += [each[0] for each in hooked(model.encoder[0], run)]
        words = np.array(pipeline.tokenizer.words_of(text))
        with torch.inference_mode():
            logits = run().logits[0]
        total += entropy(logits[[int(np.flatnonzero(words == word)[0]) for word in range(len(tags))]], tags)
    seen = check_site(reader, "encoder.0.residual", examples, states)
    assert seen.loss == pytest.approx(total, rel=1e-4) and seen.answers == 5
    (told,) = pipeline.tag("the owl saw")
    given = reader.given("the owl saw")
    for place, word in enumerate(told, 1):
        assert reader.answer(given, place).partition(": ")[2].startswith(f"{word.tag} ")
    (tmp_path / "bad.txt").write_text("the O\nfox B-Y\n")
    with pytest.raises(DataError, match="the tag 'B-Y' is none of the model's: O, B-X, I-X"):
        list(reader.examples(Source(str(tmp_path / "bad.txt"))))


def test_questions_with_answers(make_encoder, tmp_path):
    pipeline = regard.load(make_encoder("answer", labels=2))
    reader, model = reader_of(pipeline), pipeline.model
    texts = [("the owl", "the fox saw the owl", "saw the", 8), ("the fox", "the owl", "", 0)]
    asked = [
        {
            "context": text,
            "qas": [{"question": question, "answers": [{"text": right, "answer_start": at}] * bool(right)}],
        }
        for question, text, right, at in texts
    ]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": asked}]}))
    examples = list(reader.examples(Source(str(tmp_path / "squad.json"))))
    states, total = [], 0.0
    for question, text, right, _ in texts:
        (row,) = pipeline.tokenizer.encode([question], [text])
        ids, segments = torch.tensor([row.ids]), torch.tensor([row.segments])

        def run(ids=ids, segments=segments):
            return model(ids, torch.ones_like(ids).bool(), segments)

        states += [each[0] for each in hooked(model.encoder[1], run)]
        first = 6 if right else 0  # [CLS] the owl [SEP] the fox saw the owl [SEP]
        with torch.inference_mode():
            begin, end = run().logits[0].T
        total += entropy(begin[None], [first]) + entropy(end[None], [first + bool(right)])
    seen = check_site(reader, "encoder.1.residual", examples, states)
    assert seen.loss == pytest.approx(total / 2, rel=1e-4) and seen.answers == 2
    given = reader.given("the owl? the fox saw the owl")
    with torch.inference_mode():
        first, last = model(torch.tensor(given[0][None]).long(), torch.ones(1, len(given[0]), dtype=torch.bool),
                            torch.tensor(given[1][None]).long()).logits[0].argmax(dim=0).tolist()  # fmt: skip
    assert reader.answer(given, 0) == (pipeline.tokenizer.decode(given[0][first : last + 1].tolist()) or "no answer")
    with pytest.raises(UsageError, match=r"write QUESTION\? TEXT"):
        reader.given("the owl")


def test_built_in_facts_have_tags_and_answers(make_encoder):
    """Of every fact, the tokens that are tagged and the answer's are those of its words."""
    (fact,) = facts("train", 1, 1)
    tags = sorted(set(fact.tagged.tags))
    tagging = reader_of(regard.load(make_encoder("tags", labels=len(tags), label_names=tags, max_length=256)))
    ids, _, targets = next(tagging.examples(Source("builtin:facts", count=1, block=256)))
    assert len(targets) == len(ids) and [tags[int(each)] for each in targets if each >= 0] == fact.tagged.tags
    answering = reader_of(regard.load(make_encoder("answer", labels=2, max_length=256)))
    _, _, (first, last) = next(answering.examples(Source("builtin:facts", count=1, block=256)))
    tokenizer, asked = answering.tokenizer, fact.question
    begin, end = (tokenizer.spans(asked.question, asked.context)[int(place)] for place in (first, last))
    assert asked.context[begin[1] : end[2]] == asked.answers[0]


def test_pixels_of_a_model_that_writes_images(tmp_path):
    torch.manual_seed(0)
    colours = torch.tensor([[0.0, 0, 0], [255, 0, 0], [0, 255, 0], [255, 255, 255]])
    model = Gpt(GptConfig(vocab=5, width=16, heads=2, depth=2, max_length=256, ffn_width=24))
    pipeline = PixelGenerator(model, Palette(colours), 16)
    reader = reader_of(pipeline)
    examples = list(reader.examples(Source("scenes", count=2)))
    states, total = [], 0.0
    for scene in scenes(part="train", count=2, seed=1, size=16):
        away = (torch.tensor(scene.pixels).float().flatten(1).T[:, None] - colours).norm(dim=-1)
        tokens = away.argmin(dim=1)
        inputs = torch.cat([torch.tensor([4]), tokens[:-1]])[None]
        states += [each[0] for each in hooked(model.decoder[0], lambda inputs=inputs: model(inputs))]
        with torch.inference_mode():
            total += entropy(model(inputs)[0], tokens.tolist())
    seen = check_site(reader, "decoder.0.residual", examples, states)
    assert seen.loss == pytest.approx(total, rel=1e-4) and seen.answers == 2 * 256
    units = reader.units(examples[0], "decoder.0.residual")
    assert (units.rows, units.columns, units.extra) == (16, 16, 0)
    assert reader.answer(examples[0], 3).split(", ")[1].startswith("#")
    Image.fromarray(examples[1][0].reshape(3, 16, 16).transpose(1, 2, 0)).save(tmp_path / "one.png")
    assert np.array_equal(reader.given(str(tmp_path / "one.png"))[0], examples[1][0])


def test_pieces_of_two_proteins(tmp_path):
    torch.manual_seed(0)
    entry = MODELS["interactor"]
    model = entry.model(entry.config.parse(entry.presets["tiny"]))
    settings = InteractionSettings(split="pairs", held_out=0.1, tested=0.1, counts={})
    pipeline = InteractionPredictor(model, settings)
    reader = reader_of(pipeline)
    proteins = {"a": "MKTAYIAKQRQISFVKSHFS" * 4, "b": "GSSGSSG", "c": "ARNDCQEGHILKMFPSTWYV"}
    (tmp_path / "sequences.tsv").write_text("".join(f"{name}\t{each}\n" for name, each in proteins.items()))
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\nc\ta\t0\n")
    examples = list(reader.examples(Source(str(tmp_path / "pairs.tsv"))))
    tokens, looked_at, total = [], [], 0.0
    for one, other, label in (("a", "b", 1.0), ("c", "a", 0.0)):
        sizes = [-(-len(proteins[each]) // 16) for each in (one, other)]

        def run(one=one, other=other):
            return pipeline._scores([(proteins[one], proteins[other])])

        (seen,) = hooked(model.links[0], run)
        tokens.append(torch.cat([seen[side, :size] for side, size in enumerate(sizes)]))
        with record_activations(model, "links.0.cross.keys") as recorded:
            run()
        keys = recorded["links.0.cross.keys"].transpose(1, 2).flatten(2)  # the first row looks at the second protein
        looked_at.append(torch.cat([keys[1 - side, :size] for side, size in enumerate(sizes)]).detach())
        score = run().detach()
        total += float(functional.binary_cross_entropy_with_logits(score, torch.tensor([label]), reduction="sum"))
    assert check_site(reader, "links.0.residual", examples, tokens).loss == pytest.approx(total, rel=1e-4)
    check_site(reader, "links.0.cross.keys", examples, looked_at)
    assert reader.units(examples[1], "links.0.residual").tokens[:3] == [
        " 1:ARNDCQEGHILKMFPS", " 1:TWYV", " 2:MKTAYIAKQRQISFVK"
    ]  # fmt: skip
    given = reader.given(f"{proteins['a']}:{proteins['b'].lower()}")
    (told,) = pipeline.interact(proteins["a"], proteins["b"])
    assert reader.answer(given, 0) == f"binds {told.probability:.1%}"
    with pytest.raises(UsageError, match="write SEQUENCE:SEQUENCE"):
        reader.given("MKT")


@pytest.mark.parametrize("kind", ["vlnbert", "path_lstm"])
def test_words_and_steps_of_a_model_of_paths(kind, make_navigator):
    pipeline = regard.load(make_navigator(kind))
    reader, model = reader_of(pipeline), pipeline.model
    examples = list(reader.examples(Source("builtin:houses", count=30)))[::13]
    assert len({len(ids) for ids, *_ in examples}) > 1
    words, steps, total = [], [], 0.0
    read, walked = (model.words.encoder[0], model.regions[0]) if kind == "vlnbert" else (model.words, model.steps)
    for ids, features, places_, mask in examples:
        several = torch.tensor(mask).view(4, -1).bool()
        several = several[several.any(dim=1)]
        tokens = torch.tensor(ids[None], dtype=torch.long).expand(len(several), -1)
        shown = [torch.tensor(each).view(4, several.shape[1], -1)[: len(several)] for each in (features, places_)]

        def run(tokens=tokens, shown=shown, several=several):
            return model(tokens, torch.ones_like(tokens).bool(), *shown, several)

        found = [hooked(module, run)[0] for module in (read, walked)]
        one, other = found if kind == "vlnbert" else [each[0] for each in found]
        words.append(one.flatten(0, 1))
        steps.append(other[several])
        with torch.inference_mode():
            total -= float(run().score.log_softmax(dim=0)[0])
    names = (
        ("words.encoder.0.residual", "regions.0.residual") if kind == "vlnbert" else ("words.states", "steps.states")
    )
    site = Site(model, names[1])
    if kind == "vlnbert":
        assert check_site(reader, names[0], examples, words).loss == pytest.approx(total, rel=1e-4)
        check_site(reader, names[1], examples, steps)
    else:  # its score comes from the last states by another way
        seen = observe(reader, site, examples, loss=True)
        assert seen.loss == pytest.approx(total, rel=1e-4)
        torch.testing.assert_close(seen.rows, torch.cat(steps), atol=1e-4, rtol=1e-3)
    units = reader.units(examples[0], names[1]).tokens
    assert units[:2] == [" 1.0", " 1.1"] and len(units) == len(steps[0])
    assert len(reader.units(examples[0], names[0])) == len(words[0])
    given = reader.given("builtin:houses#0|house-1-000-000|turn left and stop")
    (told,) = pipeline.navigate("turn left and stop", "builtin:houses#0", "house-1-000-000")
    best = [path.probability for path in told.paths[:4]]
    assert reader.answer(given, 0) == f"turn left and stop: path 1 {best[0] / sum(best):.0%}"
    with pytest.raises(UsageError, match=r"write HOUSE\|START\|INSTRUCTION"):
        reader.given("turn left")


def test_a_pipeline_without_a_reader_is_refused_with_those_that_have_one():
    unread = SimpleNamespace(pipeline="word_vectors")
    with pytest.raises(UsageError, match="cannot read a SimpleNamespace; it reads: Translator, LanguageModel, TextTo"):
        reader_of(unread)


def test_an_elmo_reads_both_ways(scene_words, tmp_path):
    torch.manual_seed(0)
    model = Elmo(ElmoConfig(vocab=scene_words.size, width=12, depth=2, filters=((1, 4), (2, 8))))
    model.learn_spelling(scene_words.pieces(range(scene_words.size)))
    pipeline = TextEncoder(model, scene_words)
    reader = reader_of(pipeline)
    (tmp_path / "texts.txt").write_text("a large red circle\n\na small ring left of it\n")
    examples = list(reader.examples(Source(str(tmp_path / "texts.txt"))))
    assert len(examples) == 2
    states, total = [], 0.0
    for (ids,) in examples:
        tokens = torch.tensor(ids[None], dtype=torch.long)
        states += [each[0][0] for each in hooked(model.backwards[1], lambda tokens=tokens: model(tokens))]
        with torch.inference_mode():
            output = model(tokens)
        total += entropy(output.logits[0, :-1], ids[1:]) + entropy(output.previous[0, 1:], ids[:-1])
    seen = check_site(reader, "backwards.1.states", examples, states)
    assert seen.loss == pytest.approx(total, rel=1e-4) and seen.answers == 2 * sum(len(ids) - 1 for (ids,) in examples)
    tokens = reader.units(examples[0], "forwards.0.states").tokens
    assert (
        "".join(tokens) == " a large red circle"
        and reader.units(examples[0], "backwards.1.states").tokens == tokens[::-1]
    )
    assert reader.answer(reader.given("a red ring"), 1).startswith("next ")


def test_every_pipeline_is_read_or_known_not_to_be():
    unread = {key for key, entry in PIPELINES.items() if not entry.reader}
    assert unread == {"word_vectors", "image_generator", "feature_dictionary"}

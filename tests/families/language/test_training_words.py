"""Word vectors: the objective by its formula, windows by brute force, neighbours and analogies of a known corpus."""

import json
import math
from collections import Counter
from random import Random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard
from regard.cli.main import run
from regard.data.text.token_blocks import EncodedLine, TokenStore
from regard.errors import ConfigError, DataError, UsageError
from regard.families.conversion import convert
from regard.families.language import words as word_updates
from regard.families.language.word_vectors import Word2Vec, Word2VecConfig, WordVectors
from regard.families.language.words import AliasTable, WindowBatch, WordWindows
from regard.training.loop import train
from regard.training.losses import negative_sampling
from regard.training.recipe.load import load_recipe

LOOP = ("training.device=cpu", "training.validate_every=100", "training.checkpoint_every=0", "training.log_every=100")
PAIRS = {"king": "queen", "man": "woman", "boy": "girl", "father": "mother"}
OF_MEN, OF_WOMEN = ["he", "his", "beard", "sir"], ["she", "her", "dress", "madam"]
OF_WORD = {
    "king": ["crown", "throne", "castle"], "man": ["street", "work", "tall"], "boy": ["school", "young", "toys"],
    "father": ["children", "home", "family"],
}  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Lines that name a person's sex and rank, so that king : queen = man : woman holds by construction."""
    random, lines = Random(0), []
    for _ in range(3000):
        man = random.choice(list(PAIRS))
        male = random.random() < 0.5
        words = [man if male else PAIRS[man], *random.sample(OF_MEN if male else OF_WOMEN, 2)]
        words += random.sample(OF_WORD[man], 2)
        random.shuffle(words)
        lines.append(" ".join(words))
    path = tmp_path_factory.mktemp("words") / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(text, *more):
    own = (f"data.train={text}", "data.documents=line", "model.width=24", "training.steps=300", "training.lr=2e-2")
    return load_recipe("phrasebook-word2vec", [*LOOP, *own, "training.batch_tokens=512", *more])


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_the_loss_is_the_papers_formula(kind):
    torch.manual_seed(0)
    model = Word2Vec(Word2VecConfig(vocab=9, width=5, kind=kind, window=2, negatives=3))
    torch.nn.init.normal_(model.words.weight)
    torch.nn.init.normal_(model.around.weight)
    words, noise = torch.tensor([1, 2, 8]), torch.tensor([[5, 6, 7], [0, 5, 2], [1, 1, 1]])
    around = torch.tensor([[3, 4, 5, 6], [0, 1, 7, 7], [1, 1, 1, 1]])
    mask = torch.tensor([[True, True, True, False], [False, True, False, True], [False] * 4])
    expected, model = 0.0, model.requires_grad_(False)
    for row in range(2):  # the third word has no neighbours
        real = [around[row, i].item() for i in range(4) if mask[row, i]]
        if kind == "skipgram":
            known, true = model.words.weight[words[row]], real
        else:
            known, true = model.words.weight[real].mean(0), [words[row].item()]
        for right in true:
            expected -= math.log(torch.sigmoid(model.around.weight[right] @ known))
            for wrong in noise[row].tolist():
                if wrong not in true:
                    expected -= math.log(torch.sigmoid(-model.around.weight[wrong] @ known))
    assert negative_sampling(*model(words, around, mask, noise)).item() == pytest.approx(expected, rel=1e-5)


def store_of(folder, lines):
    return TokenStore.write(folder, (EncodedLine(line, True) for line in lines), vocabulary=50)


def test_windows_hold_the_neighbours_within_reach_in_the_same_line(tmp_path):
    lines = [[1, 2, 3, 4, 5, 6], [7], [8, 9, 10]]
    windows = WordWindows(store_of(tmp_path / "s", lines), 50, 2, 4, 0.0, seed=3)
    (rows,) = windows.plan(0, 100)
    assert sorted(rows.tolist()) == list(range(10))
    widest = Counter()
    for index in range(200):
        batch = windows(rows, (0, index))
        for word, around, mask in zip(batch.words.tolist(), batch.around, batch.mask, strict=True):
            line = next(line for line in lines if word in line)
            place, found = line.index(word), around[mask].tolist()
            reaches = {reach: [*line[max(0, place - reach) : place], *line[place + 1 : place + 1 + reach]]
                       for reach in (1, 2)}  # fmt: skip
            assert found in reaches.values()
            widest[word] = max(widest[word], len(found))
    assert widest[3] == 4 and widest[1] == 2 and widest[7] == 0 and widest[9] == 2
    again = windows(rows, (0, 5))
    assert all(torch.equal(getattr(again, n), getattr(windows(rows, (0, 5)), n)) for n in ("around", "mask", "noise"))


def test_frequent_words_are_thinned_and_noise_follows_the_power_of_frequency(tmp_path):
    lines = [[1] * 6000 + [2] * 3000 + [3] * 1000]
    windows = WordWindows(store_of(tmp_path / "s", lines), 5, 2, 5, 0.1, seed=1)
    share = np.array([0.6, 0.3, 0.1])
    expected = np.minimum(1, np.sqrt(0.1 / share) + 0.1 / share)
    first, second = (windows.kept(epoch).words[2:-2] for epoch in (0, 1))
    kept = np.bincount(first, minlength=5)[1:4] / [6000, 3000, 1000]
    assert np.allclose(kept, expected, atol=0.03)
    assert len(first) != len(second) or not np.array_equal(first, second)
    noise = torch.cat([windows(rows, (0, i)).noise for i, rows in enumerate(windows.plan(0, 1000))])
    found = np.bincount(noise.flatten().numpy(), minlength=5) / noise.numel()
    assert np.allclose(found, [0, *(share**0.75 / (share**0.75).sum()), 0], atol=0.01)


def test_an_alias_table_has_the_distribution_of_its_weights():
    weights = np.array([0.0, 5.0, 1.0, 0.25, 0.0, 30.0, 1e-9])
    table = AliasTable.of(weights)
    held = table.own + np.bincount(table.alias, 1 - table.own, minlength=len(weights))  # of len(weights) columns
    assert np.allclose(held / len(weights), weights / weights.sum(), atol=1e-12)
    drawn = table.draw(np.random.default_rng(0), (40, 1000))
    assert drawn.shape == (40, 1000) and not np.isin(drawn, [0, 4]).any()
    assert np.allclose(np.bincount(drawn.ravel(), minlength=7) / drawn.size, weights / weights.sum(), atol=0.01)


def random_model(kind, seed=0, vocab=30, width=13):
    torch.manual_seed(seed)
    model = Word2Vec(Word2VecConfig(vocab=vocab, width=width, kind=kind, window=2, negatives=3))
    torch.nn.init.normal_(model.words.weight)
    torch.nn.init.normal_(model.around.weight)
    return model


def random_batch(count, vocab=30):
    """Words with repeated neighbours, noise that equals a true word, and some words without neighbours."""
    drawn = (torch.randint(vocab, (count, *more)).int() for more in ((), (5,), (3,)))
    words, around, noise = drawn
    return WindowBatch(words, around, torch.rand(count, 5) < 0.4, noise)


def descended(model, batch, rate):
    """One step of torch's own gradient descent for every chunk; the losses before each step."""
    optimizer, total = torch.optim.SGD(model.parameters(), lr=rate), 0.0
    for first in range(0, batch.tokens, word_updates.CHUNK):
        optimizer.zero_grad()
        rows = slice(first, first + word_updates.CHUNK)
        loss = negative_sampling(*model(batch.words[rows], batch.around[rows], batch.mask[rows], batch.noise[rows]))
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total


@pytest.mark.parametrize("native", ["0", "native"])
@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_updates_are_gradient_descent_chunk_by_chunk(kind, native, monkeypatch):
    monkeypatch.setenv("REGARD_NATIVE", native)
    word_updates.library.cache_clear()
    try:
        if native == "0":
            assert word_updates.library() is None
        elif word_updates.library() is None:
            pytest.skip("no C++ compiler")
        ours, theirs = random_model(kind), random_model(kind)
        batch = random_batch(2 * word_updates.CHUNK + 7)
        loss = word_updates.update(ours, batch, 0.01)
        assert loss.item() == pytest.approx(descended(theirs, batch, 0.01), rel=1e-4)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(mine, other, atol=1e-4) and not torch.equal(mine, random_model(kind).words.weight)
    finally:
        word_updates.library.cache_clear()


def test_descent_resumes_to_the_bit_and_its_options_are_checked(tmp_path, text):
    def trained(name, steps, *, resume=False):
        sets = [f"data.train={text}", "data.valid=", "model.width=24", "training.schedule=constant"]
        sets += ["training.batch_tokens=512", f"training.steps={steps}"]
        return train(load_recipe("wikitext2-word2vec", [*LOOP, *sets]), tmp_path / name, resume=resume)

    whole = load_file(trained("whole", 30) / "model.safetensors")
    trained("cut", 17)  # in mid-epoch
    resumed = load_file(trained("cut", 30, resume=True) / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    for wrong in ("training.betas=[0.9,0.99]", "training.clip=2", "training.weight_decay=0.1"):
        with pytest.raises(ConfigError, match="no effect"):
            load_recipe("wikitext2-word2vec", [wrong])
    with pytest.raises(ConfigError, match="can only 'stop'"):
        load_recipe("wikitext2-word2vec", ["training.on_nan=skip"])


@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_analogies_and_neighbours_of_a_known_corpus_come_out_right(tmp_path, text, kind, capsys):
    out = train(recipe(text, f"model.preset={kind}"), tmp_path / "run")
    vectors = regard.load(out)
    assert isinstance(vectors, WordVectors) and set(PAIRS) < set(vectors.words) and "\n" not in vectors.words
    right = [
        vectors.analogy(one, PAIRS[one], other, top=1)[0].word == PAIRS[other]
        for one in PAIRS for other in PAIRS if one != other
    ]  # fmt: skip
    assert sum(right) >= 11
    assert {each.word for each in vectors.neighbours("crown", 2)} == {"throne", "castle"}
    cosine = torch.cosine_similarity(vectors["king"], vectors["queen"], dim=0).item()
    assert vectors.similarity("king", "queen") == pytest.approx(cosine, abs=1e-6)
    capsys.readouterr()
    assert run(["embed", "--neighbours", "king", "Queen", "man", "--analogy", "-m", str(out), "-n", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["asked"] == "king Queen man" and told["neighbours"][0]["word"] == "woman"
    assert run(["embed", "--neighbours", "crown", "thron", "-m", str(out)]) == 1
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 2 and "did you mean 'throne'" in printed.err
    assert run(["embed", "--neighbours", "king", "--analogy", "-m", str(out)]) == 2
    assert "three words" in capsys.readouterr().err
    assert run(["embed", "the King and the crown", "-m", str(out), "--raw", "--json"]) == 0
    found = torch.tensor(json.loads(capsys.readouterr().out)["embedding"])
    assert torch.allclose(found, (vectors["king"] + vectors["crown"]) / 2, atol=1e-6)
    with pytest.raises(DataError, match="not one word"):
        vectors.embed("the of")
    convert(out, tmp_path / "vectors.txt", "word2vec")
    assert WordVectors.load(tmp_path / "vectors.txt").analogy("king", "queen", "man", 1)[0].word == "woman"
    assert "model.neighbours" in (out / "README.md").read_text()


def test_the_text_format_is_read_back_and_broken_files_are_refused(tmp_path):
    vectors = WordVectors(["king", "new york", "über"], torch.randn(3, 4))
    path = tmp_path / "vectors.txt"
    vectors.write(path)
    again = WordVectors.load(path)
    assert again.words == vectors.words and torch.equal(again.vectors, vectors.vectors)
    assert path.read_text("utf-8").splitlines()[0] == "3 4"
    for broken in ("", "2 4\nking 1 2 3\n", "3 4\nking 1 2 3 4\n", "king queen\n"):
        path.write_text(broken)
        with pytest.raises(DataError, match=r"vectors\.txt"):
            WordVectors.load(path)


def test_gensim_reads_what_we_write(tmp_path):
    gensim = pytest.importorskip("gensim.models")
    vectors = WordVectors(["king", "queen", "man"], torch.randn(3, 4))
    vectors.write(tmp_path / "vectors.txt")
    theirs = gensim.KeyedVectors.load_word2vec_format(str(tmp_path / "vectors.txt"))
    assert np.array_equal(theirs["queen"], vectors["queen"].numpy())
    assert theirs.most_similar("king", topn=2)[0][0] == vectors.neighbours("king", 2)[0].word


def test_what_cannot_work_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="whole words"):
        recipe(text, "tokenizer.kind=bpe")
    with pytest.raises(ConfigError, match="parts of its own"):
        recipe("phrasebook", "data.valid=other.txt")
    lstm = load_recipe("tinyshakespeare-lstm", [f"data.train={text}", "training.steps=1", "training.device=cpu"])
    out = train(lstm, tmp_path / "lstm")
    with pytest.raises(UsageError, match="expected a word2vec"):
        WordVectors.load(out)
    with pytest.raises(UsageError, match="only a word2vec"):
        convert(out, tmp_path / "vectors.txt", "word2vec")

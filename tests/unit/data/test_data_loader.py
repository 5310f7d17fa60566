"""The encoded corpus and its loader: nothing is lost, no batch is too large, and the batches are reproducible."""

import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.formats.pairs import Pair
from regard.data.text.pair_loader import PairLoader, plan_batches
from regard.data.text.pair_store import EncodedPair, PairStore, encode_corpus
from regard.data.tokenizers.bpe_dropout import PairSampler
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.errors import ConfigError, DataError

WORDS = ["we", "are", "eating", "bread", "reading", "singing", "rapidly", "where", "is", "the", "café", "house"]


def sentences(count: int, seed: int = 0) -> list[Pair]:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randrange(1, 20)))

    return [Pair(text(), text(), to=rng.choice(["es", "pt"])) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_pair_tokenizer(sentences(200), TokenizerConfig(size=120), "en", ["es", "pt"])


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    return encode_corpus(sentences(300), tokenizer, tmp_path_factory.mktemp("corpus") / "store", keep_text=True)


def loader(store, **changes) -> PairLoader:
    return PairLoader(store, **{"pad": 0, "start": 1, "batch_tokens": 200, "seed": 7, **changes})


def take(batches, count: int) -> list:
    return list(itertools.islice(batches, count))


def assert_same(some: list, others: list) -> None:
    assert [step[:2] for step in some] == [step[:2] for step in others]
    for (_, _, one), (_, _, other) in zip(some, others, strict=True):
        assert one.links is None and other.links is None
        tensors = (list(vars(batch).values())[:-1] for batch in (one, other))
        assert all(torch.equal(a, b) for a, b in zip(*tensors, strict=True))


# --- store ---

ids = st.lists(st.integers(0, 99), max_size=6)


@pytest.mark.parametrize("vocabulary", [100, 65_536, 65_537, 1 << 20])
@given(pairs=st.lists(st.tuples(ids, ids), max_size=8), data=st.data())
@settings(max_examples=20)
def test_what_is_written_is_read(tmp_path_factory, vocabulary, pairs, data):
    pairs = [([*source, vocabulary - 1], target) for source, target in pairs]
    folder = tmp_path_factory.mktemp("store") / "corpus"
    written = PairStore.write(folder, (EncodedPair(*pair) for pair in pairs), vocabulary=vocabulary)
    for store in (written, PairStore.open(folder), pickle.loads(pickle.dumps(written))):
        assert len(store) == len(pairs)
        assert [tuple(side.tolist() for side in store.pair(row)) for row in range(len(store))] == pairs
        source, target = store.lengths()
        assert list(zip(source.tolist(), target.tolist(), strict=True)) == [(len(a), len(b)) for a, b in pairs]


def test_small_vocabularies_take_two_bytes(tmp_path):
    PairStore.write(tmp_path / "a", [EncodedPair([1, 2], [3])], vocabulary=100)
    assert (tmp_path / "a" / "source.bin").stat().st_size == 4


def test_an_id_outside_the_vocabulary_is_refused_not_wrapped(tmp_path):
    with pytest.raises(OverflowError):
        PairStore.write(tmp_path / "a", [EncodedPair([70_000], [3])], vocabulary=100)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_encoding_in_chunks_is_encoding_one_by_one(tmp_path, tokenizer, chunk):
    pairs = [*sentences(20), Pair("", "", to="es"), Pair("lone \ud800", "ümläüt 漢", to="pt")]
    store = encode_corpus(iter(pairs), tokenizer, tmp_path / "store", chunk=chunk, keep_text=True)
    for row, pair in enumerate(pairs):
        source, target = store.pair(row)
        assert source.tolist() == tokenizer.source_ids([pair.source], to=pair.to)[0]
        assert target.tolist() == tokenizer.target_ids([pair.target])[0]
    assert [store.text(row) for row in range(21)] == pairs[:21]
    assert store.text(21).target == "ümläüt 漢"


def test_a_failed_write_leaves_the_old_store(tmp_path):
    PairStore.write(tmp_path / "a", [EncodedPair([1], [2])], vocabulary=100)

    def failing():
        yield EncodedPair([5], [6])
        raise DataError("line 2 is malformed")

    with pytest.raises(DataError, match="line 2"):
        PairStore.write(tmp_path / "a", failing(), vocabulary=100)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert PairStore.open(tmp_path / "a").pair(0)[0].tolist() == [1]
    PairStore.write(tmp_path / "a", [EncodedPair([5], [6])], vocabulary=100)
    assert PairStore.open(tmp_path / "a").pair(0)[0].tolist() == [5]


@pytest.mark.parametrize("name", ["source.bin", "target.offsets", "store.json"])
def test_a_truncated_store_is_refused(tmp_path, name):
    PairStore.write(tmp_path / "a", [EncodedPair([1, 2], [2, 3])], vocabulary=100)
    path = tmp_path / "a" / name
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="encode it again"):
        PairStore.open(tmp_path / "a")


# --- plan ---

lengths = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=200)


@given(
    lengths=lengths,
    batch_tokens=st.integers(1, 200),
    pool=st.integers(1, 300),
    max_sentences=st.none() | st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_every_pair_once_and_never_over_budget(lengths, batch_tokens, pool, max_sentences, epoch):
    source, target = np.array(lengths, dtype=np.int64).reshape(-1, 2).T
    plan = plan_batches(
        source, target, batch_tokens=batch_tokens, seed=3, epoch=epoch, pool=pool, max_sentences=max_sentences
    )
    assert sorted(row for rows in plan for row in rows.tolist()) == list(range(len(lengths)))
    for rows in plan:
        assert 1 <= len(rows) <= (max_sentences or len(lengths))
        padded = len(rows) * max(source[rows].max(), target[rows].max())
        assert padded <= batch_tokens or len(rows) == 1


def test_a_plan_depends_on_seed_and_epoch_alone():
    source, target = np.random.default_rng(0).integers(1, 30, size=(2, 500))

    def plan(seed: int, epoch: int) -> list[list[int]]:
        batches = plan_batches(source, target, batch_tokens=300, seed=seed, epoch=epoch)
        return [rows.tolist() for rows in batches]

    assert plan(1, 0) == plan(1, 0)
    assert len({str(plan(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4


def test_buckets_waste_little():
    source = np.random.default_rng(0).integers(1, 60, size=20_000)
    target = np.maximum(1, source + np.random.default_rng(1).integers(-3, 4, size=20_000))
    plan = plan_batches(source, target, batch_tokens=4096, seed=0, epoch=0)
    padded = sum(len(rows) * target[rows].max() for rows in plan)
    assert target.sum() / padded > 0.9
    assert target.sum() / len(plan) > 0.8 * 4096


# --- loader ---


@pytest.mark.parametrize("multiple", [1, 5, 8])
def test_an_epoch_is_the_corpus(store, multiple):
    batches = loader(store, round_lengths=multiple)
    length = len(batches.plan(0))
    steps = take(batches, length + 1)
    assert [step[:2] for step in steps] == [*((0, i) for i in range(length)), (1, 0)]
    seen = [
        tuple(row[mask].tolist())
        for _, _, batch in steps[:-1]
        for row, mask in zip(batch.labels, batch.labels_mask, strict=True)
    ]
    assert sorted(seen) == sorted(tuple(store.pair(row)[1].tolist()) for row in range(len(store)))


@pytest.mark.parametrize("sampled", [False, True])
def test_resuming_anywhere_goes_on_exactly(store, tokenizer, sampled):
    sampler = PairSampler(tokenizer, 0.2, 5) if sampled else None
    length = len(loader(store, sampler=sampler).plan(0))
    whole = take(loader(store, sampler=sampler), 2 * length)
    for cut in (0, 1, length - 1, length, length + 3):
        epoch, index, _ = whole[cut]
        resumed = loader(store, sampler=sampler).batches(epoch, index + 1)
        assert_same(take(resumed, len(whole) - cut - 1), whole[cut + 1 :])


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_change_nothing(store, tokenizer, workers):
    tokenizer.source.encode([pair.source for pair in sentences(500)])  # start the tokenizer's threads
    alone = loader(store, sampler=PairSampler(tokenizer, 0.2, 5))
    helped = loader(store, sampler=PairSampler(tokenizer, 0.2, 5), workers=workers)
    before = torch.get_rng_state()
    assert_same(take(helped.batches(0, 2), 40), take(alone.batches(0, 2), 40))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_batches_of_one(store, world):
    whole = take(loader(store), 60)
    ranks = [take(loader(store, rank=rank, world=world), 60 // world) for rank in range(world)]
    for rank, steps in enumerate(ranks):
        assert_same([(*whole[i * world][:2], step[2]) for i, step in enumerate(steps)], steps)
        assert_same([(0, 0, step[2]) for step in steps], [(0, 0, step[2]) for step in whole[rank::world]])
        epoch, index, _ = steps[7]
        assert_same(take(loader(store, rank=rank, world=world).batches(epoch, index + world), 5), steps[8:13])


@pytest.mark.parametrize("sampled", [False, True])
def test_rounded_lengths_make_few_shapes_within_the_budget(store, tokenizer, sampled):
    shapes = {}
    for multiple in (1, 8):
        sampler = PairSampler(tokenizer, 0.1, 5) if sampled else None
        batches = loader(store, round_lengths=multiple, batch_tokens=256, sampler=sampler)
        taken = [batch for _, _, batch in take(batches, 4 * len(batches.plan(0)))]
        shapes[multiple] = {batch.shape for batch in taken}
        for batch in taken:
            for side, mask in (batch.source, batch.source_mask), (batch.labels, batch.labels_mask):
                assert side.shape[1] % multiple == 0 and side.shape[1] - mask.sum(1).max() < multiple
                assert not side[~mask].any()  # padded with zeros
            assert len(batch.source) * max(batch.source.shape[1], batch.labels.shape[1]) <= 256
    assert len(shapes[8]) < 0.7 * len(shapes[1])


@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_sampled_batches_vary_and_stay_within_the_budget(store, tokenizer, dropout):
    batches = loader(store, sampler=PairSampler(tokenizer, dropout, 5))
    length = len(batches.plan(0))
    seen = []
    for _, _, batch in take(batches, length):
        assert len(batch.source) * max(batch.source.shape[1], batch.labels.shape[1]) <= 200
        rows = zip(batch.labels, batch.labels_mask, strict=True)
        seen += [tuple(row[mask].tolist()) for row, mask in rows]
    stored = [tuple(store.pair(row)[1].tolist()) for row in range(len(store))]
    assert sorted(map(tokenizer.target.decode, seen)) == sorted(map(tokenizer.target.decode, stored))
    assert len(set(seen) - set(stored)) > len(stored) / 2


def resident(file: Path) -> int:
    """The bytes of a mapped file that are in this process's memory, as Linux counts them."""
    areas = Path("/proc/self/smaps").read_text().split("VmFlags:")
    mine = next(area for area in areas if f" {file}\n" in area)
    return 1024 * int(mine.partition("\nRss:")[2].split()[0])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="memory is counted as Linux does")
def test_a_large_corpus_does_not_fill_the_memory_as_it_is_read(tmp_path, monkeypatch):
    rows = [EncodedPair([3] * 500, [4] * 500)] * 2000
    large = PairStore.write(tmp_path / "store", rows, vocabulary=8)
    batches, file = iter(loader(large, batch_tokens=5000)), tmp_path / "store" / "source.bin"
    take(batches, 20)
    assert resident(file) > 0
    monkeypatch.setattr("regard.data.columns.KEPT", 0)
    assert take(batches, 20)
    assert resident(file) == 0


def test_unusable_corpora_are_refused(tmp_path, store, tokenizer):
    with pytest.raises(DataError, match="no sentence pair"):
        loader(PairStore.write(tmp_path / "empty", [], vocabulary=100))
    with pytest.raises(DataError, match="the model takes 5"):
        loader(store, max_length=5)
    textless = PairStore.write(tmp_path / "ids", [EncodedPair([1], [2])], vocabulary=100)
    with pytest.raises(ConfigError, match="keep_text"):
        loader(textless, sampler=PairSampler(tokenizer, 0.2, 5))


def test_several_processes_encode_a_corpus_as_one_does(tokenizer, tmp_path):
    pairs = sentences(25)
    alone = encode_corpus(pairs, tokenizer, tmp_path / "alone")
    shared = encode_corpus(iter(pairs), tokenizer, tmp_path / "shared", chunk=4, workers=2)
    assert [file.read_bytes() for file in sorted(shared.folder.iterdir())] == [
        file.read_bytes() for file in sorted(alone.folder.iterdir())
    ]

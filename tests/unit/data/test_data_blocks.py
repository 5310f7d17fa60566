"""Plain text: documents, trained vocabularies, packed blocks, masked words, corrupted spans, mixed prompts."""

import gzip
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from regard.data.formats.lines import read_text, split_text
from regard.data.text.masking import MaskedTexts, Masking, segments
from regard.data.text.token_blocks import (
    EncodedLine,
    NextInStreams,
    NextTokens,
    TokenStore,
    block_starts,
    plan_blocks,
    plan_streams,
)
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import ConfigError, DataError, UsageError
from regard.families.language.denoising import corrupted, restored, sentinels
from regard.families.language.prompts import mixture, prompts, read_prompts

SENTENCES = ["the cat sat on the mat\n", "a dog chased the unbelievable cat\n", "who is unbelievably late?\n"] * 20


def vocabulary(kind, style="enclosed", size=400, texts=SENTENCES, marks=0, **more):
    config = VocabularyConfig.parse({"kind": kind, "size": size, "min_frequency": 1, **more})
    return train_vocabulary(texts, config, style, marks)


def written(folder, rows):
    """A store of lines; each row is the token ids of a line and whether a document begins there."""
    return TokenStore.write(folder, (EncodedLine(*row) for row in rows), vocabulary=1000)


# --- documents ---


def test_documents_are_separated_as_asked(tmp_path):
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfone\ntwo\n\n \nthree\n"))
    assert list(read_text(path, "blank")) == [("one\n", True), ("two\n", False), ("three\n", True)]
    assert list(read_text(path, "line")) == [("one\n", True), ("two\n", True), ("three\n", True)]
    assert "".join(line.text for line in read_text(path, "file")) == "one\ntwo\n\n \nthree\n"
    assert [line.first for line in read_text(path, "file")] == [True, False, False, False, False]


def test_damaged_text_is_refused(tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"good\nb\xffd\n")
    with pytest.raises(DataError, match="line 2"):
        list(read_text(tmp_path / "bad.txt", "file"))
    with pytest.raises(DataError, match="no such file"):
        list(read_text(tmp_path / "nowhere.txt", "file"))


@given(st.lists(st.text(alphabet="ab\n", min_size=1), min_size=1), st.floats(0.01, 0.99))
def test_a_file_is_split_at_the_character_and_nothing_is_lost(tmp_path_factory, lines, share):
    path = tmp_path_factory.mktemp("split") / "text.txt"
    text = "".join(lines)
    path.write_text(text, newline="\n")
    parts = {"train": "", "valid": ""}
    for part, line in split_text([str(path)], "file", share):
        parts[part] += line.text
    assert parts["train"] == text[: int(len(text) * (1 - share))]
    assert parts["train"] + parts["valid"] == text


def test_documents_stay_whole_when_a_text_is_split(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"a{i}\nb{i}\n\n" for i in range(10)))
    found = list(split_text([str(path)], "blank", 0.3))
    parts = {part: [line.text for where, line in found if where == part] for part in ("train", "valid")}
    assert len(parts["train"]) == 14 and parts["valid"][0] == "a7\n"


# --- vocabularies ---


@pytest.mark.parametrize("style", ["separated", "terminated"])
@pytest.mark.parametrize("kind", ["character", "bpe"])
def test_characters_and_bytes_give_back_every_text(kind, style, tmp_path):
    tokenizer = vocabulary(kind, style)
    text = "the  cat\n\n sat </s> <pad>\n"
    text = text if kind == "bpe" else "the  cat\n\n sat\n"
    (cut,) = tokenizer.encode([text])
    ended = cut.ids[:-1] if style == "terminated" else cut.ids
    assert tokenizer.decode(ended) == text
    assert (cut.ids[-1] == tokenizer.end) == (style == "terminated")
    assert not set(ended) & set(tokenizer.specials.values())


def test_words_count_line_ends_and_keep_the_unknown():
    tokenizer = vocabulary("word", "separated", texts=["the cat <unk>\n", "the dog\n"])
    pieces = tokenizer.pieces(tokenizer.encode([" the bird <unk> \n"])[0].ids)
    assert pieces == ["the", "<unk>", "<unk>", "\n"]


def test_wordpiece_is_berts():
    tokenizer = vocabulary("wordpiece", lowercase=True)
    (cut,) = tokenizer.encode(["The cat"], ["a dog"])
    assert tokenizer.pieces(cut.ids)[0] == "[CLS]" and tokenizer.pieces(cut.ids).count("[SEP]") == 2
    assert sorted(set(cut.segments)) == [0, 1]
    assert tokenizer.decode(cut.ids) == "the cat a dog"


TRAIN_WORDPIECE = """
import hashlib, random
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
rng = random.Random(1)
words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyzäöüß", k=rng.randint(1, 9))) for _ in range(300)]
texts = [" ".join(rng.choices(words, k=12)) for _ in range(100)]
for size in (40, 200):  # the first is too small for all characters, many of which are equally frequent
    config = VocabularyConfig(kind="wordpiece", size=size, min_frequency=1)
    files = train_vocabulary(texts, config, "enclosed").files
    print(hashlib.sha256(b"".join(files[name] for name in sorted(files))).hexdigest())
"""


def test_wordpiece_is_the_same_in_every_process():
    found = {
        subprocess.run(
            [sys.executable, "-c", TRAIN_WORDPIECE], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
            text=True, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(found) == 1 and len(found.pop().split()) == 2


def test_wordpiece_learns_what_the_library_learns():
    """Without ties in the counts, the pieces are those of the library's own trainer, which numbers them otherwise."""
    texts = ["ab " * 17 + "abc " * 11 + "abd " * 7, "xy " * 23 + "xyz " * 3]
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    library.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=20, special_tokens=specials))
    tokenizer = train_vocabulary(texts, VocabularyConfig(kind="wordpiece", size=20), "enclosed")
    assert set(tokenizer.library.get_vocab()) == set(library.get_vocab())
    assert tokenizer.pieces([*range(5), 17, 18, 19]) == [*specials, "ab", "xy", "abc"]


def test_a_vocabulary_too_small_is_refused():
    with pytest.raises(ConfigError, match="at least 258"):
        vocabulary("bpe", "separated", size=100)


# --- packed blocks ---


@given(tokens=st.integers(2, 300), block=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_packing_predicts_every_token_once(tmp_path_factory, tokens, block, seed, epoch):
    store = written(tmp_path_factory.mktemp("store") / "s", [(list(range(tokens)), True)])
    make = NextTokens(store, block)
    plan = plan_blocks(tokens, block, batch_tokens=4 * block, seed=seed, epoch=epoch)
    batches = [make(rows) for rows in plan]
    said = [token for batch in batches for token in batch.labels[batch.labels_mask].tolist()]
    assert sorted(said) == list(range(1, tokens))
    assert all((batch.inputs + 1 == batch.labels)[batch.labels_mask].all() for batch in batches)
    assert sum(batch.tokens for batch in batches) == tokens - 1
    assert all(len(rows) <= 4 for rows in plan)
    again = plan_blocks(tokens, block, batch_tokens=4 * block, seed=seed, epoch=epoch)
    assert all(np.array_equal(a, b) for a, b in zip(plan, again, strict=True))


def test_validation_blocks_begin_at_the_beginning():
    assert block_starts(11, 5).tolist() == [0, 5]
    assert block_starts(12, 5).tolist() == [0, 5, 10]


def test_a_store_travels_to_workers(tmp_path):
    store = written(tmp_path / "s", [([1, 2], True), ([3], False), ([4, 5, 6], True)])
    again = pickle.loads(pickle.dumps(store))
    assert again.tokens.tolist() == [1, 2, 3, 4, 5, 6] and again.documents.tolist() == [0, 2, 3]
    (tmp_path / "s" / "ids.bin").write_bytes(b"\0")
    with pytest.raises(DataError, match="encode it again"):
        TokenStore.open(tmp_path / "s")


@given(st.integers(2, 200), st.integers(1, 40), st.integers(1, 12), st.integers(1, 40))
def test_streams_go_on_where_they_stopped_and_predict_every_token_once(tmp_path_factory, tokens, block, streams, first):
    store = written(tmp_path_factory.mktemp("streams") / "store", [(list(range(tokens)), True)])
    first = min(first, block)
    batches = [NextInStreams(store)(rows, (3, i)) for i, rows in enumerate(plan_streams(tokens, block, streams, first))]
    read = [[], []]
    for row in range(len(batches[0].inputs)):
        for batch in batches:
            read[0] += batch.inputs[row][batch.labels_mask[row]].tolist()
            read[1] += batch.labels[row][batch.labels_mask[row]].tolist()
    assert read == [list(range(tokens - 1)), list(range(1, tokens))]
    assert [bool(batch.begins.all()) for batch in batches] == [True] + [False] * (len(batches) - 1)
    assert all(batch.inputs.shape[1] <= block for batch in batches)


# --- hidden words ---


@pytest.fixture(scope="module")
def word_pieces():
    """A vocabulary of word pieces."""
    return vocabulary("wordpiece", lowercase=True, size=60)


@given(length=st.integers(1, 200), seed=st.integers(0, 1000), share=st.floats(0.05, 0.5))
def test_the_share_of_guessed_tokens_is_exact_and_special_ones_are_left_alone(word_pieces, length, seed, share):
    masking = Masking(word_pieces, share)
    rng = np.random.default_rng(seed)
    ids = np.array([word_pieces.start, *rng.choice(masking.ordinary, length), word_pieces.separator])
    hidden, guessed = masking(ids, rng)
    assert guessed.sum() == max(1, round(share * length))
    assert not guessed[[0, -1]].any()
    assert (hidden == ids)[~guessed].all()


def test_eighty_ten_ten(word_pieces):
    masking = Masking(word_pieces)
    rng = np.random.default_rng(0)
    ids = rng.choice(masking.ordinary, 60_000)
    hidden, guessed = masking(ids, rng)
    masked = (hidden[guessed] == masking.mask).mean()
    same = (hidden[guessed] == ids[guessed]).mean()
    by_chance = 0.1 / len(masking.ordinary)
    assert masked == pytest.approx(0.8, abs=0.015)
    assert same == pytest.approx(0.1 + by_chance, abs=0.015)


def test_whole_words_are_hidden_together(word_pieces):
    masking = Masking(word_pieces, whole_words=True)
    (cut,) = word_pieces.encode(["unbelievable unbelievably chased unbelievable mat dogmat unbelievable"])
    ids, pieces = np.array(cut.ids), word_pieces.pieces(cut.ids)
    assert any(piece.startswith("##") for piece in pieces)
    for seed in range(30):
        _, guessed = masking(ids, np.random.default_rng(seed))
        assert guessed.any()
        for i, piece in enumerate(pieces):
            if piece.startswith("##"):
                assert guessed[i] == guessed[i - 1]


def test_segments_hold_every_line_once_and_never_cross_documents(tmp_path):
    rng = np.random.default_rng(1)
    rows = [(list(range(rng.integers(1, 9))), bool(rng.random() < 0.2)) for _ in range(200)]
    store = written(tmp_path / "s", rows)
    parts = segments(store, room=20)
    assert [line for part in parts for line in range(part.begin, part.end)] == list(range(200))
    assert not any(rows[line][1] for part in parts for line in range(part.begin + 1, part.end))
    assert all(sum(len(rows[line][0]) for line in range(*part)) <= 20 for part in parts)


def test_next_sentences_follow_half_of_the_time_and_come_from_elsewhere_otherwise(word_pieces, tmp_path):
    base = int(Masking(word_pieces).ordinary[0])
    rows = [([base + document] * 5, line == 0) for document in range(20) for line in range(6)]
    store = written(tmp_path / "s", rows)
    texts = MaskedTexts(store, Masking(word_pieces), segments(store, 40), 40, True, seed=3)
    batch = texts(np.arange(len(texts.parts)), (0, 0))
    same = []
    for epoch in range(20):
        batch = texts(np.arange(len(texts.parts)), (epoch, 0))
        for ids, kinds, mask, exchanged in zip(batch.labels, batch.segments, batch.mask, batch.follows, strict=True):
            first, second = ids[mask & (kinds == 0)][1:-1], ids[mask & (kinds == 1)][:-1]
            assert len(first) + len(second) <= 40
            assert (first[0] != second[0]) == exchanged
            same.append(not exchanged)
    assert np.mean(same) == pytest.approx(0.5, abs=0.1)


def test_an_example_is_a_function_of_its_place(word_pieces, tmp_path):
    rows = [(list(range(10 + document, 20 + document)), line == 0) for document in range(9) for line in range(4)]
    store = written(tmp_path / "s", rows)
    texts = MaskedTexts(store, Masking(word_pieces), segments(store, 30), 30, True, seed=3)
    first, again = texts(np.array([4, 1]), (2, 0)), pickle.loads(pickle.dumps(texts))(np.array([1, 4]), (2, 7))
    assert first.inputs[0].tolist() == again.inputs[1].tolist()
    assert first.inputs.tolist() != texts(np.array([4, 1]), (3, 0)).inputs.tolist()


# --- spans ---


@given(length=st.integers(2, 300), seed=st.integers(0, 1000), density=st.floats(0.05, 0.9), mean=st.floats(1, 9))
def test_span_corruption_can_be_undone(length, seed, density, mean):
    marks, rng = list(range(1000, 1100)), np.random.default_rng(seed)
    ids = rng.integers(0, 900, length)
    source, target = corrupted(ids, marks, rng, density=density, mean=mean)
    assert restored(source.tolist(), target.tolist(), marks) == ids.tolist()
    assert sum(token < 1000 for token in target) == np.clip(round(density * length), 1, length - 1)


def test_spans_have_the_mean_length_and_density_of_the_paper():
    marks, rng = list(range(1000, 1100)), np.random.default_rng(0)
    source, target = corrupted(np.arange(400), marks, rng)
    spans = sum(token >= 1000 for token in target)
    assert (len(target) - spans, spans) == (60, 20)
    assert source[-1] >= 1000 and source[0] < 1000


def test_sentinels_are_special_tokens_of_the_vocabulary():
    tokenizer = vocabulary("bpe", "terminated", marks=5)
    assert tokenizer.pieces(sentinels(tokenizer)) == [f"<extra_id_{i}>" for i in range(5)]


# --- prompts ---


def test_no_built_in_prompt_is_in_two_parts_and_answers_are_right():
    for kind in ("translate", "reverse", "question"):
        parts = [list(prompts(kind, part=part, count=80, seed=1)) for part in ("train", "valid", "test")]
        texts = [{pair.source for pair in pairs} for pairs in parts]
        assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
    for pair in prompts("reverse", part="train", count=20, seed=1):
        assert pair.source.removeprefix("Reverse: ").split() == pair.target.split()[::-1]
    assert {pair.target for pair in prompts("question", part="train", count=80, seed=1)} == {"yes", "no"}
    with pytest.raises(UsageError, match="translate, reverse, question"):
        prompts("sing", part="train", count=1, seed=1)


def test_prompts_of_files_get_their_prefix(tmp_path):
    (tmp_path / "a.tsv").write_text("long text\tshort\n")
    assert [pair.source for pair in read_prompts(str(tmp_path / "a.tsv"), "Summarize:")] == ["Summarize: long text"]
    (tmp_path / "b.tsv").write_text("x\ty\nlonely\n")
    with pytest.raises(DataError, match="line 2"):
        list(read_prompts(str(tmp_path / "b.tsv"), ""))


@pytest.mark.parametrize(("temperature", "shares"), [(1.0, [0.9, 0.1]), (2.0, [0.75, 0.25]), (1e6, [0.5, 0.5])])
def test_tasks_are_mixed_by_temperature(temperature, shares):
    tasks = np.repeat([0, 1], [900, 100])
    rows = mixture(tasks, temperature, np.random.default_rng(0))
    found = np.bincount(tasks[rows]) / len(rows)
    assert found == pytest.approx(shares, abs=0.01)
    counts = np.bincount(rows, minlength=1000)[900:]
    assert counts.max() - counts.min() <= 1

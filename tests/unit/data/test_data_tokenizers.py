"""Tokenizers against text normalised in plain Python, the library's own decoder, and transformers' Marian."""

import json
import pickle
import random
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st

from regard.data.formats.pairs import Pair
from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.bpe_dropout import PairSampler, SubwordSampler
from regard.data.tokenizers.pair import PairTokenizer, SubwordTokenizer, TokenizerConfig, train_pair_tokenizer
from regard.errors import CheckpointError, ConfigError, UsageError

SENTENCES = [
    ("we are eating bread", "estamos comiendo pan"),
    ("Where is the café? (I don't know.)", "¿Dónde está el café? (No lo sé.)"),
    ("the bread costs 2,50 euros in 2026!", "¡el pan cuesta 2,50 euros en 2026!"),
    ("she said: “yes, </s> & >>es<<”", "ella dijo: «sí, <pad> [x] _y_»"),
    ("reading, singing and eating rapidly", "leyendo, cantando y comiendo rápidamente"),
]
PAIRS = [Pair(source, target) for source, target in SENTENCES] * 10
ALPHABET = sorted(set("".join(source + target for source, target in SENTENCES)))
WORDS = sorted({word for pair in SENTENCES for text in pair for word in text.split()})
KINDS = ("bpe", "unigram", "wordpiece", "word", "character")
SUBWORD_KINDS = ("bpe", "unigram", "wordpiece", "character")

known_text = st.text(st.sampled_from([*ALPHABET, " ", "\t", "\u00a0", "\u3000", "\n"]), max_size=40)


def normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text.replace("▁", " ")).split())


def trained(kind: str, **settings: object) -> PairTokenizer:
    config = TokenizerConfig.parse({"kind": kind, "size": 200, "min_frequency": 1, **settings})
    return train_pair_tokenizer(PAIRS, config, "en", ["es"])


@pytest.fixture(scope="module")
def by_kind() -> dict[str, PairTokenizer]:
    return {kind: trained(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
@given(text=known_text)
def test_decoding_gives_back_the_normalised_text(by_kind, kind, text):
    side = by_kind[kind].source
    ids = side.encode([text])[0]
    assert not side.specials & set(ids)
    assert side.decode(ids) == normalised(text) == side.backend.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(
    texts=st.lists(st.one_of(known_text, st.text(max_size=30), st.text("e\u0301\u0308 a\x1c\u2000\x85")), max_size=4)
)
def test_texts_are_cut_word_by_word_as_the_library_cuts_them_whole(by_kind, kind, texts):
    side = by_kind[kind].source
    whole = [cut.ids for cut in side.backend.encode_batch_fast([well_formed(text) for text in texts])]
    assert side.encode(texts) == side.encode(texts) == whole


def test_remembered_words_are_bounded(monkeypatch, by_kind):
    monkeypatch.setattr("regard.data.tokenizers.pair.CACHED_WORDS", 3)
    side = SubwordTokenizer(by_kind["bpe"].source.backend)
    for text in ("we are eating", "bread we", "x" * 1000, "are we eating bread"):
        assert side.encode([text]) == [side.backend.encode(text).ids]
        assert len(side._cache) <= 4
        assert max(map(len, side._cache), default=0) <= 64


@given(words=st.lists(st.sampled_from(WORDS), max_size=10))
def test_whole_words_are_lossless_too(by_kind, words):
    side = by_kind["word"].source
    assert side.decode(side.encode(["  ".join(words)])[0]) == " ".join(words)


def test_punctuation_is_its_own_word(by_kind):
    side = by_kind["word"].source
    assert side.pieces(side.encode(["eating bread?"])[0]) == ["▁eating", "▁bread", "?"]


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
def test_very_long_words_survive(by_kind, kind):
    side = by_kind[kind].source
    text = "bread" * 300
    assert side.decode(side.encode([text])[0]) == text


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_cannot_be_written(kind):
    tokenizer = train_pair_tokenizer(PAIRS, TokenizerConfig(kind=kind, size=200, min_frequency=1), "en", ["es", "pt"])
    side = tokenizer.source
    assert (side.pad, side.start, side.end, side.unknown, dict(side.tags)) == (0, 1, 2, 3, {"es": 4, "pt": 5})
    for text in ("</s>", "a <pad> </s>", "<s>", "<unk>", ">>es<<", ">>es<< bread", "</s></s>"):
        assert set(side.encode([text])[0]) & side.specials <= {side.unknown}


@pytest.mark.parametrize("kind", KINDS)
def test_training_twice_gives_the_same_tokenizer(by_kind, kind):
    assert trained(kind) == by_kind[kind]


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_is_equal(tmp_path, kind, joint):
    tokenizer = trained(kind, joint=joint)
    tokenizer.save(tmp_path)
    files = ["tokenizer.json"] if joint else ["source.json", "target.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*files, "tokenizer_config.json"])
    loaded = PairTokenizer.load(tmp_path)
    assert loaded == tokenizer
    assert (loaded.source is loaded.target) == joint
    assert (loaded.source_language, loaded.target_languages) == ("en", ("es",))
    text = "Where is the bread? </s>"
    assert loaded.source_ids([text]) == tokenizer.source_ids([text])
    standard = library.Tokenizer.from_file(str(tmp_path / files[-1]))
    assert standard.get_vocab_size() == tokenizer.target.size


def test_the_tokenizer_of_another_model_is_told_from_a_translators(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"pad_token": "<pad>"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="is no translator: its tokenizer is for texts"):
        PairTokenizer.load(tmp_path)


def test_a_pickled_tokenizer_still_protects_special_tokens(by_kind):
    copy = pickle.loads(pickle.dumps(by_kind["bpe"]))
    assert copy.source.encode(["a </s>"]) == by_kind["bpe"].source.encode(["a </s>"])


@pytest.mark.parametrize("damage", ["{", '{"joint": true}'])
def test_a_damaged_tokenizer_is_refused(tmp_path, by_kind, damage):
    by_kind["bpe"].save(tmp_path)
    (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        PairTokenizer.load(tmp_path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no tokenizer"):
        PairTokenizer.load(tmp_path)


def test_pair_ids_carry_tag_and_end():
    tokenizer = train_pair_tokenizer(PAIRS, TokenizerConfig(size=200, joint=False), "en", ["es", "pt"])
    plain = tokenizer.source.encode(["bread"])[0]
    assert tokenizer.source_ids(["bread"], to="pt") == [[tokenizer.source.tags["pt"], *plain, tokenizer.source.end]]
    assert tokenizer.target_ids(["pan"]) == [[*tokenizer.target.encode(["pan"])[0], tokenizer.target.end]]
    assert not tokenizer.target.tags
    with pytest.raises(UsageError, match="choose one of es, pt"):
        tokenizer.source_ids(["bread"])
    with pytest.raises(UsageError, match="'de'"):
        tokenizer.source_ids(["bread"], to="de")


def test_one_target_needs_no_tag(by_kind):
    tokenizer = by_kind["bpe"]
    assert tokenizer.source_ids(["bread"]) == tokenizer.source_ids(["bread"], to="es")
    assert tokenizer.source_ids([""]) == [[tokenizer.source.end]]


def test_a_generator_of_pairs_trains_both_sides():
    config = TokenizerConfig(size=100, joint=False)
    assert train_pair_tokenizer(iter(PAIRS), config, "en", ["es"]) == train_pair_tokenizer(PAIRS, config, "en", ["es"])


def test_lowercase():
    side = trained("bpe", lowercase=True).source
    assert side.decode(side.encode(["WHERE Is"])[0]) == "where is"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["", " \n", "\ud800", "a\udfffb", "\0", "\ufeffbread", "漢字 bread", "a\r\nb", "🙂" * 500]
)
def test_odd_texts_encode_to_something(by_kind, kind, text):
    side = by_kind[kind].source
    (ids,) = side.encode([text])
    assert len(side.words_in(text)) == len(ids)
    side.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_words_of_any_ids(by_kind, kind, data):
    side = by_kind[kind].source
    ids = data.draw(st.lists(st.integers(0, side.size - 1), max_size=20))
    check_words_of(side, ids)


def check_words_of(side, ids) -> None:
    decoded, words = side.decode(ids).split(), side.words_of(ids)
    assert [word == -1 for word in words if decoded] == [i in side.specials for i in ids if decoded]
    rebuilt = [""] * len(decoded)
    for piece, i, word in zip(side.pieces(ids), ids, words, strict=True):
        if i not in side.specials and decoded:
            rebuilt[word] += piece.replace("▁", "")
    assert rebuilt == decoded


def test_unknown_tokens_can_be_written_as_given_words(by_kind):
    side = by_kind["word"].source
    (ids,) = side.encode(["we are Zoë eating"])
    assert (side.decode(ids), side.words_of(ids)) == ("we are eating", [0, 1, -1, 2])
    assert (side.decode(ids, unknown=["Zoë"]), side.words_of(ids, unknown=["Zoë"])) == (
        "we are Zoë eating",
        [0, 1, 2, 3],
    )


@pytest.mark.parametrize("kind", SUBWORD_KINDS)
@given(text=known_text)
def test_words_in_text_are_the_words_of_its_ids(by_kind, kind, text):
    side = by_kind[kind].source
    assert side.words_in(text) == side.words_of(side.encode([text])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_words_in_text_place_unknown_tokens(by_kind, kind):
    words = by_kind[kind].source.words_in("bread 漢字, is 字")
    assert sorted(set(words)) == [0, 1, 2, 3] and words == sorted(words)


# --- BPE dropout ---


@given(text=st.text(st.sampled_from([*ALPHABET, " ", "漢", "▁"]), max_size=60))
def test_sampler_without_dropout_is_the_library(by_kind, text):
    sampler = SubwordSampler(by_kind["bpe"].source, 0.0, seed=1)
    assert sampler.encode(text, np.random.default_rng(0)) == by_kind["bpe"].source.encode([text])[0]


@given(text=known_text, seed=st.integers(0, 5), dropout=st.sampled_from([0.1, 0.5, 0.9]))
def test_sampled_segmentations_spell_the_same_text(by_kind, text, seed, dropout):
    side = by_kind["bpe"].source
    ids = SubwordSampler(side, dropout, seed).encode(text, np.random.default_rng(seed))
    assert side.decode(ids) == normalised(text)


def test_sampling_is_decided_by_seed_and_generator(by_kind):
    side, text = by_kind["bpe"].source, "reading, singing and eating rapidly " * 3

    def sample(seed: int, draw: int) -> list[int]:
        return SubwordSampler(side, 0.3, seed).encode(text, np.random.default_rng(draw))

    warm = SubwordSampler(side, 0.3, 1)
    warm.encode("eating bread reading", np.random.default_rng(9))
    assert sample(1, 2) == sample(1, 2) == warm.encode(text, np.random.default_rng(2))
    assert sample(1, 2) != sample(1, 3)
    assert sample(1, 2) != sample(2, 2)


def test_more_dropout_means_more_pieces(by_kind):
    side, text = by_kind["bpe"].source, " ".join(WORDS)
    rng = np.random.default_rng(0)
    means = [
        np.mean([len(SubwordSampler(side, dropout, 0).encode(text, rng)) for _ in range(10)])
        for dropout in (0.0, 0.1, 0.3, 0.6, 0.95)
    ]
    assert means == sorted(set(means))


def test_words_too_long_to_sample_keep_their_segmentation(by_kind):
    side, text = by_kind["bpe"].source, "eating" * 50
    assert SubwordSampler(side, 0.5, 0).encode(text, np.random.default_rng(0)) == side.encode([text])[0]


def test_pair_sampler_adds_what_training_expects():
    tokenizer = train_pair_tokenizer(PAIRS, TokenizerConfig(size=150, joint=False), "en", ["es", "pt"])
    sampler, rng = PairSampler(tokenizer, 0.0, 0), np.random.default_rng(0)
    assert sampler.source_ids("we eat", "es", rng) == tokenizer.source_ids(["we eat"], to="es")[0]
    assert sampler.target_ids("comiendo", rng) == tokenizer.target_ids(["comiendo"])[0]


def test_only_bpe_can_be_sampled(by_kind):
    with pytest.raises(ConfigError, match="dropout"):
        TokenizerConfig.parse({"kind": "unigram", "dropout": 0.1})
    for kind in set(KINDS) - {"bpe"}:
        with pytest.raises(ConfigError, match="bpe"):
            SubwordSampler(by_kind[kind].source, 0.1, 0)


# --- Marian ---


def write_marian(folder: Path, *, separate: bool = False, tags: tuple[str, ...] = ()) -> Path:
    """A folder as Hugging Face writes it; some pieces are missing from the vocabulary, as in real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = []
    for name, texts in (("source", [a for a, _ in SENTENCES]), ("target", [b for _, b in SENTENCES])):
        with (folder / f"{name}.spm").open("wb") as file:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(texts * 10), model_writer=file, vocab_size=80, hard_vocab_limit=False,
                character_coverage=1.0, minloglevel=2, num_threads=1,
            )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{name}.spm"))
        tables.append([model.id_to_piece(i) for i in range(3, model.get_piece_size())][:-4])
    common = min(map(len, tables))  # `<pad>` has one id on both sides, as transformers expects
    tables = [table[:common] for table in tables]
    joined = list(dict.fromkeys(tables[0] + tables[1]))
    files = {"vocab.json": tables[0], "target_vocab.json": tables[1]} if separate else {"vocab.json": joined}
    for name, pieces in files.items():
        numbered = ["</s>", "<unk>", *pieces, *(f">>{tag}<<" for tag in tags), "<pad>"]
        (folder / name).write_text(json.dumps({piece: i for i, piece in enumerate(numbered)}))
    settings = {
        "source_lang": "en",
        "target_lang": "es",
        "separate_vocabs": separate,
        "tokenizer_class": "MarianTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def reference(folder: Path):
    from transformers import MarianTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return MarianTokenizer.from_pretrained(str(folder))


def random_texts(count: int) -> list[str]:
    rng = random.Random(0)
    plain = [word for word in WORDS if "<" not in word]  # transformers parses special tokens in texts
    odd = ["漢字", "½", "ﬁne", "naïve", "e\u0301", "…", "\u00a0", "🙂", "--", "ß", "▁", "\u200b", "Ａ"]
    return [
        " ".join(rng.choices([*plain, *odd], k=rng.randrange(12))) + rng.choice(["", " ", "!?"]) for _ in range(count)
    ]


@pytest.mark.parametrize("separate", [False, True])
def test_marian_agrees_with_transformers(tmp_path, separate):
    folder = write_marian(tmp_path / "marian", separate=separate)
    ours, theirs, texts = PairTokenizer.load(folder), reference(folder), random_texts(200)
    assert (ours.source.pad, ours.source.end, ours.source.unknown) == (
        theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id,
    )  # fmt: skip
    assert ours.source.start == ours.source.pad
    assert ours.source_ids(texts) == theirs(texts).input_ids
    assert ours.target_ids(texts) == theirs(text_target=texts).input_ids
    for ids in ours.target_ids(texts):
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.target.decode(ids) == " ".join(expected.split())


def test_marian_language_codes_agree_with_transformers(tmp_path):
    folder = write_marian(tmp_path / "marian", tags=("es", "pt"))
    ours, theirs, texts = PairTokenizer.load(folder), reference(folder), random_texts(50)
    assert ours.target_languages == ("es", "pt")
    assert ours.source_ids(texts, to="pt") == theirs([f">>pt<< {text}" for text in texts]).input_ids


def test_marian_text_cannot_write_special_tokens(tmp_path):
    side = PairTokenizer.load(write_marian(tmp_path / "marian", tags=("es", "pt"))).source
    for text in ("</s>", ">>es<< bread", "<pad>", "<s> </s>"):
        assert set(side.encode([text])[0]) & side.specials <= {side.unknown}


def test_marian_words(tmp_path):
    side = PairTokenizer.load(write_marian(tmp_path / "marian", tags=("es", "pt"))).source
    rng = random.Random(1)
    for _ in range(200):
        check_words_of(side, [rng.randrange(side.size) for _ in range(rng.randrange(15))])
    words = side.words_in("bread 漢字, is 字")
    assert sorted(set(words)) == [0, 1, 2, 3] and words == sorted(words)


@pytest.mark.parametrize("separate", [False, True])
def test_marian_saves_its_files_byte_for_byte(tmp_path, separate):
    folder = write_marian(tmp_path / "marian", separate=separate)
    tokenizer = PairTokenizer.load(folder)
    tokenizer.save(tmp_path / "copy")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()
    }
    assert PairTokenizer.load(tmp_path / "copy") == tokenizer


@pytest.mark.parametrize(("name", "content"), [("vocab.json", None), ("vocab.json", b'{"a": 0}'), ("target.spm", b"x")])
def test_a_damaged_marian_folder_is_refused(tmp_path, name, content):
    folder = write_marian(tmp_path / "marian")
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        PairTokenizer.load(folder)


MARKED = [
    Pair("We saw Anna. where is the red-hot soup?", "¿Dónde está Ana? ¡Hola! Él ve comprá-lo, dónde", to=to)
    for to in ("es", "pt")
]


@pytest.mark.parametrize("kind", ["word", "bpe", "unigram", "wordpiece", "character"])
def test_marked_capitals_share_pieces_with_small_letters(kind):
    config = TokenizerConfig(kind=kind, size=120, mark_case=True, min_frequency=1)
    side = train_pair_tokenizer(MARKED, config, "en", ["es", "pt"]).source
    for text in ("We saw Anna.", "¿Dónde está Ana? ¡Hola!", "¡ve! Él", "Where is the Red-hot soup?"):
        (ids,) = side.encode([text])
        assert side.decode(ids) == text
        assert side.words_in(text) == [word if word >= 0 else there for word, there in
                                       zip(side.words_of(ids), side.words_in(text), strict=True)]  # fmt: skip
    small, large = side.encode(["¿dónde está ana?", "¿Dónde está Ana?"])
    assert [piece for piece in large if piece != side.capital] == small
    assert side.decode(side.encode(["WE"])[0]) == "We"  # capitals inside a word are lost


def test_what_is_copied_of_an_unknown_word_leaves_out_what_is_said_anyway():
    config = TokenizerConfig(kind="word", size=120, mark_case=True, min_frequency=1)
    texts = [Pair("Ana's soup, is it? yes.", "¿la sopa de Ana?", to=to) for to in ("es", "pt")]
    side = train_pair_tokenizer(texts, config, "en", ["es", "pt"]).source
    words = ["Zoltan", "Zoltan.", "Zoltan's", "Zoltan's?", "Jean-Paul,", "soup?"]
    assert [side.copied(word) for word in words] == ["Zoltan", "Zoltan", "Zoltan", "Zoltan", "Jean-Paul", "soup"]

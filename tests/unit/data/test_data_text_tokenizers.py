"""Tokenizers of pre-trained models: the same tokens, special tokens and pairs as by the library that made them."""

import json
import pickle
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import sentencepiece
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, trainers

from regard.data.synthetic.phrasebook import phrases
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError

TEXTS = [pair.source for pair in phrases("es", part="train", count=400, seed=1)]
STRANGE = [
    "",
    " ",
    "Crème  brûlée!",
    "don't ``quote''",
    "a\tb\nc",
    "日本語 text",
    "[SEP] </s> [MASK]",
    "½ ﬁ Å",
    "🙂 ok",
]


def word_pieces(folder, **settings):
    library = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=specials, show_progress=False)
    library.train_from_iterator(map(str.lower, TEXTS), trainer)
    ids = library.get_vocab()
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in sorted(ids, key=ids.__getitem__)))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    return folder


def byte_pairs(folder):
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    library.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "RobertaTokenizer"}))
    return folder


def sentence_pieces(folder, symbols=("[CLS]", "[SEP]", "[MASK]")):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(map(str.lower, TEXTS)), model_prefix=str(folder / "spiece"), vocab_size=150,
        pad_id=0, unk_id=1, bos_id=-1, eos_id=-1 if symbols else 2, pad_piece="<pad>", control_symbols=list(symbols),
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip
    return folder


@cache
def lower_case():
    """A shared WordPiece tokenizer."""
    with TemporaryDirectory() as folder:
        return TextTokenizer.load(word_pieces(Path(folder)))


MAKERS = {"bert": word_pieces, "roberta": byte_pairs, "albert": sentence_pieces}


@pytest.fixture(scope="module", params=MAKERS)
def folder(request, tmp_path_factory):
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))


def their_tokenizer(folder):
    transformers = pytest.importorskip("transformers")
    name = {"vocab.txt": "BertTokenizer", "merges.txt": "RobertaTokenizer", "spiece.model": "AlbertTokenizer"}
    kind = next(kind for file, kind in name.items() if (folder / file).is_file())
    return getattr(transformers, kind).from_pretrained(folder)


def test_texts_and_pairs_are_cut_and_marked_as_their_library_does(folder):
    ours, theirs = TextTokenizer.load(folder), their_tokenizer(folder)
    plain = [text for text in STRANGE if "SEP" not in text] + TEXTS[:50]
    for pairs in (None, plain[::-1]):
        expected = theirs(plain, pairs, return_token_type_ids=True)
        found = ours.encode(plain, pairs)
        assert [each.ids for each in found] == expected["input_ids"]
        if "merges.txt" not in ours.files:  # RoBERTa has one segment
            assert [each.segments for each in found] == expected["token_type_ids"]
        else:
            assert not any(any(each.segments) for each in found)


def test_special_tokens_have_the_numbers_their_library_gives_them(folder):
    ours, theirs = TextTokenizer.load(folder), their_tokenizer(folder)
    assert (ours.start, ours.separator, ours.mask, ours.pad, ours.unknown) == (
        theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id, theirs.pad_token_id, theirs.unk_token_id,
    )  # fmt: skip
    assert ours.end == ours.separator
    assert ours.size == len(theirs)


def test_a_written_special_token_is_text_unless_it_is_asked_for(folder):
    tokenizer = TextTokenizer.load(folder)
    name = tokenizer.library.id_to_token(tokenizer.mask)
    plain, marked = (tokenizer.encode([f"she is {name} now"], marked=marked)[0].ids for marked in (False, True))
    assert tokenizer.mask not in plain
    assert marked.count(tokenizer.mask) == 1


@given(st.lists(st.text(max_size=12), max_size=6).map(" ".join), st.integers(3, 12))
def test_a_shortened_text_is_a_beginning_with_its_special_tokens(text, longest):
    tokenizer = lower_case()
    whole, cut = tokenizer.encode([text])[0].ids, tokenizer.encode([text], longest=longest)[0].ids
    assert len(cut) == min(len(whole), longest)
    assert cut[:-1] == whole[: len(cut) - 1] and cut[-1] == whole[-1] == tokenizer.end


@given(st.lists(st.sampled_from(TEXTS), min_size=2, max_size=2), st.integers(4, 30))
def test_of_a_pair_the_longer_text_is_shortened_first(pair, longest):
    tokenizer = lower_case()
    lengths = [len(tokenizer.encode([text])[0].ids) - 2 for text in pair]
    (cut,) = tokenizer.encode(pair[:1], pair[1:], longest=longest)
    kept = [cut.segments.count(0) - 2, cut.segments.count(1) - 1]
    assert len(cut.ids) == min(longest, sum(lengths) + 3)
    assert max(kept) - min(kept) <= max(1, abs(lengths[0] - lengths[1]))
    assert all(k == n for k, n in zip(kept, lengths, strict=True) if n < (longest - 3) // 2)


@given(st.lists(st.text(max_size=8), max_size=8).map(" ".join))
def test_every_token_knows_a_word_of_the_text(text):
    words = lower_case().words_of(text)
    assert len(words) == len(lower_case().encode([text])[0].ids)
    assert words[0] == words[-1] == -1
    assert all(0 <= word < len(text.split()) for word in words[1:-1])
    assert words[1:-1] == sorted(words[1:-1])


def test_words_of_a_pair_count_on(folder):
    tokenizer = TextTokenizer.load(folder)
    words = tokenizer.words_of("we are eating", "bread and wine")
    assert [word for word in dict.fromkeys(words) if word >= 0] == list(range(6))
    assert len(words) == len(tokenizer.encode(["we are eating"], ["bread and wine"])[0].ids)


def test_decoding_and_showing_pieces(folder):
    tokenizer = TextTokenizer.load(folder)
    (ids, _) = tokenizer.encode(["we are eating bread"])[0]
    assert tokenizer.decode(ids) == "we are eating bread"
    joined = "".join(tokenizer.pieces(ids)[1:-1]).replace("##", "").replace("▁", "").replace(" ", "")
    assert joined == "weareeatingbread"


def test_spelled_tokens_make_the_text_again(folder):
    tokenizer, text = TextTokenizer.load(folder), ""
    for token in tokenizer.encode(["we are eating bread"])[0].ids[1:-1]:
        word, continues = tokenizer.spelled(token)
        text += word if continues or not text else f" {word}"
    assert text == "we are eating bread"


def test_saved_files_are_the_same_tokenizer(folder, tmp_path):
    tokenizer = TextTokenizer.load(folder)
    tokenizer.save(tmp_path / "copy")
    again = TextTokenizer.load(tmp_path / "copy")
    assert again == tokenizer == pickle.loads(pickle.dumps(tokenizer))
    assert pickle.loads(pickle.dumps(tokenizer)).encode(STRANGE) == again.encode(STRANGE) == tokenizer.encode(STRANGE)


def test_one_file_is_read_without_its_truncation_and_padding(tmp_path):
    library = lower_case().library
    library.enable_truncation(4)
    library.enable_padding(length=4)
    (tmp_path / "tokenizer.json").write_text(library.to_str())
    library.no_truncation()
    library.no_padding()
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.encode(TEXTS[:20]) == lower_case().encode(TEXTS[:20])
    assert (tokenizer.start, tokenizer.end, tokenizer.mask) == (lower_case().start, lower_case().end, lower_case().mask)


def test_case_and_accents_are_kept_where_the_folder_says_so(tmp_path):
    cased = TextTokenizer.load(word_pieces(tmp_path, do_lower_case=False))
    assert cased.encode(["WE ARE"]) != cased.encode(["we are"])
    assert lower_case().encode(["WE ARE"]) == lower_case().encode(["we are"])


def test_tokens_added_later_keep_their_numbers(tmp_path):
    word_pieces(tmp_path)
    size = TextTokenizer.load(tmp_path).size
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<two>": size + 1, "<one>": size}))
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.size == size + 2
    assert tokenizer.encode(["we <two> are"])[0].ids.count(size + 1) == 1
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<one>": size + 5}))
    with pytest.raises(CheckpointError, match=r"added_tokens\.json numbers '<one>' as"):
        TextTokenizer.load(tmp_path)


def test_sentence_pieces_without_a_start_end_as_t5_does(tmp_path):
    tokenizer = TextTokenizer.load(sentence_pieces(tmp_path, symbols=()))
    (ids, segments) = tokenizer.encode(["we are"], ["bread"])[0]
    assert ids[-1] == tokenizer.end and ids.count(tokenizer.end) == 2 and not any(segments)
    assert tokenizer.start is None and tokenizer.mask is None


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"no tokenizer is there; expected tokenizer\.json, vocab\.txt"),
        ({"vocab.json": "{}"}, "no tokenizer is there"),
        ({"tokenizer.json": "{"}, "cannot read the tokenizer in"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "a b c\n"}, r"merges\.txt has the line 'a b c'"),
        ({"spiece.model": "rubbish"}, "cannot read the tokenizer in"),
        ({"vocab.txt": "[PAD]\n[UNK]\n", "tokenizer_config.json": "[]"}, r"tokenizer_config\.json holds a JSON list"),
    ],
)
def test_what_cannot_be_read_is_named(files, says, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=says):
        TextTokenizer.load(tmp_path)


def test_llamas_sentencepiece_file_cuts_as_sentencepiece_does(tmp_path):
    import io

    import sentencepiece

    texts = ["the fox saw the owl", "the owl saw a fox; it ran", "foxes and owls run", "a café by the sea"] * 20
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=330, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=9,
    )  # fmt: skip
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = TextTokenizer.load(tmp_path)
    for text in [*texts[:4], "the   foxes\n\tran 你好 👍", "unseen wörds, 1234", "x"]:
        ids = ours.encode([text])[0].ids
        assert ids == [theirs.bos_id(), *theirs.encode(text)]
        assert ours.decode(ids) == text
    assert (ours.start, ours.end) == (theirs.bos_id(), theirs.eos_id())


def test_gpt2_puts_nothing_around_a_text(tmp_path):
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.encode(["aab"])[0].ids == [0, 2]
    assert (tokenizer.start, tokenizer.end) == (3, 3)

"""Marian and T5 folders that were fine-tuned here and saved back: other libraries write the same tokens."""

import json
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

import regard
from regard.data.synthetic.phrasebook import phrases
from regard.families.conversion import convert
from regard.training.loop import train
from regard.training.recipe.load import load_recipe

transformers = pytest.importorskip("transformers")
ctranslate2 = pytest.importorskip("ctranslate2")
transformers.utils.logging.disable_progress_bar()

PAIRS = list(phrases("es", part="train", count=80, seed=4, max_words=5))
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Marian model with random weights, as transformers saves it, with SentencePiece files and a vocabulary."""
    folder = tmp_path_factory.mktemp("marian") / "opus-en-es"
    folder.mkdir()
    pieces = set()
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([getattr(pair, side) for pair in PAIRS]),
            model_prefix=str(folder / side),
            vocab_size=90,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (folder / f"{side}.model").rename(folder / f"{side}.spm")
        (folder / f"{side}.vocab").unlink()
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
        pieces |= {model.id_to_piece(i) for i in range(3, model.get_piece_size())}
    ids = {piece: number for number, piece in enumerate(["</s>", "<unk>", *sorted(pieces), "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(ids), encoding="utf-8")
    languages = {"source_lang": "en", "target_lang": "es", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(languages), encoding="utf-8")
    torch.manual_seed(1)
    config = transformers.MarianConfig(
        vocab_size=len(ids), pad_token_id=ids["<pad>"], decoder_start_token_id=ids["<pad>"], eos_token_id=0,
        encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=64, **SIZES,
    )  # fmt: skip
    transformers.MarianMTModel(config).save_pretrained(folder)
    return folder


def _adapt(base: Path, place: Path) -> Path:
    """The model of a folder after a few steps."""
    lines = "".join(f"{pair.source}\t{pair.target}\n" for pair in PAIRS)
    (place / "pairs.tsv").write_text(lines, encoding="utf-8")
    sets = (
        f"model.init={base}", f"data.train={place / 'pairs.tsv'}", "data.source=en", "data.target=es",
        "data.split=0.1", "training.steps=12", "training.warmup=2", "training.lr=1e-2", "training.anchor=0",
        "training.validate_every=0", "training.checkpoint_every=0", "training.device=cpu", "decoding.max_length=20",
    )  # fmt: skip
    return train(load_recipe("adapt", sets), place / "run")


@pytest.fixture(scope="module")
def adapted(theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Marian model, adapted."""
    return _adapt(theirs, tmp_path_factory.mktemp("adapted"))


def test_the_sentencepiece_tokenizer_is_kept(theirs, adapted):
    for name in ("source.spm", "target.spm", "vocab.json"):
        assert (adapted / name).read_bytes() == (theirs / name).read_bytes()


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_saved_back_it_is_a_marian_folder_whose_tokens_transformers_and_ctranslate2_write(theirs, adapted, tmp_path):
    back = tmp_path / "back"
    convert(adapted, back, "marian")
    before, after = (load_file(folder / "model.safetensors") for folder in (theirs, back))
    assert {name: each.shape for name, each in before.items()} == {name: each.shape for name, each in after.items()}
    assert any(not torch.equal(before[name], after[name]) for name in before)
    texts = [pair.source for pair in PAIRS[:12]]
    ours = regard.load(adapted)
    answers = ours.translate(texts, beam=1, max_length=20)
    rows = [answer.parts[0][1][:19] for answer in answers]  # at the limit transformers forces an end token

    tokenizer = transformers.MarianTokenizer.from_pretrained(back)
    model = transformers.MarianMTModel.from_pretrained(back).eval()
    given = tokenizer(texts, return_tensors="pt", padding=True)
    lengths = given["attention_mask"].sum(dim=1).tolist()
    read = [ids[:length] for ids, length in zip(given["input_ids"].tolist(), lengths, strict=True)]
    assert read == ours.tokenizer.source_ids(texts)
    written = model.generate(**given, num_beams=1, max_new_tokens=20, do_sample=False)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert [[i for i in row if i not in (end, pad)][:19] for row in written.tolist()] == rows

    convert(adapted, tmp_path / "ct2", "ctranslate2")
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), compute_type="float32", inter_threads=1, intra_threads=1)
    side = ours.tokenizer.source
    pieces = [side.pieces(ids[:-1]) for ids in ours.tokenizer.source_ids(texts)]
    found = engine.translate_batch(pieces, beam_size=1, max_decoding_length=20)
    assert [each.hypotheses[0][:19] for each in found] == [ours.tokenizer.target.pieces(row) for row in rows]
    assert regard.load(back).translate(texts, beam=1, max_length=20)[0].tokens == answers[0].tokens


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5 with random weights and a SentencePiece file, as it is published."""
    folder = tmp_path_factory.mktemp("t5") / "t5"
    torch.manual_seed(2)
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2, "vocab_size": 160}
    transformers.T5ForConditionalGeneration(
        transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    ).save_pretrained(folder)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([f"translate English to Spanish: {pair.source} {pair.target}" for pair in PAIRS]),
        model_prefix=str(folder / "spiece"),
        vocab_size=130,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    (folder / "spiece.model").chmod(0o644)
    return folder


def test_a_t5_becomes_a_translator_whose_tokens_transformers_writes(t5, tmp_path):
    ours, texts = regard.load(_adapt(t5, tmp_path)), [pair.source for pair in PAIRS[:6]]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(t5 / "spiece.model"))
    expected = [[*pieces.encode(f"translate English to Spanish: {text}"), 1] for text in texts]
    assert ours.tokenizer.source_ids(texts, "es") == expected
    answers = ours.translate(texts, beam=1, max_length=20)
    convert(tmp_path / "run", tmp_path / "back", "huggingface")
    assert (tmp_path / "back" / "spiece.model").read_bytes() == (t5 / "spiece.model").read_bytes()
    model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    for ids, answer in zip(expected, answers, strict=True):
        written = model.generate(torch.tensor([ids]), num_beams=1, do_sample=False, max_new_tokens=20)[0].tolist()
        assert [i for i in written if i > 1] == answer.parts[0][1]

"""ESM-2 and ESM-1b folders of Hugging Face: the same tokens, outputs, attention and contacts, and exact round trips."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import regard
from regard.attention import record
from regard.checkpoints import export_model, load_model
from regard.cli.main import run
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError, DataError, UsageError
from regard.runtime.convert import fast_model

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

VOCABULARY = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
MASK = VOCABULARY.index("<mask>")
SHAPES = (
    {},
    {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "layer_norm_eps": 1e-5},
    {"token_dropout": False, "num_hidden_layers": 1},
    {"position_embedding_type": "absolute", "emb_layer_norm_before": True},
    {"emb_layer_norm_before": True, "num_attention_heads": 2, "intermediate_size": 20},
)
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
SEQUENCES = ["MKTAYIAKQRQISFVKSHFSRQ", "MKV", "ACDEFGHIKLMNPQRSTVWYX"]


def built(head, seed):
    torch.manual_seed(seed)
    values = {
        "vocab_size": 33, "mask_token_id": MASK, "pad_token_id": 1, "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 40,
        "position_embedding_type": "rotary", "token_dropout": True, "emb_layer_norm_before": False, **SHAPES[seed],
    }  # fmt: skip
    model = getattr(transformers, f"Esm{head}")(transformers.EsmConfig(**values)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def batch():
    """Texts of 12, 7 and 3 tokens with padding; the first and second have mask tokens."""
    torch.manual_seed(9)
    mask = torch.arange(12) < torch.tensor([12, 7, 3])[:, None]
    tokens = torch.randint(4, 31, (3, 12))
    tokens[:, 0] = 0
    tokens[0, 3] = tokens[0, 5] = tokens[1, 2] = MASK
    return tokens.masked_fill(~mask, 1), mask


def gaps(ours, theirs):
    tokens, mask = batch()
    with torch.inference_mode():
        expected, found = theirs(input_ids=tokens, attention_mask=mask.long()), ours(tokens, mask)
    if "logits" in expected:
        gap = (expected.logits - found.logits).abs()
        return [(gap[mask] if gap.shape[:2] == mask.shape else gap).max().item()]
    pairs = [(expected.last_hidden_state[mask], found.hidden[mask]), (expected.pooler_output, found.pooled)]
    return [(a - b).abs().max().item() for a, b in pairs]


@pytest.mark.parametrize(("head", "seed"), list(itertools.product(HEADS, range(len(SHAPES)))))
def test_their_folder_gives_the_same_answers_and_survives_the_way_back(head, seed, tmp_path):
    theirs = built(head, seed)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    assert loaded.name == "bert" and max(gaps(loaded.model, theirs)) <= 2e-5
    export_model(loaded.name, loaded.model, tmp_path / "back")
    again, report = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report.values())
    assert again.config.model_type == "esm" and again.config.architectures == [type(theirs).__name__]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert load_model(tmp_path / "back").config == loaded.config


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_recorded_attention_and_contacts_are_theirs(seed, tmp_path):
    theirs = built("Model", seed)
    theirs.save_pretrained(tmp_path)
    ours = load_model(tmp_path).model
    tokens, mask = batch()
    theirs.set_attn_implementation("eager")
    with torch.inference_mode(), record(ours) as looks:
        ours(tokens, mask)
        expected = theirs(input_ids=tokens, attention_mask=mask.long(), output_attentions=True).attentions
    for seen, weights in zip(looks.values(), expected, strict=True):
        torch.testing.assert_close(seen.transpose(1, 2)[mask], weights.transpose(1, 2)[mask], atol=1e-5, rtol=0)


def test_the_fast_model_agrees(tmp_path):
    built("ForMaskedLM", 0).save_pretrained(tmp_path)
    ours, (tokens, mask) = load_model(tmp_path).model, batch()
    with torch.inference_mode():
        gap = (ours(tokens, mask).logits - fast_model(ours)(tokens, mask).logits).abs()[mask]
    assert gap.max() <= 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A masked model with ESM's vocabulary, as their library saves it."""
    place = tmp_path_factory.mktemp("esm") / "esm2"
    built("ForMaskedLM", 0).save_pretrained(place)
    (place / "vocab.txt").write_text("\n".join(VOCABULARY))
    transformers.EsmTokenizer(str(place / "vocab.txt")).save_pretrained(place)
    return place


@pytest.mark.parametrize(
    "text",
    [*SEQUENCES, "M K T", "MKJLA", "mkt", "MK<mask>LA", "A.C-D", "MKtaLLj", "", "UBZOX", "ACD\nEFG", "<null_1>A"],
)
def test_tokens_are_theirs(folder, text):
    theirs = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    (ours,) = TextTokenizer.load(folder).encode([text], marked=True)
    assert ours.ids == theirs(text)["input_ids"]


def test_a_pair_of_texts_and_a_folder_with_the_vocabulary_alone(folder, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY))
    tokenizer, theirs = TextTokenizer.load(tmp_path), transformers.EsmTokenizer(str(tmp_path / "vocab.txt"))
    (ours,) = tokenizer.encode(["MKT"], ["ACD"])
    assert ours.ids == theirs("MKT", "ACD")["input_ids"]
    assert (tokenizer.pad, tokenizer.mask, tokenizer.start, tokenizer.end) == (1, MASK, 0, 2)
    assert tokenizer.decode(ours.ids) == "MKTACD" and tokenizer.size == 33


def test_embeddings_are_means_of_their_hidden_states(folder):
    model, theirs = regard.load(folder), transformers.EsmForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    together = model.embed(SEQUENCES, normalise=False)
    for sequence, vector in zip(SEQUENCES, together, strict=True):
        with torch.inference_mode():
            hidden = theirs.esm(**tokenizer(sequence, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(vector, hidden.mean(0), atol=2e-5, rtol=0)
        torch.testing.assert_close(vector, model.embed(sequence, normalise=False)[0], atol=2e-5, rtol=0)


def test_hidden_residues_are_guessed_as_theirs(folder, capsys):
    model, theirs = regard.load(folder), transformers.EsmForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    guesses = model.fill("MKT[MASK]YIAK", top=33)
    given = tokenizer("MKT<mask>YIAK", return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**given).logits[0, 4].softmax(-1)
    for guess in guesses:
        assert guess.probability == pytest.approx(expected[VOCABULARY.index(guess.token)].item(), abs=1e-5)
    assert guesses[0].text == f"MKT{guesses[0].token}YIAK"
    assert run(["read", "MKT[MASK]YIAK", "-m", str(folder), "--json"]) == 0
    assert guesses[0].token in capsys.readouterr().out


def test_contacts_are_theirs(folder):
    model, theirs = regard.load(folder), transformers.EsmForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.EsmTokenizer(str(folder / "vocab.txt"))
    theirs.set_attn_implementation("eager")
    for sequence in SEQUENCES:
        given = tokenizer(sequence, return_tensors="pt")
        with torch.inference_mode():
            expected = theirs.predict_contacts(given["input_ids"], given["attention_mask"])[0]
        found = model.contacts(sequence)
        assert found.shape == (len(sequence), len(sequence))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_look_draws_residues(folder, tmp_path):
    for suffix in ("html", "png", "json"):
        assert run(["look", "MKT[MASK]YIAK", "-m", str(folder), "-o", str(tmp_path / f"look.{suffix}")]) == 0
    told = json.loads((tmp_path / "look.json").read_text())
    assert told["panels"][0]["keys"] == ["<cls>", "M", "K", "T", "<mask>", "Y", "I", "A", "K", "<eos>"]


def test_odd_sequences_are_refused_or_told(folder, capsys):
    model = regard.load(folder)
    with pytest.raises(DataError, match="5,002 tokens; this model reads at most 40"):
        model.embed("A" * 5000)
    assert run(["embed", "mkt", "-m", str(folder), "--json"]) == 0
    assert "mkt" in capsys.readouterr().err
    assert torch.isfinite(model.embed("MKUXBZO")).all()


def test_folders_of_older_versions_load_and_others_are_refused(folder, tmp_path):
    theirs = built("ForMaskedLM", 0)
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {name: each for name, each in load_file(file).items() if "inv_freq" not in name}
    frequencies = theirs.esm.rotary_embeddings.inv_freq
    tensors |= {
        f"esm.encoder.layer.{n}.attention.self.rotary_embeddings.inv_freq": frequencies.clone() for n in range(2)
    }
    tensors["esm.embeddings.position_embeddings.weight"] = torch.randn(40, 16)
    tensors["esm.embeddings.position_ids"] = torch.arange(40)[None]
    save_file(tensors, file)
    assert max(gaps(load_model(tmp_path).model, theirs)) <= 2e-5
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "is_folding_model": True}))
    with pytest.raises(CheckpointError, match="is_folding_model"):
        load_model(tmp_path)


def test_models_without_a_layer_of_contacts_say_so(folder):
    model = regard.load(folder)
    model.model.contacts = None
    with pytest.raises(UsageError, match="predicts no contacts"):
        model.contacts("MKT")

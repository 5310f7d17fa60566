"""Text encoders: vectors, masked-word predictions, labels and attention, against formulas and single texts."""

import json
import shutil

import numpy as np
import pytest
import torch

import regard
from regard.checkpoints import load_model
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.conversion import convert
from regard.families.language.encoder import TextEncoder
from regard.families.language.text_reader import FEW

TEXTS = ["we are eating bread", "", "the house is big .", "she reads", "we", "the bread, the house (big)"] * 3


@pytest.fixture(scope="module")
def masked(make_encoder):
    return TextEncoder.load(make_encoder("masked"))


@pytest.fixture(scope="module")
def labelling(make_encoder):
    return TextEncoder.load(make_encoder("classify", labels=3, label_names=("bad", "fair", "good")))


def hidden(encoder, text):
    """The hidden states of one text, without any padding."""
    (row,) = encoder.tokenizer.encode([text])
    tokens = torch.tensor([row.ids])
    with torch.inference_mode():
        return encoder.model(tokens, torch.ones_like(tokens, dtype=torch.bool)).hidden[0]


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_vectors_are_the_mean_or_the_first_token_whatever_the_batch(masked, pooling, normalise):
    vectors = masked.embed(TEXTS, pooling=pooling, normalise=normalise)
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = hidden(masked, text)
        expected = states.mean(0) if pooling == "mean" else states[0]
        expected = expected / expected.norm() if normalise else expected
        torch.testing.assert_close(vector, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(
            masked.embed(text, pooling=pooling, normalise=normalise)[0], vector, atol=1e-6, rtol=0
        )


def test_few_tokens_are_read_by_the_inference_form_many_by_the_model(masked, labelling):
    tokens = torch.randint(5, 20, (1, FEW + 1))
    assert labelling.readers.of(tokens) is labelling.model
    assert labelling.readers.of(tokens[:, :FEW]) is labelling.readers.fast is not labelling.model
    assert labelling.classify("the house is big .")[0].labels == pytest.approx(
        labelling.classify(["the house is big ."] * FEW)[0].labels, abs=1e-6
    )
    whole = masked.fill("the [MASK] is big .", top=4)
    masked.readers.use_fast = False
    try:
        plain = masked.fill("the [MASK] is big .", top=4)
    finally:
        masked.readers.use_fast = True
    assert [each.token for each in whole] == [each.token for each in plain]
    assert [each.probability for each in whole] == pytest.approx([each.probability for each in plain], abs=1e-6)


def test_no_texts_are_no_vectors(masked, labelling):
    assert masked.embed([]).shape == (0, 16)
    assert labelling.classify([]) == []


def test_a_folder_may_name_its_pooling(make_encoder, tmp_path):
    folder = shutil.copytree(make_encoder("none"), tmp_path / "copy")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    encoder = TextEncoder.load(folder)
    assert torch.equal(encoder.embed(TEXTS), encoder.embed(TEXTS, pooling="cls"))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": "median"}))
    with pytest.raises(CheckpointError, match="1_Pooling"):
        TextEncoder.load(folder)


def test_guesses_are_the_most_probable_tokens_put_in_place(masked):
    text = "We are  [MASK] bread"
    guesses = masked.fill(text, top=4)
    tokenizer, model = masked.tokenizer, masked.model
    (row,) = tokenizer.encode(["we are [MASK] bread"], marked=True)
    tokens = torch.tensor([row.ids])
    with torch.inference_mode():
        logits = model(tokens, torch.ones_like(tokens, dtype=torch.bool)).logits
    shares = logits[0, row.ids.index(tokenizer.mask)].softmax(-1)
    best = shares.argsort(descending=True)[:4]
    assert [guess.probability for guess in guesses] == pytest.approx(shares[best].tolist(), abs=1e-6)
    pieces = tokenizer.pieces(best.tolist())
    assert [guess.token for guess in guesses] == [piece.removeprefix("##") for piece in pieces]
    for guess, piece in zip(guesses, pieces, strict=True):
        assert guess.text == ("We are" + piece[2:] if piece.startswith("##") else f"We are  {piece}") + " bread"


def test_several_hidden_words_have_their_own_guesses(masked):
    text = "[MASK] are eating [MASK]"
    first, second = masked.fill_each(text, top=2)
    assert all(guess.text.endswith("are eating [MASK]") for guess in first)
    assert all(guess.text.startswith("[MASK] are eating") for guess in second)
    assert "[MASK]" not in masked.fill_all(text)
    with pytest.raises(DataError, match="hides 2 words"):
        masked.fill(text)
    with pytest.raises(DataError, match="hides no word"):
        masked.fill("we are eating bread")
    with pytest.raises(UsageError, match="top is 0"):
        masked.fill(text, top=0)


def test_labels_come_with_their_probabilities_best_first(labelling):
    for text, found in zip(TEXTS, labelling.classify(TEXTS), strict=True):
        (row,) = labelling.tokenizer.encode([text])
        tokens = torch.tensor([row.ids])
        with torch.inference_mode():
            shares = labelling.model(tokens, torch.ones_like(tokens, dtype=torch.bool)).logits[0].softmax(-1)
        assert found.labels == pytest.approx(dict(zip(("bad", "fair", "good"), shares.tolist(), strict=True)), abs=1e-6)
        assert list(found.labels.values()) == sorted(found.labels.values(), reverse=True)
        assert (found.label, found.probability) == next(iter(found.labels.items()))


def test_pairs_are_read_together(labelling):
    (together,) = labelling.classify(["we are"], ["eating bread"])
    (turned,) = labelling.classify(["eating bread"], ["we are"])
    assert together.labels != turned.labels
    assert labelling.classify("we are", "eating bread")[0].labels == pytest.approx(together.labels)


def test_a_pre_trained_model_says_whether_one_text_follows_another(make_encoder):
    """BERT's first output is that the second text follows (Devlin et al. 2019), whatever the batch."""
    encoder = TextEncoder.load(make_encoder("pretraining"))
    firsts, seconds = ["we are eating bread", "she reads"], ["the house is big .", "we"]
    for found, *pair in zip(encoder.classify(firsts, seconds), firsts, seconds, strict=True):
        ((ids, kinds),) = encoder.tokenizer.encode([pair[0]], [pair[1]])
        tokens = torch.tensor([ids])
        output = encoder.model(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.tensor([kinds]))
        chances = output.next_sentence[0].softmax(-1).tolist()
        assert found.labels == pytest.approx({"next": chances[0], "other": chances[1]}, abs=1e-5)
    with pytest.raises(UsageError, match="only says whether one text follows another; give pairs"):
        encoder.classify("we are eating bread")


def test_models_may_rate_texts_or_give_several_labels(make_encoder):
    rating = TextEncoder.load(make_encoder("classify", labels=1)).classify(["we are"])[0]
    assert rating.labels == {} and isinstance(rating.value, float) and rating.label == "" and rating.probability is None
    several = TextEncoder.load(make_encoder("classify", labels=2, label_kind="several")).classify(["we are"])[0]
    assert {*several.labels} == {"LABEL_0", "LABEL_1"} and sum(several.labels.values()) != pytest.approx(1)


def test_attention_has_every_layer_and_head_and_knows_the_words(masked):
    seen = masked.attention("we are eating [MASK]", "the house", marked=True)
    assert seen.pieces == ["[CLS]", "we", "are", "eating", "[MASK]", "[SEP]", "the", "house", "[SEP]"]
    assert seen.words_of == [-1, 0, 1, 2, 3, -1, 4, 5, -1]
    assert [*seen.weights] == ["encoder.0.attention", "encoder.1.attention"]
    for weights in seen.weights.values():
        assert weights.shape == (2, 9, 9)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert [*masked.attention("we", layers="encoder.1.*").weights] == ["encoder.1.attention"]


def test_a_text_that_is_too_long_is_refused_or_cut(masked, labelling):
    long = "we " * 40
    for refused in (
        lambda: masked.embed([long]),
        lambda: labelling.classify([long]),
        lambda: masked.fill(f"[MASK] {long}"),
    ):
        with pytest.raises(DataError, match=r"begins with .*we we.* has 4\d tokens; this model reads at most 24"):
            refused()
    torch.testing.assert_close(masked.embed([long], truncate=True), masked.embed(["we " * 22]), atol=1e-6, rtol=0)


def test_a_model_without_the_head_says_so(masked, labelling):
    with pytest.raises(UsageError, match="has the head 'masked', not 'classify'"):
        masked.classify(["we"])
    with pytest.raises(UsageError, match="has the head 'classify', not 'masked'"):
        labelling.fill("[MASK]")
    with pytest.raises(UsageError, match="pooling is 'median'"):
        masked.embed(["we"], pooling="median")


def test_a_tokenizer_that_does_not_fit_the_model_is_refused(make_encoder):
    with pytest.raises(CheckpointError, match="has 21 tokens, but the model knows 9"):
        TextEncoder.load(make_encoder("none", vocab=9))


def test_loading_gives_what_fits_the_folder(make_encoder, translator_folder):
    assert isinstance(regard.load(make_encoder("none")), TextEncoder)
    assert type(regard.load(translator_folder)).__name__ == "Translator"
    with pytest.raises(UsageError, match="is a transformer model, which reads no single texts"):
        TextEncoder.load(translator_folder)
    with pytest.raises(UsageError, match="is a bert model; expected a translator"):
        regard.load(make_encoder("none"), translator_folder)


@pytest.mark.parametrize("head", ["none", "masked", "classify"])
def test_a_folder_goes_to_hugging_face_and_back(head, make_encoder, tmp_path):
    folder = make_encoder(head)
    convert(folder, tmp_path / "theirs", "huggingface")
    convert(tmp_path / "theirs", tmp_path / "ours", "regard")
    before, after = load_model(folder), load_model(tmp_path / "ours")
    assert before.config == after.config
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(tensor, after.model.state_dict()[name])
    assert torch.equal(regard.load(folder).embed(TEXTS), regard.load(tmp_path / "theirs").embed(TEXTS))

"""Translation: texts, attention, alignments, ensembles and unknown words."""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import regard
from regard.checkpoints import save_model
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.families.translation.translator import Translator
from regard.look.forced_pass import AlignmentSettings, Pass
from regard.search import pipeline as module
from regard.search.cuda_graphs import GraphModel
from regard.search.search import Hypothesis
from regard.search.settings import SearchSettings

SENTENCE = "we are eating bread"


@pytest.fixture(scope="module")
def translator(translator_folder: Path) -> Translator:
    return regard.load(translator_folder)


def test_an_answer_carries_text_score_attention_and_alignment(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es", beam=3, n_best=3)
    assert answer.text == " ".join(answer.target_words)
    assert answer.source_words == SENTENCE.split()
    assert answer.attention.shape == (len(answer.target_words), 4)
    np.testing.assert_allclose(answer.attention.sum(axis=1), 1, atol=1e-5)
    assert {target for _, target in answer.alignment} == set(range(len(answer.target_words)))
    scores = [answer.score, *(other.score for other in answer.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3
    assert translator.align([SENTENCE], [answer.text], to="es") == [answer.alignment]


def test_the_score_is_the_mean_log_probability_of_forcing_the_answer(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es", beam=2)
    tokenizer, ((_, ids),) = translator.tokenizer, answer.parts
    source = torch.tensor(tokenizer.source_ids([SENTENCE], "es"))
    inputs, labels = torch.tensor([[tokenizer.target.start, *ids]]), torch.tensor([[*ids, tokenizer.target.end]])
    with torch.inference_mode():
        logits = translator.models[0](source, torch.ones_like(source, dtype=torch.bool), inputs).log_softmax(-1)
    taken = logits.gather(2, labels[:, :, None]).squeeze()
    length = len(ids) + answer.finished
    assert answer.score == pytest.approx(taken[:length].mean().item(), abs=1e-4)


def test_several_texts_keep_their_order_and_blank_ones_stay_blank(translator: Translator) -> None:
    texts = ["", SENTENCE, "   ", "she is reading a long book", SENTENCE]
    answers = translator.translate(texts, to="pt")
    assert [answer.source for answer in answers] == texts
    assert answers[0].text == answers[2].text == ""
    assert answers[0].alignment == []
    assert answers[0].attention.shape == (0, 0)
    alone = translator.translate(SENTENCE, to="pt")
    assert answers[1].tokens == answers[4].tokens == alone.tokens
    assert answers[1].score == pytest.approx(alone.score, abs=1e-5)


def test_a_long_text_is_cut_into_sentences_and_its_attention_is_block_by_block(translator: Translator) -> None:
    short = reading_at_most(translator, 12)
    parts = ["We are eating bread.", "She is reading.", "They sleep."]
    whole = short.translate(" ".join(parts), to="es")
    each = translator.translate(parts, to="es")
    assert whole.text == " ".join(answer.text for answer in each)
    rows, columns = len(each[0].target_words), len(each[0].source_words)
    np.testing.assert_allclose(whole.attention[:rows, :columns], each[0].attention, atol=1e-5)
    assert whole.attention.shape == (len(whole.target_words), len(whole.source_words))
    assert not whole.attention[:rows, columns:].any()
    assert set(each[0].alignment) <= set(whole.alignment)
    with pytest.raises(DataError, match="more than 10 tokens"):
        short.translate("bread " * 30, to="es")


def reading_at_most(translator: Translator, longest: int) -> Translator:
    limited = Translator(
        translator.models, translator.tokenizer, settings=translator.settings, alignment=translator.alignment
    )
    limited.longest = longest
    return limited


def test_streaming_ends_with_the_translation(translator: Translator) -> None:
    shown = [part.text for part in translator.stream(SENTENCE, to="es", beam=1)]
    assert shown[-1] == translator.translate(SENTENCE, to="es", beam=1).text
    assert len(shown) > 1
    streamed = reading_at_most(translator, 12).stream("We eat bread. She reads a book.", to="es", beam=1)
    assert list(streamed)[-1].text == (
        " ".join(
            answer.text for answer in translator.translate(["We eat bread.", "She reads a book."], to="es", beam=1)
        )
    )
    assert list(translator.stream(" ", to="es")) == []


def test_a_captured_search_translates_and_streams_the_same(translator: Translator, monkeypatch) -> None:
    monkeypatch.setattr(module, "with_cuda_graphs", lambda steps, device: GraphModel(steps, lambda step, device: step))
    monkeypatch.setattr(module, "decoding_model", lambda model, precision, end: model)  # as on a GPU
    options = {"settings": translator.settings, "alignment": translator.alignment}
    ahead = Translator(translator.models, translator.tokenizer, **options)
    plain = Translator(translator.models, translator.tokenizer, **options, graphs=False)
    assert isinstance(ahead.decoder, GraphModel) and plain.decoder is translator.models[0]
    texts = [SENTENCE, "she is reading a long book", "they sleep"]
    for beam in (1, 3):
        found, expected = (each.translate(texts, to="es", beam=beam) for each in (ahead, plain))
        assert [(answer.text, answer.finished) for answer in found] == [(a.text, a.finished) for a in expected]
        streams = [[part.text for part in each.stream(SENTENCE, to="es", beam=beam)] for each in (ahead, plain)]
        assert streams[0] == streams[1]


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_what_is_settled_never_changes(translator: Translator, beam: int):
    for text in ("We are eating bread in the old house.", "She reads a book. We eat bread."):
        shown = [part.text for part in translator.stream(text, to="es", beam=beam, settled=True)]
        for one, next_one in itertools.pairwise(shown):
            assert next_one.startswith(one)
        assert shown[-1] == translator.translate(text, to="es", beam=beam).text


def test_log_probabilities_are_those_of_the_search(translator: Translator):
    answer = translator.translate(SENTENCE, to="es", beam=3)
    ids = answer.parts[0][1]
    log_p = translator.log_probabilities(SENTENCE, ids, to="es")
    told = [*ids, translator.vocabulary.end]
    total = sum(log_p[place, token].item() for place, token in enumerate(told))
    assert total / len(told) ** translator.settings.length_penalty == pytest.approx(answer.score, abs=1e-4)
    assert torch.allclose(log_p.exp().sum(-1), torch.ones(len(told)), atol=1e-5)


def test_a_prefix_begins_the_translation(translator: Translator) -> None:
    assert translator.translate(SENTENCE, to="es", prefix="la casa").text.startswith("la casa")
    assert list(translator.stream(SENTENCE, to="es", prefix="la casa"))[-1].text.startswith("la casa")


def test_a_limit_shows_as_truncated(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es", max_length=1)
    assert answer.truncated
    assert len(answer.tokens) == 1


def test_an_answer_of_nothing_visible_is_cut(translator: Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    space = next(iter(translator.vocabulary.blank))
    nothing = Hypothesis([space], -0.1, -0.2, finished=True)
    cut = Hypothesis([translator.tokenizer.target.encode(["la casa"])[0][0]], -0.5, -0.5, finished=False)
    running = translator.begin(SENTENCE, to="es", settings=SearchSettings(beam=2, max_length=2))
    assert running._ranked([nothing, cut], 2) == [cut]  # what is visible goes before
    assert running._ranked([nothing], 2) == [nothing]
    monkeypatch.setattr(translator, "decode", lambda sentences, *rest: [[nothing] for _ in sentences])
    answer = translator.translate(SENTENCE, to="es")
    assert (answer.text, answer.finished, answer.truncated) == ("", False, True)
    assert "cut" in answer.flags
    blank = translator.translate(" ", to="es")
    assert blank.finished and not blank.text  # a source of nothing


def test_a_model_never_says_more_than_it_has_learned_positions_for() -> None:
    words = words_translator()
    config = TransformerConfig(**{**dict(words.models[0].config), "positions": "learned", "max_length": 8})
    answer = Translator([Transformer(config)], words.tokenizer).translate("Ana visits Madrid", beam=2, min_length=8)
    assert len(answer.tokens) == 7
    assert answer.truncated
    assert len(answer.attention) == len(answer.target_words)


def test_targets_and_devices_that_are_not_there_are_refused(translator: Translator, translator_folder: Path) -> None:
    with pytest.raises(UsageError, match="es, pt"):
        translator.translate("", to="")
    with pytest.raises(UsageError, match="'de'"):
        translator.translate(SENTENCE, to="de")
    with pytest.raises(UsageError, match="tpu"):
        regard.load(translator_folder, device="tpu")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=30))
def test_any_text_has_an_attention_of_its_words(translator: Translator, text: str) -> None:
    answer = translator.translate(text, to="es", beam=1, max_length=8)
    assert answer.attention.shape == (len(answer.target_words), len(text.split()))
    assert "\n" not in answer.text
    assert all(source < len(text.split()) for source, _ in answer.alignment)


# Ensembles


def test_a_model_with_itself_is_an_ensemble_that_says_the_same(
    translator: Translator, translator_folder: Path, tmp_path: Path
) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(translator_folder, twin)
    alone, together = (
        translator.translate(SENTENCE, to="es"),
        regard.load(translator_folder, twin).translate(SENTENCE, to="es"),
    )
    assert (together.text, together.tokens) == (alone.text, alone.tokens)
    assert together.score == pytest.approx(alone.score, abs=1e-5)


def test_another_tokenizer_is_refused(translator_folder: Path, tmp_path: Path) -> None:
    stranger = words_translator()
    folder = tmp_path / "stranger"
    save_model(folder, "transformer", stranger.models[0], stranger.tokenizer.save)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        regard.load(translator_folder, folder)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path / "bare", "transformer", words_translator().models[0])
    with pytest.raises(CheckpointError, match="no tokenizer"):
        regard.load(tmp_path / "bare")


# Unknown words


def words_translator() -> Translator:
    """A translator of whole words, untrained."""
    torch.manual_seed(0)
    pairs = [Pair("Ana visits Madrid", "Ana visita Madrid")] * 2
    tokenizer = train_pair_tokenizer(pairs, TokenizerConfig.parse({"kind": "word", "size": 20}), "en", ["es"])
    config = TransformerConfig(
        source_vocab=tokenizer.source.size, target_vocab=tokenizer.target.size,
        width=8, heads=2, ffn_width=8, encoder_depth=1, decoder_depth=1,
    )  # fmt: skip
    alignment = AlignmentSettings(layer="decoder.0.cross", shift=False)
    return Translator([Transformer(config)], tokenizer, alignment=alignment)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Translator:
    """A translator that generates `unknown visita unknown` for three words, attending to word 3, 2 and 1."""
    translator = words_translator()
    target = translator.tokenizer.target
    said = [target.unknown, target.encode(["visita"])[0][0], target.unknown]
    weights = {"decoder.0.cross": np.eye(4)[None, [2, 1, 0, 3]]}

    def look(sources: list[str], answers: list[list[int]], **_: object) -> list[Pass]:
        words_of = target.words_of(answers[0], unknown=["?", "?"])
        return [Pass(weights, [0, 1, 2, -1], words_of, 3, 3)]

    found = [[Hypothesis(said, -0.5, -1.5, finished=True)]]
    monkeypatch.setattr("regard.families.translation.translation.search", lambda *_: found)
    monkeypatch.setattr(translator, "passes", look)
    return translator


def test_an_unknown_word_is_copied_from_where_the_model_looks(copying: Translator) -> None:
    answer = copying.translate("Zoe visits Quito")
    assert answer.text == "Quito visita Zoe"
    assert answer.tokens == ["<unk>", "▁visita", "<unk>"]
    assert answer.alignment == [(0, 2), (1, 1), (2, 0)]
    np.testing.assert_allclose(answer.attention, np.eye(3)[[2, 1, 0]])


def test_an_unknown_word_prefers_words_the_source_side_does_not_know_either(copying: Translator) -> None:
    assert copying.translate("Ana visits Quito").text == "Quito visita Quito"


def test_without_attention_an_unknown_word_is_left_out(copying: Translator) -> None:
    copying.answer_text.alignment = None
    assert copying.translate("Zoe visits Quito").text == "visita"


def test_a_translation_compares_by_value(translator: Translator) -> None:
    answer = translator.translate(SENTENCE, to="es")
    assert answer == replace(answer, translator=None)

"""The recogniser: texts by frames and by the search, batches that equal single answers, times of words, attention."""

import numpy as np
import pytest
import torch

import regard
from regard.checkpoints import save_model
from regard.errors import UsageError
from regard.families.catalog import MODELS
from regard.families.speech import ctc
from regard.families.speech.ctc import JOINT
from regard.families.speech.manifest import utterances
from regard.families.speech.pipeline import SpeechRecognizer, TranscribeOptions
from regard.search.settings import SearchSettings
from tiny_speech import AUDIO, save_recognizer, tiny_recognizer


@pytest.fixture(scope="module")
def pieces():
    return [each.samples for each in utterances(part="test", count=3, seed=1, digits=(1, 3), rate=8000)]


@pytest.mark.parametrize("changes", [{}, {"decoder_depth": 1}, {"decoder_depth": 1, "ctc": False}], ids=str)
@pytest.mark.parametrize("beam", [1, 3])
def test_a_batch_hears_what_its_recordings_say_one_by_one(pieces, changes, beam):
    recognizer = tiny_recognizer(**changes)
    settings = SearchSettings(beam=beam, max_length=8)
    together = recognizer.write(pieces, settings).texts
    for piece, found in zip(pieces, together, strict=True):
        ((alone, *_),) = recognizer.write([piece], settings).texts
        assert alone.tokens == found[0].tokens and alone.score == pytest.approx(found[0].score, abs=1e-4)
    assert any(found[0].tokens for found in together)


def test_both_judge_what_a_decoder_found(pieces):
    recognizer = tiny_recognizer(decoder_depth=1)
    settings = SearchSettings(beam=4, n_best=4, max_length=6)
    both = recognizer.write(pieces[:1], settings)
    decoder = recognizer.write(pieces[:1], settings, "attention")
    frames = torch.from_numpy(both.frames[0])[:, None]
    known = {tuple(each.tokens): each.log_probability for each in decoder.texts[0]}
    assert [each.log_probability for each in both.texts[0]] == sorted(
        (each.log_probability for each in both.texts[0]), reverse=True
    )
    for each in both.texts[0]:
        (labelled,) = ctc.scores(frames, [len(frames)], [each.tokens], 0)
        wanted = (1 - JOINT) * known[tuple(each.tokens)] + JOINT * labelled
        assert each.log_probability == pytest.approx(wanted, rel=1e-4)
    labels = recognizer.write(pieces[:1], settings.replace(beam=1, n_best=1), "ctc").texts[0][0]
    assert labels.tokens == ctc.greedy(both.frames[0], 0).labels


@pytest.mark.parametrize("kind", ["word", "character"])
def test_words_have_the_times_of_their_labels(pieces, kind):
    recognizer = tiny_recognizer(kind)
    (found,) = recognizer.hear(pieces[:1], TranscribeOptions(words=True))
    heard = recognizer.write(pieces[:1], recognizer.settings)
    ids = heard.texts[0][0].tokens
    (segment,) = found
    assert segment.text == recognizer.tokenizer.decode(ids).strip()
    assert [word.text for word in segment.words] == segment.text.split()
    spans = ctc.align(heard.frames[0], ids, 0)
    shown = [span for span, piece in zip(spans, recognizer.tokenizer.pieces(ids), strict=True) if piece.strip()]
    assert segment.words[0].start == pytest.approx(shown[0].first * 0.04)
    assert segment.words[-1].end == pytest.approx(min(shown[-1].last * 0.04, len(pieces[0]) / 8000))
    for one, other in zip(segment.words, segment.words[1:], strict=False):
        assert one.start < one.end <= other.start


@pytest.mark.parametrize("samples", [80, 1000, 8100])
def test_no_word_ends_after_its_recording(pieces, samples):
    recognizer, loud = tiny_recognizer(), np.resize(pieces[0], samples)
    ((segment,),) = recognizer.hear([loud], TranscribeOptions(words=True))
    seen = recognizer.attention(loud)
    ends = [segment.end, *(word.end for word in (*segment.words, *seen.words)), *(end for _, _, end, _ in seen.path)]
    assert max(ends) <= samples / 8000 and segment.words[-1].start < segment.words[-1].end


def test_attention_is_that_of_the_tokens_it_heard(pieces):
    recognizer = tiny_recognizer(decoder_depth=1)
    seen = recognizer.attention(pieces[0])
    ids = recognizer.write(pieces[:1], recognizer.settings).texts[0][0].tokens
    frames = -(-(len(pieces[0]) // 80) // 4)
    assert seen.tokens == recognizer.tokenizer.shown(ids) and seen.seconds == pytest.approx(0.04)
    assert seen.weights["decoder.decoder.0.cross"].shape == (4, len(ids), frames)
    assert seen.spectrogram.shape == (len(pieces[0]) // 80, 40)
    for weights in seen.weights.values():
        assert np.allclose(weights.sum(-1), 1, atol=1e-4)
    only = tiny_recognizer().attention(pieces[0])
    assert set(only.weights) == {"encoder.0.attention", "encoder.1.attention"} and only.path


def test_a_saved_model_is_loaded_by_name(tmp_path, pieces):
    recognizer = tiny_recognizer()
    loaded = regard.load(save_recognizer(tmp_path / "m", recognizer))
    assert isinstance(loaded, SpeechRecognizer) and loaded.audio == AUDIO
    assert loaded.write(pieces, loaded.settings).texts == recognizer.write(pieces, loaded.settings).texts
    torch.manual_seed(0)
    save_model(tmp_path / "vit", "vit", MODELS["vit"].model(MODELS["vit"].config(**MODELS["vit"].presets["tiny"])))
    with pytest.raises(UsageError, match="is a vit model; expected a conformer"):
        SpeechRecognizer.load(tmp_path / "vit")

"""Whisper folders of Hugging Face: the same logits, the same texts with and without times, exact round trips."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from regard.checkpoints import export_model, load_model
from regard.errors import CheckpointError
from regard.families.loading import load_pipeline
from regard.families.speech.features import WHISPER
from regard.families.speech.pipeline import TranscribeOptions
from regard.families.speech.whisper_pipeline import WhisperTranscriber
from regard.search.settings import SearchSettings
from tiny_whisper import LANGUAGES, PLACES, POSITIONS, as_wav, generation_values, sounds, vocabulary, write_tokenizer

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def theirs_of(seed, **changes):
    torch.manual_seed(seed)
    ids, added = vocabulary()
    sizes = {
        "vocab_size": len(ids) + len(added), "num_mel_bins": 80, "d_model": 16, "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
        "max_source_positions": PLACES, "max_target_positions": POSITIONS, **changes,
    }  # fmt: skip
    values = generation_values()
    special = {key: values[key] for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id", "bos_token_id")}
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes, **special)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # the initial weights are too small to reveal a mistake
            if "encoder.embed_positions" not in name:
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.4)
    model.generation_config = transformers.GenerationConfig(**values)
    return model


def saved(model, folder, *, as_json=True):
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(generation_values()))
    transformers.WhisperFeatureExtractor(feature_size=model.config.num_mel_bins, chunk_length=1).save_pretrained(folder)
    write_tokenizer(folder, as_json=as_json)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A model of theirs, and our pipeline of its folder."""
    theirs = theirs_of(0)
    return theirs, load_pipeline(saved(theirs, tmp_path_factory.mktemp("whisper")))


SHAPES = [
    {},
    {"encoder_layers": 3, "decoder_layers": 1, "num_mel_bins": 128},
    {"d_model": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "relu"},
    {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_source_positions": 11, "activation_function": "gelu_new"},
]


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_their_folder_gives_the_same_logits_and_survives_the_way_back(seed, tmp_path):
    theirs = theirs_of(seed, **SHAPES[seed])
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_model(tmp_path / "theirs")
    c = theirs.config
    features = torch.randn(3, c.num_mel_bins, 2 * c.max_source_positions)
    inputs = torch.randint(c.vocab_size, (3, 9))
    with torch.inference_mode():
        expected = theirs(input_features=features, decoder_input_ids=inputs).logits
        found = loaded.model(features.transpose(1, 2), inputs)
    assert loaded.name == "whisper" and (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    export_model("whisper", loaded.model, tmp_path / "back")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back"))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    again = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path / "back").eval()
    with torch.inference_mode():
        assert torch.equal(again(input_features=features, decoder_input_ids=inputs).logits, expected)


@pytest.mark.parametrize("change", [{"scale_embedding": True}, {"decoder_attention_heads": 2}])
def test_what_is_not_supported_is_refused(change, tmp_path):
    theirs_of(0, **change).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=next(iter(change))):
        load_model(tmp_path)


def written_by(theirs, features, prompt, *, times, **asked):
    """What the search of transformers writes after a prompt. Their `generate` of Whisper would go on after the last
    time in a text, which here is the matter of cutting."""
    from transformers.generation import GenerationMixin
    from transformers.generation import logits_process as rules

    values, count = theirs.generation_config, len(prompt)
    process = [
        rules.SuppressTokensAtBeginLogitsProcessor(values.begin_suppress_tokens, begin_index=count),
        rules.SuppressTokensLogitsProcessor(values.suppress_tokens),
        *([rules.WhisperTimeStampLogitsProcessor(values, begin_index=count)] if times else []),
    ]
    plain = transformers.GenerationConfig(
        decoder_start_token_id=prompt[0], eos_token_id=values.eos_token_id, pad_token_id=values.pad_token_id,
        bos_token_id=values.bos_token_id, **asked,
    )  # fmt: skip
    with torch.inference_mode():
        found = GenerationMixin.generate(
            theirs, features.transpose(1, 2), generation_config=plain,
            logits_processor=transformers.LogitsProcessorList(process),
            decoder_input_ids=torch.tensor([prompt] * len(features)),
        )  # fmt: skip
    return [row[count:] for row in found.tolist()]


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_texts_are_those_of_transformers(pair, times, beam, seed):
    """Greedy and beam search after forced tokens, with suppressed tokens and the rules of times."""
    theirs, ours = pair
    features = ours.features(sounds(4, seed=seed))
    prompt = ours.prompt("pt", times=times)
    expected = written_by(theirs, features, prompt, times=times, num_beams=beam, max_new_tokens=12)
    memory = ours.fast.encode(features)
    settings = SearchSettings(beam=beam, max_length=12)
    found = [each.hypotheses[0].tokens for each in ours.write(memory, [prompt] * 4, settings, times=times)]
    end = ours.tokens.end
    for mine, row in zip(found, expected, strict=True):
        assert mine == (row[: row.index(end)] if end in row else row)


def test_the_rules_of_times_are_those_of_transformers(pair):
    """Every kind of beginning, with random probabilities."""
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    from regard.families.speech.whisper import SpokenRule
    from regard.search.candidates import Grid

    theirs, ours = pair
    tokens, rng = ours.tokens, np.random.default_rng(0)
    rule = SpokenRule(tokens, torch.device("cpu"), times=True)
    rule.never = rule.not_first = torch.empty(0, dtype=torch.long)
    process = WhisperTimeStampLogitsProcessor(theirs.generation_config, begin_index=2)
    size = theirs.config.vocab_size
    for number in range(300):
        history, steps = list[int](), number % 6
        for place in range(steps):
            last = max([tokens.first_time, *(each for each in history if each >= tokens.first_time)])
            history.append(int(rng.integers(last, size)) if rng.random() < 0.5 or not place else int(rng.integers(40)))
        log_p = torch.from_numpy(rng.normal(0, 3, size)).float().log_softmax(-1)
        expected = process(torch.tensor([[1, 2, *history]]), log_p[None])[0]
        found = log_p[None, None].clone()
        said = torch.tensor(history, dtype=torch.long).view(1, 1, -1)
        rule(found, Grid(torch.zeros(1, 1), said, len(history), said[0]))
        assert torch.equal(found[0, 0], expected), history


def test_languages_are_detected_as_by_transformers(pair):
    theirs, ours = pair
    features = ours.features(sounds(6, seed=5))
    with torch.inference_mode():
        expected = theirs.detect_language(input_features=features.transpose(1, 2))
    found = ours.detect(ours.fast.encode(features))
    assert [ours.tokens.languages[each] for each in found] == expected.tolist()


def test_the_whole_way_is_that_of_transformers(pair, monkeypatch):
    """Their own `generate`, which makes the prompt of a language, of a task, and of an earlier text."""
    theirs, ours = pair
    (samples,) = sounds(1, seed=7)
    features = ours.features([samples])
    for language, earlier in (("en", []), ("de", []), ("en", ours.text_ids("a b c"))):
        given = {"prompt_ids": torch.tensor([ours.tokens.previous, *earlier])} if earlier else {}
        with torch.inference_mode():
            (expected,) = theirs.generate(
                features.transpose(1, 2), language=language, task="transcribe", max_new_tokens=3, **given
            ).tolist()
        prompt = ours.prompt(language, earlier)
        (found,) = ours.write(ours.fast.encode(features), [prompt], SearchSettings(max_length=3), times=False)
        said = [token for token in expected if token not in (*prompt, ours.tokens.end)]
        assert said == [token for token in found.hypotheses[0].tokens if token not in prompt]
    monkeypatch.setattr(ours, "_repeats", lambda found: False)  # random weights repeat themselves
    (segments,) = ours.hear([samples], TranscribeOptions(language="en", prompt="a b c"))
    assert segments[0].text.startswith(ours.tokenizer.decode(found.hypotheses[0].tokens[:3]).strip())


def test_the_cached_steps_are_the_forward_pass(pair):
    _, ours = pair
    features = ours.features(sounds(2, seed=3))
    inputs = torch.randint(40, (2, 8))
    with torch.inference_mode():
        whole = ours.model(features, inputs)
        for model in (ours.model, ours.fast):
            state = model.start(features)
            steps = [model.extend(inputs[:, :3], state)]
            steps += [model.step(inputs[:, place : place + 1], state) for place in range(3, 8)]
            assert torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-4)


def test_tokenizers_of_both_kinds_are_the_same(pair, tmp_path):
    theirs, ours = pair
    other = WhisperTranscriber.load(saved(theirs, tmp_path, as_json=False))
    assert other.tokens == ours.tokens and other.audio == ours.audio == WHISPER
    assert other.transcribe(as_wav(sounds(1)[0])) == ours.transcribe(as_wav(sounds(1)[0]))


def test_batches_give_what_single_pieces_give(pair):
    _, ours = pair
    files = [as_wav(each) for each in sounds(3, seed=9)]
    for changes in ({"timestamps": True, "words": True}, {"settings": {"beam": 2}}):
        together = ours.transcribe(files, **changes)
        apart = [ours.transcribe(each, **changes)[0] for each in files]
        assert [each.text for each in together] == [each.text for each in apart]
        assert [each.language for each in together] == [each.language for each in apart]


def test_long_audio_has_times_of_the_whole_file(pair):
    _, ours = pair
    (found,) = ours.transcribe(as_wav(np.concatenate(sounds(5, seed=2))), timestamps=True, words=True)
    assert found.seconds == 2.5 and len(found.segments) >= 5
    starts = [segment.start for segment in found.segments]
    assert starts == sorted(starts) and found.segments[-1].end <= 2.5 and starts[-1] > 1.5
    for segment in found.segments:
        assert segment.end >= segment.start and segment.language in LANGUAGES
        assert [word.text for word in segment.words] == segment.text.split()


def test_where_it_looked_is_the_attention_of_transformers(pair, monkeypatch):
    theirs, ours = pair
    monkeypatch.setattr(ours, "_repeats", lambda found: False)  # random weights repeat themselves
    (samples,) = sounds(1, seed=4)
    seen = ours.attention(samples)
    memory = ours.encode([samples])
    (language,) = ours.detect(memory)
    prompt = ours.prompt(language)
    (written,) = ours.write(memory, [prompt], ours.settings, times=False)
    ids = written.hypotheses[0].tokens
    theirs.set_attn_implementation("eager")
    with torch.inference_mode():
        features = ours.features([samples]).transpose(1, 2)
        inputs = torch.tensor([[*prompt, *ids]])
        expected = theirs(input_features=features, decoder_input_ids=inputs, output_attentions=True).cross_attentions
    theirs.set_attn_implementation("sdpa")
    assert list(seen.weights) == ["decoder.0.cross", "decoder.1.cross"] and len(seen.tokens) == len(ids)
    for mine, their in zip(seen.weights.values(), expected, strict=True):
        assert np.abs(mine - their[0, :, len(prompt) - 1 : -1].numpy()).max() < 1e-5
    assert seen.spectrogram.shape == (50, 80) and seen.seconds == pytest.approx(0.02)

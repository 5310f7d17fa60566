"""The decoding settings of a model folder, and that every interface uses them."""

import json
import math
from pathlib import Path

import pytest

import regard
from regard.cli.main import run
from regard.families.conversion import convert
from regard.families.translation.translator import Translator
from regard.search.search import SearchSettings
from regard.search.settings import GENERATION, RECIPE, read_decoding, their_settings

SENTENCES = ["we are eating bread", "Lucas is visiting Rio", "she reads", "the red house"]


pytestmark = pytest.mark.filterwarnings("default:line 1:UserWarning")  # the command line prints them


def write(folder: Path, **files: dict[str, object]) -> Path:
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return folder


def test_a_folder_that_does_not_say_is_decoded_greedily(tmp_path):
    assert read_decoding(tmp_path).settings == SearchSettings()
    write(tmp_path, config={"max_length": 64, "vocab": 10})  # a model of our own
    assert read_decoding(tmp_path).settings == SearchSettings()


def test_values_of_hugging_face(tmp_path):
    write(
        tmp_path,
        config={"model_type": "marian", "num_beams": 6, "max_length": 512, "bad_words_ids": [[7]], "pad_token_id": 7},
        generation_config={
            "num_beams": 3, "length_penalty": 0.6, "no_repeat_ngram_size": 2, "repetition_penalty": 1.3,
            "min_length": 4, "do_sample": False, "temperature": None, "early_stopping": True, "eos_token_id": [2, 5],
            "max_length": 200,
        },
    )  # fmt: skip
    settings, ends = read_decoding(tmp_path)
    expected = SearchSettings(
        beam=3, length_penalty=0.6, no_repeat_ngram=2, repetition_penalty=1.3, min_length=3, longest=199,
        early_stopping=True, ended_first=False,
    )  # fmt: skip
    assert (settings, ends) == (expected, [2, 5])
    assert settings.limit(10) == 40 and settings.limit(10_000) == 199
    assert settings.replace(max_length=300).limit(10) == 300  # an explicit value has priority
    continues = read_decoding(tmp_path, answers=False).settings
    assert (continues.min_length, continues.longest) == (0, None)  # their limits include the prompt
    assert continues.context == 199 and continues.limit(150) == 50
    write(tmp_path, generation_config={"max_new_tokens": 9, "max_length": 200, "min_new_tokens": 2})
    assert read_decoding(tmp_path).settings == SearchSettings(beam=6, longest=9, min_length=2, ended_first=False)
    write(tmp_path, generation_config={"max_new_tokens": 9, "forced_eos_token_id": 2, "eos_token_id": 2})
    assert read_decoding(tmp_path).settings.limit(10) == 8  # the ninth is the end token


def test_our_recipe_goes_before(tmp_path):
    write(tmp_path, generation_config={"num_beams": 3})
    (tmp_path / RECIPE).write_text("[decoding]\nbeam = 7\n")
    assert read_decoding(tmp_path).settings == SearchSettings(beam=7)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, "num_beam_groups, diversity_penalty"),
        ({"forced_eos_token_id": 5, "eos_token_id": [2, 3]}, "forced_eos_token_id"),
        ({"max_time": 3.0, "stop_strings": ["."]}, "stop_strings, max_time|max_time, stop_strings"),
        ({"bad_words_ids": [[3], [4]]}, "bad_words_ids"),
        ({"num_beams": 2, "do_sample": True}, "do_sample with num_beams"),
        ({"num_beams": 2, "early_stopping": "never"}, "early_stopping"),
        ({"num_beams": 2, "early_stopping": True}, ""),
        ({"suppress_tokens": [], "num_beam_groups": 1, "guidance_scale": 1.0, "encoder_no_repeat_ngram_size": 0}, ""),
    ],
)
def test_what_would_change_answers_and_is_not_done_is_told(tmp_path, values, named):
    write(tmp_path, generation_config=values)
    if not named:
        read_decoding(tmp_path)  # a warning would be an error
        return
    with pytest.warns(UserWarning, match=named):
        assert not read_decoding(tmp_path).settings.sample


def test_settings_survive_a_conversion(translator_folder, tmp_path):
    convert(translator_folder, tmp_path / "theirs", "huggingface")
    written = json.loads((tmp_path / "theirs" / GENERATION).read_text())
    assert written["num_beams"] == 4
    (tmp_path / "theirs" / RECIPE).unlink()
    assert read_decoding(tmp_path / "theirs").settings.beam == 4
    assert their_settings(SearchSettings(beam=2, length_penalty=0.5, max_length=9)) == {
        "num_beams": 2, "length_penalty": 0.5, "max_new_tokens": 9,
    }  # fmt: skip


@pytest.mark.parametrize("beam", [1, 4])
def test_alternatives_and_streams_have_the_same_first_answer(translator_folder, beam):
    translator = Translator.load(translator_folder)
    translator.settings = translator.settings.replace(beam=beam, max_length=9)
    alone = translator.translate(SENTENCES, to="es")
    assert alone == translator.translate(SENTENCES, to="es", beam=beam)
    for n_best in (2, 7):
        several = translator.translate(SENTENCES, to="es", n_best=n_best)
        assert [each.text for each in several] == [each.text for each in alone]
        for answer in several:
            scores = [each.score for each in (answer, *answer.alternatives)]
            assert scores == sorted(scores, reverse=True) and len(scores) <= n_best
        *_, last = translator.stream(SENTENCES[1], to="es", n_best=n_best)
        said, expected = ([each, *each.alternatives] for each in (last.whole, several[1]))
        assert [each.text for each in said] == [each.text for each in expected]
        # Some CPUs add the products of another number of sentences in another order: the last bits may differ.
        assert [each.score for each in said] == pytest.approx([each.score for each in expected], rel=1e-6)


def test_the_command_line_decodes_as_python_does(translator_folder, capsys):
    translator = regard.load(translator_folder)
    answer = translator.translate(SENTENCES[1], to="es", max_length=9)
    command = ["translate", SENTENCES[1], "-m", str(translator_folder), "--to", "es", "--max-length", "9"]
    for more, count in (([], 1), (["--n-best", "3"], 3), (["--n-best", "9"], 9)):
        assert run([*command, *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split("\t")[-1] == answer.text and len(lines) <= count
        scores = [float(line.split("\t")[0]) for line in lines] if more else []
        assert scores == sorted(scores, reverse=True)
        assert not scores or math.isclose(scores[0], answer.score, abs_tol=1e-3)

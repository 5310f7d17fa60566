"""The table of the effects of heads: a planted head comes first, and means are those of the data."""

import json

import pytest
import torch
from torch import nn

import regard
from regard.attention.places import record_activations
from regard.claims.heads import head_table, score, text_loss
from regard.cli.main import run
from regard.data.formats.pairs import GoldPair
from regard.errors import UsageError
from regard.families.contract import EvaluationOptions
from regard.families.language.language_models import LanguageModel
from regard.families.trajectories.task import evaluate_forecasts
from regard.families.translation.evaluate import error_rates_by_reading, held_out_pairs
from regard.families.translation.translator import Translator
from regard.look.interventions import without_heads


@pytest.fixture
def planted(gpt_folder):
    """A model in which the attention of one head alone reaches the stream, and texts that it wrote itself."""
    writer = LanguageModel.load(gpt_folder)
    torch.manual_seed(2)
    for number, layer in enumerate(writer.model.decoder):
        nn.init.normal_(layer.attention.value.weight)
        nn.init.zeros_(layer.attention.output.weight)
        if number == 1:
            width = layer.attention.head_width
            nn.init.normal_(layer.attention.output.weight[:, width : 2 * width])
    drawn = [writer.generate("one", max_tokens=16, temperature=1.0, seed=seed) for seed in range(6)]
    return writer, ["one" + each.text for each in drawn]


def test_a_planted_head_is_ranked_first_and_the_others_have_no_effect(planted):
    writer, texts = planted
    measure = text_loss(writer, texts)
    table = head_table(writer, measure)
    first, *others = table.ranked
    assert (first.layer, first.head) == ("decoder.1.attention", 1)
    assert first.effect > 0.01 and all(abs(each.effect) < 1e-4 for each in others)
    assert measure.value() == table.whole
    logits = writer.model(torch.tensor([writer.opened(texts[0])]))  # the loss by hand
    ids = torch.tensor(writer.opened(texts[0]))
    by_hand = -logits[0, :-1].log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]].mean()
    assert text_loss(writer, texts[:1]).value() == pytest.approx(by_hand.item(), rel=1e-4)


def test_a_head_is_replaced_by_its_mean_over_the_data(planted):
    writer, texts = planted
    table = head_table(writer, text_loss(writer, texts), layers="decoder.1.*", by="mean")
    rows = []
    for text in texts:
        with record_activations(writer.model, "decoder.1.attention.heads") as seen, torch.inference_mode():
            writer.model(torch.tensor([writer.opened(text)[:-1]]))
        rows.append(seen["decoder.1.attention.heads"][0, 1])
    mean = torch.cat(rows).mean(dim=0)
    attention = writer.model.decoder[1].attention
    width = attention.head_width
    with torch.no_grad():
        attention.output.bias += attention.output.weight[:, width : 2 * width] @ mean
        attention.output.weight.zero_()
    (planted_effect,) = (each for each in table.effects if each.head == 1)
    assert planted_effect.value == pytest.approx(text_loss(writer, texts).value(), rel=1e-4)


def test_the_command_prints_draws_and_writes(gpt_folder, tmp_path, capsys):
    data = tmp_path / "texts.txt"
    data.write_text("one two three\ntwo three four five\n")
    common = ["heads", str(data), "-m", str(gpt_folder)]
    assert run([*common, "-o", str(tmp_path / "heads.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("all heads") and lines[1].startswith("decoder.")
    assert "decoder.0.attention" in (tmp_path / "heads.svg").read_text()
    assert run([*common, "--json", "-o", str(tmp_path / "heads.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "heads.json").read_text())
    assert len(printed["heads"]) == len(lines) - 1
    assert [each["effect"] for each in printed["heads"]] == sorted(
        (e["effect"] for e in printed["heads"]), reverse=True
    )
    for wrong, says in (
        (["--by", "noise"], "expected zero or mean"),
        (["-o", "heads.txt"], "ending in .png, .svg or .json"),
        (["--layers", "x"], "no attention layer matches 'x'"),
        (["--metric", "bleu"], "measured by its loss"),
    ):
        assert run([*common, *wrong]) == 2
        assert says in capsys.readouterr().err


def test_heads_of_a_translator_by_loss_or_a_metric(translator_folder, capsys):
    common = ["heads", "phrasebook", "-m", str(translator_folder), "--to", "es", "--count", "4", "--json"]
    assert run([*common, "--layers", "decoder.1.cross"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "loss" and len(found["heads"]) == 2
    assert any(abs(each["effect"]) > 1e-4 for each in found["heads"])
    assert run([*common, "--layers", "decoder.1.cross", "--metric", "chrf"]) == 0
    assert json.loads(capsys.readouterr().out)["metric"] == "chrf"


@pytest.mark.parametrize(
    ("asked", "metric", "more_is_better"),
    [
        ("", "wer", False),
        ("cer", "cer", False),
        ("accuracy", "accuracy", True),
        ("spl", "new houses / this model / spl", True),
        ("error", "new houses / this model / error", False),
    ],
)
def test_a_score_knows_its_name_and_which_way_is_worse(asked, metric, more_is_better):
    group = {"this model": {"success": 0.5, "error": 4.0, "spl": 0.4}, "random": {"success": 0.1, "error": 9.0}}
    scores = {"recordings": 3, "minutes": 0.5, "unknown": 0.1, "wer": 0.2, "cer": 0.1, "accuracy": 0.9}
    measure = score(asked, lambda: {"note": "no images", **scores, "new houses": group})
    assert (measure.name, measure.more_is_better) == (metric, more_is_better)
    assert measure.value() in (0.2, 0.1, 0.9, 0.4, 4.0)
    with pytest.raises(UsageError, match="no metric 'minutes' here; there are: wer, cer, accuracy, new houses / this"):
        score("minutes", lambda: {**scores, "new houses": group})


def test_a_head_that_an_error_grows_without_is_a_needed_one(make_forecaster, capsys):
    folder = make_forecaster(width=16)
    forecaster, options = regard.load(folder), EvaluationOptions(folder, 40, 1)
    whole = evaluate_forecasts(forecaster, "builtin:walkers", options).scores["likeliest"]["ade"]
    with without_heads(forecaster, ["decoder.layers.1.cross:0"]):
        alone = evaluate_forecasts(forecaster, "builtin:walkers", options).scores["likeliest"]["ade"]
    asked = ["heads", "builtin:walkers", "-m", str(folder), "--count", "40", "--layers", "decoder.layers.1.cross"]
    assert run([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metric"] == "likeliest / ade" and found["whole"] == pytest.approx(whole)
    effects = {each["head"]: each["effect"] for each in found["heads"]}
    assert effects[0] == pytest.approx(alone - whole) and effects[0] != 0


def test_the_alignment_error_of_every_head_stands_beside_its_effect(translator_folder, gpt_folder, tmp_path, capsys):
    common = ["heads", "phrasebook", "-m", str(translator_folder), "--to", "es", "--count", "6", "--align"]
    assert run([*common, "--layers", "decoder.*.cross", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["heads"]
    translator = Translator.load(translator_folder)
    pairs = held_out_pairs(translator, "phrasebook", "es", count=6, seed=1)
    gold = [
        GoldPair(pair.source, pair.target, frozenset(pair.links), frozenset(pair.possible or pair.links))
        for pair in pairs
    ]
    rates = error_rates_by_reading(translator, gold, "es")
    for each in found:
        read = [rates[f"{each['layer']} head {each['head']}{shifted}"] for shifted in ("", " shifted")]
        assert each["alignment_error_rate"] == pytest.approx(min(read))
    (tmp_path / "texts.txt").write_text("one two three\n")
    assert run(["heads", str(tmp_path / "texts.txt"), "-m", str(gpt_folder), "--align"]) == 2
    assert "--align is for translators, and" in capsys.readouterr().err

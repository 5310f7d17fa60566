"""What `generate` of transformers returns for the settings of a folder, Regard's search returns as well."""

import json
import warnings

import pytest
import torch

from regard.checkpoints import load_model
from regard.search.search import search
from regard.search.settings import Vocabulary, read_decoding
from regard.search.start import from_prompt, from_source

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

VOCAB, END, PAD = 13, 1, 0
SENTENCES = 12
LIMITS = [
    {"max_length": 5}, {"max_new_tokens": 4}, {"max_new_tokens": 1}, {"max_length": 3}, {"max_new_tokens": 9},
    {"max_new_tokens": 6, "length_penalty": 0.0}, {"max_new_tokens": 7, "length_penalty": 2.0},
    {"max_length": 12, "early_stopping": True}, {"max_new_tokens": 8, "min_new_tokens": 3},
]  # fmt: skip
FORCED = [{"forced_eos_token_id": END}, {"forced_bos_token_id": 5}, {"forced_bos_token_id": 5, "length_penalty": 0.3}]


def theirs_of(kind):
    torch.manual_seed(3)
    tokens = {"vocab_size": VOCAB, "eos_token_id": END, "pad_token_id": PAD}
    if kind == "marian":
        sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
                 "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_start_token_id": PAD}  # fmt: skip
        model = transformers.MarianMTModel(transformers.MarianConfig(**sizes, **tokens, forced_eos_token_id=None))
    elif kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": PAD}
        model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **tokens))
    else:
        sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40, "bos_token_id": END}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **tokens))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(1.0 if parameter.dim() == 1 else 0.0, std=0.5)
    return model.eval()


def without_specials(row):
    """The tokens of an answer: those before the first end token, without padding."""
    row = row[: row.index(END)] if END in row else row
    return [token for token in row if token != PAD]


@pytest.fixture(scope="module", params=["marian", "t5", "gpt2"])
def pair(request, tmp_path_factory):
    folder, theirs = tmp_path_factory.mktemp(request.param), theirs_of(request.param)
    theirs.save_pretrained(folder)
    return theirs, load_model(folder).model, folder, request.param == "gpt2"


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("values", [*LIMITS, *({"max_new_tokens": 6, **forced} for forced in FORCED)], ids=str)
def test_short_limits_and_forced_tokens_give_their_answers(pair, values, beam):
    theirs, ours, folder, continues = pair
    if continues and "forced_bos_token_id" in values:
        pytest.skip("it begins an answer of an encoder-decoder")
    values = {**values, "bad_words_ids": [[PAD]], "num_beams": beam, "do_sample": False}
    if continues and "max_length" in values:
        values["max_length"] += 4  # the prompt counts
    values |= {"eos_token_id": END, "pad_token_id": PAD}
    values |= {} if continues else {"decoder_start_token_id": PAD}
    theirs.generation_config = transformers.GenerationConfig(**values)
    (folder / "generation_config.json").write_text(json.dumps(values))
    source = torch.randint(2, VOCAB, (SENTENCES, 5), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(source, dtype=torch.bool)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: settings that a greedy search does not use
        written = theirs.generate(source, attention_mask=mask.long())
    settings = read_decoding(folder, answers=not continues).settings
    if continues:  # as `generate` of a language model sets it
        settings = settings.replace(max_length=settings.longest or 128)
        written, start = written[:, source.shape[1] :], from_prompt(ours, source, mask, settings)
    else:
        start = from_source(ours, source, mask, settings, PAD)
    found = search(ours, start, settings, Vocabulary(PAD, END, PAD))
    expected = [without_specials(row) for row in written.tolist()]
    assert [best.tokens for best, *_ in found] == expected
    for (best, *_), row in zip(found, written.tolist(), strict=True):  # an end that was forced is no end
        assert best.finished <= (END in row)

"""Chats rendered by a model's chat template, against transformers."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

from regard.data.tokenizers.chat_template import chat_prompt
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError

END = "<|endoftext|>"

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "the fox"},
    {"role": "assistant", "content": "saw"},
    {"role": "user", "content": "the owl "},
]
TEMPLATES = {
    "marked": "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "blocks": "{% for message in messages %}\n    {% if message.role == 'system' %}\n        {% continue %}\n"
    "    {% endif %}\n[{{ message.role }}] {{ message | tojson }}\n{% endfor %}\n",
}


def with_template(folder: Path, template: object) -> TextTokenizer:
    """The tokenizer of a folder whose config has this template."""
    files = TextTokenizer.load(folder).files
    settings = json.loads(files["tokenizer_config.json"]) | {"chat_template": template}
    return TextTokenizer({**files, "tokenizer_config.json": json.dumps(settings).encode()})


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_transformers(gpt_folder: Path, name: str) -> None:
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(gpt_folder / "tokenizer.json"), bos_token=END, eos_token=END, chat_template=TEMPLATES[name]
    )
    ours = with_template(gpt_folder, TEMPLATES[name])
    prompt = chat_prompt(ours.files, MESSAGES)
    assert prompt == theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert ours.encode([prompt])[0].ids == expected


def test_the_template_may_have_a_file_of_its_own_or_a_name(gpt_folder: Path) -> None:
    expected = chat_prompt(with_template(gpt_folder, "{{ messages[1].content }}!").files, MESSAGES)
    assert expected == "the fox!"
    named = [{"name": "other", "template": "x"}, {"name": "default", "template": "{{ messages[1].content }}!"}]
    assert chat_prompt(with_template(gpt_folder, named).files, MESSAGES) == expected
    files = {**TextTokenizer.load(gpt_folder).files, "chat_template.jinja": b"{{ messages[1].content }}!"}
    assert chat_prompt(files, MESSAGES) == expected


def test_a_model_without_a_template_writes_on(gpt_folder: Path) -> None:
    tokenizer = TextTokenizer.load(gpt_folder)
    assert chat_prompt(tokenizer.files, MESSAGES[1:]) == "the fox\nsaw\nthe owl "
    spoken = [{"role": "user", "content": END}]  # in a plain prompt this is ordinary text
    assert tokenizer.encode([chat_prompt(tokenizer.files, spoken)])[0].ids != [tokenizer.end]


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system message') }}",
        "{% for %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ nothing.at.all }}",
    ],
)
def test_templates_that_refuse_or_misbehave_are_told_in_words(gpt_folder: Path, template: str) -> None:
    with pytest.raises(UsageError, match="chat template"):
        chat_prompt(with_template(gpt_folder, template).files, MESSAGES)

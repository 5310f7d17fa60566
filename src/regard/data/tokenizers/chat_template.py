"""Render chats as prompts, with the Jinja chat template of a Hugging Face folder, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from regard.data.tokenizers.huggingface import SETTINGS, SPECIALS, TEMPLATE, read_settings, token_text
from regard.data.tokenizers.text import Marked
from regard.errors import UsageError

DEFAULT = "default"  # of several templates, the one to use


def chat_prompt(files: Mapping[str, bytes], messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt for the next answer in a chat, whose messages have a role and a content.

    Without a template, the prompt is the contents joined by line breaks.
    """
    template = chat_template(files)
    if template is None:
        return "\n".join(message["content"] for message in messages)
    declared = {**read_settings(files, SETTINGS), **read_settings(files, SPECIALS)}
    specials = {key: token_text(value) for key, value in declared.items() if key.endswith("_token") and value}
    return Marked(_render(template, {"messages": list(messages), "add_generation_prompt": True, **specials}))


def chat_template(files: Mapping[str, bytes]) -> str | None:
    """The template among a tokenizer's files, if it has one."""
    if TEMPLATE in files:
        return files[TEMPLATE].decode()
    found = read_settings(files, SETTINGS).get("chat_template")
    if isinstance(found, list):  # several by name
        by_name = {str(each.get("name")): each.get("template") for each in found}
        found = by_name.get(DEFAULT)
    return found if isinstance(found, str) and found else None


def _render(template: str, values: dict[str, Any]) -> str:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise UsageError(f"the model's chat template refuses these messages: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    try:
        return environment.from_string(template).render(values)
    except jinja2.TemplateError as error:
        raise UsageError(f"the model's chat template cannot be used with these messages: {error}") from None

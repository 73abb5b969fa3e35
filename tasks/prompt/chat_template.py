"""A model's chat template, from its tokenizer's folder, as the frame around our words."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from tasks.prompt.model_files import find_chat_template, read_model_object
from tasks.system.errors import ConfigError, first_line


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The model's own chat template; `source` None: the model has none, and turns are joined by blank lines."""

    source: str | None
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ...: what the template may name
    keywords: Mapping[str, Any] = field(default_factory=dict)  # [prompt] chat_template_kwargs: enable_thinking, ...
    today: date | None = None  # what a template that writes the date is told: the run's night, not the host's clock
    turn_prefix: str = ""  # [prompt] turn_prefix: written behind what the template opens the model's turn with

    def writes_date(self, messages: list[dict[str, str]]) -> bool:
        """Whether the conversation would be another one on another day."""
        if self.source is None or "strftime_now" not in self.source:
            return False
        days = (date(2001, 2, 3), date(2012, 11, 14))  # no part of them is the same
        return len({replace(self, today=day).render(messages) for day in days}) > 1

    def render(self, messages: list[dict[str, str]]) -> str:
        """The conversation up to the point where the model's answer begins.

        A template that refuses a system turn gets its text at the head of the first user's turn.

        Raises:
            ConfigError: the template refuses even that.
        """
        if self.source is None:
            return "\n\n".join(message["content"].strip("\n") for message in messages) + "\n\n" + self.turn_prefix
        try:
            return self._render(messages)
        except Exception as refusal:  # templates raise what they like
            if [message["role"] for message in messages[:2]] != ["system", "user"]:
                raise self._failure(messages, refusal) from refusal
            system, user, *later = messages
            merged = {"role": "user", "content": f"{system['content']}\n\n{user['content'].lstrip()}"}
            try:
                return self._render([merged, *later])
            except Exception:
                raise self._failure(messages, refusal) from refusal

    def _failure(self, messages: list[dict[str, str]], refusal: Exception) -> ConfigError:
        return ConfigError(f"the model's chat template fails: {first_line(refusal)}{self.way_out(messages)}")

    def way_out(self, messages: list[dict[str, str]]) -> str:
        """What to take instead of turns that the template does not keep; empty where nothing is known."""
        takes_pairs = re.search(r"""(["'])query\1.*(["'])document\2""", self.source or "", re.DOTALL) is not None
        asked_pairs = any(message["role"] == "query" for message in messages)
        if takes_pairs and not asked_pairs:
            return (
                ". It takes the roles query and document: set [prompt] template = "
                "'configs/prompts/query_document.toml', for decode_mode yes_no"
            )
        return ". It knows no roles query and document: take turns = 'user'" if asked_pairs and not takes_pairs else ""

    def _render(self, messages: list[dict[str, str]]) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template  # 1 s, no torch

        rendered, _ = render_jinja_template(
            conversations=[messages],
            chat_template=self.source,
            add_generation_prompt=True,
            strftime_now=self._strftime,
            **self.special_tokens,
            **self.keywords,
        )
        text: str = rendered[0]
        return text + self.turn_prefix

    def _strftime(self, form: str) -> str:
        if self.today is None:
            raise ValueError("it asks for the date, and none is given")
        return datetime.combine(self.today, time()).strftime(form)


def load_chat_template(
    model_folder: Path, keywords: Mapping[str, Any] | None = None, today: date | None = None
) -> ChatTemplate:
    """The model's chat template and special tokens; `keywords` is what it is told, `today` the date if it asks for one.

    Raises:
        ConfigError: see `find_chat_template`; or a special token that is no text.
    """
    found = find_chat_template(model_folder)
    path = model_folder / "tokenizer_config.json"
    specials: dict[str, str] = {}
    for name, value in read_model_object(path).items():
        if name.endswith("_token") and isinstance(value, str | dict):
            content = value.get("content") if isinstance(value, dict) else value
            if not isinstance(content, str):
                raise ConfigError(f"{path}: {name} has no text as its content. Fetch the model's files again.")
            specials[name] = content
    return ChatTemplate(None if found is None else found.source, specials, keywords or {}, today)

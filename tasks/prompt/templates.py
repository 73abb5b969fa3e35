"""Our words (a TOML file) inside the model's chat template: the frame into which query and passages are set.

A frame is a list of pieces, some of them places for data. Rendering happens once for each number of passages. Knows
nothing of token ids.
"""

import json
import re
import string
import tomllib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tasks.errors import ConfigError, first_line

LETTERS = string.ascii_uppercase + string.ascii_lowercase  # 52 single tokens in most tokenizers
QUERY_MARK, PASSAGES_MARK = "\ue000", "\ue001"  # private-use characters: no template of ours holds them
IDENTIFIER = re.compile(r"[\[［]\s*(\d{1,4}|[A-Za-zＡ-Ｚａ-ｚ])\s*[\]］]")

PlaceKind = Literal["words", "query", "passages"]


@dataclass(frozen=True, slots=True)
class FramePiece:
    """A stretch of the rendered prompt: words to write, or the place of the query or of the passages."""

    kind: PlaceKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Our words, as the TOML file has them."""

    identifiers: Literal["letters", "numbers"]
    answer_prefix: str
    system: str
    before: str
    passage: str
    after: str

    def identifier(self, place: int) -> str:
        """The identifier of the passage at `place`, from 0."""
        return LETTERS[place] if self.identifiers == "letters" else str(place + 1)

    def passage_head(self, place: int) -> str:
        """What stands before the passage's text."""
        return self.passage.partition(" {text}")[0].replace("{id}", self.identifier(place))

    @property
    def max_identifiers(self) -> int | None:
        """How many passages can be told apart; None: any number."""
        return len(LETTERS) if self.identifiers == "letters" else None

    def messages(self, num_passages: int) -> list[dict[str, str]]:
        """System and user turn, with marks where the data goes."""
        before, after = (
            words.replace("{num}", str(num_passages)).replace("{query}", QUERY_MARK)
            for words in (self.before, self.after)
        )
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": before + PASSAGES_MARK + after},
        ]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The model's own chat template; `source` None: the model has none, and turns are joined by blank lines."""

    source: str | None
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ...: what the template may name

    def render(self, messages: list[dict[str, str]]) -> str:
        """The conversation up to the point where the model's turn begins.

        A template that refuses a system turn gets its text at the head of the user's turn.

        Raises:
            ConfigError: the template refuses even that.
        """
        if self.source is None:
            return "\n\n".join(message["content"].strip("\n") for message in messages) + "\n\n"
        try:
            return self._render(messages)
        except Exception as refusal:  # templates raise what they like
            system, user = messages
            merged = [{"role": "user", "content": f"{system['content']}\n\n{user['content'].lstrip()}"}]
            try:
                return self._render(merged)
            except Exception:
                raise ConfigError(f"the model's chat template fails: {first_line(refusal)}") from refusal

    def _render(self, messages: list[dict[str, str]]) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template  # 1 s, no torch

        rendered, _ = render_jinja_template(
            conversations=[messages],
            chat_template=self.source,
            add_generation_prompt=True,
            **self.special_tokens,
        )
        text: str = rendered[0]
        return text


def load_prompt_template(path: Path) -> PromptTemplate:
    """Reads our words.

    Raises:
        ConfigError: an unknown or missing key, a placeholder that is not known, a passage not in the cacheable form.
    """
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such prompt template. Set [prompt] template to one of configs/prompts/."
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {first_line(error)}") from error
    wanted = list(PromptTemplate.__dataclass_fields__)
    if sorted(words) != sorted(wanted) or not all(isinstance(value, str) for value in words.values()):
        raise ConfigError(f"{path}: a prompt template has the texts {', '.join(wanted)} (found: {', '.join(words)}).")
    template = PromptTemplate(**words)
    if template.identifiers not in ("letters", "numbers"):
        raise ConfigError(f"{path}: identifiers = {template.identifiers!r} must be 'letters' or 'numbers'.")
    for name in ("before", "after"):
        for placeholder in re.findall(r"\{(\w*)\}", words[name]):
            if placeholder not in ("num", "query"):
                raise ConfigError(f"{path}: {name}: {{{placeholder}}} is not known; {{num}} and {{query}} are.")
    if "{query}" not in template.before + template.after:
        raise ConfigError(f"{path}: neither before nor after holds {{query}}.")
    if not re.fullmatch(r"[^{}\s]*\{id\}[^{}\s]* \{text\}\n", template.passage):
        raise ConfigError(f"{path}: passage must be a head with {{id}}, a space, {{text}} and a line break.")
    return template


def load_chat_template(model_folder: Path) -> ChatTemplate:
    """Reads `chat_template.jinja`, or the template inside `tokenizer_config.json`."""
    config_path = model_folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
    jinja_path = model_folder / "chat_template.jinja"
    source = jinja_path.read_text(encoding="utf-8") if jinja_path.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((each["template"] for each in source if each.get("name") == "default"), None)
    specials = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name.endswith("_token") and isinstance(value, str | dict)
    }
    return ChatTemplate(source, specials)


def render_frame(template: PromptTemplate, chat: ChatTemplate, num_passages: int) -> list[FramePiece]:
    """The pieces of a prompt for `num_passages` passages, the opened answer included.

    Raises:
        ConfigError: the chat template dropped or doubled the user's turn.
    """
    text = chat.render(template.messages(num_passages)) + template.answer_prefix
    if text.count(PASSAGES_MARK) != 1 or QUERY_MARK not in text:
        raise ConfigError("the model's chat template does not keep the user's turn as it is: it cannot be used")
    kinds: dict[str, PlaceKind] = {QUERY_MARK: "query", PASSAGES_MARK: "passages"}
    parts = re.split(f"([{QUERY_MARK}{PASSAGES_MARK}])", text)
    return [FramePiece(kinds.get(part, "words"), "" if part in kinds else part) for part in parts if part]


def one_line(text: str) -> str:
    """Data as it stands in a prompt: white space runs become one space, identifiers lose their square brackets.

    So a passage can neither open another one nor be read as an answer: '[3] > [1]' becomes '(3) > (1)'. Nothing else
    is changed.
    """
    return IDENTIFIER.sub(lambda match: f"({unicodedata.normalize('NFKC', match[1])})", " ".join(text.split()))


def passage_text(title: str | None, text: str) -> str:
    r"""Title and text on one line, the title once; '' where the text is blank, since a title alone is no passage.

    >>> passage_text("Tides", "The moon pulls\n the sea."), passage_text("Tides", "Tides rise.")
    ('Tides: The moon pulls the sea.', 'Tides rise.')
    """
    body, head = one_line(text), one_line(title or "")
    if not body or not head or body.startswith(head):
        return body
    return f"{head}: {body}"

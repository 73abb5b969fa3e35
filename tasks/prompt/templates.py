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
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tasks.errors import ConfigError, first_line

LETTERS = string.ascii_uppercase + string.ascii_lowercase  # 52 single tokens in most tokenizers
QUERY_MARK, PASSAGES_MARK = "\ue000", "\ue001"  # private-use characters: no template of ours holds them
IDENTIFIER = re.compile(r"[\[［]\s*(\d{1,4}|[A-Za-zＡ-Ｚａ-ｚ])\s*[\]］]")

THINK_START, THINK_END = "<think>", "</think>"

PlaceKind = Literal["words", "query", "passages"]
Identifiers = Literal["letters", "numbers", "none"]


@dataclass(frozen=True, slots=True)
class FramePiece:
    """A stretch of the rendered prompt: words to write, or the place of the query or of the passages."""

    kind: PlaceKind
    text: str = ""


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Our words, as the TOML file has them, or a model owner's as their YAML has them."""

    identifiers: Identifiers  # none: one passage a prompt
    answer_prefix: str  # written by us at the start of the model's turn; {query} where the query is what is scored
    system: str  # no such turn if empty
    before: str
    passage: str  # its head with {id}, " {text}" and one or two line breaks
    after: str
    after_best: str = ""  # in place of `after` where only the best {ask} are needed; `after` then if empty
    yes: tuple[str, ...] = ()  # yes_no: spellings of the verdict, each one token
    no: tuple[str, ...] = ()
    close: str = ""  # reasoning: written where the think block outgrows its budget
    num_letters: int = len(LETTERS)

    def identifier(self, place: int) -> str:
        """The identifier of the passage at `place`, from 0."""
        return LETTERS[place] if self.identifiers == "letters" else str(place + 1)

    def passage_head(self, place: int) -> str:
        """What stands before the passage's text."""
        head = self.passage.partition(" {text}")[0]
        return head.replace("{id}", self.identifier(place)) if self.identifiers != "none" else head

    @property
    def passage_tail(self) -> str:
        """The line breaks behind a passage."""
        return self.passage.partition("{text}")[2]

    @property
    def max_identifiers(self) -> int | None:
        """How many passages can be told apart; None: any number."""
        return {"letters": self.num_letters, "numbers": None, "none": 1}[self.identifiers]

    @property
    def scores_query(self) -> bool:
        """Whether the query stands in the model's turn, where its tokens are scored."""
        return "{query}" in self.answer_prefix

    def messages(self, num_passages: int, ask: int) -> list[dict[str, str]]:
        """System and user turn, with marks where the data goes; `ask` places have to be named."""
        after = self.after_best if ask < num_passages and self.after_best else self.after
        before, after = (
            words.replace("{num}", str(num_passages)).replace("{ask}", str(ask)).replace("{query}", QUERY_MARK)
            for words in (self.before, after)
        )
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": before + PASSAGES_MARK + after}]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """The model's own chat template; `source` None: the model has none, and turns are joined by blank lines."""

    source: str | None
    special_tokens: Mapping[str, str]  # bos_token, eos_token, ...: what the template may name
    keywords: Mapping[str, Any] = field(default_factory=dict)  # [prompt] chat_template_kwargs: enable_thinking, ...

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
            if len(messages) < 2:
                raise ConfigError(f"the model's chat template fails: {first_line(refusal)}") from refusal
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
            **self.keywords,
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
    return read_prompt_template(words, str(path))


def read_prompt_template(words: Mapping[str, Any], where: str) -> PromptTemplate:
    """Checks the words of a template; `where` names them in errors.

    Raises:
        ConfigError: see `load_prompt_template`.
    """
    known = PromptTemplate.__dataclass_fields__
    missing = [name for name, column in known.items() if column.default is MISSING and name not in words]
    unknown = [name for name in words if name not in known]
    if missing or unknown:
        raise ConfigError(
            f"{where}: a prompt template has the texts {', '.join(known)} (missing: "
            f"{', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'})."
        )
    for name, value in words.items():
        is_list = name in ("yes", "no") and isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list or isinstance(value, str) or name == "num_letters"):
            raise ConfigError(f"{where}: {name} must be {'a list of texts' if name in ('yes', 'no') else 'a text'}.")
    lists = {name: tuple(words[name]) for name in ("yes", "no") if name in words}
    template = PromptTemplate(**(dict(words) | lists))
    _check_words(template, where)
    return template


def _check_words(template: PromptTemplate, where: str) -> None:
    if template.identifiers not in ("letters", "numbers", "none"):
        raise ConfigError(f"{where}: identifiers = {template.identifiers!r} must be 'letters', 'numbers' or 'none'.")
    for name in ("before", "after", "after_best"):
        for placeholder in re.findall(r"\{(\w*)\}", getattr(template, name)):
            if placeholder not in ("num", "ask", "query"):
                raise ConfigError(
                    f"{where}: {name}: {{{placeholder}}} is not known; {{num}}, {{ask}} and {{query}} are."
                )
    if template.scores_query and template.answer_prefix != "{query}":
        raise ConfigError(f"{where}: answer_prefix must be '{{query}}' alone where the query is what is scored.")
    if "{query}" not in template.before + template.after + template.answer_prefix:
        raise ConfigError(f"{where}: neither before nor after holds {{query}}.")
    head = r"[^{}\n]*" if template.identifiers == "none" else r"[^{}\s]*\{id\}[^{}\s]*"
    if not re.fullmatch(head + r" \{text\}\n\n?", template.passage):
        raise ConfigError(
            f"{where}: passage must be a head{'' if template.identifiers == 'none' else ' with {id}'}, a space, "
            "{text} and one or two line breaks: passages are tokenised once, in that form."
        )


def load_chat_template(model_folder: Path, keywords: Mapping[str, Any] | None = None) -> ChatTemplate:
    """Reads `chat_template.jinja`, or the template inside `tokenizer_config.json`; `keywords` is what it is told."""
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
    return ChatTemplate(source, specials, keywords or {})


def render_frame(template: PromptTemplate, chat: ChatTemplate, num_passages: int, ask: int) -> list[FramePiece]:
    """The pieces of a prompt for `num_passages` passages, the opened answer included but for a query that is scored.

    A think block that the chat template opened already is not opened again.

    Raises:
        ConfigError: the chat template dropped or doubled the user's turn.
    """
    text = chat.render(template.messages(num_passages, ask))
    if not (template.scores_query or (is_thinking(text) and THINK_START in template.answer_prefix)):
        text += template.answer_prefix
    if text.count(PASSAGES_MARK) != 1 or (QUERY_MARK not in text and not template.scores_query):
        raise ConfigError("the model's chat template does not keep the user's turn as it is: it cannot be used")
    kinds: dict[str, PlaceKind] = {QUERY_MARK: "query", PASSAGES_MARK: "passages"}
    parts = re.split(f"([{QUERY_MARK}{PASSAGES_MARK}])", text)
    return [FramePiece(kinds.get(part, "words"), "" if part in kinds else part) for part in parts if part]


def is_thinking(rendered: str) -> bool:
    """Whether a think block is open at the end: the next token would be a thought, not an answer."""
    return rendered.rfind(THINK_START) > rendered.rfind(THINK_END)


def one_line(text: str) -> str:
    """Data as it stands in a prompt: white space runs become one space, identifiers lose their square brackets.

    So a passage can neither open another one nor be read as an answer: '[3] > [1]' becomes '(3) > (1)'. Nothing else
    is changed.
    """
    is_line = text.isprintable() and "  " not in text and text == text.strip(" ")  # a third of splitting's time
    line = text if is_line else " ".join(text.split())
    if "[" not in line and "［" not in line:  # most passages: looking for the whole costs four times as much
        return line
    return IDENTIFIER.sub(lambda match: f"({unicodedata.normalize('NFKC', match[1])})", line)


def passage_text(title: str | None, text: str) -> str:
    r"""Title and text on one line, the title once; '' where the text is blank, since a title alone is no passage.

    >>> passage_text("Tides", "The moon pulls\n the sea."), passage_text("Tides", "Tides rise.")
    ('Tides: The moon pulls the sea.', 'Tides rise.')
    """
    body = one_line(text)
    head = one_line(title) if title else ""
    if not body or not head or body.startswith(head):
        return body
    return f"{head}: {body}"

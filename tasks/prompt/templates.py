"""Our words (a TOML file) inside the model's chat template: the frame into which query and passages are set.

A frame is a list of pieces, some of them places for data. Rendering happens once for each number of passages. Knows
nothing of token ids.
"""

import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.passage_form import (
    PLAIN_FIELD,
    PassageForm,
    fields_line,
    is_field_form,
    one_line,
    read_passage_form,
    without_identifiers,
)
from tasks.prompt.thoughts import in_known_marks, opened_thought
from tasks.system.errors import ConfigError, first_line

LETTERS = string.ascii_uppercase + string.ascii_lowercase
QUERY_MARK, PASSAGE_MARK = "\ue000", "\ue001"  # private-use characters: no template of ours holds them
LATER_WORDS = ("thoughts", "lines", "turns", "before_reply", "passage_reply", "field", "fields")
PlaceKind = Literal["words", "query", "passage"]
Identifiers = Literal["letters", "numbers", "none"]
Lines = Literal["one", "keep"]
Turns = Literal["user", "passages", "query_document", "none"]
LISTS = ("yes", "no", "thoughts", "fields")  # texts of a template that are lists


@dataclass(frozen=True, slots=True)
class FramePiece:
    """A stretch of the rendered prompt: words to write, or the place of the query or of a passage."""

    kind: PlaceKind
    text: str = ""  # of a passage: the space before it, or nothing


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Our words, as the TOML file has them, or a model owner's as their YAML has them."""

    identifiers: Identifiers  # none: one passage a prompt
    answer_prefix: str  # written by us at the start of the model's turn; {query} where the query is what is scored
    system: str  # no such turn if empty
    before: str
    passage: str  # its head with {id}, " {text}" and at most two line breaks; {fields} on a line before or behind it
    after: str
    after_best: str = ""  # in place of `after` where only the best {ask} are needed; `after` then if empty
    after_bare: str = ""  # in place of both where a letter alone is asked for; there is no such form if empty
    yes: tuple[str, ...] = ()  # yes_no: spellings of the verdict, each one token
    no: tuple[str, ...] = ()
    close: str = ""  # reasoning: written where the think block outgrows its budget
    thoughts: tuple[str, ...] = ()  # what opens and closes a thought, where it is no known family's
    letters: str = LETTERS  # by place
    lines: Lines = "one"  # white space of data: runs become one space, or all of it is kept
    turns: Turns = "user"  # see `messages`; none: before, passages and after are the whole prompt, no chat template
    before_reply: str = ""  # turns = "passages": the model's turn behind `before`
    passage_reply: str = ""  # and behind each passage
    field: str = PLAIN_FIELD  # one of the fields; {value:.3f}: numbers with three decimals
    fields: tuple[str, ...] = ()  # columns that stand beside the text: those of [prompt] fields, if it has any

    def identifier(self, place: int) -> str:
        """The identifier of the passage at `place`, from 0."""
        return self.letters[place] if self.identifiers == "letters" else str(place + 1)

    def passage_head(self, place: int) -> str:
        """What stands before the passage's text, a space included."""
        head = self.form.head
        return head.replace("{id}", self.identifier(place)) if self.identifiers != "none" else head

    @property
    def form(self) -> PassageForm:
        """How a passage is written."""
        form = read_passage_form(self.passage)
        assert form is not None, self.passage
        return form

    @property
    def passage_tail(self) -> str:
        """The line breaks behind a passage's text."""
        return self.form.text_tail if self.fields else self.form.tail

    def data(self, text: str) -> str:
        """A query or a passage as it stands in a prompt.

        Identifiers lose their square brackets where passages have some, so that a passage can neither open another one
        nor be read as an answer: '[3] > [1]' becomes '(3) > (1)'.
        """
        kept = text if self.lines == "keep" else one_line(text)
        return kept if self.identifiers == "none" else without_identifiers(kept)

    def passage_text(self, title: str | None, text: str) -> str:
        """Title and text, the title once; '' where the text is blank, since a title alone is no passage."""
        body = self.data(text)
        if not body or body.isspace():
            return ""
        head = self.data(title).strip() if title else ""
        return body if not head or body.startswith(head) else f"{head}: {body}"

    def field_line(self, values: Sequence[str | None]) -> str:
        """The fields of a passage, as they stand in a prompt: one line; '' where all values are missing."""
        line = fields_line(self.field, self.fields, values)
        return line if self.identifiers == "none" else without_identifiers(line)

    @property
    def max_identifiers(self) -> int | None:
        """How many passages can be told apart; None: any number."""
        return {"letters": len(self.letters), "numbers": None, "none": 1}[self.identifiers]

    @property
    def scores_query(self) -> bool:
        """Whether the query stands in the model's turn, where its tokens are scored."""
        return "{query}" in self.answer_prefix

    @property
    def words(self) -> dict[str, Any]:
        """What a prompt depends on: not `after_bare`, which is `after` where it is used.

        The number of letters stands for them unless some are left out. Later fields are left out at their defaults,
        which leaves the identity of earlier runs as it was.
        """
        words = {name: value for name, value in asdict(self).items() if name not in ("after_bare", "letters")}
        for name in LATER_WORDS:
            if words[name] == self.__dataclass_fields__[name].default:
                words.pop(name)
        has_gaps = not LETTERS.startswith(self.letters)
        words |= {"num_letters": len(self.letters)} | ({"letters": self.letters} if has_gaps else {})
        return words | ({"keeps_brackets": True} if self.identifiers == "none" else {})

    def messages(self, num_passages: int, ask: int) -> list[dict[str, str]]:
        """The turns, with marks where the data goes; `ask` places have to be named.

        user            system, and one user's turn with everything in it
        passages        system, and a user's turn for each passage, which the model's turn acknowledges (RankGPT)
        query_document  system, and the turns of the roles query and document (rerankers with such a chat template)
        none            one turn, which is the whole prompt
        """
        after = self.after_best if ask < num_passages and self.after_best else self.after
        before, reply, after = (
            words.replace("{num}", str(num_passages)).replace("{ask}", str(ask)).replace("{query}", QUERY_MARK)
            for words in (self.before, self.before_reply, after)
        )
        passages = [self.passage_head(place) + PASSAGE_MARK for place in range(num_passages)]
        turns = [("system", self.system)] if self.system else []
        match self.turns:
            case "query_document":
                turns += [("query", QUERY_MARK), ("document", passages[0])]
            case "passages":
                turns += [("user", before), ("assistant", reply)]
                for place, passage in enumerate(passages):
                    acknowledged = self.passage_reply.replace("{id}", self.identifier(place))
                    turns += [("user", passage), ("assistant", acknowledged)]
                turns += [("user", after)]
            case _:
                turns += [("user", before + "".join(passages) + after)]
        return [{"role": role, "content": content} for role, content in turns]


def load_prompt_template(path: Path) -> PromptTemplate:
    """Reads our words.

    Raises:
        ConfigError: an unknown or missing key, a placeholder that is not known, a passage not in the cacheable form.
    """
    try:
        words = tomllib.loads(path.read_text(encoding="utf-8-sig"))
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
        is_list = isinstance(value, list) and all(isinstance(each, str) for each in value)
        if not (is_list if name in LISTS else isinstance(value, str)):
            raise ConfigError(f"{where}: {name} must be {'a list of texts' if name in LISTS else 'a text'}.")
    lists = {name: tuple(words[name]) for name in LISTS if name in words}
    template = PromptTemplate(**(dict(words) | lists))
    _check_words(template, where)
    return template


def _check_words(template: PromptTemplate, where: str) -> None:
    for name, known in (("identifiers", Identifiers), ("lines", Lines), ("turns", Turns)):
        if getattr(template, name) not in get_args(known):
            allowed = ", ".join(map(repr, get_args(known)))
            raise ConfigError(f"{where}: {name} = {getattr(template, name)!r} must be one of {allowed}.")
    if len(template.letters) < 2 or not LETTERS.startswith(template.letters):
        raise ConfigError(f"{where}: letters = {template.letters!r} must be the first of {LETTERS!r}, two at least.")
    if template.thoughts and (len(template.thoughts) != 2 or not all(template.thoughts)):
        raise ConfigError(f"{where}: thoughts must be two texts: what opens a thought, and what closes it.")
    _check_turns(template, where)
    has_words = template.turns != "query_document"
    for name in ("before", "before_reply", "after", "after_best", "after_bare"):
        for placeholder in re.findall(r"\{(\w*)\}", getattr(template, name)):
            if placeholder not in ("num", "ask", "query"):
                raise ConfigError(
                    f"{where}: {name}: {{{placeholder}}} is not known; {{num}}, {{ask}} and {{query}} are."
                )
    if template.scores_query and template.answer_prefix != "{query}":
        raise ConfigError(f"{where}: answer_prefix must be '{{query}}' alone where the query is what is scored.")
    if "{query}" not in template.before + template.after + template.answer_prefix and has_words:
        raise ConfigError(f"{where}: neither before nor after holds {{query}}.")
    _check_passage(template, where)


def _check_passage(template: PromptTemplate, where: str) -> None:
    """Whether text and fields can be tokenised apart."""
    head = r"[^{}\n]*" if template.identifiers == "none" else r"[^{}\s]*\{id\}[^{}\s]* "
    form = read_passage_form(template.passage)
    if form is None or not re.fullmatch(head, form.head):
        raise ConfigError(
            f"{where}: passage must be {'a head' if template.identifiers == 'none' else 'a head with {id}, a space'}, "
            "{text} and at most two line breaks, perhaps with {fields} on a line before or behind {text}: passages are "
            "tokenised once, in that form."
        )
    if not is_field_form(template.field):
        raise ConfigError(
            f"{where}: field = {template.field!r} must be one line with {{value}} or {{value:.3f}}, and maybe {{name}}."
        )


def _check_turns(template: PromptTemplate, where: str) -> None:
    """Whether all that is given has a turn to stand in."""
    unused = {
        "user": ("before_reply", "passage_reply"),
        "passages": (),
        "query_document": ("before", "after", "after_best", "after_bare", "before_reply", "passage_reply"),
        "none": ("system", "before_reply", "passage_reply"),
    }[template.turns]
    for name in unused:
        if getattr(template, name):
            raise ConfigError(f"{where}: {name} has no place with turns = {template.turns!r}. Leave it out.")
    wanted = {"passages": ("letters", "numbers"), "query_document": ("none",)}.get(template.turns)
    if wanted and template.identifiers not in wanted:
        raise ConfigError(f"{where}: turns = {template.turns!r} needs identifiers = {' or '.join(map(repr, wanted))}.")


def render_frame(template: PromptTemplate, chat: ChatTemplate, num_passages: int, ask: int) -> list[FramePiece]:
    """The pieces of a prompt for `num_passages` passages, the opened answer included but for a query that is scored.

    A think block that the chat template opened already is not opened again.

    Raises:
        ConfigError: the chat template dropped or doubled a turn.
    """
    messages = template.messages(num_passages, ask)
    if template.turns == "query_document" and chat.source is None:
        raise ConfigError("turns = 'query_document' needs a chat template with such roles, and the model has none.")
    if template.turns == "none" and chat.turn_prefix:
        raise ConfigError(
            f"[prompt] turn_prefix = {chat.turn_prefix!r}: with turns = 'none', put this into answer_prefix instead."
        )
    text = messages[0]["content"] if template.turns == "none" else chat.render(messages)
    is_opened, opens = (
        opened_thought(in_known_marks(each, template.thoughts)) for each in (text, template.answer_prefix)
    )
    if not (template.scores_query or (is_opened and opens)):
        text += template.answer_prefix
    if text.count(PASSAGE_MARK) != num_passages or (QUERY_MARK not in text and not template.scores_query):
        lost = "turns" if template.turns == "query_document" else "user's turn"
        raise ConfigError(f"the model's chat template does not keep the {lost} as given{chat.way_out(messages)}")
    kinds: dict[str, PlaceKind] = {QUERY_MARK: "query", PASSAGE_MARK: "passage"}
    parts = re.split(f"([{QUERY_MARK}{PASSAGE_MARK}])", text)
    return _with_leads([FramePiece(kinds.get(part, "words"), "" if part in kinds else part) for part in parts if part])


def _with_leads(pieces: list[FramePiece]) -> list[FramePiece]:
    """The space before a passage becomes the passage's: tokenizers join it with the word behind it."""
    places = [place for place, piece in enumerate(pieces) if piece.kind == "passage"]
    if not all(place and pieces[place - 1].text.endswith(" ") for place in places):
        return pieces
    for place in places:
        pieces[place - 1 : place + 1] = FramePiece("words", pieces[place - 1].text[:-1]), FramePiece("passage", " ")
    return pieces

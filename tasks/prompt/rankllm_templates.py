"""Prompt templates of specialised list-wise rerankers, in the form in which their owners publish them.

RankLLM's YAML (castorini/rank_llm, src/rank_llm/rerank/prompt_templates): one user's turn with all passages, perhaps
with the first stage's score on a line behind each; a turn for each passage; or a query and a document. The words are
the owners': they are read from a path or from an installed `rank_llm`, never kept here. What our prompts cannot say the
same way is refused, not approximated.
"""

import re
import string
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

import yaml

from tasks.prompt.templates import Identifiers, PromptTemplate, read_prompt_template
from tasks.system.errors import ConfigError, first_line

PACKAGE_PREFIX = "rank_llm:"
SECTIONS = {  # by method: those that must be there, and those that may
    "singleturn_listwise": (
        ("body", "output_extraction_regex"),
        ("system_message", "prefix", "suffix", "output_validation_regex"),
    ),
    "multiturn_listwise": (
        ("prefix_user", "prefix_assistant", "body_user", "body_assistant", "suffix_user", "output_extraction_regex"),
        ("system_message", "output_validation_regex"),
    ),
    "pointwise": (("message_roles", "instruction"), ("body",)),  # RankLLM reads no body beside these roles
}
CROSS_ENCODERS = "the input of a cross-encoder (monoT5, monoELECTRA, Jina), and only decoders are run"
OTHER_METHODS = {
    "pairwise": "it asks for one of two, by a model with an encoder (duoT5), and only decoders are run",
    "rankfid": "it gives each passage to an encoder of its own (fusion in decoder), and only decoders are run",
}
PAIR = ("pointwise", "it judges one passage", "yes_no")  # the kind, what it does, and a decode mode that asks so
LIST = ("listwise", "it orders lists", "permutation")
SCORE = "{value:.3f}"  # as RankLLM's handlers write a candidate's score
SCORED_BODY = re.compile(r"(?P<passage>.*\{candidate\})\n(?P<line>[^{}\n]*\{score\}[^{}\n]*)\n(?P<end>\n?)")
NUMBERS, CAPITALS = r"\[(\d+)\]", r"\[([A-Z])\]"


def find_rankllm_template(name: str) -> Path:
    """The file of `rank_llm:NAME` in the installed package; it is looked up, not imported.

    Raises:
        ConfigError: the package is not installed, or has no such template.
    """
    found = find_spec("rank_llm")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"[prompt] template = {name!r}: the package rank_llm is not installed. Install it (pip install rank-llm), "
            "or give the template's path."
        )
    folder = Path(found.submodule_search_locations[0]) / "rerank" / "prompt_templates"
    path = folder / f"{name.removeprefix(PACKAGE_PREFIX)}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(each.stem for each in folder.glob("*.yaml")))
        raise ConfigError(f"[prompt] template = {name!r}: rank_llm has no such template. It has {known}.")
    return path


class OwnersReader(Protocol):
    """What a decode mode tells about the owners' templates that it can be asked with."""

    name: ClassVar[str]
    identifiers: ClassVar[tuple[Identifiers, ...]]
    owners_words: ClassVar[Mapping[str, Mapping[str, Any]]]  # added to a "listwise" or a "pointwise" one


def load_rankllm_template(path: Path, mode: type[OwnersReader]) -> PromptTemplate:
    """Reads an owner's template.

    Raises:
        ConfigError: unreadable, or something in it that our prompts cannot honour; the message says what.
    """
    try:
        sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such prompt template. Give a path, or rank_llm:NAME.") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not readable as YAML: {first_line(error)}") from error
    if not isinstance(sections, dict) or not all(isinstance(value, str) for value in sections.values()):
        raise ConfigError(f"{path}: a RankLLM template has the texts method, body and others, and no more than texts.")
    return read_prompt_template(_as_ours(sections, path, mode), str(path))


def _as_ours(sections: Mapping[str, str], path: Path, mode: type[OwnersReader]) -> dict[str, Any]:
    _check_sections(sections, path)
    kind, does, instead = PAIR if sections["method"] == "pointwise" else LIST
    if kind not in mode.owners_words:
        raise _refusal(path, f"{does}, which is not what decode_mode {mode.name} asks", instead)
    words = _as_pair(sections, path) if kind == "pointwise" else _as_list(sections, path)
    if words["identifiers"] not in mode.identifiers:
        raise _refusal(path, f"decode_mode {mode.name} needs letters, and its answers are numbers", "permutation")
    return {**words, **mode.owners_words[kind]}


def _as_list(sections: Mapping[str, str], path: Path) -> dict[str, Any]:
    turns = _as_turns(sections, path) if sections["method"] == "multiturn_listwise" else _as_one_turn(sections, path)
    return turns | {
        "identifiers": "letters" if _regex(sections, path) == CAPITALS else "numbers",
        "letters": string.ascii_uppercase,
        "system": sections.get("system_message", ""),
    }


def _as_one_turn(sections: Mapping[str, str], path: Path) -> dict[str, Any]:
    words = {"before": sections.get("prefix", ""), "after": sections.get("suffix", "")}
    scored = SCORED_BODY.fullmatch(sections["body"])
    if scored is None:
        return words | {"passage": _passage(sections["body"], path, r"\n\n?", "one or two line breaks")}
    passage = _passage(scored["passage"], path, "", "a line break")
    return words | {
        "passage": f"{passage}\n{{fields}}\n{scored['end']}",
        "field": scored["line"].replace("{score}", SCORE),
        "fields": ["score"],
    }


def _as_turns(sections: Mapping[str, str], path: Path) -> dict[str, str]:
    """RankGPT's: a turn for each passage, which the model's turn acknowledges."""
    return {
        "turns": "passages",
        "before": sections["prefix_user"],
        "before_reply": sections["prefix_assistant"],
        "passage": _passage(sections["body_user"], path, "", "nothing"),
        "passage_reply": sections["body_assistant"].replace("{rank}", "{id}"),
        "after": sections["suffix_user"],
    }


def _as_pair(sections: Mapping[str, str], path: Path) -> dict[str, Any]:
    """A query and a document, which the model's own chat template puts into words."""
    if sections["message_roles"] != "reranker":
        raise _refusal(path, f"message_roles = {sections['message_roles']!r}: only 'reranker' is known")
    return {
        "identifiers": "none",
        "turns": "query_document",
        "system": sections["instruction"].strip(),
        "before": "",
        "passage": "{text}",
        "after": "",
    }


def _check_sections(sections: Mapping[str, str], path: Path) -> None:
    method = sections.get("method", "")
    if method not in SECTIONS:
        known = ", ".join(map(repr, SECTIONS))
        raise _refusal(path, f"method = {method!r}: {OTHER_METHODS.get(method, f'only {known} are known')}")
    if method == "pointwise" and "message_roles" not in sections:
        raise _refusal(path, f"method = 'pointwise' without message_roles is {CROSS_ENCODERS}")
    needed, others = SECTIONS[method]
    missing = [name for name in needed if name not in sections]
    unknown = [name for name in sections if name not in ("method", *needed, *others)]
    if missing or unknown:
        told = [f"it lacks {name}" for name in missing] + [f"it has a section {name}" for name in unknown]
        raise _refusal(path, ", ".join(told))
    for name in ("prefix", "suffix", "prefix_user", "prefix_assistant", "suffix_user"):
        for placeholder in re.findall(r"\{(\w*)\}", sections.get(name, "")):
            if placeholder not in ("num", "query"):
                raise _refusal(path, f"{name} holds {{{placeholder}}}, and only {{num}} and {{query}} are known")


def _passage(body: str, path: Path, tail: str, told_tail: str) -> str:
    if "{score}" in body:
        raise _refusal(path, "body holds {score}, which must be on a line of its own behind {candidate}")
    if not re.fullmatch(r"[^{}\s]*\{rank\}[^{}\s]* \{candidate\}" + tail, body):
        raise _refusal(
            path,
            f"body = {body!r}: passages are tokenised once, so it must be a head with {{rank}}, a space, {{candidate}} "
            f"and {told_tail} behind it",
        )
    return body.replace("{rank}", "{id}").replace("{candidate}", "{text}")


def _regex(sections: Mapping[str, str], path: Path) -> str:
    r"""Which identifiers the answers have: the file writes a Python raw string, r"\[(\d+)\]"."""
    written = sections["output_extraction_regex"].strip()
    pattern = re.sub(r"""^r?(["'])(.*)\1$""", r"\2", written)
    if pattern not in (NUMBERS, CAPITALS):
        raise _refusal(path, f"output_extraction_regex = {written}: answers are read by {NUMBERS} or {CAPITALS}")
    return pattern


def _refusal(path: Path, why: str, instead: str | None = None) -> ConfigError:
    way_out = f"Set decode_mode = {instead!r}" if instead else "Write it as TOML as in configs/prompts/"
    return ConfigError(f"{path}: this template is not supported: {why}. {way_out}, or use another template.")

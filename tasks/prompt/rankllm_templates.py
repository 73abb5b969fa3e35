"""Prompt templates of specialised list-wise rerankers, in the form in which their owners publish them.

RankLLM's YAML: `method`, `system_message`, `prefix`, `body`, `suffix` and two output regexes (castorini/rank_llm,
src/rank_llm/rerank/prompt_templates). The words are the owners': they are read from a path or from an installed
`rank_llm`, never kept here. What our prompts cannot say the same way is refused, not approximated.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from tasks.errors import ConfigError, first_line
from tasks.prompt.answer_forms import DecodeMode
from tasks.prompt.templates import LETTERS, PromptTemplate, read_prompt_template

PACKAGE_PREFIX = "rank_llm:"
METHOD = "singleturn_listwise"
SECTIONS = (
    "method",
    "system_message",
    "prefix",
    "body",
    "suffix",
    "output_validation_regex",
    "output_extraction_regex",
)
NUMBERS, CAPITALS = r"\[(\d+)\]", r"\[([A-Z])\]"
THINK_CLOSE = "\n</think>\n<answer>"


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


def load_rankllm_template(path: Path, decode_mode: DecodeMode) -> PromptTemplate:
    """Reads an owner's template for a list-wise decode mode.

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
        raise ConfigError(f"{path}: a RankLLM template has the texts {', '.join(SECTIONS)}.")
    return read_prompt_template(_as_ours(sections, path, decode_mode), str(path))


def _as_ours(sections: Mapping[str, str], path: Path, decode_mode: DecodeMode) -> dict[str, Any]:
    _check_sections(sections, path)
    letters = _regex(sections, path) == CAPITALS
    if decode_mode == "first_token" and not letters:
        raise _refusal(path, "decode_mode first_token needs letters, and its answers are numbers", "permutation")
    if decode_mode not in ("first_token", "permutation", "reasoning"):
        raise _refusal(path, f"it orders lists, which is not what decode_mode {decode_mode} asks", "permutation")
    return {
        "identifiers": "letters" if letters else "numbers",
        "num_letters": len(LETTERS) // 2,
        "answer_prefix": "[" if decode_mode == "first_token" else "",
        "system": sections.get("system_message", ""),
        "before": sections.get("prefix", ""),
        "passage": _passage(sections["body"], path),
        "after": sections.get("suffix", ""),
        "close": THINK_CLOSE if decode_mode == "reasoning" else "",
    }


def _check_sections(sections: Mapping[str, str], path: Path) -> None:
    method = sections.get("method")
    if method != METHOD:
        raise _refusal(path, f"method = {method!r}: only {METHOD!r} is one user turn with all passages")
    missing = [name for name in ("body", "output_extraction_regex") if name not in sections]
    unknown = [name for name in sections if name not in SECTIONS]
    if missing or unknown:
        told = [f"it lacks {name}" for name in missing] + [f"it has a section {name}" for name in unknown]
        raise _refusal(path, ", ".join(told))
    for name in ("prefix", "suffix"):
        for placeholder in re.findall(r"\{(\w*)\}", sections.get(name, "")):
            if placeholder not in ("num", "query"):
                raise _refusal(path, f"{name} holds {{{placeholder}}}, and only {{num}} and {{query}} are known")


def _passage(body: str, path: Path) -> str:
    if not re.fullmatch(r"[^{}\s]*\{rank\}[^{}\s]* \{candidate\}\n\n?", body):
        raise _refusal(
            path,
            f"body = {body!r}: passages are tokenised once, so it must be a head with {{rank}}, a space, {{candidate}} "
            "and one or two line breaks",
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
    return ConfigError(f"{path}: this template cannot be honoured: {why}. {way_out}, or take another template.")

"""Finds the folder that holds a model's tokenizer, chat template and configuration, and reads its small files.

The folder is a local one, or in the hub's cache. Knows nothing of prompts.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.system.errors import ConfigError, first_line

LFS_POINTER = "version https://git-lfs"  # how the file begins that Git LFS leaves in place of the real one
# Architectures that write no text, by name. Source: vLLM 0.32's model registry. A bare ...Model may write (Ultravox).
POOLING = re.compile(
    r"(For(SequenceClassification|TokenClassification|TextEncoding|MaskedLM|Ranking|Retrieval)"
    r"|(Bert|Roberta|Embedding|Reward)\w*Model)$",
    re.IGNORECASE,
)
SMALL_FILES = ["*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def find_model_folder(model: str, revision: str | None, root: Path) -> Path:
    """The folder of `model`: a path (relative ones from `root`), else a name on the hub, of which the small files come.

    Raises:
        ConfigError: neither a folder nor a model that the hub, or its cache where offline, has.
    """
    folder = root / model
    if folder.is_dir():
        return folder
    if folder.is_file():
        what = "a GGUF file" if folder.suffix.lower() == ".gguf" else "a file"
        raise ConfigError(
            f"[engine] model = {model!r}: {what}, expected a folder with the weights, config.json and tokenizer.json, "
            "as the model hub has it."
        )
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(
            f"[engine] model = {model!r}: no such folder ({folder}). `packrank demo` builds models/sample."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=SMALL_FILES))
    except Exception as error:  # the hub's client raises many kinds
        raise ConfigError(
            f"[engine] model = {model!r}: neither a folder ({folder}) nor available on the model hub: "
            f"{first_line(error)}. Give a folder, or check name, revision and network."
        ) from error


def require_generative(model_folder: Path) -> None:
    """Refuses a pooling model before its weights load.

    Raises:
        ConfigError: config.json names an architecture that writes no text.
    """
    path = model_folder / "config.json"
    architectures = read_model_object(path).get("architectures")
    for name in architectures if isinstance(architectures, list) else []:
        if isinstance(name, str) and POOLING.search(name):
            raise ConfigError(
                f"{path}: {name} is a pooling model (classifier, embedder or encoder), which writes no text; packrank "
                "supports only generative models, ...ForCausalLM. Set [engine] model to one."
            )


@dataclass(frozen=True, slots=True)
class ChatTemplateFile:
    """A model's chat template, and the file that it was in."""

    path: Path
    source: str


def find_chat_template(model_folder: Path) -> ChatTemplateFile | None:
    """The template that vLLM and transformers would take where no name is given; None: the model has none.

    Raises:
        ConfigError: a file that cannot be read, or several named templates of which none is the default.
    """
    for name in ("chat_template.jinja", "additional_chat_templates/default.jinja"):
        if (model_folder / name).is_file():
            return ChatTemplateFile(model_folder / name, read_model_text(model_folder / name))
    named = [path.stem for path in sorted(model_folder.glob("additional_chat_templates/*.jinja"))]
    for name in ("tokenizer_config.json", "chat_template.json"):  # the second is how processors used to keep it
        path = model_folder / name
        source = read_model_object(path).get("chat_template")
        templates = _named_templates(source, path)
        if "default" in templates:
            return ChatTemplateFile(path, templates["default"])
        named += templates
    if named:
        raise ConfigError(
            f"{model_folder}: the chat templates {', '.join(sorted(named))}, but none is the default. Write the one "
            "to use to chat_template.jinja there."
        )
    return None


def read_model_object(path: Path) -> dict[str, Any]:
    """A JSON object of a model's folder; empty where there is no such file.

    Raises:
        ConfigError: the file is something else.
    """
    if not path.is_file():
        return {}
    text = read_model_text(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{path}: not readable as JSON: {first_line(error)}. Fetch the model's files again."
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: holds a {type(value).__name__}, expected a JSON object. Fetch the model's files again."
        )
    return value


def read_model_text(path: Path) -> str:
    """A text file of a model's folder.

    Raises:
        ConfigError: it cannot be read, is not UTF-8, or is a pointer of Git LFS.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not readable as UTF-8 text: {first_line(error)}") from error
    if text.startswith(LFS_POINTER):
        raise ConfigError(f"{path}: a pointer of Git LFS in place of the file. Run `git lfs pull` in {path.parent}.")
    return text


def _named_templates(source: object, path: Path) -> dict[str, str]:
    """The templates by name; a single one is the default."""
    templates: dict[Any, Any]
    match source:
        case None:
            templates = {}
        case str():
            templates = {"default": source}
        case dict():
            templates = source
        case list() if all(isinstance(each, dict) for each in source):
            templates = {each.get("name"): each.get("template") for each in source}
        case _:
            templates = {None: source}
    if not all(isinstance(text, str) for pair in templates.items() for text in pair):
        raise ConfigError(f"{path}: chat_template is neither a text nor a list of named texts.")
    return templates

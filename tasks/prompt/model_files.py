"""Finds the folder that holds a model's tokenizer, chat template and configuration: a local one, or the hub's cache.

Knows nothing of what is in the files.
"""

from pathlib import Path

from tasks.errors import ConfigError, first_line

SMALL_FILES = ["*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def find_model_folder(model: str, revision: str | None, root: Path) -> Path:
    """The folder of `model`: a path (relative ones from `root`), else a name on the hub, of which the small files come.

    Raises:
        ConfigError: neither a folder nor a model that the hub, or its cache where offline, has.
    """
    folder = root / model
    if folder.is_dir():
        return folder
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise ConfigError(
            f"[engine] model = {model!r}: no such folder ({folder}). `make` builds the sample model into models/sample."
        )
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=SMALL_FILES))
    except Exception as error:  # the hub's client raises many kinds
        raise ConfigError(
            f"[engine] model = {model!r}: neither a folder ({folder}) nor to be had from the model hub: "
            f"{first_line(error)}. Give a folder, or check name, revision and network."
        ) from error

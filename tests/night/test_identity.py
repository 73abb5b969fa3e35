"""Which model it is, and whether it is to be had without a network; what the flows import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.prompt.model_files import find_model_folder
from tasks.store.identity import model_identity
from tests.makers import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FIND = """
import sys
from pathlib import Path
from tasks.system.errors import ConfigError
from tasks.store.identity import model_identity
from tasks.prompt.model_files import find_model_folder
for revision in (None, sys.argv[1], "v2"):
    try:
        print(model_identity(find_model_folder("owner/small", revision, Path("."))))
    except ConfigError as error:
        print("ConfigError", error)
"""
IMPORT_ALL = """
import importlib, pkgutil, sys
import flows, tasks
for package in (flows, tasks):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
print(sorted({"torch", "vllm"} & sys.modules.keys()), len(sys.modules) > 100)
"""


def python(program, *arguments, **environment):
    answer = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return answer.stdout.splitlines()


@pytest.mark.fault(85)
@pytest.mark.parametrize(
    ("name", "change", "is_another"),
    [
        ("model.safetensors", lambda path: path.write_bytes(b"other weights"), True),
        ("model.safetensors", lambda path: os.utime(path, (1, 1)), True),
        ("tokenizer.json", lambda path: path.write_text("[]"), True),
        ("chat_template.jinja", lambda path: path.write_text("x"), True),
        ("tokenizer.json", lambda path: os.utime(path, (1, 1)), False),
        ("README.md", lambda path: path.write_text("x"), False),
    ],
)
def test_a_folder_is_another_model_when_what_it_computes_with_changed(tmp_path, name, change, is_another):
    for each in ("config.json", "tokenizer.json", "chat_template.jinja", "README.md"):
        (tmp_path / each).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = model_identity(tmp_path)

    change(tmp_path / name)

    assert (model_identity(tmp_path) != before) == is_another


@pytest.mark.fault(85)
def test_a_model_in_the_hubs_cache_is_found_without_a_network_and_is_its_commit(tmp_path):
    repository = tmp_path / "hub" / "models--owner--small"
    for part, text in (("refs/main", COMMIT), (f"snapshots/{COMMIT}/config.json", "{}")):
        (repository / part).parent.mkdir(parents=True, exist_ok=True)
        (repository / part).write_text(text)

    found = python(FIND, COMMIT, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")

    assert found[:2] == [COMMIT, COMMIT]
    assert found[2].startswith("ConfigError [engine] model = 'owner/small': neither a folder")
    assert found[2].endswith("Give a folder, or check name, revision and network.")


def test_a_folder_stands_for_itself(tmp_path):
    (tmp_path / "small").mkdir()

    assert find_model_folder("small", None, tmp_path) == Path(tmp_path / "small")


@pytest.mark.fault(86)
def test_nothing_but_the_engines_own_process_imports_torch_or_vllm():
    """All our modules, the flows' included: a CUDA context before the engine's start would come with them."""
    assert python(IMPORT_ALL) == ["[] True"]

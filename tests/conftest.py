"""Shared fixtures. Nothing here imports Prefect or vLLM."""

import json
import logging
import os
import re
import signal
from collections import namedtuple
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.makers import FAKE_VLLM, ROOT, SAMPLE_MODEL, make_model_folder

# A busy machine is no failure, and neither is chance: the same examples every time. `make soak` draws others.
ANYWHERE = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("packrank", derandomize=True, **ANYWHERE)
settings.register_profile("soak", max_examples=500, **ANYWHERE)
settings.load_profile("packrank")


# What a user may have set for other programs, and what would make a test mean something else.
LEFTOVERS = re.compile(
    r"(PREFECT|HF|HUGGINGFACE|TRANSFORMERS|GIT)_.*|MPL.*|PYTHONWARNINGS|FAKE_VLLM|VLLM_(CACHE_ROOT|LOGGING_LEVEL)|"
    r"(NO|FORCE)_COLOR|CLICOLOR(_FORCE)?|COLUMNS|LINES|(HTTPS?|ALL|FTP|NO)_PROXY|PACKRANK_HOME",
    re.IGNORECASE,
)


def pytest_configure() -> None:
    """The tests run in a plain environment.

    A shell ignores SIGINT in what it runs in the background, and then so would each command that a test interrupts.
    """
    for name in list(filter(LEFTOVERS.fullmatch, os.environ)):
        del os.environ[name]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All is slow but tests/unit."""
    for item in items:
        if item.path.parent.name != "unit":
            item.add_marker("slow")


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make soak` turns up, and what `make zoo` writes."""
    parser.addoption("--kills", type=int, default=10, help="of nights with a fake engine, in tests/soak")
    parser.addoption("--models-page", action="store_true", help="tests/engine/test_zoo.py writes docs/models.md")
    parser.addoption("--seed", type=int, default=7, help="of the moments at which tests/soak kills")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model without its weights."""
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    return make_model_folder(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture(scope="session", autouse=True)
def _tokenizers_are_read_once():
    """Loading one takes a quarter of a second, and every prepared night has one."""
    from tasks.prompt.tokens import load_model_tokens

    @lru_cache(maxsize=4)
    def load(folder, size, changed_ns):
        return load_model_tokens(folder)

    def load_once(folder):
        path = folder / "tokenizer.json"
        stat = path.stat() if path.is_file() else None
        return load_model_tokens(folder) if stat is None else load(folder, stat.st_size, stat.st_mtime_ns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.ranking.recipe.load_model_tokens", load_once)
        yield


@pytest.fixture(autouse=True)
def own_log_handlers():
    """A command that a test runs in this process logs to a stream that ends with the test."""
    before = list(logging.getLogger("tasks").handlers)
    yield
    logging.getLogger("tasks").handlers = before


@pytest.fixture
def fake_vllm(monkeypatch: pytest.MonkeyPatch):
    """Engine children import the fake vLLM; called with keywords, it tells the fake how to behave."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAKE_VLLM), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    )
    monkeypatch.delenv("FAKE_VLLM", raising=False)

    def tell(**behaviour: object) -> None:
        monkeypatch.setenv("FAKE_VLLM", json.dumps(behaviour))

    return tell


Answer = namedtuple("Answer", "returncode stdout stderr")


@pytest.fixture
def packrank(capsys, monkeypatch):
    """The command in this process; returns exit code and what it printed."""
    from flows.cli import main

    def call(*arguments, cwd=None):
        if cwd is not None:
            monkeypatch.chdir(cwd)
        before = signal.getsignal(signal.SIGTERM)
        code = 0
        try:
            main([str(each) for each in arguments])
        except SystemExit as end:
            code = end.code or 0
        finally:
            signal.signal(signal.SIGTERM, before)
        return Answer(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless browser."""
    from tests.browser import started_browser

    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


def find_test_data() -> Path | None:
    """The folder of real collections: PACKRANK_TEST_DATA, or ../shared/data beside the checkout; None if there is none."""
    given = os.environ.get("PACKRANK_TEST_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def collections() -> Path:
    """The folder of real collections."""
    folder = find_test_data()
    if folder is None:
        pytest.skip("no test collections: set PACKRANK_TEST_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def tiny_model(collections: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds the tiny model of a family (tests/tiny_models.py), each once a session; returns its folder."""
    from tests.tiny_models import FAMILIES, build_tiny_model

    folder = tmp_path_factory.mktemp("tiny_models")

    @cache
    def build(family: str) -> Path:
        tokenizer = collections / "tokenizers" / FAMILIES[family].tokenizer
        if not tokenizer.is_dir():
            pytest.skip(f"{tokenizer} is not there")
        return build_tiny_model(family, tokenizer, folder / family)

    return build


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return ROOT

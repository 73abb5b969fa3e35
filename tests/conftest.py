"""Shared fixtures. Nothing here imports Prefect or vLLM."""

import json
import logging
import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.makers import FAKE_VLLM, ROOT, SAMPLE_MODEL, make_model_folder

settings.register_profile("packrank", deadline=None)  # a busy machine is no failure
settings.load_profile("packrank")


def pytest_configure() -> None:
    """A shell ignores SIGINT in what it runs in the background, and then so would each command that a test interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make soak` turns up."""
    parser.addoption("--kills", type=int, default=20, help="of nights with a fake engine, in tests/soak")
    parser.addoption("--seed", type=int, default=7, help="of the moments at which tests/soak kills")


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample model without its weights."""
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    return make_model_folder(tmp_path_factory.mktemp("model") / "small")


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
def repo_root() -> Path:
    """The checkout."""
    return ROOT

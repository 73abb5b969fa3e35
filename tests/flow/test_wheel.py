"""packrank as it is installed from its wheel, in a folder without a checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib import metadata

import pyarrow.parquet as pq
import pytest

from tests.makers import FAKE_VLLM, ROOT, SAMPLE_MODEL, read_rows


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since setuptools leaves folders beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("flows", "tasks", "sql", "configs", "data"):
        shutil.copytree(ROOT / name, folder / "sources" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "sources" / name)
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", folder, folder / "sources"], check=True)
    (built,) = folder.glob("packrank-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The command of a fresh environment that has the wheel, and all else from this environment."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "-q", "--no-deps"]
    subprocess.run([*install, "--ignore-installed", wheel], check=True)
    return folder / "bin" / "packrank"


@pytest.fixture
def home(tmp_path):
    """An empty folder of a user's, but for the sample model: it would be downloaded."""
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "sample").symlink_to(SAMPLE_MODEL)
    return tmp_path


@pytest.fixture
def packrank(installed, home):
    """The installed command in that folder, with the fake engine."""

    def call(*arguments):
        env = os.environ | {"PYTHONPATH": str(FAKE_VLLM)}
        done = subprocess.run([installed, *arguments], cwd=home, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_the_wheel_has_every_package_and_every_file_that_is_read(wheel):
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {str(path.parent.relative_to(ROOT)) for top in ("flows", "tasks") for path in (ROOT / top).rglob("*.py")}
    names = set(zipfile.ZipFile(wheel).namelist())
    read = {
        f"packrank_files/{path.relative_to(ROOT)}"
        for folder in ("sql", "configs")
        for path in (ROOT / folder).rglob("*.*")
    }

    assert {name.replace(".", "/") for name in packages if "packrank_files" not in name} == found
    assert read | {f"packrank_files/data/sample/{name}.parquet" for name in ("queries", "qrels")} <= names


def test_the_demo_ranks_the_sample_into_the_folder_in_which_it_is_started(packrank, home):
    assert packrank("--version").startswith(f"packrank {metadata.version('packrank')}, vllm")

    assert "24" in packrank("demo", "--dry-run", "--no-prefect")
    assert [path.name for path in home.iterdir()] == ["models"]
    packrank("demo", "--no-prefect")

    assert sorted(path.name for path in home.iterdir()) == ["models", "var"]
    database = home / "var" / "packrank.duckdb"
    assert read_rows(database, "select count(distinct query_id) as n from latest_scores") == [{"n": 24}]
    assert read_rows(database, "select git_commit, status from runs") == [{"git_commit": None, "status": "published"}]


def test_settings_of_the_users_name_what_comes_with_packrank_and_what_lies_beside_them(packrank, home):
    (home / "configs").mkdir()
    (home / "configs" / "mine.toml").write_text(
        (ROOT / "configs" / "own.toml").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (home / "data").mkdir()
    queries = pq.read_table(ROOT / "data" / "sample" / "queries.parquet").slice(0, 22)
    pq.write_table(queries, home / "data" / "few.parquet")

    told = packrank("plan", "configs/mine.toml", "--set", "inputs.queries=data/few.parquet")

    assert re.search(r"\bqueries\s+22\b", told)
    assert re.search(r"\bcandidates\s+1,805\b", told)

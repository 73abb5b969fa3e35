"""The documents: generated pages are not stale, and what README and its kin point to is there."""

import re
import tomllib

import pytest

from flows.cli import app
from tests.makers import ROOT
from tests.reference import PAGES

OUTSIDE = [ROOT / name for name in ("README.md", "README.ko.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCUMENTS = [*OUTSIDE, *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_generated_page_is_what_the_code_says(page):
    assert page.read_text(encoding="utf-8") == PAGES[page](), "stale: run `make reference`"


@pytest.mark.parametrize("page", OUTSIDE, ids=lambda page: page.name)
def test_files_beside_the_site_link_to_what_is_there(page):
    """`make docs` looks at docs/ alone."""
    links = LINK.findall(page.read_text(encoding="utf-8"))

    assert [link for link in links if ":" not in link and not (page.parent / link).exists()] == []


def test_readme_fits_a_few_screens():
    for name in ("README.md", "README.ko.md"):
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= 120, name


def commands_of(text):
    """The `packrank` commands of a document's console blocks: name and options, comments left out."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\S*/)?packrank (\w+)([^#|]*)", line.strip())
            if found:
                yield found[1], re.findall(r"(?<!\S)--[a-z-]+", found[2])


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_documents_show_exist_with_their_options(page):
    for name, options in commands_of(page.read_text(encoding="utf-8")):
        known = {option for argument in app[name].assemble_argument_collection() for option in argument.names}
        assert set(options) <= known, (name, options)


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_toml_that_documents_show_is_toml(page):
    for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        tomllib.loads(block)

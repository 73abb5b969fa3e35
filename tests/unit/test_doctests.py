"""Examples in docstrings are true."""

import doctest
import importlib

import pytest

from tests.makers import ROOT

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for room in ("flows", "tasks")
    for path in sorted((ROOT / room).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name):
    failed, attempted = doctest.testmod(importlib.import_module(name))

    assert attempted > 0
    assert failed == 0

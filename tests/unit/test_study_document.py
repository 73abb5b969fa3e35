"""Figures in a document: marks get the figure of their name, and both languages quote the same ones."""

import pytest

from tasks.study.document import MARK, fill_document
from tasks.system.errors import InputError
from tests.makers import ROOT


def test_a_mark_gets_its_figure_whatever_stood_there(tmp_path):
    path = tmp_path / "study.md"
    path.write_text(
        "It ran <!--running-->not yet<!--/--> of <!--all-->?<!--/-->, <!-- a comment -->.", encoding="utf-8"
    )

    for figures in ({"running": "60", "all": "90"}, {"running": "64", "all": "100"}):
        fill_document(path, figures)

    text = path.read_text(encoding="utf-8")
    assert text == "It ran <!--running-->64<!--/--> of <!--all-->100<!--/-->, <!-- a comment -->."


def test_a_figure_that_there_is_not_is_named_and_nothing_is_written(tmp_path):
    path = tmp_path / "study.md"
    path.write_text("<!--running-->1<!--/--> <!--runing-->2<!--/-->", encoding="utf-8")

    with pytest.raises(InputError, match="no such figure: runing"):
        fill_document(path, {"running": "64"})

    assert path.read_text(encoding="utf-8") == "<!--running-->1<!--/--> <!--runing-->2<!--/-->"


def test_both_languages_quote_the_same_figures():
    english, korean = (
        MARK.findall((ROOT / "docs" / name).read_text(encoding="utf-8")) for name in ("study.md", "study.ko.md")
    )

    assert {name.removesuffix("_ko") for name in korean} == set(english)
    assert len(set(english)) > 50

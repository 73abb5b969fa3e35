"""The table of known faults: every number has a test or a reason, and every mark a number."""

import pytest

from tests.faults import find_marks, load_faults


def test_every_fault_has_a_test_or_a_reason():
    faults, reasons = load_faults()
    marks = find_marks()

    assert sorted(faults) == list(range(1, 98))
    assert reasons.keys() <= faults.keys()
    assert [number for number in faults if number not in marks and number not in reasons] == []


def test_a_fault_is_told_in_a_dozen_words():
    faults, _ = load_faults()

    assert [words for words in faults.values() if len(words.split()) > 12 or not words.endswith(".")] == []


def test_no_mark_has_an_unknown_number():
    assert find_marks().keys() <= load_faults()[0].keys()


def test_marks_are_found_on_functions_classes_modules_and_cases(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.faults.ROOT", tmp_path)
    (tmp_path / "test_x.py").write_text(
        "import pytest\npytestmark = [pytest.mark.soak, pytest.mark.fault(9)]\n"
        "@pytest.mark.fault(1, 2)\ndef test_a(): ...\n"
        "@pytest.mark.fault(3)\nclass TestB:\n    @pytest.mark.fault(4)\n    def test_c(self): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.fault(5))])\ndef test_d(x): ...\n"
        "@pytest.mark.fault(6)\ndef helper(): ...\n",
        encoding="utf-8",
    )

    found = find_marks(tmp_path)

    a, c, d = ("test_x.py::test_a", "test_x.py::test_c", "test_x.py::test_d")
    assert found == {9: [a, c, d], 1: [a], 2: [a], 3: [c], 4: [c], 5: [d]}
    (tmp_path / "test_x.py").write_text("@pytest.mark.fault('7')\ndef test_a(): ...\n", encoding="utf-8")
    with pytest.raises(ValueError, match="takes numbers"):
        find_marks(tmp_path)

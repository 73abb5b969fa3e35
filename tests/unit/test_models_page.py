"""docs/models.md: no family or preset is missing, and it is what was measured."""

from tests.makers import ROOT
from tests.models_page import GENERATIVE, PAGE, STRATEGY_OF, load_rows, render_page
from tests.tiny_models import FAMILIES


def test_the_page_is_what_was_measured():
    assert PAGE.read_text(encoding="utf-8") == render_page(load_rows()), "stale: run python -m tests.models_page"


def test_every_generative_family_is_on_the_page_and_asked_in_every_decode_mode():
    page = PAGE.read_text(encoding="utf-8")

    assert all(f"\n| {family} | {FAMILIES[family].preset} | " in page for family in GENERATIVE)
    assert {
        family: set(row["blocks"]) for family, row in load_rows().items() if set(row["blocks"]) != set(STRATEGY_OF)
    } == {}


def test_what_was_measured_keeps_the_promises():
    for family, row in load_rows().items():
        predicted, used = map(sum, zip(*row["blocks"].values(), strict=True))
        assert used <= predicted <= 1.05 * used, family
        assert row["num_identifiers"] >= 50, family


def test_every_preset_is_on_the_page():
    page = PAGE.read_text(encoding="utf-8")

    for path in (ROOT / "configs" / "models").glob("*.toml"):
        assert path.stem in page

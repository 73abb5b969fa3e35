"""Failures inside the soak's own helpers are told as those of tests are."""

import pytest

pytest.register_assert_rewrite("tests.soak.nights", "tests.soak.starts", "tests.soak.moments")

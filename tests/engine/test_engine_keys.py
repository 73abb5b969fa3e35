"""Every setting of the installed vLLM's engine has been looked at."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tasks.settings.engine_keys import CAPACITY, COMPUTED

LIST_KEYS = (
    "from dataclasses import fields\nfrom vllm.engine.arg_utils import EngineArgs\n"
    "print(*(each.name for each in fields(EngineArgs)))"
)


def test_every_key_of_the_installed_vllm_has_been_looked_at():
    """Add a new key to COMPUTED or CAPACITY of tasks/engine_keys.py, and to REFUSED or PREEMPTING if it can do harm."""
    if find_spec("vllm") is None:
        pytest.skip("no vLLM is installed")
    answer = subprocess.run([sys.executable, "-c", LIST_KEYS], capture_output=True, text=True, check=True)
    installed = set(answer.stdout.split())

    assert installed - COMPUTED - CAPACITY == set(), "new: nobody has looked at them"
    assert (COMPUTED | CAPACITY) - installed == set(), "vLLM has them no longer"

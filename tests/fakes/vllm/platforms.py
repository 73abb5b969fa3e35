"""The fake engine's device."""

from types import SimpleNamespace

current_platform = SimpleNamespace(get_device_name=lambda: "fake", is_cpu=lambda: False)

"""A clock of a test's own, in place of a module's `time`: it advances only when somebody sleeps."""


class Clock:
    """What a module uses of `time`."""

    def __init__(self, on_sleep=lambda: None, least_s=0.0):
        self.now_s = 1000.0
        self._on_sleep, self._least_s = on_sleep, least_s

    def monotonic(self):
        return self.now_s

    perf_counter = monotonic

    def sleep(self, seconds):
        self.now_s += max(seconds, self._least_s)
        self._on_sleep()

"""A real browser, headless, for the pages that people open from disk."""

import itertools
import json
import re
import shutil
import subprocess
from contextlib import contextmanager

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "about:blank"),
)
# Labels beside their chart, and pairs of labels that lie on each other.
OUTSIDE = """[...document.querySelectorAll('svg text')].filter(text => {
    const box = text.getBoundingClientRect(), figure = text.closest('figure').getBoundingClientRect();
    return box.left < figure.left - 3 || box.right > figure.right + 3;
}).map(text => text.textContent)"""
OVERLAPPING = """[...document.querySelectorAll('svg')].flatMap(svg => {
    const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
    return texts.flatMap(([a, p], n) => texts.slice(n + 1).filter(([b, q]) =>
        Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
        Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4).map(([b]) => a + ' | ' + b));
})"""
WATCHED = ("Network.requestWillBeSent", "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


class Browser:
    """One tab, spoken to over the DevTools protocol; `told` is what the page did that a reader does not see."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)
        self._session = None
        self.told = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.ask(f"{domain}.enable")

    def ask(self, method, **parameters):
        number = next(self._numbers)
        session = {"sessionId": self._session} if self._session else {}
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters} | session))
        return self._wait(lambda message: message.get("id") == number)["result"]

    def open(self, url, width, scheme):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.told.clear()
        self._loaded = False
        self.ask("Page.navigate", url=url)
        if not self._loaded:
            self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression):
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def _wait(self, is_it):
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") in WATCHED:
                self.told.append((message["method"], message["params"]))
            if message.get("method") == "Page.loadEventFired":
                self._loaded = True
            if is_it(message):
                return message


@contextmanager
def started_browser(profile):
    """A browser with its profile in the folder."""
    if not CHROMIUM:
        pytest.skip("no chromium here: the page is not looked at")
    from websockets.sync.client import connect

    command = [CHROMIUM, *ARGUMENTS[:-1], f"--user-data-dir={profile}", ARGUMENTS[-1]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = next(found[0] for line in process.stderr if (found := re.search(r"ws://\S+", line)))
            with connect(address, max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()

"""The page in a real browser, from disk: on a phone and on a desk, in light and dark, without a word on the console."""

import itertools
import json
import re
import shutil
import subprocess

import pytest

from tasks.judge.report import report_run
from tests.makers import make_finished_run
from tests.unit.test_report import nights  # noqa: F401  # the fixture

pytestmark = pytest.mark.slow

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0", "about:blank"),
)
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


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not CHROMIUM:
        pytest.skip("no chromium here: the page is not looked at")
    from websockets.sync.client import connect

    profile = tmp_path_factory.mktemp("profile")
    command = [CHROMIUM, *ARGUMENTS[:-1], f"--user-data-dir={profile}", ARGUMENTS[-1]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = next(found[0] for line in process.stderr if (found := re.search(r"ws://\S+", line)))
            with connect(address, max_size=None) as socket:
                yield Browser(socket)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def pages(nights, tmp_path_factory):  # noqa: F811
    """A page with everything on it, and one with almost nothing."""
    folder, run_id = nights
    bare = tmp_path_factory.mktemp("bare")
    make_finished_run(bare / "x.duckdb", "bare", {"q" * 200: (["d" * 300, "e"], ["e", "d" * 300])})
    return {
        "full": report_run(folder / "var" / "test.duckdb", run_id, bare / "full.html"),
        "bare": report_run(bare / "x.duckdb", "bare", None),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["full", "bare"])
def test_a_page_opens_from_disk_in_silence_and_needs_no_sideways_scrolling(browser, pages, name, width, scheme):
    url = pages[name].as_uri()

    browser.open(url, width, scheme)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")

    assert browser.value("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.table')].filter(each => each.scrollWidth > each.clientWidth + 1)"
    assert browser.value(f"{wider}.map(each => each.innerText.slice(0, 40))") == []
    requested = [told["request"]["url"] for method, told in browser.told if method == "Network.requestWillBeSent"]
    assert [each for each in requested if not each.startswith("data:")] == [url]
    assert [told for method, told in browser.told if method != "Network.requestWillBeSent"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_chart_is_cut_off_and_no_label_lies_on_another(browser, pages, width):
    browser.open(pages["full"].as_uri(), width, "light")
    outside = """[...document.querySelectorAll('svg text')].filter(text => {
        const box = text.getBoundingClientRect(), figure = text.closest('figure').getBoundingClientRect();
        return box.left < figure.left - 3 || box.right > figure.right + 3;
    }).map(text => text.textContent)"""
    overlapping = """[...document.querySelectorAll('svg')].flatMap(svg => {
        const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
        return texts.flatMap(([a, p], n) => texts.slice(n + 1).filter(([b, q]) =>
            Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
            Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4).map(([b]) => a + ' | ' + b));
    })"""

    assert browser.value(outside) == []
    assert browser.value(overlapping) == []
    assert browser.value("document.querySelectorAll('svg').length") == 10


def test_dark_is_dark_and_the_charts_follow(browser, pages):
    def brightness(expression):
        return sum(int(each) for each in re.findall(r"\d+", browser.value(expression))[:3])

    seen = {}
    for scheme in ("light", "dark"):
        browser.open(pages["full"].as_uri(), 1280, scheme)
        seen[scheme] = (
            brightness("getComputedStyle(document.body).backgroundColor"),
            brightness("getComputedStyle(document.querySelector('svg text')).fill"),
        )

    assert seen["light"][0] > 600 > 200 > seen["light"][1]
    assert seen["dark"][0] < 200 < 600 < seen["dark"][1]

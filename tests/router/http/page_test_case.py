"""What the tests of the router's page share: a browser, what a user does in it, and a router that has the page."""
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
from browser_tab import BROWSER, PATIENCE_S, Tab  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
COMPLETE = "[...document.querySelectorAll('.assistant.complete')]"


class PageTest(unittest.TestCase):
    """What the tests of the page share: a tab, and what a user does in it."""

    @classmethod
    def setUpClass(cls):
        if BROWSER is None:
            if os.environ.get("BATON_NO_BROWSER") == "1":
                raise unittest.SkipTest("no Chromium is installed, and BATON_NO_BROWSER is 1")
            raise FileNotFoundError("no chromium-headless-shell: scripts/setup installs it")
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-page-", ignore_cleanup_errors=True)
        cls.addClassCleanup(cls.directory.cleanup)
        cls.tab = Tab(f"{cls.directory.name}/profile")
        cls.addClassCleanup(cls.tab.close)

    def navigate(self, url):
        self.tab.errors.clear()
        self.tab.call("Page.navigate", url=url)
        self.tab.wait_for(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def js(self, expression):
        return self.tab.evaluate(expression)

    def wait(self, condition):
        return self.tab.wait_for(condition)

    def fill(self, selector, text, event="input"):
        self.js(f"{{ const field = document.querySelector({json.dumps(selector)});"
                f"  field.value = {json.dumps(text)};"
                f"  field.dispatchEvent(new Event({json.dumps(event)}, {{bubbles: true}})); }}")

    def press(self, selector, index=0):
        self.tab.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].at({index}).click()", by_user=True)

    def say(self, text):
        self.fill("#input", text)
        self.js("document.getElementById('form').requestSubmit()")

    def texts(self, selector):
        return self.js(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)")


def start_router(directory, *flags):
    """A router without workers, which serves the page. Returns its process and its HTTP address."""
    file = Path(directory) / "router"
    file.unlink(missing_ok=True)
    router = subprocess.Popen(
        [BIN / "baton-router", "--model", demo_cluster.MODEL, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
         "--decode-workers", "127.0.0.1:1", "--address-file", file, *flags], stderr=subprocess.DEVNULL)
    end = time.monotonic() + PATIENCE_S
    while not (file.exists() and len(lines := file.read_text(encoding="utf-8").splitlines()) == 3):
        if router.poll() is not None or time.monotonic() > end:
            router.kill()
            raise RuntimeError("the router does not start")
        time.sleep(0.01)
    return router, lines[2]


def stop(process):
    process.terminate()
    process.wait(timeout=PATIENCE_S)


def page_of(address):
    with urllib.request.urlopen(f"http://{address}/", timeout=PATIENCE_S) as answer:
        kept = ("Content-Type", "Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy", "Cache-Control")
        return {name: answer.headers[name] for name in kept}, answer.read()

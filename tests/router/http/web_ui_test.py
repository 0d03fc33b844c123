"""The router's page in a headless Chromium, against a cluster: chat, stop, errors, live bars.

    web_ui_test.py BIN_DIR

BATON_NO_BROWSER=1 skips the test on a machine without Chromium; scripts/setup installs one.
"""
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import demo_cluster  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
PATIENCE_S = 60
TABLE = "Table:\n brano = 4829\n kipe = 0031\nQ brano ?"


class Tab:
    """A tab of a new browser, over the DevTools protocol: JSON messages that end with a zero byte."""

    def __init__(self, profile):
        from_browser, browser_writes = os.pipe()
        browser_reads, to_browser = os.pipe()
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{browser_reads} 4>&{browser_writes}', "sh", BROWSER, "--headless",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             "--window-size=1100,560", f"--user-data-dir={profile}"],
            pass_fds=(browser_reads, browser_writes), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(browser_reads)
        os.close(browser_writes)
        self.read, self.write = from_browser, to_browser
        self.buffer = b""
        self.last_id = 0
        self.errors = []  # that the page has logged or thrown
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=PATIENCE_S)
        os.close(self.read)
        os.close(self.write)

    def next_message(self, end):
        while b"\0" not in self.buffer:
            if not select.select([self.read], [], [], max(0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.read, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.last_id += 1
        message = {"id": self.last_id, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self.next_message(end)
            if answer.get("id") == self.last_id:
                if "error" in answer:
                    raise RuntimeError(answer["error"])
                return answer["result"]
            event, of = answer.get("method"), answer.get("params", {})
            if (event == "Runtime.exceptionThrown"
                    or event == "Runtime.consoleAPICalled" and of["type"] in ("error", "warning")
                    or event == "Log.entryAdded" and of["entry"]["level"] in ("error", "warning")):
                self.errors.append(of)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True,
                           returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, condition):
        """Until a JavaScript expression is true, which it then returns."""
        return self.evaluate("new Promise(resolve => { const look = () => { const is = (" + condition +
                             "); is ? resolve(is) : requestAnimationFrame(look); }; look(); })")


@unittest.skipIf(BROWSER is None and os.environ.get("BATON_NO_BROWSER") == "1",
                 "no Chromium is installed, and BATON_NO_BROWSER is 1")
class WebUiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if BROWSER is None:
            raise FileNotFoundError("no chromium-headless-shell: scripts/setup installs it")
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-page-", ignore_cleanup_errors=True)
        cls.cluster, (_, _, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", Path(cls.directory.name))
        cls.tab = Tab(f"{cls.directory.name}/profile")

    @classmethod
    def tearDownClass(cls):
        cls.tab.close()
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def load(self):
        self.tab.errors.clear()
        self.tab.call("Page.navigate", url=f"http://{self.http}/")
        self.tab.wait_for("document.querySelectorAll('.worker').length === 4 && "
                          "document.getElementById('model').value")

    def say(self, text):
        self.tab.evaluate(f"document.getElementById('input').value = {json.dumps(text)};"
                          "document.getElementById('form').requestSubmit()")

    def test_a_chat_and_the_bars(self):
        tab = self.tab
        self.load()
        self.assertEqual(tab.evaluate("document.getElementById('model').value"), "demo")
        self.assertEqual(tab.evaluate("document.getElementById('state').textContent"), "ready")
        self.assertEqual(tab.evaluate(
            "[...document.querySelectorAll('.worker')].map(w => w.dataset.role).sort().join()"),
            "decode,decode,prefill,prefill")
        self.say(TABLE)
        answer = "[...document.querySelectorAll('.assistant.complete')].at(-1)"
        tab.wait_for(answer)
        self.assertEqual(tab.evaluate(answer + ".textContent"), " 4829")
        # The second turn sees the first.
        self.say("Q kipe ?")
        tab.wait_for("document.querySelectorAll('.assistant.complete').length === 2")
        self.assertEqual(tab.evaluate(answer + ".textContent"), " 0031")
        for shown in ("ttft-p50", "ttft-p99", "itl-p50", "itl-p99"):
            self.assertRegex(tab.wait_for(f"document.getElementById('{shown}').textContent.replace('–', '')"),
                             r"^[\d.]+ m?s$")
        self.assertTrue(tab.wait_for("Number(document.getElementById('rate').textContent) > 0"))
        self.assertTrue(tab.wait_for(
            "[...document.querySelectorAll('.bar .cached')].some(c => parseFloat(c.style.width) > 0)"))
        self.assertEqual(tab.errors, [])

    def test_text_is_never_markup(self):
        self.load()
        self.say("<b>bold</b><img src=x onerror=alert(1)>")
        self.tab.wait_for("document.querySelector('.assistant.complete')")
        self.assertEqual(self.tab.evaluate(
            "document.querySelectorAll('#messages b, #messages img').length"), 0)
        self.assertEqual(self.tab.evaluate("document.querySelector('.user').textContent"),
                         "<b>bold</b><img src=x onerror=alert(1)>")
        self.assertEqual(self.tab.errors, [])

    def test_stop_ends_the_answer(self):
        self.load()
        self.tab.evaluate(f"document.getElementById('input').value = {json.dumps(TABLE)};"
                          "document.getElementById('form').requestSubmit();"
                          "document.getElementById('stop').click()")
        self.tab.wait_for("document.querySelector('.assistant.complete') && "
                          "!document.getElementById('send').disabled")
        self.assertEqual(self.tab.evaluate("document.querySelector('.assistant').textContent"), "")
        self.assertEqual(self.tab.evaluate("document.querySelectorAll('.error').length"), 0)
        self.assertEqual(self.tab.errors, [])

    def test_an_error_is_shown_and_the_next_message_is_sent(self):
        self.load()
        self.say("word " * 3000)
        self.assertRegex(self.tab.wait_for("document.querySelector('.error')?.textContent"),
                         r"the prompt has \d+ tokens")
        self.say(TABLE)
        self.tab.wait_for("document.querySelectorAll('.assistant.complete').length === 2")
        self.assertEqual(self.tab.evaluate(
            "document.querySelectorAll('.assistant')[1].textContent"), " 4829")

    def test_the_key_stays_in_the_tab_and_is_sent(self):
        self.load()
        self.tab.evaluate("document.getElementById('key').value = 'secret';"
                          "document.getElementById('key').dispatchEvent(new Event('change'))")
        self.assertEqual(self.tab.evaluate("headers().Authorization"), "Bearer secret")
        self.load()
        self.assertEqual(self.tab.evaluate("headers().Authorization"), "Bearer secret")
        self.assertEqual(self.tab.evaluate("localStorage.length"), 0)
        self.tab.evaluate("sessionStorage.clear()")

    def test_the_policy_allows_nothing_from_elsewhere(self):
        with urllib.request.urlopen(f"http://{self.http}/", timeout=PATIENCE_S) as answer:
            policy, page = answer.headers["Content-Security-Policy"], answer.read().decode()
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotIn("@NONCE@", page)
        self.assertNotRegex(page, r"https?://|innerHTML|eval\(")
        with urllib.request.urlopen(f"http://{self.http}/", timeout=PATIENCE_S) as answer:
            self.assertNotEqual(answer.headers["Content-Security-Policy"], policy)


if __name__ == "__main__":
    unittest.main()

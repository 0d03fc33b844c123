"""The router's page in a headless Chromium: against a cluster, with keys, and from pages of other origins.

    web_ui_test.py BIN_DIR

BATON_NO_BROWSER=1 skips the test on a machine without Chromium; scripts/setup installs one.
"""
import json
import subprocess
import unittest
from pathlib import Path

from page_test_case import BIN, COMPLETE, PATIENCE_S, PageTest, demo_cluster, page_of, start_router, stop
from scripted_api import ScriptedApi

TABLE = "Table:\n brano = 4829\n kipe = 0031\nQ brano ?"


class ClusterTest(PageTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cluster, (_, _, cls.http) = demo_cluster.start_cluster(BIN / "baton", Path(cls.directory.name))
        cls.addClassCleanup(stop, cluster)

    def load(self):
        self.navigate(f"http://{self.http}/")
        self.js("localStorage.clear()")
        self.navigate(f"http://{self.http}/")
        self.wait("document.querySelectorAll('.worker').length === 4 && document.getElementById('model').value")

    def test_a_chat_and_the_bars(self):
        self.load()
        self.assertEqual(self.js("document.getElementById('model').value"), "demo")
        self.assertEqual(self.js("document.getElementById('state').textContent"), "ready")
        self.assertEqual(self.js(
            "[...document.querySelectorAll('.worker')].map(w => w.dataset.role).sort().join()"),
            "decode,decode,prefill,prefill")
        self.say(TABLE)
        self.wait(f"{COMPLETE}.length === 1")
        self.assertEqual(self.texts(".assistant .text"), ["4829"])
        # There is no pace where all tokens come at once.
        self.assertRegex(self.texts(".assistant .stats")[0],
                         r"^first token [\d.]+ m?s( · [\d.]+ tokens/s)? · \d+ tokens$")
        # The demo's template joins the messages, so the answer before is a part of the prompt.
        self.say("Q kipe ?")
        self.wait(f"{COMPLETE}.length === 2")
        self.assertEqual(self.texts(".assistant .text")[1], "0031")
        self.assertTrue(self.wait("document.getElementById('ttft-p50').textContent !== '–'"))
        self.assertTrue(self.wait("Number(document.getElementById('rate').textContent) > 0"))
        self.assertTrue(self.wait(
            "[...document.querySelectorAll('.bar .cached')].some(c => parseFloat(c.style.width) > 0)"))
        self.assertEqual(self.tab.errors, [])

    def test_stop_ends_the_answer(self):
        self.load()
        self.js(f"document.getElementById('input').value = {json.dumps(TABLE)};"
                "document.getElementById('form').requestSubmit();"
                "document.getElementById('stop').click()")
        self.wait("!document.getElementById('send').disabled")
        # Nothing had come, so the message is where it was.
        self.assertEqual(self.js("document.getElementById('input').value"), TABLE)
        self.assertEqual(self.texts(".message, .error"), [])
        self.assertEqual(self.tab.errors, [])

    def test_an_error_is_shown_and_the_next_message_is_sent(self):
        self.load()
        self.say("word " * 3000)
        self.assertRegex(self.wait("document.querySelector('.error')?.textContent"), r"the prompt has \d+ tokens")
        self.assertEqual(self.js("document.getElementById('input').value"), "word " * 3000)
        self.say(TABLE)
        self.wait(f"{COMPLETE}.length === 1")
        self.assertEqual(self.texts(".assistant .text"), ["4829"])
        self.assertEqual(self.texts(".error"), [])

    def test_the_servers_limits_and_the_models_defaults(self):
        self.load()
        self.fill("#max_tokens", "2")
        self.say(TABLE)
        self.wait(f"{COMPLETE}.length === 1")
        self.assertIn("2 tokens · cut at its longest", self.texts(".assistant .stats")[0])
        self.fill("#max_tokens", "")
        self.press(".again", -1)
        self.wait(f"document.querySelectorAll('.message').length === 2 && {COMPLETE}.length === 1 &&"
                  "!document.querySelector('.stats').textContent.includes('cut')")
        self.assertEqual(self.texts(".assistant .text"), ["4829"])


class RouterTest(PageTest):
    """A router without workers: what the page is, keys, and other origins."""

    def start(self, *flags):
        router, http = start_router(self.directory.name, *flags)
        self.addCleanup(stop, router)
        return http

    def new_key(self, *flags):
        """Returns a key, and the file that knows it."""
        made = json.loads(subprocess.run([BIN / "baton", "keys", "new", "--tenant", "me", "--json", *flags],
                                         capture_output=True, timeout=PATIENCE_S, check=True).stdout)
        file = Path(self.directory.name) / "keys"
        file.write_text(made["line"] + "\n", encoding="utf-8")
        return made["key"], file

    def test_the_policy_allows_nothing_from_elsewhere(self):
        http = self.start()
        headers, page = page_of(http)
        policy = headers["Content-Security-Policy"]
        self.assertIn("default-src 'none'", policy)
        self.assertNotIn("unsafe", policy)
        self.assertNotRegex(page.decode(),
                            r"@[A-Za-z.]+@|https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(")
        self.assertNotEqual(page_of(http)[0]["Content-Security-Policy"], policy)

    def test_the_key_box_is_shown_where_a_key_is_wanted_and_the_key_stays_in_the_tab(self):
        self.navigate(f"http://{self.start()}/")
        self.wait("document.getElementById('model').value")
        self.assertTrue(self.js("document.getElementById('key').hidden"))
        key, file = self.new_key("--admin")
        self.navigate(f"http://{self.start('--api-keys', file)}/")
        self.wait("!document.getElementById('key').hidden")
        self.assertEqual(self.js("document.getElementById('note').textContent"), "The server wants an API key.")
        self.wait("document.getElementById('state').textContent === \"shown to an operator's key\"")
        self.fill("#key", "wrong", "change")
        self.wait("document.getElementById('note').textContent === 'The server does not know this API key.'")
        self.fill("#key", key, "change")
        self.wait("document.getElementById('model').value && document.getElementById('note').hidden && "
                  "document.getElementById('state').textContent === 'not ready'")
        self.tab.call("Page.reload")
        self.wait("document.getElementById('model')?.value && document.getElementById('state').textContent")
        self.assertFalse(self.js("document.getElementById('key').hidden"))
        self.assertEqual(self.js("headers().Authorization"), f"Bearer {key}")
        self.assertNotIn(key, self.js("JSON.stringify(localStorage)"))

    def test_pages_of_the_origins_that_are_allowed_may_call(self):
        api = ScriptedApi(lambda: ({}, b""))
        self.addCleanup(api.close)
        key, file = self.new_key()
        http = self.start("--api-keys", file, "--http-cors-origins", f"https://a.example,http://127.0.0.1:{api.port}")
        # The header makes the browser send a preflight.
        call = (f"fetch('http://{http}/v1/PATH', {{METHOD headers: {{Authorization: 'Bearer KEY', "
                "'Content-Type': 'application/json', 'X-Stainless-Lang': 'js'}})"
                ".then(answer => [answer.status, Boolean(answer.headers.get('x-request-id'))], () => 'refused')")

        def fetch(path="models", method="", key=key):
            return self.js(call.replace("PATH", path).replace("METHOD", method).replace("KEY", key))

        self.navigate(f"http://127.0.0.1:{api.port}/blank")
        self.assertEqual(fetch(), [200, True])
        self.assertEqual(fetch(key="wrong"), [401, True])
        self.assertEqual(fetch("completions", "method: 'POST', body: '{}',"), [400, True])
        self.navigate(f"http://localhost:{api.port}/blank")
        self.assertEqual(fetch(), "refused")


if __name__ == "__main__":
    unittest.main()

"""What a user does with the router's page in a headless Chromium, while a script gives the answers.

    web_ui_chat_test.py BIN_DIR

BATON_NO_BROWSER=1 skips the test on a machine without Chromium; scripts/setup installs one.
"""
import json
import threading
import unittest

from page_test_case import COMPLETE, PATIENCE_S, PageTest, page_of, start_router, stop
from scripted_api import ScriptedApi
import seed


class ScriptedTest(PageTest):
    """The page of a router, which gets the answers of a script."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        router, http = start_router(cls.directory.name)
        cls.addClassCleanup(stop, router)
        cls.api = ScriptedApi(lambda: page_of(http))
        cls.addClassCleanup(cls.api.close)
        cls.url = f"http://127.0.0.1:{cls.api.port}/"
        cls.tab.call("Browser.grantPermissions", origin=cls.url,
                     permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])

    def setUp(self):
        self.api.requests.clear()
        self.api.left.clear()
        self.navigate(self.url)
        self.js("localStorage.clear()")
        self.load()

    def load(self):
        self.navigate(self.url)
        self.wait("document.getElementById('model').value")

    def answer(self, *items):
        self.api.answers.put(list(items))

    def complete(self, count):
        self.wait(f"{COMPLETE}.length === {count} && !document.getElementById('send').disabled")

    def chat(self, text, *items):
        """Says `text`, and waits for the answer."""
        count = self.js(f"{COMPLETE}.length")
        self.answer(*items)
        self.say(text)
        self.complete(count + 1)

    def sent(self):
        return [(m["role"], m["content"]) for m in self.api.requests[-1]["messages"]]

    def test_markdown_becomes_elements(self):
        self.chat("go", """# A *title* #

One **bold _and_ slanted** line, `co<d>e`, ~~gone~~ and 2*3*4 snake_case_name
second line
* first
* second
  1. one
  2. two

     more of two
- other list

> quoted
> > deeper

| a | b \\| c |
|:-:|--:|
| 1 | **2** |

---
```py
def f():
    return "<b>"
```
[a link](https://example.com/x_(y)?q=1 "t"), <https://example.org>, https://example.net/z. and \\*not\\*
""")
        shown = self.js("document.querySelector('.assistant .text').innerHTML")
        for part in (
                "<h1>A <em>title</em></h1>",
                "<p>One <strong>bold <em>and</em> slanted</strong> line, <code>co&lt;d&gt;e</code>, <del>gone</del> "
                "and 2<em>3</em>4 snake_case_name<br>second line</p>",
                "<ul><li><p>first</p></li><li><p>second</p><ol><li><p>one</p></li><li><p>two</p><p>more of two</p>"
                "</li></ol></li></ul><ul><li>other list</li></ul>",
                "<blockquote><p>quoted</p><blockquote><p>deeper</p></blockquote></blockquote>",
                '<th style="text-align: center;">a</th><th style="text-align: right;">b | c</th>',
                '<td style="text-align: right;"><strong>2</strong></td>',
                "<hr>",
                '<pre><code>def f():\n    return "&lt;b&gt;"</code></pre>',
                'rel="noopener noreferrer">a link</a>, <a href="https://example.org/"',
                ">https://example.net/z</a>. and *not*</p>"):
            self.assertIn(part, shown)
        self.assertEqual(self.js("[...document.querySelectorAll('.assistant a')].map(a => a.href)"),
                         ["https://example.com/x_(y)?q=1", "https://example.org/", "https://example.net/z"])
        self.press(".code .copy")
        self.wait("document.querySelector('.code .copy').textContent === 'Copied'")
        self.assertEqual(self.js("navigator.clipboard.readText()"), 'def f():\n    return "<b>"')
        self.assertEqual(self.tab.errors, [])

    def test_text_is_never_markup(self):
        hostile = ("<b>bold</b><img src=x onerror=alert(1)> [x](javascript:alert(1)) [y](data:text/html,z) "
                   "![i](http://example.com/i.png) <script>alert(1)</script> [z](//example.com) "
                   "<javascript:alert(1)>\n\n"
                   "```<b>\n</code><b>\n```\n\n| <i>a</i> | b |\n|--|--|\n")
        self.chat(hostile, hostile)
        self.assertEqual(self.js("document.querySelectorAll('#messages :is(b, i, img, script, [onerror])').length"), 0)
        self.assertEqual(self.js("[...document.querySelectorAll('#messages a')].map(a => a.href)"),
                         ["http://example.com/i.png"])
        self.assertEqual(self.texts(".user .text"), [hostile])
        self.assertIn("<script>alert(1)</script> [z](//example.com) <javascript:alert(1)>",
                      self.texts(".assistant .text")[0])
        self.assertEqual(self.tab.errors, [])

    def test_a_growing_text_ends_as_it_does_at_once(self):
        draw = seed.generator("growing text")
        parts = ["\n", "\n\n", "\n", " ", "    ", "# ", "- ", "* ", "1. ", "2) ", "> ", "```", "```py\n", "~~~", "---", "***",
                 "**", "*", "_", "`", "``", "~~", "|", "| a | b |\n", "|--|:-:|\n", "|-", "[", "](", ")",
                 "https://example.com", "\\", "word", "text", "é😀", "\t", "\r\n", "<b>", "!", "\n  - ", "\n   ", "1984. "]
        texts = ["".join(draw.choice(parts) for _ in range(draw.randrange(2, 60))) for _ in range(400)]
        steps = [[draw.randrange(1, 9) for _ in range(400)] for _ in texts]
        differing = self.js("""(() => {
          const texts = %s, steps = %s, differing = [];
          texts.forEach((text, i) => {
            const whole = document.createElement('div'), grown = document.createElement('div');
            new MarkdownView(whole).show(text);
            const view = new MarkdownView(grown);
            for (let end = 0, k = 0; end < text.length; ++k) {
              end = Math.min(text.length, end + steps[i][k %% steps[i].length]);
              view.show(text.slice(0, end));
            }
            if (whole.innerHTML !== grown.innerHTML) differing.push([text, whole.innerHTML, grown.innerHTML]);
          });
          return differing.slice(0, 3);
        })()""" % (json.dumps(texts), json.dumps(steps)))
        self.assertEqual(differing, [])

    def test_no_text_takes_long(self):
        for part in ("*", "**a ", "_a*", "[", "[a](", "](", "`", "`a``", "> ", "- ", "  - a\n", "- a\n\n", "|", "|-",
                     "a|b\n-|-\n", "# ", "\n", " ", "``` ", "```\n", "~~", "http://a.b/)", "((", "<http://", "\\",
                     "1. ", "*a **b ~~c "):
            self.assertEqual(self.js("""(() => {
              const root = document.createElement('div');
              document.body.append(root);
              new MarkdownView(root).show(%s.repeat(20000 / %d));
              const height = root.offsetHeight;  // lays it out, however deep it is
              root.remove();
              return Number.isFinite(height);
            })()""" % (json.dumps(part), len(part))), True)

    def test_blocks_that_are_done_stay_as_they_are_while_the_answer_grows(self):
        first, second = threading.Event(), threading.Event()
        self.answer("# Title\n\ntext\n\n```\nco", first, "de\nmore", second, "\n```\nend")
        self.say("go")
        self.wait("document.querySelector('.assistant code')?.textContent === 'co'")
        self.js("window.kept = [...document.querySelectorAll('.assistant :is(h1, p, .code, .copy)')]")
        first.set()
        self.wait("document.querySelector('.assistant code').textContent === 'code\\nmore'")
        self.assertTrue(self.js("kept.length === 5 && kept.every(node => node.isConnected)"))
        second.set()
        self.complete(1)
        self.assertEqual(self.texts(".assistant p"), ["text", "end"])

    def test_thinking_is_folded_and_goes_back_in_its_own_field(self):
        gate = threading.Event()
        self.answer({"reasoning_content": "Let me "}, {"reasoning_content": "see."}, gate, "Yes.",
                    {"usage": {"completion_tokens": 7}})
        self.say("true?")
        self.wait("document.querySelector('.reasoning div')?.textContent === 'Let me see.'")
        self.assertEqual(self.texts(".reasoning summary"), ["Thinking…"])
        self.assertFalse(self.js("document.querySelector('.reasoning').open"))
        gate.set()
        self.complete(1)
        self.assertEqual(self.texts(".reasoning summary"), ["Thoughts"])
        self.assertEqual(self.texts(".assistant .text"), ["Yes."])
        self.chat("sure?", "Yes!")
        self.assertEqual(self.api.requests[-1]["messages"], [
            {"role": "user", "content": "true?"},
            {"role": "assistant", "content": "Yes.", "reasoning_content": "Let me see."},
            {"role": "user", "content": "sure?"}])

    def test_settings_are_sent_where_they_are_set(self):
        self.chat("a", "1")
        self.assertEqual(self.api.requests[-1], {
            "model": "scripted", "messages": [{"role": "user", "content": "a"}], "stream": True,
            "stream_options": {"include_usage": True}})
        for field, value in (("system", "Be brief."), ("temperature", "0"), ("top_p", "0.5"), ("max_tokens", "9"),
                             ("seed", "4")):
            self.fill(f"#{field}", value)
        self.chat("b", "2")
        request = self.api.requests[-1]
        self.assertEqual([request[name] for name in ("temperature", "top_p", "max_tokens", "seed")], [0, 0.5, 9, 4])
        self.assertEqual(self.sent(), [("system", "Be brief."), ("user", "a"), ("assistant", "1"), ("user", "b")])
        self.fill("#temperature", "-1")
        self.say("c")
        self.assertTrue(self.js("document.getElementById('settings').open"))
        self.assertEqual(self.js("document.getElementById('input').value"), "c")
        self.assertEqual(len(self.api.requests), 2)
        self.fill("#temperature", "")
        self.load()  # the conversation keeps them
        self.chat("d", "3")
        self.assertEqual(self.sent()[0], ("system", "Be brief."))
        self.assertEqual(self.api.requests[-1]["seed"], 4)

    def test_an_answer_is_generated_again(self):
        self.chat("a", "1")
        self.chat("b", "2")
        self.assertEqual(
            self.js("[...document.querySelectorAll('.again')].map(b => getComputedStyle(b).display !== 'none')"),
            [False, True])
        self.answer("3")
        self.press(".again", -1)
        self.wait(f"{COMPLETE}.at(-1)?.querySelector('.text').textContent === '3'")
        self.assertEqual(self.sent(), [("user", "a"), ("assistant", "1"), ("user", "b")])
        self.assertEqual(self.texts(".assistant .text"), ["1", "3"])
        # One that fails leaves what was there.
        self.answer((503, "no worker"))
        self.press(".again", -1)
        self.wait("document.querySelector('.error')?.textContent === 'no worker'")
        self.assertEqual(self.texts(".assistant .text"), ["1", "3"])

    def test_a_conversation_goes_on_from_an_edited_message(self):
        for text, answer in (("a", "1"), ("b", "2"), ("c", "3")):
            self.chat(text, answer)
        self.press(".user .edit", 1)
        self.fill(".editor textarea", "B")
        self.answer("4")
        self.press(".editor .save")
        self.wait(f"{COMPLETE}.at(-1)?.querySelector('.text').textContent === '4'")
        self.assertEqual(self.sent(), [("user", "a"), ("assistant", "1"), ("user", "B")])
        self.press(".assistant .edit", 0)
        self.fill(".editor textarea", "one")
        self.press(".editor .save")
        self.assertEqual(self.texts(".message .text"), ["a", "one"])
        self.chat("d", "5")
        self.assertEqual(self.sent(), [("user", "a"), ("assistant", "one"), ("user", "d")])
        self.press(".user .edit", 1)
        self.fill(".editor textarea", "other")
        self.press(".editor .cancel")
        # An edit without an answer is open again, and the conversation is what it was.
        self.press(".user .edit", 0)
        self.fill(".editor textarea", "A")
        self.answer((429, "full"))
        self.press(".editor .save")
        self.wait("document.querySelector('.error')?.textContent === 'full' && document.querySelector('.editor')")
        self.assertEqual(self.js("document.querySelector('.editor textarea').value"), "A")
        self.press(".editor .cancel")
        self.assertEqual(self.texts(".message .text"), ["a", "one", "d", "5"])

    def test_stop_keeps_what_has_come_and_the_server_learns_of_it(self):
        self.answer("so far", threading.Event())
        self.say("go")
        self.wait("document.querySelector('.assistant .text')?.textContent === 'so far'")
        self.assertTrue(self.js("document.getElementById('send').disabled"))
        self.press("#stop")
        self.complete(1)
        self.assertTrue(self.api.left.wait(PATIENCE_S))
        self.assertRegex(self.texts(".assistant .stats")[0], "^first token .* · stopped$")
        self.chat("on", "more")
        self.assertEqual(self.sent(), [("user", "go"), ("assistant", "so far"), ("user", "on")])
        self.assertEqual(self.tab.errors, [])

    def test_errors_lose_no_text(self):
        self.answer((429, "too many requests"))
        self.say("hello")
        self.assertEqual(self.wait("document.querySelector('.error')?.textContent"), "too many requests")
        self.assertEqual(self.js("document.getElementById('input').value"), "hello")
        self.assertEqual(self.texts(".message"), [])
        self.answer("half", {"error": {"message": "the worker is lost"}})
        self.say("hello")
        self.complete(1)
        self.assertEqual(self.texts(".error"), ["the worker is lost"])
        self.assertEqual(self.texts(".message .text"), ["hello", "half"])

    def test_each_answer_has_its_pace(self):
        gate = threading.Event()
        self.answer("a", gate, "b", {"usage": {"completion_tokens": 12}})
        self.say("go")
        self.wait("document.querySelector('.assistant .text')?.textContent === 'a'")
        gate.set()
        self.complete(1)
        shown = self.texts(".assistant .stats")[0]
        self.assertRegex(shown, r"^first token [\d.]+ m?s · [\d.]+ tokens/s · 12 tokens$")
        self.load()
        self.assertEqual(self.texts(".assistant .stats"), [shown])

    def test_conversations_are_kept_listed_renamed_and_deleted(self):
        self.chat("first question\nwith two lines", "1")
        self.press("#new")
        self.wait("document.querySelectorAll('.message').length === 0")
        self.chat("second", "2")
        self.assertEqual(self.texts("#conversations .open"), ["second", "first question"])
        self.load()
        self.assertEqual(self.texts(".message .text"), ["second", "2"])
        self.press("#conversations .open", 1)
        self.wait("document.querySelector('.message .text').textContent.startsWith('first')")
        self.press("#conversations .rename", 1)
        self.fill("#conversations input", "My title")
        self.js("document.querySelector('#conversations input').blur()")
        self.load()
        self.assertEqual(self.texts("#conversations .open"), ["My title", "second"])
        self.press("#conversations .delete", 0)
        self.assertEqual(self.js("localStorage.length"), 2)
        self.press("#conversations .delete", 0)
        self.wait("localStorage.length === 1")
        self.wait("document.querySelectorAll('.message').length === 0")
        self.assertEqual(self.texts("#conversations .open"), ["second"])

    def test_a_conversation_that_is_left_keeps_what_has_come(self):
        self.answer("part", threading.Event())
        self.say("go")
        self.wait("document.querySelector('.assistant .text')?.textContent === 'part'")
        self.press("#new")
        self.wait("document.querySelectorAll('.message').length === 0")
        self.assertTrue(self.api.left.wait(PATIENCE_S))
        self.press("#conversations .open")
        self.wait("document.querySelectorAll('.message').length === 2")
        self.assertEqual(self.texts(".message .text"), ["go", "part"])
        self.answer("rest", threading.Event())
        self.say("more")
        self.wait("[...document.querySelectorAll('.assistant .text')].at(-1).textContent === 'rest'")
        self.load()  # the tab leaves the page
        self.assertEqual(self.texts(".message .text"), ["go", "part", "more", "rest"])

    def test_storage_is_bounded_and_the_oldest_make_room(self):
        stored = {"title": "", "system": "", "sampling": {}, "messages": [{"role": "user", "content": "x" * 15000}]}
        self.js("""(() => {
          const stored = %s;
          for (let i = 0; i < 100; ++i) {
            localStorage.setItem(`baton.conversation.${i}`, JSON.stringify({...stored, id: String(i), updated: i + 1}));
          }
          localStorage.setItem('another', 'of the server');
          localStorage.setItem('baton.conversation.bad', '{"id": "bad", "messages": 5}');
          localStorage.setItem('baton.conversation.worse', 'no JSON');
        })()""" % json.dumps(stored))
        self.load()
        self.assertEqual(self.js("document.querySelectorAll('#conversations li').length"), 100)
        self.press("#new")
        self.wait("document.querySelectorAll('.message').length === 0")
        self.chat("one more", "1")
        self.assertEqual(self.js("document.querySelectorAll('#conversations li').length"), 100)
        self.assertEqual(self.js("[localStorage.getItem('baton.conversation.0'), localStorage.getItem('another')]"),
                         [None, "of the server"])
        # 2,000,000 characters in all.
        self.chat("long", "x" * 1_000_000)
        self.assertTrue(self.js("Object.entries(localStorage).filter(([key]) => key.startsWith('baton.conversation.'))"
                                ".reduce((sum, [, text]) => sum + text.length, 0) < 2.01e6"))
        self.assertGreater(self.js("document.querySelectorAll('#conversations li').length"), 10)
        self.assertTrue(self.js("document.getElementById('note').hidden"))
        self.chat("longer", "y" * 1_000_000)
        self.assertIn("no room", self.js("document.getElementById('note').textContent"))
        self.assertGreater(self.js("document.querySelectorAll('#conversations li').length"), 10)

    def test_the_page_works_without_storage(self):
        script = self.tab.call("Page.addScriptToEvaluateOnNewDocument", source="""
          for (const name of ['localStorage', 'sessionStorage']) {
            Object.defineProperty(window, name, {get() { throw new DOMException('refused', 'SecurityError'); }});
          }""")["identifier"]
        self.addCleanup(lambda: self.tab.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script))
        self.load()
        self.chat("a", "1")
        self.press("#new")
        self.wait("document.querySelectorAll('.message').length === 0")
        self.press("#conversations .open")
        self.wait("document.querySelectorAll('.message').length === 2")
        self.load()
        self.assertEqual(self.texts("#conversations .open"), [])
        self.assertEqual(self.tab.errors, [])

    def test_a_message_is_copied_as_it_was_written(self):
        self.chat("a", "**bold**")
        self.press(".assistant .copy")
        self.wait("document.querySelector('.assistant .copy').textContent === 'Copied'")
        self.assertEqual(self.js("navigator.clipboard.readText()"), "**bold**")
        # Without the clipboard of secure pages.
        self.js("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
        self.press(".user .copy")
        self.wait("document.querySelector('.user .copy').textContent === 'Copied'")


if __name__ == "__main__":
    unittest.main()

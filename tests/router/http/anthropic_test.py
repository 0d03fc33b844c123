"""The unmodified `anthropic` package against a cluster with API keys: messages, streams, counted tokens, errors;
and against scripted workers: tools.

    anthropic_test.py BIN_DIR
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import anthropic
from anthropic.types import message_create_params

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import demo_cluster  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
PATIENCE_S = 60
TABLE = "Table:\n brano = 4829\n kipe = 0031\nQ brano ?"
# The package has no parameter for it any more.
GREEDY = {"temperature": 0}
# The values that are served, by field; the others are refused by name.
GOOD = {
    "model": "demo", "temperature": 0.5, "top_p": 0.5, "top_k": 5, "stop_sequences": ["x"], "system": "s",
    "metadata": {"user_id": "me"}, "service_tier": "auto", "speed": "standard", "tools": [],
    "tool_choice": {"type": "none"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
    "cache_control": {"type": "ephemeral", "ttl": "1h"}, "output_config": {"effort": "low"},
    "diagnostics": {"previous_message_id": None},
}
TOOLS = [{"name": "weather", "description": "The weather of a city.",
          "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": %s}}\n</tool_call>'
# In the format of Hermes. A scripted router answers with what stands between ((( and ))).
TEMPLATE = """\
{#- <tool_call>{"name": "f", "arguments": {}}</tool_call> -#}
{%- for t in tools or [] %}[{{ t.function.name }}]{% endfor %}
{%- for m in messages %}{{ m.role }}:
{%- if m.role == 'tool' -%}
((({{ m.tool_call_id }}: {{ messages[-2].tool_calls[0].function.arguments.city }} has {{ m.content }})))
{%- else %}{{ m.content or '' }}{% endif %}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}
{%- endfor %}"""


def user(text):
    return {"role": "user", "content": text}


class MessagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-anthropic-")
        keys = Path(cls.directory.name) / "keys"
        new = subprocess.run([BIN / "baton", "keys", "new", "--tenant", "a"], capture_output=True, text=True,
                             timeout=PATIENCE_S, check=True).stdout
        cls.key = re.search(r"baton-\S+", new).group()
        keys.write_text(re.search(r"sha256:.*\n", new).group(), encoding="utf-8")
        cls.cluster, (_, _, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", Path(cls.directory.name), "--api-keys", keys, prefill=1, decode=1)
        cls.client = cls.client_with(cls.key)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)
        cls.directory.cleanup()

    @classmethod
    def client_with(cls, key):
        return anthropic.Anthropic(base_url=f"http://{cls.http}", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def test_an_answer_is_the_same_whole_and_streamed(self):
        options = {"model": "demo", "max_tokens": 8, "messages": [user(TABLE)], "extra_body": GREEDY}
        whole = self.client.messages.create(**options)
        self.assertEqual([(b.type, b.text) for b in whole.content], [("text", " 4829")])
        self.assertEqual((whole.role, whole.type, whole.model), ("assistant", "message", "demo"))
        self.assertEqual((whole.stop_reason, whole.stop_sequence), ("end_turn", None))
        self.assertEqual(whole.id, f"msg_{whole._request_id}")
        with self.client.messages.stream(**options) as stream:
            self.assertEqual("".join(stream.text_stream), " 4829")
            final = stream.get_final_message()
        self.assertEqual(final.stop_reason, "end_turn")
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        types = [event.type for event in self.client.messages.create(stream=True, **options)]
        self.assertEqual(types[:2], ["message_start", "content_block_start"])
        self.assertEqual(types[-3:], ["content_block_stop", "message_delta", "message_stop"])
        self.assertEqual(set(types[2:-3]), {"content_block_delta"})

    def test_a_conversation_goes_on(self):
        answer = self.client.messages.create(model="demo", max_tokens=8, messages=[user(TABLE)], extra_body=GREEDY)
        again = self.client.messages.create(
            model="demo", max_tokens=8, extra_body=GREEDY,
            messages=[user(TABLE), {"role": "assistant", "content": answer.content},
                      user([{"type": "text", "text": "Q kipe ?", "cache_control": {"type": "ephemeral"}}])])
        self.assertEqual(again.content[0].text, " 0031")

    def test_what_ended_the_answer(self):
        options = {"model": "demo", "messages": [user(TABLE)], "extra_body": GREEDY}
        self.assertEqual(self.client.messages.create(max_tokens=1, **options).stop_reason, "max_tokens")
        stopped = self.client.messages.create(max_tokens=8, stop_sequences=["29"], **options)
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", "29"))
        self.assertEqual(stopped.content[0].text, " 48")
        with self.client.messages.stream(max_tokens=8, stop_sequences=["29"], **options) as stream:
            final = stream.get_final_message()
        self.assertEqual((final.stop_reason, final.stop_sequence), ("stop_sequence", "29"))

    def test_counted_tokens_are_those_of_the_prompt(self):
        prompt = {"model": "demo", "system": [{"type": "text", "text": "copy: red green blue\n" * 20}],
                  "messages": [user(TABLE)]}
        count = self.client.messages.count_tokens(**prompt).input_tokens
        first = self.client.messages.create(max_tokens=1, **prompt).usage
        self.assertEqual(first.input_tokens + first.cache_read_input_tokens, count)
        again = self.client.messages.create(max_tokens=1, **prompt).usage
        self.assertGreater(again.cache_read_input_tokens, 0)
        self.assertEqual(again.input_tokens + again.cache_read_input_tokens, count)
        self.assertEqual(again.cache_creation_input_tokens, 0)

    def test_errors_are_the_packages_own(self):
        options = {"model": "demo", "max_tokens": 8, "messages": [user("x")]}
        cases = (
            (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": 9}}),
            (anthropic.NotFoundError, "not_found_error", {"model": "other"}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": [user("x " * 100_000)]}),
            (anthropic.BadRequestError, "invalid_request_error", {"messages": [user([{
                "type": "image", "source": {"type": "url", "url": "http://example.com/x.png"}}])]}),
        )
        for error, kind, changed in cases:
            for stream in (False, True):
                with self.assertRaises(error) as caught:
                    self.client.messages.create(stream=stream, **{**options, **changed})
                body = caught.exception.body
                self.assertEqual((body["type"], body["error"]["type"]), ("error", kind))
                self.assertEqual(caught.exception.request_id, body["request_id"])
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.client.messages.create(**{**options, "messages": [user("x " * 100_000)]})
        self.assertIn("prompt is too long", caught.exception.body["error"]["message"])
        with self.assertRaises(anthropic.AuthenticationError):
            self.client_with("wrong").messages.create(**options)
        with self.assertRaises(anthropic.AuthenticationError):
            self.client_with("wrong").messages.count_tokens(model="demo", messages=[user("x")])
        by_token = anthropic.Anthropic(base_url=f"http://{self.http}", auth_token=self.key, api_key=None,
                                       max_retries=0, timeout=PATIENCE_S)
        self.assertEqual(by_token.messages.create(**options).type, "message")

    def test_every_field_of_the_package_is_served_or_refused_by_name(self):
        fields = set(message_create_params.MessageCreateParamsBase.__annotations__) | {"stream"}
        self.assertGreater(len(fields), 15)
        base = {"model": "demo", "max_tokens": 2, "messages": [user("x")]}

        def create(**fields):
            return self.client.post("/v1/messages", body={**base, **fields}, cast_to=object)

        for name in sorted(fields):
            # A value that no field takes: a field that is ignored in silence would let it pass.
            with self.assertRaises(anthropic.BadRequestError) as caught:
                create(**{name: [{"nonsense": 1}]})
            self.assertIn(name, caught.exception.body["error"]["message"])
        for name, value in GOOD.items():
            self.assertEqual(create(**{name: value})["type"], "message", name)

    def test_fields_of_beta_versions(self):
        answer = self.client.beta.messages.with_raw_response.create(
            model="demo", max_tokens=2, messages=[user("x")], betas=["context-management-2025-06-27"],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
        self.assertEqual(answer.headers["x-baton-ignored"], "context_management")
        self.assertEqual(answer.parse().type, "message")


def say(text):
    """A message to which a scripted router answers `text`."""
    return user(f"((({text})))")


class ToolsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-anthropic-tools-")
        (Path(cls.directory.name) / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        cls.router = subprocess.Popen([BIN.parent / "tests/scripted_router", cls.directory.name],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address = cls.router.stdout.readline().strip()
        cls.client = anthropic.Anthropic(base_url=f"http://{address}", api_key="none", max_retries=0,
                                         timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.router.communicate(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def ask(self, messages, **options):
        """The whole answer, to which the stream's events must add up."""
        options = {"model": "tiny", "max_tokens": 500, "messages": messages, "tools": TOOLS, **options}
        whole = self.client.messages.create(**options)
        with self.client.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
        self.assertEqual(self.shown(streamed), self.shown(whole))
        self.assertEqual(streamed.stop_reason, whole.stop_reason)
        return whole

    @staticmethod
    def shown(message):
        """The blocks without their ids, which differ."""
        return [(b.type, b.text if b.type == "text" else (b.name, b.input)) for b in message.content]

    def test_calls_arrive_and_results_go_back(self):
        question = say("Let me see.\n" + CALL % '"Köln"' + "\n" + CALL % '"<\\"Rom\\">"')
        answer = self.ask([question])
        self.assertEqual(self.shown(answer), [
            ("text", "Let me see."), ("tool_use", ("weather", {"city": "Köln"})),
            ("tool_use", ("weather", {"city": '<"Rom">'}))])
        self.assertEqual(answer.stop_reason, "tool_use")
        first, second = answer.content[1:]
        self.assertNotEqual(first.id, second.id)
        # The template says which result belongs to which call, and reads its input.
        final = self.ask([question, answer.to_param(), user([
            {"type": "tool_result", "tool_use_id": first.id, "content": [{"type": "text", "text": "rain"}]}])])
        self.assertEqual(self.shown(final), [("text", f"{first.id}: Köln has rain")])
        self.assertEqual(final.stop_reason, "end_turn")

    def test_a_failed_call_is_marked(self):
        question = say(CALL % '"Köln"')
        answer = self.ask([question])
        final = self.ask([question, answer.to_param(), user([
            {"type": "tool_result", "tool_use_id": answer.content[0].id, "is_error": True, "content": "no"}])])
        self.assertTrue(final.content[0].text.endswith("Köln has Error: no"))

    def test_tool_choice(self):
        raw = CALL % 1
        none = self.ask([say(raw)], tool_choice={"type": "none"})
        self.assertEqual((self.shown(none), none.stop_reason), ([("text", raw)], "end_turn"))
        one = self.ask([say(raw + CALL % 2)], tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        self.assertEqual(self.shown(one), [("tool_use", ("weather", {"city": 1}))])

    def test_a_runner_of_tools_comes_to_an_end(self):
        asked = []

        @anthropic.beta_tool
        def weather(city: str) -> str:
            """The weather of a city."""
            asked.append(city)
            return "rain"

        runner = self.client.beta.messages.tool_runner(
            model="tiny", max_tokens=500, tools=[weather], messages=[say(CALL % '"Köln"')])
        final = runner.until_done()
        self.assertEqual(asked, ["Köln"])
        self.assertTrue(final.content[0].text.endswith("Köln has rain"), final)


if __name__ == "__main__":
    unittest.main()

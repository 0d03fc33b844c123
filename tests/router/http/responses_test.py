"""The unmodified `openai` package's Responses API, and `openai-agents` over it, against scripted workers.

    responses_test.py BIN_DIR
"""
import asyncio
import json
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import agents
import openai
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from pydantic import BaseModel, TypeAdapter

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
PATIENCE_S = 60
TOOLS = [{"type": "function", "name": "weather", "description": "The weather", "strict": True,
          "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}]
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
# In the format of Hermes. A scripted router answers with what stands between ((( and ))): to the result of a tool,
# with the instructions and the result.
TEMPLATE = """\
{#- <tool_call>{"name": "f", "arguments": {}}</tool_call> -#}
{%- for t in tools or [] %}[{{ t.function.name }}]{% endfor %}
{%- for m in messages %}{{ m.role }}:
{%- if m.role == 'tool' -%}
((({{ messages[0].content if messages[0].role == 'system' else '-' }}|{{ m.content }})))
{%- else %}{{ m.content or '' }}{% endif %}
{%- for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}
{%- endfor %}"""
# Values that the API takes, by field; others are refused by name.
GOOD = {
    "background": False, "include": ["reasoning.encrypted_content"], "input": "(((x)))", "instructions": "i",
    "max_output_tokens": 3, "max_tool_calls": 2, "metadata": {"a": "b"}, "model": "tiny",
    "parallel_tool_calls": False, "prompt_cache_key": "k", "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "s", "service_tier": "auto", "store": False, "stream": False,
    "stream_options": {"include_obfuscation": False}, "temperature": 0.5, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": TOOLS, "top_logprobs": 0, "top_p": 0.5, "truncation": "auto", "user": "me",
}


class Place(BaseModel):
    city: str


def say(text):
    """An input to which a scripted router answers `text`."""
    return f"((({text})))"


class Router(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-responses-")
        (Path(cls.directory.name) / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        cls.router = subprocess.Popen([BIN.parent / "tests/scripted_router", cls.directory.name],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        cls.url = f"http://{cls.router.stdout.readline().strip()}/v1"
        cls.client = openai.OpenAI(base_url=cls.url, api_key="none", max_retries=0, timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.router.communicate(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def ask(self, items, **options):
        return self.client.responses.create(model="tiny", input=items, **options)


class ResponsesTest(Router):
    def post(self, body):
        """The status and the text of an answer."""
        request = urllib.request.Request(f"{self.url}/responses", json.dumps(body).encode(), method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_answers_are_what_the_packages_types_say(self):
        for body in ({"input": say("Hi")}, {"input": say(CALL % ("weather", "{}")), "tools": TOOLS},
                     {**GOOD, "input": say("Hi there")}):
            status, text = self.post({"model": "tiny", **body})
            self.assertEqual(status, 200, text)
            whole = Response.model_validate_json(text, strict=True)
            _, text = self.post({"model": "tiny", **body, "stream": True})
            events = []
            for block in filter(None, text.split("\n\n")):
                name, data = block.split("\n")
                events.append(TypeAdapter(ResponseStreamEvent).validate_json(data.removeprefix("data: "), strict=True))
                self.assertEqual(name, f"event: {events[-1].type}")
            self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
            final = events[-1].response
            self.assertEqual(final.output_text, whole.output_text)
            self.assertEqual([item.type for item in final.output], [item.type for item in whole.output])
            self.assertEqual(final.usage, whole.usage)
            self.assertEqual(final.tools, whole.tools)

    def test_text_whole_and_streamed(self):
        items = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": say("Köln, 5 < 6")}]
        answer = self.ask(items, instructions="i", metadata={"a": "b"}, temperature=0.5)
        self.assertEqual(answer.output_text, "Köln, 5 < 6")
        self.assertEqual((answer.status, answer.model, answer.instructions), ("completed", "tiny", "i"))
        self.assertEqual((answer.metadata, answer.temperature), ({"a": "b"}, 0.5))
        self.assertEqual(answer.usage.output_tokens, len("Köln, 5 < 6".encode()) + 1)
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)
        stream = self.ask(items, stream=True)
        self.assertEqual("".join(e.delta for e in stream if e.type == "response.output_text.delta"),
                         "Köln, 5 < 6")
        with self.client.responses.stream(model="tiny", input=items) as stream:
            snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        self.assertEqual(snapshots[-1], "Köln, 5 < 6")
        self.assertEqual(final.output_text, "Köln, 5 < 6")

    def test_calls_and_their_results_go_back(self):
        question = [{"role": "user", "content": say("Let me see.\n" + CALL % ("weather", '{"city": "Köln"}') +
                                                    CALL % ("weather", '{"city": "Rom"}'))}]
        answer = self.ask(question, tools=TOOLS, instructions="Be brief")
        self.assertEqual(answer.output_text, "Let me see.")
        calls = [item for item in answer.output if item.type == "function_call"]
        self.assertEqual([(c.name, json.loads(c.arguments)) for c in calls],
                         [("weather", {"city": "Köln"}), ("weather", {"city": "Rom"})])
        self.assertEqual(len({c.call_id for c in calls} | {c.id for c in calls}), 4)
        with self.client.responses.stream(model="tiny", input=question, tools=TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_response()
        arguments = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
        deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
        # Each call has one or more: those that wait for the connection are sent as one.
        for call in (item for item in final.output if item.type == "function_call"):
            self.assertEqual("".join(e.delta for e in deltas if e.item_id == call.id), call.arguments)
        self.assertEqual(arguments, [c.arguments for c in calls])
        self.assertEqual([item.type for item in final.output], ["message", "function_call", "function_call"])
        results = [{"type": "function_call_output", "call_id": c.call_id, "output": f"rain {i}"}
                   for i, c in enumerate(calls)]
        last = self.ask(question + answer.output + results, tools=TOOLS, instructions="Be brief")
        self.assertEqual(last.output_text, "Be brief|rain 1")
        self.assertEqual([item.type for item in last.output], ["message"])
        # The same, with the conversation in the router.
        last = self.ask(results, tools=TOOLS, previous_response_id=answer.id)
        self.assertEqual(last.output_text, "-|rain 1")
        self.assertEqual(last.previous_response_id, answer.id)

    def test_tool_choice_and_parallel_calls(self):
        raw = CALL % ("weather", "{}")
        none = self.ask(say(raw), tools=TOOLS, tool_choice="none")
        self.assertEqual((none.output_text, none.tool_choice), (raw, "none"))
        one = self.ask(say(raw + raw), tools=TOOLS, parallel_tool_calls=False)
        self.assertEqual([item.type for item in one.output], ["function_call"])

    # The workers here obey no schema; those of tests of structured output do.
    def test_answers_of_a_schema_are_parsed(self):
        answer = self.client.responses.parse(model="tiny", input=say('{"city": "Rom"}'), text_format=Place)
        self.assertEqual(answer.output_parsed, Place(city="Rom"))
        self.assertEqual(answer.text.format.type, "json_schema")

    def test_responses_are_kept(self):
        first = self.ask(say("one"))
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, "one")
        self.client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(first.id)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.ask(say("two"), previous_response_id=first.id)
        self.assertEqual((caught.exception.code, caught.exception.param),
                         ("previous_response_not_found", "previous_response_id"))

    def test_logprobs(self):
        answer = self.ask(say("x"), include=["message.output_text.logprobs"])
        self.assertEqual(answer.output[0].content[0].logprobs, [])  # the scripted worker has none

    def test_errors_are_the_packages_exceptions(self):
        for options, param in (({"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]}, "tools[0].type"),
                               ({"extra_body": {"nonsense": 1}}, "nonsense"),
                               ({"temperature": 9}, "temperature"), ({"background": True}, "background")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask("x", **options)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaises(openai.NotFoundError) as caught:
            self.client.responses.create(model="other", input="x")
        self.assertEqual(caught.exception.code, "model_not_found")

    def test_every_field_of_the_package_is_honoured_or_refused_by_name(self):
        fields = set(response_create_params.ResponseCreateParamsBase.__annotations__) | {"stream"}
        self.assertGreater(len(fields), 25)
        for name in sorted(fields):
            # A value that no field takes: a field that is ignored in silence would let it pass.
            status, text = self.post({"input": say("x"), name: {"nonsense": {"x": 1}}})
            self.assertEqual(status, 400, f"{name}: {text}")
            self.assertTrue(json.loads(text)["error"]["param"].startswith(name), f"{name}: {text}")
        for name, value in GOOD.items():
            status, text = self.post({"input": say("x"), "tools": TOOLS, name: value})
            self.assertEqual(status, 200, f"{name}: {text}")


class AgentsTest(Router):
    def setUp(self):
        agents.set_tracing_disabled(True)
        self.cities = []

    def run_with_client(self, work):
        """What `work` returns, with a client of its event loop."""
        async def run():
            async with openai.AsyncOpenAI(base_url=self.url, api_key="none", max_retries=0,
                                          timeout=PATIENCE_S) as client:
                self.model = agents.OpenAIResponsesModel(model="tiny", openai_client=client)
                return await work()
        return asyncio.run(run())

    def agent(self, name, **options):
        return agents.Agent(name=name, model=self.model, **options)

    def weather(self):
        @agents.function_tool
        def weather(city: str) -> str:
            """The weather of a city."""
            self.cities.append(city)
            return f"rain in {city}"
        return weather

    def test_a_tool(self):
        async def work():
            agent = self.agent("Helper", instructions="Help", tools=[self.weather()])
            first = await agents.Runner.run(agent, say(CALL % ("weather", '{"city": "Rom"}')))
            # The conversation goes on with all items of before.
            items = first.to_input_list() + [{"role": "user", "content": say("bye")}]
            return first, await agents.Runner.run(agent, items)

        first, second = self.run_with_client(work)
        self.assertEqual(self.cities, ["Rom"])
        self.assertEqual(first.final_output, "Help|rain in Rom")
        self.assertEqual(len(first.raw_responses), 2)
        self.assertEqual(second.final_output, "bye")

    def test_a_tool_with_the_conversation_in_the_router(self):
        async def work():
            agent = self.agent("Helper", instructions="Help", tools=[self.weather()])
            return await agents.Runner.run(agent, say(CALL % ("weather", '{"city": "Rom"}')),
                                           auto_previous_response_id=True)

        self.assertEqual(self.run_with_client(work).final_output, "Help|rain in Rom")

    def test_an_answer_of_a_type(self):
        async def work():
            agent = self.agent("Helper", output_type=Place)
            return await agents.Runner.run(agent, say('{"city": "Rom"}'))

        self.assertEqual(self.run_with_client(work).final_output, Place(city="Rom"))

    def test_a_handoff(self):
        async def work():
            helper = agents.handoff(self.agent("Helper", instructions="Help", handoff_description="Helps"))
            triage = self.agent("Triage", instructions="Hand off", handoffs=[helper])
            return await agents.Runner.run(triage, say(CALL % ("transfer_to_helper", "{}")))

        result = self.run_with_client(work)
        self.assertEqual(result.last_agent.name, "Helper")
        self.assertEqual(result.final_output, 'Help|{"assistant": "Helper"}')

    def test_a_stream(self):
        async def work():
            agent = self.agent("Helper", instructions="Help", tools=[self.weather()])
            result = agents.Runner.run_streamed(
                agent, say("Let me see." + CALL % ("weather", '{"city": "Köln"}')))
            text, kinds = "", []
            async for event in result.stream_events():
                if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                    text += event.data.delta
                elif event.type == "run_item_stream_event":
                    kinds.append(event.name)
            return text, kinds, result.final_output

        text, kinds, output = self.run_with_client(work)
        self.assertEqual(self.cities, ["Köln"])
        self.assertEqual(text, "Let me see.Help|rain in Köln")
        self.assertEqual(output, "Help|rain in Köln")
        self.assertEqual(sorted(kinds), sorted(["message_output_created", "tool_called", "tool_output",
                                                "message_output_created"]))


if __name__ == "__main__":
    unittest.main()

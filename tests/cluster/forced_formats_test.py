#!/usr/bin/env python3
"""What is constrained in the formats of several families of models, by unmodified clients against
real clusters: calls whose arguments are no JSON, reasoning before what is constrained, and answers of
a type beside tools.

    forced_formats_test.py BIN_DIR

The model is the demo's, which knows nothing of all this, with small chat templates of each form.
"""
import asyncio
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Literal

import agents
import anthropic
import jsonschema
import openai
from pydantic import BaseModel

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
import seed  # noqa: E402
from tool_model import END, MARKER, TEMPLATE, THOUGHT, add_calls, make_tool_model, whole_calls  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
PATIENCE_S = 120  # a limit, not an expectation
HEAD = """\
{%- for t in tools or [] %}{{ t.function.name }} {% endfor %}
{%- for m in messages %}{{ m.content }}
{%- for c in m.tool_calls or [] %}"""
TAIL = """{% endfor %}
{% endfor %}"""
QWEN = HEAD + """
<tool_call>
<function={{ c.function.name }}>
{% for k, v in c.function.arguments | items %}<parameter={{ k }}>
{{ v }}
</parameter>
{% endfor %}</function>
</tool_call>""" + TAIL
GLM = HEAD + """
<tool_call>{{ c.function.name }}
{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v }}</arg_value>
{% endfor %}</tool_call>""" + TAIL
GLM_COMPACT = GLM.replace("name }}\n", "name }}").replace("</arg_key>\n", "</arg_key>").replace(
    "</arg_value>\n", "</arg_value>")
LFM2 = HEAD + """
<|tool_call_start|>[{{ c.function.name }}(
{%- for k, v in c.function.arguments | items %}{{ k }}='{{ v }}'{% endfor %})]<|tool_call_end|>""" + TAIL
# As LFM2's own, which leaves earlier calls out.
LFM2_WITHOUT_CALLS = """\
{%- if tools %}List of tools: <|tool_list_start|>
{%- for t in tools %}{{ t.function.name }} {% endfor %}<|tool_list_end|>
{% endif %}{% for m in messages %}{{ m.content }}
{% endfor %}"""
GEMMA = HEAD + """
<|tool_call>call:{{ c.function.name }}{
{%- for k, v in c.function.arguments | items %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}}<tool_call|>""" + TAIL
HARMONY = HEAD + """
<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>
{{- c.function.arguments | tojson }}<|call|>""" + TAIL
# The prompt begins the reasoning, or has it closed.
THINKS = TEMPLATE + """{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% else %}<think>
{% endif %}"""


class Place(BaseModel):
    kind: Literal["city", "town"]
    big: bool


class Cluster(unittest.TestCase):
    """A cluster of the model with `template`."""

    template = TEMPLATE
    special = {}  # the texts of special tokens, for make_tool_model

    @classmethod
    def setUpClass(cls):
        if cls is Cluster:
            raise unittest.SkipTest("no test of its own")
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-forced-formats-")
        model = Path(cls.directory.name) / "model"
        model.mkdir()
        make_tool_model(model, template=cls.template, **cls.special)
        cls.cluster, (_, _, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", Path(cls.directory.name), model=model, prefill=1, decode=1)
        cls.client = openai.OpenAI(base_url=f"http://{cls.http}/v1", api_key="none", max_retries=0,
                                   timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def ask(self, **options):
        return self.client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "copy: red green"}],
            **{"max_tokens": 400, "temperature": 1.0, **options})

    def streamed(self, **options):
        """What the chunks of a stream add up to: reasoning, text, calls as [name, arguments]."""
        reasoning, text, calls = "", "", []
        for chunk in self.ask(stream=True, **options):
            delta = chunk.choices[0].delta
            reasoning += getattr(delta, "reasoning_content", None) or ""
            text += delta.content or ""
            add_calls(chunk, calls)
        return reasoning, text, calls

    def parts(self, choice):
        """The same of a whole answer."""
        message = choice.message
        return (getattr(message, "reasoning_content", None) or "", message.content or "",
                [[c.function.name, c.function.arguments] for c in message.tool_calls or []])


def random_tools(rng, strict, more_values=()):
    """Tools whose arguments are short, of each kind that a style writes its own way."""
    values = {
        **dict(more_values),
        "unit": {"enum": ["C", "F°"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}, "on": {"type": "boolean"},
        "list": {"type": "array", "items": {"enum": ["</parameter>", "</arg_value>", 1]}, "maxItems": 2},
        "object": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                   "additionalProperties": False},
        "text": {"type": "string"}, "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}}
    tools = []
    for name in rng.sample(["f", "ff", "get_weather", "a.b-c"], rng.randrange(1, 4)):
        names = rng.sample(sorted(values), rng.randrange(0, 4))
        parameters = {"type": "object", "properties": {n: values[n] for n in names}, "required": names,
                      "additionalProperties": False}
        tools.append({"type": "function", "function": {"name": name, "strict": strict, "parameters": parameters}})
    return tools


class StyleTest:
    """Forced calls in one style: what comes back is valid, whole and streamed."""

    may_reason = False
    least = 4  # answers that end
    more_values = ()  # schemas that other styles refuse, by name
    end_bias = {}  # for what ends a text

    def test_forced_calls_are_valid(self):
        ended = with_arguments = asked = 0
        # A text that has nothing to end it but its mark goes on to the length, as a rule, and random tools may have no
        # parameters: it goes on until enough have ended.
        for number in range(96):
            if number >= 24 and min(ended, with_arguments) >= self.least:
                break
            asked += 1
            rng = seed.generator(f"{type(self).__name__} {number}")
            tools = random_tools(rng, strict=True, more_values=self.more_values)
            schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
            # The end, and what ends a text, is likely where it may come.
            options = {"tools": tools, "tool_choice": "required", "seed": number,
                       "parallel_tool_calls": number % 2 == 0, "logit_bias": {str(END): 5, **self.end_bias}}
            choice = self.ask(**options).choices[0]
            reasoning, text, calls = self.parts(choice)
            for call in whole_calls(choice):
                arguments = json.loads(call.function.arguments)
                jsonschema.Draft202012Validator(schemas[call.function.name]).validate(arguments)
                with_arguments += arguments != {}
            self.assertTrue(self.may_reason or reasoning == "")
            if choice.finish_reason != "length":
                self.assertEqual(choice.finish_reason, "tool_calls")
                self.assertEqual(text, "")
                self.assertGreaterEqual(len(calls), 1)
                ended += 1
            if number % 4 == 0:
                self.assertEqual(self.streamed(**options), (reasoning, text, calls))
        print(f"{type(self).__name__}: {ended} of {asked} answers ended, {with_arguments} calls with arguments")
        self.assertGreaterEqual(ended, self.least)
        self.assertGreaterEqual(with_arguments, self.least)


BARE_VALUES = (
    ("code", {"type": "string", "pattern": "^[a-z]{2}-[0-9]$"}), ("short", {"type": "string", "maxLength": 3}),
    ("long", {"type": "string", "minLength": 1, "maxLength": 9}), ("mixed", {"enum": ["True", 1, None]}),
    ("due", {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]}))


class QwenTest(StyleTest, Cluster):
    template = QWEN
    more_values = BARE_VALUES


class GlmTest(StyleTest, Cluster):
    template = GLM
    more_values = BARE_VALUES


class GlmCompactTest(StyleTest, Cluster):
    template = GLM_COMPACT


class LiteralsTest(StyleTest):
    """The same in styles with quotes, which know every schema; named, and strict in a text, too."""

    more_values = (
        ("code", {"type": "string", "pattern": "^[a-z]{2}-[0-9]$"}), ("short", {"type": "string", "maxLength": 3}),
        ("any", {}), ("mixed", {"enum": ["True", True, None, 'q"\'\\', [1, {"k 1": False}]]}),
        ("tree", {"type": "object", "properties": {"on": {"type": "boolean"}, "kids": {
            "type": "array", "items": {"type": "object", "properties": {}, "additionalProperties": False},
            "maxItems": 2}}, "additionalProperties": False}))
    tool = {"type": "function", "function": {"name": "place", "strict": True,
                                             "parameters": Place.model_json_schema()}}

    def test_a_named_function(self):
        for number in range(4):
            options = {"tools": [self.tool], "tool_choice": {"type": "function", "function": {"name": "place"}},
                       "seed": number}
            choice = self.ask(**options).choices[0]
            _, text, calls = parts = self.parts(choice)
            self.assertEqual((choice.finish_reason, text, len(calls)), ("stop", "", 1))
            Place.model_validate_json(calls[0][1])
            self.assertEqual(self.streamed(**options), parts)

    def test_strict_tools_in_a_text(self):
        called = texts = 0
        for number in range(9):
            options = {"tools": [self.tool], "seed": number, "max_tokens": 300, "parallel_tool_calls": number % 2 == 0,
                       "logit_bias": {str(MARKER): (-100, 6, 100)[number % 3], str(END): 3}}
            choice = self.ask(**options).choices[0]
            _, text, calls = parts = self.parts(choice)
            for call in whole_calls(choice):
                self.assertEqual(call.function.name, "place")
                Place.model_validate_json(call.function.arguments)
            self.assertTrue(number % 2 == 0 or len(calls) <= 1)
            called, texts = called + bool(calls), texts + bool(text)
            self.assertEqual(self.streamed(**options), parts)
        print(f"{type(self).__name__}: {called} of 9 answers with calls, {texts} with texts")
        self.assertTrue(called and texts)

    def test_what_is_refused(self):
        bad = json.loads(json.dumps(self.tool))
        bad["function"]["parameters"] = {"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}}
        with self.assertRaisesRegex(openai.BadRequestError, "multipleOf"):
            self.ask(tools=[bad])
        raw = self.client.chat.completions.with_raw_response.create(
            model="model", messages=[{"role": "user", "content": "hi"}], max_tokens=1, tools=[self.tool])
        self.assertNotIn("strict", raw.headers.get("x-baton-ignored") or "")


class Lfm2Test(LiteralsTest, Cluster):
    template = LFM2
    special = {"marker": "<|tool_call_start|>", "thought": "<|tool_call_end|>"}


class Lfm2WithoutCallsTest(LiteralsTest, Cluster):
    template = LFM2_WITHOUT_CALLS
    special = {"marker": "<|tool_call_start|>"}


class GemmaTest(LiteralsTest, Cluster):
    template = GEMMA
    special = {"marker": "<|tool_call>", "thought": '<|"|>'}
    end_bias = {str(THOUGHT): 5}


class HarmonyTest(StyleTest, Cluster):
    template = HARMONY
    may_reason = True  # to its length: the model does not know the mark that ends it
    least = 2


class HarmonyMessagesTest(Cluster):
    """Strict tools, and answers of a type, where each answer is messages."""

    template = HARMONY
    special = {"marker": "<|channel|>", "thought": "<|end|>"}
    tools = [{"type": "function", "function": {"name": "place", "strict": True,
                                               "parameters": Place.model_json_schema()}}]

    def answers(self, **more):
        """Answers that end, as reasoning, text and calls. The end of messages is likely, and the beginning of a call."""
        model = Path(self.directory.name) / "model/tokenizer.json"
        vocabulary = json.loads(model.read_text(encoding="utf-8"))["model"]["vocab"]
        begins = {str(token): 6 for text, token in vocabulary.items() if "commentary".startswith(text)}
        for number in range(16):
            options = {"tools": self.tools, "seed": number, "max_tokens": 300, "logit_bias": {
                **(begins if number % 4 > 1 else {}), str(END): 4, str(THOUGHT): (4, 8)[number % 2]}, **more}
            choice = self.ask(**options).choices[0]
            parts = self.parts(choice)
            for call in whole_calls(choice):
                self.assertEqual(call.function.name, "place")
                Place.model_validate_json(call.function.arguments)
            self.assertLessEqual(len(parts[2]), 1)
            if number % 4 == 0:
                self.assertEqual(self.streamed(**options), parts)
            if choice.finish_reason != "length":
                self.assertEqual(choice.finish_reason, "tool_calls" if parts[2] else "stop")
                yield parts

    def test_strict_tools_beside_a_text(self):
        answers = list(self.answers())
        print(f"{len(answers)} of 16 answers ended, {sum(bool(a[2]) for a in answers)} with a call")
        self.assertTrue(any(a[2] for a in answers))
        self.assertTrue(any(a[1] and not a[2] for a in answers))

    def test_an_answer_of_a_type_beside_tools(self):
        answers = list(self.answers(response_format=ReasoningTest.schema))
        for _, text, calls in answers:
            self.assertNotEqual(bool(text), bool(calls))
            if text:
                Place.model_validate_json(text)
        print(f"{len(answers)} of 16 answers ended, {sum(bool(a[2]) for a in answers)} with a call")
        self.assertTrue(any(a[1] for a in answers) and any(a[2] for a in answers))

    def test_strict_is_not_ignored(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model="model", messages=[{"role": "user", "content": "hi"}], max_tokens=1, tools=self.tools)
        self.assertNotIn("strict", raw.headers.get("x-baton-ignored") or "")


class ReasoningTest(Cluster):
    template = THINKS
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": Place.model_json_schema()}}

    def test_json_follows_the_reasoning(self):
        thought = 0
        for number in range(6):
            options = {"response_format": self.schema, "seed": number, "logit_bias": {str(THOUGHT): (6, 12)[number % 2]}}
            choice = self.ask(**options).choices[0]
            reasoning, text, _ = parts = self.parts(choice)
            if choice.finish_reason == "stop":
                Place.model_validate_json(text)
                thought += reasoning != ""
            self.assertEqual(self.streamed(**options), parts)
        self.assertGreater(thought, 0)
        # The end is a part of no answer, and no answer ends within the reasoning by itself.
        within = self.ask(response_format=self.schema, max_tokens=20,
                          logit_bias={str(THOUGHT): -100, str(END): 100}).choices[0]
        self.assertEqual(within.finish_reason, "length")
        self.assertEqual(self.parts(within)[1], "")

    def test_a_prompt_that_closes_the_reasoning_leaves_none(self):
        ended = 0
        for number in range(4):
            choice = self.ask(response_format=self.schema, reasoning_effort="none", seed=number).choices[0]
            self.assertEqual(self.parts(choice)[0], "")
            if choice.finish_reason == "stop":
                Place.model_validate_json(choice.message.content)
                ended += 1
        self.assertGreater(ended, 0)

    def test_calls_follow_the_reasoning(self):
        tools = [{"type": "function", "function": {"name": "place", "parameters": Place.model_json_schema()}}]
        ended = 0
        for number in range(6):
            choice = self.ask(tools=tools, tool_choice={"type": "function", "function": {"name": "place"}}, seed=number,
                              logit_bias={str(THOUGHT): 12}).choices[0]
            if choice.finish_reason == "length":
                continue
            reasoning, text, calls = self.parts(choice)
            self.assertEqual((text, len(calls)), ("", 1))
            self.assertNotEqual(reasoning, "")
            Place.model_validate_json(calls[0][1])
            ended += 1
        self.assertGreater(ended, 0)

    def test_the_same_tokens_in_any_batch(self):
        options = {"response_format": self.schema, "logit_bias": {str(THOUGHT): 8}, "seed": 5}
        alone = [self.parts(c) for c in self.ask(**options).choices]
        together = [self.parts(c) for c in self.ask(n=4, **options).choices]
        self.assertEqual(together[0], alone[0])
        self.assertEqual([self.parts(c) for c in self.ask(n=4, **options).choices], together)


class AnswersBesideToolsTest(Cluster):
    def test_calls_or_json(self):
        rng = seed.generator("answers beside tools")
        tools = random_tools(rng, strict=True)
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in tools}
        answers = called = 0
        # Of some random tools, few calls end within the answer.
        for number in range(60):
            if number >= 12 and answers and called:
                break
            options = {"tools": tools, "response_format": ReasoningTest.schema, "seed": number,
                       "logit_bias": {str(MARKER): (-100, 0, 100)[number % 3], str(END): 5}}
            choice = self.ask(**options).choices[0]
            _, text, calls = self.parts(choice)
            whole = list(whole_calls(choice))
            for call in whole:
                arguments = json.loads(call.function.arguments)
                jsonschema.Draft202012Validator(schemas[call.function.name]).validate(arguments)
            called += bool(whole)
            if choice.finish_reason != "length":
                self.assertNotEqual(bool(text), bool(calls))
                if text:
                    Place.model_validate_json(text)
                answers += bool(text)
            self.assertEqual(self.streamed(**options)[2], calls)
        print(f"{answers} answers, {called} with calls")
        self.assertTrue(answers and called)

    def run_agent(self, model, marker_bias):
        """The output of an agent with a strict tool and a type for its answer, and the arguments of calls."""
        units = []

        @agents.function_tool
        def weather(unit: Literal["C", "F"]) -> str:
            """The weather."""
            units.append(unit)
            return "rain"

        async def run():
            async with openai.AsyncOpenAI(base_url=f"http://{self.http}/v1", api_key="none", max_retries=0,
                                          timeout=PATIENCE_S) as client:
                agent = agents.Agent(
                    name="Helper", model=model(model="model", openai_client=client), tools=[weather],
                    output_type=Place, model_settings=agents.ModelSettings(
                        temperature=1.0, parallel_tool_calls=False,
                        extra_body={"logit_bias": {str(MARKER): marker_bias}, "seed": 3}))
                try:
                    return (await agents.Runner.run(agent, "hi", max_turns=1)).final_output
                except agents.MaxTurnsExceeded:
                    return None
        return asyncio.run(run()), units

    def test_an_agent_with_a_tool_and_an_output_type(self):
        agents.set_tracing_disabled(True)
        for model in (agents.OpenAIResponsesModel, agents.OpenAIChatCompletionsModel):
            output, units = self.run_agent(model, marker_bias=-100)
            self.assertIsInstance(output, Place)
            self.assertEqual(units, [])
            output, units = self.run_agent(model, marker_bias=100)
            self.assertIsNone(output)
            self.assertIn(units, (["C"], ["F"]))

    def test_messages_with_tools_and_a_format(self):
        client = anthropic.Anthropic(base_url=f"http://{self.http}", api_key="none", max_retries=0,
                                     timeout=PATIENCE_S)
        ended = 0
        for _ in range(6):
            message = client.messages.create(
                model="model", max_tokens=300, messages=[{"role": "user", "content": "hi"}],
                tools=[{"name": "f", "strict": True, "input_schema": {
                    "type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}}],
                extra_body={"output_config": {"format": {"type": "json_schema", "schema": Place.model_json_schema()}}})
            if message.stop_reason == "tool_use":
                self.assertIn(message.content[-1].input["unit"], ("C", "F"))
            elif message.stop_reason == "end_turn":
                Place.model_validate_json(message.content[-1].text)
            ended += message.stop_reason != "max_tokens"
        self.assertGreater(ended, 0)

    def test_any_white_space_is_asked_for(self):
        # A space is far likelier than all else, where it may come.
        options = {"response_format": ReasoningTest.schema, "max_tokens": 120,
                   "logit_bias": {str(self.space()): 100}, "temperature": 0}
        longest = [max(map(len, re.findall(" +", self.ask(**options, **more).choices[0].message.content)))
                   for more in ({}, {"extra_body": {"any_whitespace": True}})]
        self.assertEqual(longest[0], 16)
        self.assertGreater(longest[1], 100)

    def space(self):
        tokenizer = json.loads((Path(self.directory.name) / "model/tokenizer.json").read_text(encoding="utf-8"))
        return tokenizer["model"]["vocab"]["Ġ"]


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Forced and strict tool calls of the unmodified `openai` package against a real cluster: whatever a
small model draws, each call is of a known tool and its arguments are valid against its schema.

    forced_calls_test.py BIN_DIR

BATON_TEST_FORCED_CALLS is the number of forced calls with random tools, 60 if it is not set. The
model is the demo's. It knows nothing of tools, so that only the constraint makes calls; its
tokenizer has one marker of calls as a special token and spells the other.
"""
import concurrent.futures
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import jsonschema
import openai

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
import seed  # noqa: E402
from tool_model import END, MARKER, add_calls, make_tool_model, whole_calls  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
COUNT = int(os.environ.get("BATON_TEST_FORCED_CALLS", "60"))
PATIENCE_S = 120  # a limit, not an expectation
def random_schema(rng, depth=0):
    values = [
        {"type": "integer", "minimum": -3, "maximum": 400}, {"type": "boolean"},
        {"type": "string", "minLength": 1, "maxLength": 6}, {"enum": ["red", "blue", 'q"', 7, None]},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3},
        {"type": "string", "pattern": "^[a-z]{1,4}-[0-9]{2}$"}, {"type": ["null", "boolean"]},
    ]
    if depth < 2:
        values += [random_schema(rng, depth + 1)] * 2
    names = rng.sample(["city", "n", "é t", "</tool_call>", "unit", "on"], rng.randrange(0, 4))
    return {"type": "object", "properties": {name: rng.choice(values) for name in names},
            "required": [name for name in names if rng.random() < 0.7], "additionalProperties": False}


def random_tools(rng):
    names = rng.sample(["get_weather", "f", "ff", "lookup.all", "quo\"te", "naïve"], rng.randrange(1, 5))
    return [{"type": "function", "function": {"name": name, "parameters": random_schema(rng)}} for name in names]


class ForcedCallsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-forced-calls-")
        model = Path(cls.directory.name) / "model"
        model.mkdir()
        make_tool_model(model)
        cls.cluster, (_, _, http) = demo_cluster.start_cluster(
            BIN / "baton", Path(cls.directory.name), model=model, prefill=1, decode=1)
        cls.client = openai.OpenAI(base_url=f"http://{http}/v1", api_key="none", max_retries=0,
                                   timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def ask(self, tools, **options):
        return self.client.chat.completions.create(
            model="model", messages=[{"role": "user", "content": "copy: red green"}], tools=tools,
            **{"max_tokens": 500, "temperature": 1.0, **options})

    def streamed(self, tools, **options):
        """What the chunks of a stream add up to: text, calls as [name, arguments], finish."""
        text, calls, finish = "", [], None
        for chunk in self.ask(tools, stream=True, **options):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            add_calls(chunk, calls)
            finish = chunk.choices[0].finish_reason or finish
        return text, calls, finish

    def check(self, tools, choice):
        """The number of calls, each of which is what its tool's schema allows."""
        schemas = {t["function"]["name"]: t["function"].get("parameters", {}) for t in tools}
        calls = whole_calls(choice)
        for call in calls:
            self.assertIn(call.function.name, schemas)
            arguments = json.loads(call.function.arguments)
            self.assertIsInstance(arguments, dict)
            jsonschema.Draft202012Validator(schemas[call.function.name]).validate(arguments)
        self.assertEqual(len({call.id for call in calls}), len(calls))
        return len(calls)

    def check_random(self, number):
        """One forced call with random tools. Returns the calls, and whether the answer ended."""
        rng = seed.generator(f"forced call {number}")
        tools = random_tools(rng)
        # With the bias, the end is likely where it may come; without it, more calls are.
        options = {"seed": number, "logprobs": rng.random() < 0.2, "logit_bias": {str(END): (5, 0)[number % 2]}}
        if named := rng.random() < 0.4:
            name = rng.choice(tools)["function"]["name"]
            options["tool_choice"] = {"type": "function", "function": {"name": name}}
        else:
            options["tool_choice"] = "required"
        if single := rng.random() < 0.3:
            options["parallel_tool_calls"] = False
        choice = self.ask(tools, **options).choices[0]
        calls = self.check(tools, choice)
        if choice.finish_reason == "length":
            return calls, False
        self.assertEqual(choice.finish_reason, "stop" if named else "tool_calls")
        self.assertIsNone(choice.message.content)
        self.assertGreaterEqual(calls, 1)
        if named or single:
            self.assertEqual(calls, 1)
        if named:
            self.assertEqual(choice.message.tool_calls[0].function.name, name)
        if number % 3 == 0:
            self.assertEqual(self.streamed(tools, **options),
                             ("", [[c.function.name, c.function.arguments] for c in choice.message.tool_calls],
                              choice.finish_reason))
        return calls, True

    def test_random_forced_calls_are_valid(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(self.check_random, range(COUNT)))
        ended = sum(end for _, end in results)
        print(f"{COUNT} requests, {ended} answers ended, {sum(calls for calls, _ in results)} calls, "
              f"{sum(calls > 1 for calls, _ in results)} answers with several")
        self.assertGreater(ended, COUNT * 0.5)
        self.assertTrue(any(calls > 1 for calls, _ in results))

    def test_strict_tools_constrain_calls_in_a_text(self):
        tools = random_tools(seed.generator("strict tools"))
        tools[0]["function"]["strict"] = True
        with_text = called = 0
        for number in range(12):
            # The marker is likely, so that calls come.
            options = {"seed": number, "logit_bias": {str(MARKER): (10, 20, 40)[number % 3]}, "temperature": 1.3}
            choice = self.ask(tools, **options).choices[0]
            calls = self.check(tools, choice)
            if choice.finish_reason != "length":  # else a call may be cut off
                self.assertNotIn("<tool_call>", choice.message.content or "")
            with_text += bool(choice.message.content)
            called += calls > 0
            self.assertEqual(self.streamed(tools, **options)[1],
                             [[c.function.name, c.function.arguments] for c in choice.message.tool_calls or []])
            self.assertLessEqual(self.check(tools, self.ask(tools, parallel_tool_calls=False, **options).choices[0]), 1)
        print(f"12 answers: {with_text} with text, {called} with calls")
        self.assertTrue(with_text and called)

    def test_a_tool_that_is_not_strict_may_have_a_schema_beyond_the_support(self):
        beyond = {"type": "object", "properties": {"a": {"multipleOf": 3}}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": beyond}}]
        choice = self.ask(tools, tool_choice="required", parallel_tool_calls=False, temperature=0).choices[0]
        for call in whole_calls(choice):
            self.assertIsInstance(json.loads(call.function.arguments), dict)
        tools[0]["function"]["strict"] = True
        with self.assertRaises(openai.BadRequestError) as caught:
            self.ask(tools)
        self.assertEqual((caught.exception.code, caught.exception.param),
                         ("schema_unsupported", "tools[0].function.parameters"))

    def test_what_cannot_be_forced_is_refused_by_name(self):
        tools = random_tools(seed.generator("tools"))
        strict = [{"type": "function", "function": {**tools[0]["function"], "strict": True}}]
        for given, options, code, param in (
                (tools, {"tool_choice": {"type": "function", "function": {"name": "none"}}}, "out_of_range",
                 "tool_choice.function.name"),
                (strict, {"extra_body": {"guided_regex": "a"}}, "not_with_structured_output",
                 "tools[0].function.strict")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask(given, **options)
            self.assertEqual((caught.exception.code, caught.exception.param), (code, param))
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model="model", messages=[{"role": "user", "content": "x"}], tool_choice="required")
        self.assertEqual(caught.exception.param, "tools")


if __name__ == "__main__":
    unittest.main()

"""The unmodified `openai` package against a cluster: completions, streams, usage, errors, cancel;
and against scripted workers: tools.

    openai_test.py BIN_DIR
"""
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import openai
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import demo_cluster  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
STRUCTURED_OUTPUT = (BIN / "baton-grammar").exists()
PATIENCE_S = 60
PROMPT = "copy: red green blue\n"
# Values that each endpoint takes, by field; others are refused by name.
GOOD = {
    "frequency_penalty": 0.5, "logit_bias": {"5": 1}, "max_tokens": 3, "model": "demo", "n": 2,
    "presence_penalty": 0.5, "seed": 7, "stop": ["x"], "temperature": 0.5, "top_p": 0.5, "user": "me",
}
GOOD_CHAT = {
    **GOOD, "messages": [{"role": "user", "content": PROMPT}], "logprobs": True,
    "max_completion_tokens": 3, "modalities": ["text"], "parallel_tool_calls": True, "store": True,
    "service_tier": "flex", "prompt_cache_key": "k", "safety_identifier": "s", "tools": [],
    "metadata": {"a": "b"}, "verbosity": "low", "functions": [], "function_call": "auto",
    "prediction": {"type": "content", "content": "x"}, "prompt_cache_retention": "24h",
    "top_logprobs": 0, "stream_options": {"include_usage": True},
    "tool_choice": "none", "response_format": {"type": "text"}, "reasoning_effort": "low",
}
SCHEMAS = (
    {"type": "object", "additionalProperties": False,
     "properties": {"name": {"type": "string", "minLength": 2, "maxLength": 8},
                    "age": {"type": "integer", "minimum": 3, "exclusiveMaximum": 120},
                    "kind": {"enum": ["a", "b\"c", 1, None, True]},
                    "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{1,4}$"},
                             "minItems": 1, "maxItems": 3},
                    "day": {"type": "string", "format": "date"}},
     "required": ["name", "age", "tags"]},
    {"$defs": {"tree": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": -5, "maximum": 5},
        "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, "required": ["v", "next"]}},
     "$ref": "#/$defs/tree"},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"const": {"x": [1]}}], "minItems": 2,
     "maxItems": 2},
    {"oneOf": [{"type": "integer", "minimum": 10, "maximum": 99}, {"type": ["null", "boolean"]}]},
)
GOOD_COMPLETION = {**GOOD, "prompt": [PROMPT, PROMPT], "logprobs": 2, "best_of": 1, "echo": True,
                   "suffix": ""}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}}]
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


def post(http, path, body):
    """The status and the JSON of an answer."""
    request = urllib.request.Request(f"http://{http}{path}", json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def metric(address, name):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-openai-")
        cls.cluster, (cls.grpc, cls.metrics, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", Path(cls.directory.name))
        cls.client = openai.OpenAI(base_url=f"http://{cls.http}/v1", api_key="none", max_retries=0,
                                   timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)
        cls.directory.cleanup()

    def by_grpc(self, *flags):
        command = [BIN / "baton", "generate", "--json", "--address", self.grpc, *flags, PROMPT]
        result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return json.loads(result.stdout)["text"]

    def test_one_answer_by_http_and_grpc_streamed_and_whole(self):
        for flags, options in (
                (["--temperature", "0"], {"temperature": 0}),
                (["--temperature", "1", "--seed", "5"], {"temperature": 1, "seed": 5})):
            expected = self.by_grpc("--max-tokens", "12", *flags)
            whole = self.client.completions.create(
                model="demo", prompt=PROMPT, max_tokens=12, **options)
            self.assertEqual(whole.choices[0].text, expected)
            stream = self.client.completions.create(
                model="demo", prompt=PROMPT, max_tokens=12, stream=True,
                stream_options={"include_usage": True}, **options)
            chunks = list(stream)
            self.assertEqual("".join(c.choices[0].text for c in chunks[:-1]), expected)
            self.assertEqual(chunks[-1].choices, [])
            self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
            self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
            self.assertIn(chunks[-2].choices[0].finish_reason, ("stop", "length"))

    def test_choices_logprobs_and_cached_tokens(self):
        options = {"model": "demo", "prompt": PROMPT * 20, "max_tokens": 4, "n": 2, "seed": 3,
                   "temperature": 1, "logprobs": 2, "stop": ["zzz"]}
        first = self.client.completions.create(**options)
        again = self.client.completions.create(**options)
        self.assertEqual([c.text for c in first.choices], [c.text for c in again.choices])
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)
        for choice in first.choices:
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
            self.assertEqual(len(choice.logprobs.token_logprobs), len(choice.logprobs.tokens))
            self.assertTrue(all(2 <= len(top) <= 3 for top in choice.logprobs.top_logprobs))

    def ask(self, **options):
        """The complete ones of several random answers."""
        answer = self.client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": PROMPT}], n=8, max_tokens=300,
            temperature=1.5, seed=11, **options)
        texts = [c.message.content for c in answer.choices if c.finish_reason == "stop"]
        self.assertGreater(len(texts), 2, [c.message.content for c in answer.choices])
        return texts

    @unittest.skipUnless(STRUCTURED_OUTPUT, "built without structured output")
    def test_response_format(self):
        # The demo model would go on with any object for as long as it may; how long depends on the CPU's kernels.
        vocabulary = json.loads((ROOT / "models/demo/tokenizer.json").read_text())["model"]["vocab"]
        closing = {str(vocabulary[token]): bias for token, bias in (('}', 12), ('"', 8), (':', 8), ('1', 8))}
        for text in self.ask(response_format={"type": "json_object"}, logit_bias=closing):
            self.assertIsInstance(json.loads(text), dict)
        for schema in SCHEMAS:
            jsonschema.Draft202012Validator.check_schema(schema)
            for text in self.ask(response_format={
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": schema}}):
                jsonschema.validate(json.loads(text), schema)
        for regex in (r"(yes|no), [a-z]{3,9}\.", r"\d{4}-\d{2}-\d{2}", r"[^a-z\s]{1,5}x?"):
            for text in self.ask(extra_body={"structured_outputs": {"regex": regex}}):
                self.assertTrue(re.fullmatch(regex, text, re.ASCII), (regex, text))
        choices = ["red", "green", "light blue"]
        for text in self.ask(extra_body={"structured_outputs": {"choice": choices}}):
            self.assertIn(text, choices)

    @unittest.skipIf(STRUCTURED_OUTPUT, "built with structured output")
    def test_response_format_is_refused_without_baton_grammar(self):
        with self.assertRaises(openai.APIStatusError) as caught:
            self.ask(response_format={"type": "json_object"})
        self.assertEqual(caught.exception.status_code, 501)
        self.assertEqual(caught.exception.code, "structured_output_unavailable")

    def test_response_formats_that_would_be_weakened_are_refused(self):
        for schema, code in (({"not": {"type": "string"}}, "schema_unsupported"),
                             ({"type": "text"}, "schema_invalid")):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask(response_format={"type": "json_schema",
                                          "json_schema": {"name": "n", "schema": schema}})
            self.assertEqual(caught.exception.code, code)

    def test_chat_renders_the_template_and_continues_a_conversation(self):
        table = "Table:\n brano = 4829\n kipe = 0031\nQ brano ?"
        options = {"model": "demo", "temperature": 0, "max_tokens": 8}
        text = self.client.completions.create(prompt=table, **options).choices[0].text
        self.assertEqual(text, " 4829")
        messages = [{"role": "user", "content": table}]
        first = self.client.chat.completions.create(messages=messages, **options)
        self.assertEqual(first.choices[0].message.content, text)
        self.assertEqual(first.choices[0].message.role, "assistant")
        self.assertEqual(first.choices[0].finish_reason, "stop")
        messages += [{"role": "assistant", "content": text},
                     {"role": "user", "content": [{"type": "text", "text": "Q kipe ?"}]}]
        chunks = list(self.client.chat.completions.create(
            messages=messages, stream=True, stream_options={"include_usage": True}, **options))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content for c in chunks[:-1]), " 0031")
        self.assertGreater(chunks[-1].usage.prompt_tokens, first.usage.prompt_tokens)
        scored = self.client.chat.completions.create(
            messages=messages, logprobs=True, top_logprobs=2, n=2, **options)
        for choice in scored.choices:
            tokens = choice.logprobs.content
            self.assertEqual(b"".join(bytes(t.bytes or []) for t in tokens).decode(),
                             choice.message.content)
            self.assertTrue(all(len(t.top_logprobs) == 2 for t in tokens))

    def test_a_conversation_that_the_template_cannot_render_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "x" * 2_000_000}])
        self.assertEqual(caught.exception.param, "messages")

    def test_several_prompts_are_answered_as_each_alone(self):
        options = {"model": "demo", "max_tokens": 6, "temperature": 1, "seed": 9, "n": 2}
        prompts = [PROMPT, "copy: one two\n", "Q x ?"]
        alone = [self.client.completions.create(prompt=p, **options) for p in prompts]
        expected = [choice.text for one in alone for choice in one.choices]
        together = self.client.completions.create(prompt=prompts, **options)
        self.assertEqual([c.text for c in together.choices], expected)
        self.assertEqual([c.index for c in together.choices], list(range(6)))
        self.assertEqual(together.usage.prompt_tokens, sum(a.usage.prompt_tokens for a in alone))
        self.assertEqual(together.usage.completion_tokens,
                         sum(a.usage.completion_tokens for a in alone))
        texts = {}
        for chunk in self.client.completions.create(prompt=prompts, stream=True, **options):
            choice = chunk.choices[0]
            texts[choice.index] = texts.get(choice.index, "") + choice.text
        self.assertEqual([texts[i] for i in range(6)], expected)

    def test_echo_with_logprobs_scores_the_prompt(self):
        options = {"model": "demo", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
        answer = self.client.completions.create(**options).choices[0].text
        self.assertEqual(self.client.completions.create(echo=True, **options).choices[0].text,
                         PROMPT + answer)
        scored = self.client.completions.create(echo=True, logprobs=1, **options)
        choice = scored.choices[0]
        self.assertEqual(choice.text, PROMPT + answer)
        self.assertEqual(len(choice.logprobs.tokens),
                         scored.usage.prompt_tokens + scored.usage.completion_tokens)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in choice.logprobs.token_logprobs[1:]))
        self.assertTrue("".join(choice.logprobs.tokens).startswith(PROMPT))
        # The answer's first token as a part of the prompt has the log probability that it had.
        again = self.client.completions.create(
            **{**options, "prompt": choice.text, "max_tokens": 1}, echo=True, logprobs=1)
        at = scored.usage.prompt_tokens
        self.assertEqual(again.choices[0].logprobs.tokens[at], choice.logprobs.tokens[at])
        self.assertAlmostEqual(again.choices[0].logprobs.token_logprobs[at],
                               choice.logprobs.token_logprobs[at], places=4)
        chunks = list(self.client.completions.create(echo=True, logprobs=1, stream=True, **options))
        self.assertEqual("".join(c.choices[0].text for c in chunks), choice.text)
        self.assertEqual(sum((c.choices[0].logprobs.tokens for c in chunks if c.choices[0].logprobs),
                             []), choice.logprobs.tokens)

    # Evaluation harnesses ask for the probability of a text in this way.
    def test_a_prompt_is_scored_and_nothing_is_generated(self):
        options = {"model": "demo", "prompt": [PROMPT, PROMPT * 2], "echo": True, "logprobs": 2}
        scored = self.client.completions.create(max_tokens=0, **options)
        longer = self.client.completions.create(max_tokens=1, temperature=0, **options)
        self.assertEqual(scored.usage.completion_tokens, 0)
        self.assertEqual(scored.usage.prompt_tokens, longer.usage.prompt_tokens)
        for prompt, one, other in zip(options["prompt"], scored.choices, longer.choices):
            self.assertEqual((one.text, one.finish_reason), (prompt, "length"))
            self.assertEqual("".join(one.logprobs.tokens), prompt)
            self.assertEqual(one.logprobs.tokens, other.logprobs.tokens[:-1])
            self.assertEqual(one.logprobs.token_logprobs, other.logprobs.token_logprobs[:-1])
            self.assertEqual(one.logprobs.top_logprobs, other.logprobs.top_logprobs[:-1])
        text = self.client.completions.create(model="demo", prompt=PROMPT, echo=True, max_tokens=0)
        self.assertEqual((text.choices[0].text, text.choices[0].logprobs), (PROMPT, None))
        with self.assertRaises(openai.BadRequestError):
            self.client.completions.create(model="demo", prompt=PROMPT, max_tokens=0)

    def test_the_default_length_fits_the_room_that_is_left(self):
        context = self.client.models.list().data[0].max_model_len
        answer = self.client.completions.create(
            model="demo", prompt=[220] * (context - 4), extra_body={"ignore_eos": True})
        self.assertEqual(answer.usage.completion_tokens, 4)

    def test_lists_of_logprobs_describe_the_text(self):
        options = {"model": "demo", "prompt": "é😀z", "max_tokens": 12, "temperature": 1.5, "seed": 4,
                   "echo": True, "logprobs": 20, "extra_body": {"ignore_eos": True}}
        plain = self.client.completions.create(**options).choices[0]
        self.assertTrue(plain.text.startswith("é😀z"))
        # The stop string is in the middle of the answer.
        answer = plain.text[len("é😀z"):]
        stop = answer[len(answer) // 2:][:2]
        stopped = self.client.completions.create(stop=[stop], **options)
        streamed = {}
        for chunk in self.client.completions.create(stop=[stop], stream=True, **options):
            lists = chunk.choices[0].logprobs
            for name, values in (lists.model_dump() if lists else {}).items():
                streamed.setdefault(name, []).extend(values)
        self.assertEqual(streamed, stopped.choices[0].logprobs.model_dump())
        self.assertEqual(stopped.choices[0].finish_reason, "stop")
        for choice in (plain, stopped.choices[0]):
            lists = choice.logprobs
            sizes = {len(values) for values in lists.model_dump().values()}
            self.assertEqual(len(sizes), 1, sizes)
            self.assertEqual(lists.text_offset, sorted(lists.text_offset))
            for token, begin in zip(lists.tokens, lists.text_offset):
                self.assertLessEqual(begin, len(choice.text))
                if not token.startswith(("bytes:", "<|")) and begin + len(token) <= len(choice.text):
                    self.assertEqual(choice.text[begin:begin + len(token)], token)
            self.assertTrue(all(20 <= len(top) <= 21 for top in lists.top_logprobs[1:]))
        self.assertLess(len(stopped.choices[0].logprobs.tokens), len(plain.logprobs.tokens))
        generated = stopped.usage.completion_tokens
        self.assertLessEqual(len(stopped.choices[0].logprobs.tokens) - stopped.usage.prompt_tokens,
                             generated)

    def test_a_template_without_tools_refuses_them(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
        self.assertEqual(caught.exception.param, "tools")

    def test_errors_are_the_packages_exceptions(self):
        create = self.client.completions.create
        with self.assertRaises(openai.NotFoundError) as caught:
            create(model="other", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model="demo", prompt="word " * 5000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        self.assertRegex(caught.exception.message, r"\d+ tokens.* 1024 tokens")
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model="demo", prompt="x", temperature=9)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertIsNotNone(caught.exception.request_id)
        with self.assertRaises(openai.BadRequestError) as caught:
            create(model="demo", prompt="x", extra_body={"nonsense": 1})
        self.assertEqual(caught.exception.param, "nonsense")

    def test_the_request_id_is_echoed(self):
        answer = self.client.completions.with_raw_response.create(
            model="demo", prompt="x", max_tokens=1, extra_headers={"x-request-id": "mine"})
        self.assertEqual(answer.headers["x-request-id"], "mine")
        self.assertEqual(answer.parse().id, "cmpl-mine")

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").id, "demo")

    def test_a_client_that_leaves_frees_the_cluster(self):
        options = {"model": "demo", "prompt": PROMPT, "extra_body": {"ignore_eos": True}}
        stream = self.client.completions.create(max_tokens=900, stream=True, **options)
        next(iter(stream))
        stream.close()
        hasty = self.client.with_options(timeout=0.05)
        with self.assertRaises(openai.APITimeoutError):
            hasty.completions.create(max_tokens=900, n=8, **options)
        end = time.monotonic() + PATIENCE_S
        while metric(self.metrics, "baton_requests_inflight") > 0:
            self.assertLess(time.monotonic(), end, "requests are still running")
            time.sleep(0.01)

    def test_many_streams_at_once(self):
        texts = {}

        def ask(i):
            client = openai.OpenAI(base_url=f"http://{self.http}/v1", api_key="none", max_retries=0)
            stream = client.completions.create(model="demo", prompt=PROMPT, max_tokens=16,
                                               temperature=1, seed=i % 4, stream=True)
            texts[i] = "".join(chunk.choices[0].text for chunk in stream)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 24)
        for i, text in texts.items():
            self.assertEqual(text, texts[i % 4])

    def test_the_benchmark_measures_the_same_by_http_and_grpc(self):
        texts = Path(self.directory.name) / "texts.jsonl"
        texts.write_text("".join(json.dumps({"prompt": f"copy: red {i}\n", "output_tokens": 4}) + "\n"
                                 for i in range(8)), encoding="utf-8")
        custom = ["--dataset-name", "custom", "--dataset-path", texts, "--custom-output-len", "-1",
                  "--temperature", "0", "--ignore-eos"]
        http = ["--base-url", f"http://{self.http}", *custom]

        def bench(*flags):
            command = [BIN / "baton", "bench", "serve", "--num-prompts", "8", "--max-concurrency", "4",
                       "--json", "--save-detailed", *flags]
            result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            return json.loads(result.stdout)

        by_grpc = bench("--address", self.grpc, *custom)
        by_http = bench("--backend", "openai", *http)
        for key in ("completed", "total_input_tokens", "output_lens", "generated_texts", "errors"):
            self.assertEqual(by_grpc[key], by_http[key], key)
        self.assertEqual(by_grpc["output_lens"], [4] * 8)
        self.assertEqual([len(itls) for itls in by_http["itls"]], [3] * 8)
        self.assertEqual(bench("--backend", "openai-chat", *http)["completed"], 8)
        shared = bench("--address", self.grpc, "--dataset-name", "prefix_repetition",
                       "--prefix-repetition-num-prefixes", "1", "--prefix-repetition-prefix-len", "64",
                       "--prefix-repetition-suffix-len", "16", "--output-len", "2")
        self.assertEqual(shared["completed"], 8)
        self.assertGreater(shared["prefix_cache_hit_rate"], 0.1)

    def test_workload_benchmarks_find_their_prefixes_cached(self):
        def bench(*flags):
            command = [BIN / "baton", "bench", *flags, "--address", self.grpc, "--json"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
            return json.loads(result.stdout)

        judge = bench("judge", "--peer", f"http://{self.http}", "--shared-tokens", "128", "--own-tokens", "32",
                      "--items", "4", "--cold-items", "1", "--rounds", "2", "--verdict-tokens", "5")
        self.assertEqual(judge["peer"]["model_id"], "demo")
        for result in judge["results"]:
            self.assertEqual(result["failed"], 0, result)
            tokens = 128 if result["prefix"] == "rubric" else 160
            self.assertEqual(result["prompt_tokens"], tokens * result["completed"])
            if result["prefix"] == "warm":
                # Of 8 items. A router may prefer an idle worker without the rubric to a busy one with it.
                self.assertGreaterEqual(result["cached_tokens"], 4 * 112)
        agent = bench("agent", "--conversations", "3", "--turns", "3", "--tools-tokens", "96",
                      "--user-tokens", "24", "--answer-tokens", "8", "--think-time", "0.01")["results"][0]
        self.assertEqual((agent["completed"], agent["failed"]), (9, 0))
        self.assertEqual([turn["prompt_tokens"] for turn in agent["turns"]], [360, 456, 552])
        self.assertGreaterEqual(agent["turns"][2]["hit_rate"], 0.5)

    def test_every_field_of_the_package_is_honoured_or_refused_by_name(self):
        messages = [{"role": "user", "content": "x"}]
        fields = set(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
        chat_fields = set(chat_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
        self.assertGreater(len(fields), 15)
        self.assertGreater(len(chat_fields), 30)
        for path, names, base in (("/v1/completions", fields, {"prompt": PROMPT, "max_tokens": 2}),
                                  ("/v1/chat/completions", chat_fields, {"messages": messages})):
            for name in sorted(names):
                # A value that no field takes: a field that is ignored in silence would let it pass.
                status, answer = post(self.http, path, {**base, name: {"nonsense": {"x": 1}}})
                self.assertEqual(status, 400, f"{path} {name}: {answer}")
                self.assertTrue(answer["error"]["param"].startswith(name), f"{path} {name}: {answer}")
        for path, good, base in (
                ("/v1/completions", GOOD_COMPLETION, {"prompt": PROMPT}),
                ("/v1/chat/completions", GOOD_CHAT, {"messages": messages})):
            for name, value in good.items():
                body = {**base, "max_tokens": 2, name: value}
                status, answer = post(self.http, path, body)
                self.assertEqual(status, 200, f"{path} {name}: {answer}")


def say(text):
    """A message to which a scripted router answers `text`."""
    return {"role": "user", "content": f"((({text})))"}


class Scripted:
    """A router over scripted workers, with the chat template `template`."""

    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="baton-scripted-")
        (Path(cls.directory.name) / "chat_template.jinja").write_text(cls.template, encoding="utf-8")
        cls.router = subprocess.Popen([BIN.parent / "tests/scripted_router", cls.directory.name],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        address = cls.router.stdout.readline().strip()
        cls.client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0,
                                   timeout=PATIENCE_S)

    @classmethod
    def tearDownClass(cls):
        cls.router.communicate(timeout=PATIENCE_S)
        cls.directory.cleanup()


class ReasoningTest(Scripted, unittest.TestCase):
    template = "{# <think>…</think> #}{{ messages[-1].content }}<think>\n"

    def test_reasoning_arrives_before_the_content_whole_and_streamed(self):
        ask = {"model": "tiny", "messages": [say("Well, é.\n</think>\n\nIt is 4.")]}
        create = self.client.chat.completions.create
        message = create(**ask).choices[0].message
        self.assertEqual((message.reasoning_content, message.content), ("Well, é.", "It is 4."))
        deltas = [chunk.choices[0].delta for chunk in create(stream=True, **ask)]
        reasoning = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
        content = [delta.content or "" for delta in deltas]
        self.assertEqual(("".join(reasoning), "".join(content)), ("Well, é.", "It is 4."))
        last = max(i for i, text in enumerate(reasoning) if text)
        self.assertLessEqual(last, min(i for i, text in enumerate(content) if text))
        # The message goes back as it came.
        create(model="tiny", messages=[message, say("x")])

    def test_a_client_may_leave_the_reasoning_out(self):
        message = self.client.chat.completions.create(
            model="tiny", messages=[say("Well.</think>4")],
            extra_body={"include_reasoning": False}).choices[0].message
        self.assertEqual(message.content, "4")
        self.assertNotIn("reasoning_content", message.model_dump())


class ToolsTest(Scripted, unittest.TestCase):
    template = TEMPLATE

    def ask(self, messages, **options):
        return self.client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS,
                                                   **options)

    def streamed(self, messages, **options):
        """What the chunks of a stream add up to: text, calls as (id, name, arguments), finish."""
        text, calls, finish = "", [], None
        for chunk in self.ask(messages, stream=True, **options):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            for call in delta.tool_calls or []:
                if call.index == len(calls):
                    calls.append(["", "", ""])
                calls[call.index][0] += call.id or ""
                calls[call.index][1] += call.function.name or ""
                calls[call.index][2] += call.function.arguments or ""
            finish = chunk.choices[0].finish_reason or finish
        return text, calls, finish

    def test_calls_arrive_whole_and_streamed_and_results_go_back(self):
        question = say("Let me see.\n" + CALL % '"Köln"' + "\n" + CALL % '"<\\"Rom\\">"')
        answer = self.ask([question]).choices[0]
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertEqual(answer.message.content, "Let me see.")
        calls = answer.message.tool_calls
        self.assertEqual([c.function.name for c in calls], ["weather", "weather"])
        self.assertEqual([json.loads(c.function.arguments) for c in calls],
                         [{"city": "Köln"}, {"city": '<"Rom">'}])
        text, streamed, finish = self.streamed([question], n=1)
        self.assertEqual((text, finish), ("Let me see.", "tool_calls"))
        self.assertEqual([c[1:] for c in streamed],
                         [[c.function.name, c.function.arguments] for c in calls])
        ids = [c.id for c in calls] + [c[0] for c in streamed]
        self.assertEqual(len(set(ids)), 4, ids)
        self.assertTrue(all(i.startswith("call_") for i in ids))
        # The template says which result belongs to which call, and reads its arguments.
        messages = [question, answer.message,
                    {"role": "tool", "tool_call_id": calls[0].id, "content": "rain"}]
        final = self.ask(messages).choices[0]
        self.assertEqual(final.message.content, f"{calls[0].id}: Köln has rain")
        self.assertEqual(final.finish_reason, "stop")
        self.assertIsNone(final.message.tool_calls)

    def test_arguments_are_streamed_as_the_model_writes_them(self):
        long = "x" * 40
        pieces = [call.function for chunk in self.ask([say(CALL % f'"{long}"')], stream=True)
                  for call in chunk.choices[0].delta.tool_calls or []]
        self.assertEqual([p.name for p in pieces], ["weather"] + [None] * (len(pieces) - 1))
        self.assertEqual("".join(p.arguments for p in pieces), '{"city": "%s"}' % long)
        # The pieces that wait for the connection are sent as one.
        self.assertNotIn("", [p.arguments for p in pieces])
        with self.client.chat.completions.stream(model="tiny", messages=[say(CALL % f'"{long}"')],
                                                 tools=TOOLS) as stream:
            final = stream.get_final_completion()
        self.assertEqual(final.choices[0].message.tool_calls[0].function.arguments, '{"city": "%s"}' % long)

    def test_a_call_cut_off_has_what_is_there_and_may_be_sent_back(self):
        question = say(CALL % ('"' + "x" * 40))
        choice = self.ask([question], max_tokens=70).choices[0]
        self.assertEqual(choice.finish_reason, "length")
        call = choice.message.tool_calls[0]
        self.assertTrue('{"city": "xxx'.startswith(call.function.arguments[:13]), call)
        text, streamed, finish = self.streamed([question], max_tokens=70)
        self.assertEqual((text, [c[1:] for c in streamed], finish),
                         ("", [["weather", call.function.arguments]], "length"))
        result = {"role": "tool", "tool_call_id": call.id, "content": "the arguments are no JSON"}
        self.assertEqual(self.ask([question, choice.message, result]).choices[0].finish_reason, "stop")

    def test_a_call_alone_has_no_content_and_parallel_calls_may_be_refused(self):
        question = say(CALL % 1 + CALL % 2)
        message = self.ask([question], n=2).choices[1].message
        self.assertIsNone(message.content)
        self.assertEqual(len(message.tool_calls), 2)
        self.assertEqual(len(self.ask([question], parallel_tool_calls=False).choices[0]
                             .message.tool_calls), 1)
        self.assertEqual(len(self.streamed([question], parallel_tool_calls=False)[1]), 1)

    def test_what_is_no_call_is_text(self):
        for text in ("plain", "<tool_call>{\"name\": \"weather\", \"argum", "a <tool_ b",
                     "<tool_call>{\"name\": 5, \"arguments\": {}}"):
            choice = self.ask([say(text)]).choices[0]
            self.assertEqual(choice.message.content, text)
            self.assertIsNone(choice.message.tool_calls)
            self.assertEqual(choice.finish_reason, "stop")
            self.assertEqual(self.streamed([say(text)]), (text, [], "stop"))

    def test_tool_choice(self):
        raw = CALL % 1
        none = self.ask([say(raw)], tool_choice="none").choices[0]
        self.assertEqual((none.message.content, none.finish_reason), (raw, "stop"))
        for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.ask([say(raw)], tool_choice=choice)
            self.assertEqual(caught.exception.param, "tool_choice")


if __name__ == "__main__":
    unittest.main()

"""Requests as Codex and Claude Code send them, over plain HTTP against scripted workers: every field and header that
they send unasked is honoured, or named in x-baton-ignored, and what cannot be is refused by its name.

    agent_requests_test.py BIN_DIR
"""
import http.client
import json
import unittest
import urllib.parse

import responses_test
from responses_test import CALL, PATIENCE_S, say

SHELL = {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}},
                                          "workdir": {"type": "string"}, "timeout_ms": {"type": "number"}},
         "required": ["command"], "additionalProperties": False}
BASH = {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"},
                       "run_in_background": {"type": "boolean"}},
        "required": ["command"], "additionalProperties": False}


class AgentRouter(responses_test.Router):
    HEADERS = {}

    def send(self, method, path, body=None, **headers):
        """The status, the headers and the text of an answer."""
        address = urllib.parse.urlsplit(self.url).netloc
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json", **self.HEADERS, **headers})
            response = connection.getresponse()
            return response.status, response.headers, response.read().decode()
        finally:
            connection.close()

    def events(self, path, body, ignored):
        """The data of a stream's events; `ignored`: what x-baton-ignored names."""
        status, headers, text = self.send("POST", path, body, Accept="text/event-stream")
        self.assertEqual(status, 200, text)
        self.assertEqual(set(filter(None, headers.get("x-baton-ignored", "").split(", "))), ignored)
        return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]

    def refused(self, path, body):
        """The message of the refusal."""
        status, _, text = self.send("POST", path, body)
        self.assertEqual(status, 400, text)
        return json.loads(text)["error"]["message"]


class CodexTest(AgentRouter):
    HEADERS = {"originator": "codex_cli_rs", "session-id": "0199-a", "thread-id": "0199-a", "version": "0.147.0",
               "User-Agent": "codex_cli_rs/0.147.0", "x-codex-beta-features": "x", "x-codex-window-id": "0199-a:0",
               "Authorization": "Bearer none"}
    IGNORED = {"client_metadata", "reasoning.encrypted_content", "reasoning.effort", "reasoning.summary",
               "reasoning.context", "text.verbosity", "tools.custom", "tools.image_generation", "tools.local_shell",
               "tools.namespace.description", "tools.tool_search", "tools.web_search"}
    TOOLS = [
        {"type": "web_search", "external_web_access": False},
        {"type": "function", "name": "shell", "description": "Runs a command", "strict": False, "parameters": SHELL},
        {"type": "custom", "name": "apply_patch", "description": "Edits files",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\""}},
        {"type": "local_shell"}, {"type": "image_generation", "output_format": "png"}, {"type": "tool_search"},
        # The tools of an MCP server.
        {"type": "namespace", "name": "mcp__docs", "description": "Docs", "tools": [
            {"type": "function", "name": "find", "strict": False, "parameters": {"type": "object"}}]},
        {"type": "function", "name": "update_plan", "description": "Writes the plan", "strict": False,
         "parameters": {"type": "object", "properties": {"plan": {"type": "array", "items": {"type": "object"}}}}},
    ]

    def body(self, items, **members):
        return {"model": "tiny", "instructions": "You are Codex.", "input": items, "tools": self.TOOLS,
                "tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True,
                "reasoning": {"effort": "medium", "summary": "auto", "context": "all_turns"},
                "include": ["reasoning.encrypted_content"], "prompt_cache_key": "0199-a",
                "text": {"verbosity": "medium"},
                "client_metadata": {"x-codex-installation-id": "i", "x-codex-turn-metadata": "{}"}, **members}

    def test_a_session(self):
        call = CALL % ("shell", '{"command": ["ls", "-l"], "workdir": "/tmp"}')
        items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
                 {"type": "message", "role": "user", "content": [
                     {"type": "input_text", "text": "<environment_context>…</environment_context>"}]},
                 {"type": "message", "role": "user", "content": [{"type": "input_text", "text": say(call)}]}]
        events = self.events("/v1/responses", self.body(items), self.IGNORED)
        self.assertEqual(events[0]["type"], "response.created")
        done = [e["item"] for e in events if e["type"] == "response.output_item.done"]
        self.assertEqual([(i["type"], i["name"], json.loads(i["arguments"])) for i in done],
                         [("function_call", "shell", {"command": ["ls", "-l"], "workdir": "/tmp"})])
        # A reasoning item has nulls where nothing is encrypted.
        items += [{"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
                  {key: done[0][key] for key in ("type", "id", "status", "name", "arguments", "call_id")},
                  {"type": "function_call_output", "call_id": done[0]["call_id"], "output": "total 0"}]
        events = self.events("/v1/responses", self.body(items), self.IGNORED)
        text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        self.assertEqual(text, "You are Codex.|total 0")
        final = events[-1]
        self.assertEqual(final["type"], "response.completed")
        self.assertGreater(final["response"]["usage"]["output_tokens"], 0)
        items += [{"type": "message", "role": "assistant", "phase": "final_answer",
                   "content": [{"type": "output_text", "text": text}]},
                  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": say("bye")}]}]
        events = self.events("/v1/responses", self.body(items), self.IGNORED | {"phase"})
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], "bye")

    # Codex finds the tool of a call by its namespace and its name in it.
    def test_a_call_of_a_namespace(self):
        question = {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": say(CALL % ("mcp__docs__find", '{"q": 1}'))}]}
        events = self.events("/v1/responses", self.body([question]), self.IGNORED)
        call = next(e["item"] for e in events if e["type"] == "response.output_item.done")
        self.assertEqual((call["namespace"], call["name"], json.loads(call["arguments"])),
                         ("mcp__docs", "find", {"q": 1}))
        done = next(e for e in events if e["type"] == "response.function_call_arguments.done")
        self.assertEqual(done["name"], "find")
        self.assertEqual(events[-1]["response"]["output"], [call])
        items = [question, {key: call[key] for key in ("type", "namespace", "name", "arguments", "call_id")},
                 {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}]
        events = self.events("/v1/responses", self.body(items), self.IGNORED)
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], "You are Codex.|found")

    # codex exec --output-schema; a review has no tools.
    def test_an_answer_of_a_schema(self):
        answer_format = {"type": "json_schema", "strict": True, "name": "codex_output_schema",
                         "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}}}
        body = self.body([{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": say('{"a": true}')}]}], tools=[], text={"format": answer_format})
        events = self.events("/v1/responses", body, {i for i in self.IGNORED if i[:5] not in ("tools", "text.")})
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], '{"a": true}')

    def test_what_is_refused_is_named(self):
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
        image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
        for members, message in (
                ({"tool_choice": {"type": "web_search"}}, 'tool_choice.type: "web_search" given, only "function"'),
                ({"tools": self.TOOLS + [{"type": "mcp", "server_label": "s"}]}, 'tools[8].type: "mcp" given'),
                # Tools that are left out do not change the places of the others.
                ({"tools": [{"type": "web_search"}, {"type": "function", "name": ""}]}, "tools[1].name: "),
                ({"input": [item, {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": ""}]},
                 'input[1].type: "custom_tool_call" given'),
                ({"input": [item, {"type": "compaction", "encrypted_content": "c"}]}, "input[1].type: "),
                ({"input": [{**item, "content": [image]}]}, 'input[0].content[0].type: "input_image" given'),
                ({"include": ["web_search_call.results"]}, "include[0]: "),
                ({"client_metadata": "x"}, "client_metadata: "), ({"input": []}, "input: ")):
            self.assertIn(message, self.refused("/v1/responses", self.body([item]) | members))

    def test_the_list_of_models(self):
        status, _, text = self.send("GET", "/v1/models?client_version=0.147.0")
        self.assertEqual((status, json.loads(text)["data"][0]["id"]), (200, "tiny"))


class ClaudeCodeTest(AgentRouter):
    HEADERS = {"anthropic-version": "2023-06-01", "x-app": "cli", "User-Agent": "claude-cli/2.1.177 (external, cli)",
               "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,effort-2025-11-24,"
                                 "context-management-2025-06-27,prompt-caching-scope-2026-01-05",
               "X-Stainless-Lang": "js", "Authorization": "Bearer none"}
    PATH = "/v1/messages?beta=true"
    CACHED = {"cache_control": {"type": "ephemeral"}}
    IGNORED = {"x-anthropic-billing-header", "context_management", "output_config.effort", "thinking.display"}

    def conversation(self, messages, **members):
        """What a request that counts tokens has, too."""
        return {"model": "tiny", "messages": messages,
                "system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.177; cch=fa690;"},
                           {"type": "text", "text": "You are an agent.", **self.CACHED}],
                "tools": [{"name": "Bash", "description": "Runs a command", "input_schema": BASH},
                          {"name": "Task", "description": "Starts an agent", "input_schema": {
                              "type": "object", "properties": {}}, **self.CACHED}],
                "thinking": {"type": "adaptive", "display": "omitted"}, **members}

    def body(self, messages, **members):
        user = json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s" * 36})
        return {**self.conversation(messages), "max_tokens": 500, "stream": True, "temperature": 1,
                "metadata": {"user_id": user}, "output_config": {"effort": "medium"},
                "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, **members}

    def question(self, text):
        return {"role": "user", "content": [{"type": "text", "text": "<system-reminder>…</system-reminder>"},
                                            {"type": "text", "text": text, **self.CACHED}]}

    def test_a_session(self):
        messages = [self.question(say("I look.\n" + CALL % ("Bash", '{"command": "ls"}'))),
                    {"role": "system", "content": [{"type": "text", "text": "Skills: none", **self.CACHED}]}]
        events = self.events(self.PATH, self.body(messages), self.IGNORED)
        self.assertEqual((events[0]["type"], events[-1]["type"]), ("message_start", "message_stop"))
        started = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        self.assertEqual([block["type"] for block in started], ["text", "tool_use"])
        given = "".join(e["delta"].get("partial_json", "") for e in events if e["type"] == "content_block_delta")
        self.assertEqual(json.loads(given), {"command": "ls"})
        messages += [
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": started[1]["id"], "name": "Bash", "input": json.loads(given)}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": started[1]["id"], "content": "total 0",
                                          "is_error": False, **self.CACHED}]}]
        events = self.events(self.PATH, self.body(messages), self.IGNORED)
        text = "".join(e["delta"].get("text", "") for e in events if e["type"] == "content_block_delta")
        self.assertEqual(text, "You are an agent.|total 0")
        stop = next(e for e in events if e["type"] == "message_delta")
        self.assertEqual(stop["delta"]["stop_reason"], "end_turn")
        # With a budget, as other models get it, and with text beside the result.
        messages[-1]["content"].append({"type": "text", "text": say("[Request interrupted by user]")})
        body = self.body(messages, thinking={"type": "enabled", "budget_tokens": 31_999})
        self.events(self.PATH, body, self.IGNORED - {"thinking.display"} | {"thinking.budget_tokens"})

    def test_tokens_are_counted(self):
        status, _, text = self.send("POST", "/v1/messages/count_tokens?beta=true",
                                    self.conversation([self.question("x")], betas=["token-counting-2024-11-01"]))
        self.assertEqual(status, 200, text)
        self.assertGreater(json.loads(text)["input_tokens"], 0)

    # Before the session and beside it: whether the server answers, the quota, the title of a session.
    def test_probes(self):
        self.assertEqual(self.send("HEAD", "/")[0], 200)
        self.assertEqual(self.send("GET", "/v1/models?limit=1000")[0], 200)
        status, _, text = self.send("POST", self.PATH, {
            "model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}],
            "metadata": {"user_id": "u"}})
        self.assertEqual(status, 200, text)
        schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"],
                  "additionalProperties": False}
        body = self.body([self.question(say('{"title": "x"}'))], tools=[], stream=False, thinking={"type": "disabled"},
                         output_config={"format": {"type": "json_schema", "schema": schema}})
        status, _, text = self.send("POST", self.PATH, body)
        self.assertEqual(status, 200, text)
        self.assertEqual(json.loads(text)["content"][0]["text"], '{"title": "x"}')

    def test_what_is_refused_is_named(self):
        question = self.question("x")
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
        # Claude Code sends all tools at once after this refusal.
        deferred = {"name": "DeferredToolPlaceholder", "description": "a", "input_schema": {"type": "object"},
                    "defer_loading": True}
        for members, message in (
                ({"tools": [search]}, 'tools[0].type: "web_search_20250305" given, only "custom"'),
                ({"tools": [deferred]}, "tools[0].defer_loading: "),
                ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0]"),
                ({"messages": [question, {"role": "assistant", "content": "{"}]}, "messages: "),
                ({"speed": "fast"}, "speed: "), ({"nonsense": 1}, "nonsense: "),
                ({"context_management": 1}, "context_management: ")):
            self.assertIn(message, self.refused(self.PATH, self.body([question]) | members))


if __name__ == "__main__":
    unittest.main()

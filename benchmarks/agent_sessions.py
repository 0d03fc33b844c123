#!/usr/bin/env python3
"""Sessions of agents over /v1/responses and /v1/messages, in which each turn sends the whole conversation,
is answered by a forced call, and goes on with the call's result; a decode worker is killed in the middle.

    agent_sessions.py BIN_DIR [TURNS]

Prints the failed turns, and the share of the prompt tokens of each turn that its next turn finds cached.
docs/clients.md has the figures.
"""
import json
import os
import random
import signal
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402
from tool_model import make_tool_model  # noqa: E402

CONTEXT = 16_384
ANSWER_TOKENS = 80
INSTRUCTIONS = "You call tools. " * 6
SCHEMAS = {
    "weather": {"type": "object", "properties": {"city": {"type": "string", "minLength": 2, "maxLength": 8}},
                "required": ["city"], "additionalProperties": False},
    "count": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}},
              "required": ["n"], "additionalProperties": False},
}


def words(draw, count, of=("red", "green", "blue", "copy", "sun", "rain")):
    return " ".join(draw.choice(of) for _ in range(count))


class Session(threading.Thread):
    """One conversation. `turns` has each turn's prompt tokens, of which so many were cached."""

    def __init__(self, http, seed, count, on_turn):
        super().__init__(name=f"{type(self).__name__}-{seed}")
        self.http, self.count, self.on_turn = http, count, on_turn
        self.draw = random.Random(seed)
        self.history = [{"role": "user", "content": f"Session {seed}: {words(self.draw, 120)}"}]
        self.turns, self.failure = [], None

    def run(self):
        try:
            for _ in range(self.count):
                self.turns.append(self.turn())
                self.on_turn()
        except urllib.error.HTTPError as error:
            self.failure = f"{error.code}: {error.read()[:300]}"
        except (OSError, KeyError, ValueError) as error:
            self.failure = repr(error)

    def post(self, body):
        request = urllib.request.Request(
            f"http://{self.http}{self.PATH}", json.dumps({"model": "model", "temperature": 0.8, **body}).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


class ResponsesSession(Session):
    PATH = "/v1/responses"

    def turn(self):
        answer = self.post({
            "input": self.history, "store": False, "instructions": INSTRUCTIONS, "max_output_tokens": ANSWER_TOKENS,
            "tool_choice": "required", "parallel_tool_calls": False,
            "tools": [{"type": "function", "name": name, "parameters": schema, "strict": True}
                      for name, schema in SCHEMAS.items()]})
        called = False
        for item in answer["output"]:
            if item["type"] == "function_call":
                json.loads(item["arguments"])
                self.history.append({key: item[key] for key in ("type", "call_id", "name", "arguments")})
                self.history.append({"type": "function_call_output", "call_id": item["call_id"],
                                     "output": words(self.draw, 20)})
                called = True
            else:  # a call that the answer's length has cut off
                text = "".join(part["text"] for part in item["content"])
                self.history.append({"role": "assistant", "content": text})
        if not called:
            self.history.append({"role": "user", "content": "go on"})
        usage = answer["usage"]
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


class MessagesSession(Session):
    PATH = "/v1/messages"

    def turn(self):
        answer = self.post({
            "messages": self.history, "system": INSTRUCTIONS, "max_tokens": ANSWER_TOKENS,
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "tools": [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]})
        self.history.append({"role": "assistant", "content": answer["content"] or "-"})
        results = [{"type": "tool_result", "tool_use_id": block["id"], "content": words(self.draw, 20)}
                   for block in answer["content"] if block["type"] == "tool_use"]
        self.history.append({"role": "user", "content": results or "go on"})
        usage = answer["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


def decode_workers(cluster):
    """The processes of the decode workers that `baton up` has started."""
    children = Path(f"/proc/{cluster.pid}/task/{cluster.pid}/children").read_text(encoding="utf-8").split()
    return [int(pid) for pid in children if b"baton-decode-worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def main():
    binaries = Path(sys.argv[1])
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 50
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = directory / "model"
        model.mkdir()
        make_tool_model(model, CONTEXT)
        cluster, (_, _, http) = start_cluster(binaries / "baton", directory, model=model, prefill=1, decode=2,
                                              kv_cache_memory="256MB")
        try:
            done = threading.Semaphore(0)
            sessions = [kind(http, seed, turns, done.release)
                        for seed, kind in enumerate((ResponsesSession, MessagesSession) * 2)]
            for session in sessions:
                session.start()
            for _ in range(len(sessions) * turns // 2):
                done.acquire(timeout=PATIENCE_S)
            os.kill(decode_workers(cluster)[0], signal.SIGKILL)
            for session in sessions:
                session.join()
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    print("| API | turns | failed | prompt tokens of the turn before | of these cached |\n|---|---|---|---|---|")
    for kind in (ResponsesSession, MessagesSession):
        mine = [session for session in sessions if isinstance(session, kind)]
        pairs = [pair for session in mine for pair in zip(session.turns, session.turns[1:])]
        repeated = sum(before for (before, _), _ in pairs)
        cached = sum(min(before, now) for (before, _), (_, now) in pairs)
        failed = [session.failure for session in mine if session.failure]
        print(f"| `{kind.PATH}` | {sum(len(s.turns) for s in mine)} | {len(failed)} | {repeated:,} | "
              f"{100 * cached / max(repeated, 1):.1f} % |")
        for failure in failed:
            print(failure)
    print(f"longest prompt: {max(prompt for s in sessions for prompt, _ in s.turns)} tokens")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Spans of a real cluster, as a collector gets them: one trace over three hops. What is sent is
parsed by OpenTelemetry's own protos, which refuse fields that they do not know.

    tracing_test.py BIN_DIR
"""
import base64
import collections
import http.server
import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import grpc
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
import seed  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
PATIENCE_S = 60  # a limit, not an expectation
# Clocks of processes: how far a child may seem to be outside of its parent in another process.
TOLERANCE_NS = 2_000_000
SERVICES = ("baton-router", "baton-decode-worker", "baton-prefill-worker")
HEX_IDS = ("traceId", "spanId", "parentSpanId")

Sent = collections.namedtuple("Sent", "span service attributes events")


def hex_to_base64(node):
    """OTLP writes ids in hex, where Protobuf's JSON has base64."""
    if isinstance(node, list):
        return [hex_to_base64(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {key: base64.b64encode(bytes.fromhex(value)).decode() if key in HEX_IDS else hex_to_base64(value)
            for key, value in node.items()}


def attributes_of(pairs):
    def value_of(value):
        kind = value.WhichOneof("value")
        if kind == "array_value":
            return [value_of(one) for one in value.array_value.values]
        return getattr(value, kind)
    return {pair.key: value_of(pair.value) for pair in pairs}


class Collector:
    """Keeps the spans that are posted to it, and counts what is not as the standard has it."""

    def __init__(self):
        self.changed = threading.Condition()
        self.spans = []
        self.breaches = []
        self.refuse = 0  # so many of the next posts
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                status = collector.take(self.path, self.headers,
                                        self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path, headers, body):
        with self.changed:
            if self.refuse > 0:
                self.refuse -= 1
                return 503
            try:
                assert path == "/v1/traces", path
                assert headers["Content-Type"] == "application/json", headers
                assert headers["X-Key"] == "a b", headers
                sent = json.loads(body)
                message = json_format.Parse(json.dumps(hex_to_base64(sent)),
                                            trace_service_pb2.ExportTraceServiceRequest())
                for resource_spans in message.resource_spans:
                    resource = attributes_of(resource_spans.resource.attributes)
                    for scope_spans in resource_spans.scope_spans:
                        for span in scope_spans.spans:
                            events = {e.name: attributes_of(e.attributes) for e in span.events}
                            self.spans.append(Sent(span, resource["service.name"],
                                                   attributes_of(span.attributes), events))
            except Exception as error:  # reported by the test
                self.breaches.append(f"{type(error).__name__}: {error}: {body[:500]}")
                return 400
            self.changed.notify_all()
            return 200

    def of_trace(self, trace_id):
        return [sent for sent in self.spans if sent.span.trace_id.hex() == trace_id]

    def await_spans(self, wished):
        """The spans for which wished(spans) is not empty, when it first is."""
        found = []

        def there():
            nonlocal found
            found = wished(self.spans)
            return self.breaches or found
        with self.changed:
            assert self.changed.wait_for(there, PATIENCE_S), "no such spans"
            assert not self.breaches, self.breaches
        return found

    def stop(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def by_name(spans):
    named = {}
    for sent in spans:
        named.setdefault(sent.span.name, []).append(sent)
    return named


def all_threads_stopped(pid):
    def stopped(thread):
        try:
            return re.search(r"^State:\s+T", (thread / "status").read_text(), re.M)
        except FileNotFoundError:  # it has ended
            return True
    return all(map(stopped, Path(f"/proc/{pid}/task").iterdir()))


class TracingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.collector = Collector()
        cls.addClassCleanup(cls.collector.stop)
        directory = tempfile.TemporaryDirectory(prefix="baton-tracing-")
        cls.addClassCleanup(directory.cleanup)
        cls.log = Path(directory.name) / "up.log"
        os.environ["OTEL_EXPORTER_OTLP_HEADERS"] = "x-key=a%20b"
        cls.cluster, (cls.grpc, cls.metrics, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", Path(directory.name), "--otlp-traces-endpoint", cls.collector.url,
            "--log-format", "json", "--log-level", "debug", "--max-local-prefill-tokens", "0")
        cls.addClassCleanup(cls.stop_cluster)

    @classmethod
    def stop_cluster(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)

    def setUp(self):
        self.random = seed.generator(self.id())

    def prompt(self):
        """So long, and so new, that the prefill worker sends KV of it."""
        words = "red green blue two four six".split()
        return " ".join(self.random.choice(words) for _ in range(150)) + f" {self.random.random()}"

    def post(self, body, path="/v1/completions", **headers):
        """Status, headers and JSON of an answer."""
        request = urllib.request.Request(
            f"http://{self.http}{path}", json.dumps({"model": "demo", **body}).encode(),
            {name.replace("_", "-"): value for name, value in headers.items()}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.headers, json.load(response)
        except urllib.error.HTTPError as error:
            return error.code, error.headers, json.load(error)

    def trace_of(self, request_id, names):
        """All spans of the trace of a request, once it has spans of all these names, and the parent of each."""
        def wished(spans):
            for sent in spans:
                if sent.attributes.get("baton.request.id") != request_id:
                    continue
                trace = self.collector.of_trace(sent.span.trace_id.hex())
                ids = {one.span.span_id for one in trace}
                if names <= set(by_name(trace)) and all(
                        one.span.parent_span_id in ids or one.service == "baton-router" for one in trace):
                    return trace
            return []
        return self.collector.await_spans(wished)

    def check_tree(self, trace, parent=b""):
        """One root, whose parent is `parent`; every other span begins and ends within its own."""
        spans = {sent.span.span_id: sent for sent in trace}
        self.assertEqual(len(spans), len(trace), "ids repeat")
        roots = [sent for sent in trace if sent.span.parent_span_id == parent]
        self.assertEqual([sent.service for sent in roots], ["baton-router"])
        for sent in trace:
            span = sent.span
            self.assertLess(0, span.start_time_unix_nano)
            self.assertLessEqual(span.start_time_unix_nano, span.end_time_unix_nano)
            self.assertLess(abs(span.end_time_unix_nano / 1e9 - time.time()), 600)
            for event in span.events:
                self.assertLessEqual(span.start_time_unix_nano, event.time_unix_nano)
            if sent in roots:
                continue
            self.assertIn(span.parent_span_id, spans,
                          f"{span.name} of {sent.service}; there are {[s.span.name for s in trace]}")
            above = spans[span.parent_span_id]
            slack = 0 if above.service == sent.service else TOLERANCE_NS
            self.assertGreaterEqual(span.start_time_unix_nano, above.span.start_time_unix_nano - slack, span)
            self.assertLessEqual(span.end_time_unix_nano, above.span.end_time_unix_nano + slack, span)
        return roots[0]

    NAMES = {"admission", "tokenize", "route", "decode_stream", "baton.internal.v1.DecodeService/Decode",
             "decode_queue", "kv_transfer", "baton.internal.v1.PrefillService/Prefill", "prefill_queue",
             "prefill_compute", "first_step", "decode"}

    def test_one_trace_over_three_hops(self):
        status, headers, answer = self.post(
            {"prompt": self.prompt(), "max_tokens": 5, "ignore_eos": True, "temperature": 0.5, "seed": 3, "user": "u"},
            x_request_id="three-hops")
        self.assertEqual((status, headers["x-request-id"]), (200, "three-hops"), answer)
        names = self.NAMES | {"text_completion demo"}
        trace = self.trace_of("three-hops", names)
        named = by_name(trace)
        self.assertEqual(set(named), names)
        self.assertTrue(all(len(of_name) == 1 for of_name in named.values()), named)
        root = self.check_tree(trace)
        usage = answer["usage"]
        for name, value in {
                "gen_ai.operation.name": "text_completion", "gen_ai.request.model": "demo",
                "gen_ai.request.max_tokens": 5, "gen_ai.request.temperature": 0.5, "gen_ai.request.seed": 3,
                "gen_ai.usage.input_tokens": usage["prompt_tokens"],
                "gen_ai.usage.output_tokens": usage["completion_tokens"],
                "gen_ai.response.finish_reasons": [answer["choices"][0]["finish_reason"]],
                "baton.tenant": "u", "baton.cached_tokens": 0, "baton.request.id": "three-hops"}.items():
            self.assertEqual(root.attributes[name], value, name)
        self.assertGreater(root.attributes["gen_ai.server.time_to_first_token"], 0)
        self.assertIn("first_token", root.events)

        def one(name):
            return named[name][0]
        chain = (root.span.name, "decode_stream", "baton.internal.v1.DecodeService/Decode", "kv_transfer",
                 "baton.internal.v1.PrefillService/Prefill", "prefill_compute")
        for above, below in zip(chain, chain[1:]):
            self.assertEqual(one(below).span.parent_span_id, one(above).span.span_id, below)
        self.assertEqual(one("first_step").span.parent_span_id, one("decode").span.span_id)
        kinds = {name: trace_pb2.Span.SpanKind.Name(one(name).span.kind)[len("SPAN_KIND_"):] for name in chain}
        self.assertEqual(list(kinds.values()), ["SERVER", "CLIENT", "SERVER", "CLIENT", "SERVER", "INTERNAL"])
        self.assertEqual([one(name).service for name in chain],
                         [SERVICES[i] for i in (0, 0, 1, 1, 2, 2)])
        self.assertTrue(one("decode_stream").attributes["baton.answers.worker_id"].startswith("decode-"))
        self.assertTrue(one("kv_transfer").attributes["baton.computes.worker_id"].startswith("prefill-"))
        self.assertGreater(one("kv_transfer").attributes["baton.kv_bytes"], 0)
        self.assertEqual(one("decode").attributes["gen_ai.usage.output_tokens"], usage["completion_tokens"])
        self.assertIn("baton.route.decision", one("route").attributes)
        self.assertEqual({sent.span.status.code for sent in trace}, {0})

    def test_scoring(self):
        trace_id = f"{self.random.getrandbits(128):032x}"
        # prefix, two items, two labels
        request = b"\x12\x04red:" + b"\x1a\x01a\x1a\x02bc" + b"\x22\x04 yes\x22\x03 no"
        with grpc.insecure_channel(self.grpc) as channel:
            channel.unary_unary("/baton.v1.InferenceService/Score")(request, timeout=PATIENCE_S, metadata=(
                ("traceparent", f"00-{trace_id}-00000000000000ab-01"), ("x-request-id", "scored")))
        call = "baton.internal.v1.PrefillService/ScoreItems"
        names = {"score demo", "admission", "tokenize", "score_stream", call, "prefill_queue", "prefill_compute"}
        trace = self.trace_of("scored", names)
        named = by_name(trace)
        self.assertEqual(set(named), names)
        root = self.check_tree(trace, bytes.fromhex("00000000000000ab"))
        self.assertEqual(root.span.trace_id.hex(), trace_id)
        self.assertIn("first_result", root.events)
        chain = ("score demo", "score_stream", call, "prefill_compute")
        for above, below in zip(chain, chain[1:]):
            self.assertEqual(named[below][0].span.parent_span_id, named[above][0].span.span_id, below)
        for name in chain[:3]:
            self.assertEqual(named[name][0].attributes["baton.items"], 2, name)
        self.assertEqual(named[call][0].service, "baton-prefill-worker")
        self.assertEqual(named[call][0].attributes["baton.failed_items"], 0)
        self.assertEqual({sent.span.status.code for sent in trace}, {0})

    def test_a_given_trace_is_continued(self):
        trace_id, parent = f"{self.random.getrandbits(128):032x}", f"{self.random.getrandbits(63) + 1:016x}"
        self.post({"messages": [{"role": "user", "content": "copy: red"}], "max_tokens": 3},
                  "/v1/chat/completions", traceparent=f"00-{trace_id}-{parent}-01", tracestate="v=1",
                  x_request_id="continued")
        trace = self.trace_of("continued", {"chat demo", "render", "admission", "tokenize", "decode"})
        root = self.check_tree(trace, bytes.fromhex(parent))
        self.assertEqual(root.span.trace_id.hex(), trace_id)
        self.assertEqual({sent.span.trace_state for sent in trace}, {"v=1"})
        self.assertEqual(root.attributes["gen_ai.operation.name"], "chat")

    def test_several_prompts_are_one_trace(self):
        self.post({"prompt": ["copy: red", "copy: blue"], "max_tokens": 2}, x_request_id="two")

        def both(spans):
            roots = [s for s in spans if s.attributes.get("baton.request.id") == "two" and s.span.kind == 2
                     and s.service == "baton-router"]
            return roots if len(roots) == 2 else []
        self.assertEqual(len({s.span.trace_id for s in self.collector.await_spans(both)}), 1)

    def test_an_unsampled_trace_and_a_malformed_one(self):
        trace_id = f"{self.random.getrandbits(128):032x}"
        self.assertEqual(self.post({"prompt": self.prompt(), "max_tokens": 2, "ignore_eos": True}, x_request_id="unsampled",
                                   traceparent=f"00-{trace_id}-00000000000000ab-00")[0], 200)
        bad = f"00-{trace_id}-00000000000000ab-01-"
        self.assertEqual(self.post({"prompt": self.prompt(), "max_tokens": 2, "ignore_eos": True}, x_request_id="malformed",
                                   traceparent=bad)[0], 200)
        # The workers' spans come last: by then those of the first request would be here.
        trace = self.trace_of("malformed", self.NAMES)
        self.check_tree(trace)
        self.assertNotEqual(trace[0].span.trace_id.hex(), trace_id)
        type(self).unsampled = trace_id  # asked for again when all has been flushed

    def test_errors_have_a_status_and_a_reason(self):
        status, headers, _ = self.post({"prompt": "x " * 2000, "max_tokens": 1}, x_request_id="wrong")
        self.assertEqual((status, headers["x-request-id"]), (400, "wrong"))
        root = self.check_tree(self.trace_of("wrong", {"text_completion demo"}))
        self.assertEqual(root.span.status.code, 2)
        self.assertNotEqual(root.span.status.message, "")
        self.assertEqual(root.attributes["error.type"], "PROMPT_TOO_LONG")

    def test_a_call_that_is_not_understood_has_its_id(self):
        self.assertEqual(self.post({"prompt": 5}, x_request_id="no-request")[0], 400)
        root = self.check_tree(self.trace_of("no-request", {"text_completion demo"}))
        self.assertEqual(root.span.status.code, 2)

    def test_a_cancel_is_an_event(self):
        # text, stop.max_tokens 900 and stop.ignore_eos, 16 choices
        request = b"\x12\x01a" + b"\x2a\x05\x08\x84\x07\x20\x01" + b"\x48\x10"
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.unary_stream("/baton.v1.InferenceService/Generate")(
                request, timeout=PATIENCE_S, metadata=(("x-request-id", "left"),))
            next(call)
            call.cancel()
        root = by_name(self.trace_of("left", {"text_completion demo"}))["text_completion demo"][0]
        self.assertEqual(root.events["cancel"]["error.type"], "CANCELLED")
        self.assertEqual(root.attributes["error.type"], "CANCELLED")
        self.assertEqual(root.span.status.code, trace_pb2.Status.STATUS_CODE_ERROR)

    def test_grpc_metadata(self):
        trace_id = f"{self.random.getrandbits(128):032x}"
        text = self.prompt().encode()
        assert 128 <= len(text) < 16384
        length = bytes([len(text) & 0x7f | 0x80, len(text) >> 7])
        # text, stop.max_tokens 3 and stop.ignore_eos
        request = b"\x12" + length + text + b"\x2a\x04\x08\x03\x20\x01"
        with grpc.insecure_channel(self.grpc) as channel:
            call = channel.unary_stream("/baton.v1.InferenceService/Generate")(
                request, timeout=PATIENCE_S, metadata=(
                    ("traceparent", f"00-{trace_id}-00000000000000ab-01"), ("tracestate", "a=1"),
                    ("tracestate", "b=2"), ("x-request-id", "by-grpc")))
            self.assertEqual(dict(call.initial_metadata())["x-request-id"], "by-grpc")
            self.assertTrue(list(call))
            trace = self.trace_of("by-grpc", self.NAMES)
            self.assertEqual({sent.span.trace_id.hex() for sent in trace}, {trace_id})
            self.assertEqual({sent.span.trace_state for sent in trace}, {"a=1,b=2"})

            def echoed(method, given, request=b""):
                call = channel.unary_unary(method)
                try:
                    _, end = call.with_call(request, timeout=PATIENCE_S, metadata=given)
                except grpc.RpcError as error:
                    end = error
                return dict(end.initial_metadata()).get("x-request-id"), end.code()
            for method in ("/baton.v1.InferenceService/ListModels", "/baton.v1.AdminService/ListWorkers"):
                self.assertEqual(echoed(method, (("x-request-id", "mine"),))[0], "mine")
                self.assertRegex(echoed(method, ())[0], "^[0-9a-f]{16}$")
            once = "/baton.v1.InferenceService/GenerateOnce"
            long = echoed(once, (("x-request-id", "x" * 129),), b"\x0a\x03\x12\x01a")
            self.assertEqual(long[1], grpc.StatusCode.INVALID_ARGUMENT)
            self.assertRegex(long[0], "^[0-9a-f]{16}$")
            own = echoed(once, (("x-request-id", "metadata"),), b"\x0a\x0b\x12\x01a\x32\x06inside")
            self.assertEqual(own, ("inside", grpc.StatusCode.OK), "the message's own id goes first")
            broken = echoed(once, (("x-request-id", "broken"),), b"\xff")
            self.assertEqual(broken, ("broken", grpc.StatusCode.INVALID_ARGUMENT))

    def test_a_busy_collector_is_asked_again(self):
        with self.collector.changed:
            self.collector.refuse = 2
        self.assertEqual(self.post({"prompt": "copy: red", "max_tokens": 1}, x_request_id="busy")[0], 200)
        self.trace_of("busy", {"text_completion demo"})
        self.until(lambda: self.counted("baton_trace_spans_exported_total") > 0)  # once it has the answer
        self.assertEqual(self.counted("baton_trace_spans_dropped_total"), 0)

    def until(self, done):
        """Polls, as nothing announces that a metric changes."""
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def counted(self, name):
        """The sum of a metric of the router over its series."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=PATIENCE_S) as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def test_z1_a_retry_is_an_event_and_a_second_stream(self):
        """A decode worker that has stopped gets requests, and then dies with them."""
        children = Path(f"/proc/{self.cluster.pid}/task/{self.cluster.pid}/children").read_text().split()
        victim = next(int(pid) for pid in children
                      if b"baton-decode-worker" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(victim, signal.SIGSTOP)
        # Within some 50 ms. Until then the victim may open a transfer, and the prefill worker's span of it would
        # be the child of one that dies with the victim.
        self.until(lambda: all_threads_stopped(victim))
        before = self.counted("baton_route_decisions_total")
        answers = {}
        threads = [threading.Thread(target=lambda i=i: answers.update(
            {i: self.post({"prompt": self.prompt(), "max_tokens": 3, "ignore_eos": True},
                          x_request_id=f"retry-{i}")[0]})) for i in range(8)]
        for thread in threads:
            thread.start()
        self.until(lambda: self.counted("baton_route_decisions_total") >= before + len(threads))
        os.kill(victim, signal.SIGKILL)
        for thread in threads:
            thread.join()
        self.assertEqual(list(answers.values()), [200] * len(threads))
        retried = 0
        for i in range(len(threads)):
            trace = self.trace_of(f"retry-{i}", {"text_completion demo", "decode"})
            root = self.check_tree(trace)
            streams = by_name(trace)["decode_stream"]
            if "retry" not in root.events:
                self.assertEqual(len(streams), 1)
                continue
            retried += 1
            first, last = sorted(streams, key=lambda sent: sent.span.start_time_unix_nano)
            self.assertEqual((first.span.status.code, last.span.status.code), (2, 0))
            self.assertEqual(root.events["retry"]["error.type"], first.attributes["error.type"])
            self.assertNotEqual(first.attributes["baton.answers.worker_id"],
                                last.attributes["baton.answers.worker_id"])
            self.assertEqual(root.span.status.code, 0)
        self.assertGreater(retried, 0)

    def test_z2_shutdown_flushes_and_the_log_is_json(self):
        self.assertEqual(self.post({"prompt": self.prompt(), "max_tokens": 2, "ignore_eos": True}, x_request_id="last")[0], 200)
        self.stop_cluster()
        self.assertEqual(self.cluster.returncode, 0)
        trace = self.trace_of("last", self.NAMES)  # all there at once
        self.check_tree(trace)
        self.assertEqual(self.collector.breaches, [])
        self.assertEqual(self.collector.of_trace(getattr(self, "unsampled", "none")), [])
        self.assertEqual({sent.service for sent in self.collector.spans}, set(SERVICES))
        lines = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()
                 if line.startswith("{")]
        sources = {line["source"] for line in lines}
        self.assertLessEqual({"router", "prefill-0", "decode-1"}, sources)
        trace_id = trace[0].span.trace_id.hex()
        of_last = [line for line in lines if line.get("request_id") == "last"]
        self.assertTrue(of_last)
        self.assertEqual({line["trace_id"] for line in of_last}, {trace_id})
        for line in lines:
            self.assertLessEqual({"time", "severity", "message", "source"}, set(line))
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$")
        text = re.findall(r"^\[(?:router|prefill|decode).*", self.log.read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual(text, [], "every line of a process is JSON")


if __name__ == "__main__":
    unittest.main()

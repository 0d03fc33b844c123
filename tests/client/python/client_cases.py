"""What both clients must do. client_test.py and aio_test.py run these cases, each with a client."""

import contextlib
import os
import select
import socket
import threading
from unittest import mock

import grpc
from grpc_health.v1 import health_pb2

import baton
from baton import calls
from baton.v1 import admin_pb2, inference_pb2
from fake_router import AWAIT_S, Failure, FakeRouter, Hang, delta, last, once

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
REFUSED = grpc.StatusCode.RESOURCE_EXHAUSTED
CANCELLED = grpc.StatusCode.CANCELLED


class FakeTime:
    """A clock that only sleep() moves; random() is always a half."""

    def __init__(self):
        self.now = 1000.0
        self.slept = []

    def sleep(self, pause):
        self.slept.append(pause)
        self.now += pause

    def arguments(self):
        return {"clock": lambda: self.now, "sleep": self.sleep, "random": lambda: 0.5}


class FailureClock:
    """A clock that stands still. Calls `failed` when a client reads it for the third time: at the
    start of a call, of its first attempt, and when that has failed."""

    def __init__(self, failed):
        self._failed = failed
        self._readings = 0

    def __call__(self):
        self._readings += 1
        if self._readings == 3:
            self._failed()
        return 0.0


@contextlib.contextmanager
def reserved_address():
    """A port where nothing listens, which a server of this process may take all the same."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def await_timed_out_attempt(address):
    """Until an attempt to connect with the limit of the cluster's own channels, 1.5 s, has failed: real
    time, as gRPC's connection timer takes no other clock."""
    failed = threading.Event()
    # In spite of its name, the option is the limit of one attempt.
    with grpc.insecure_channel(address, [("grpc.min_reconnect_backoff_ms", 1500)]) as channel:
        channel.subscribe(
            lambda state: state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and failed.set(),
            try_to_connect=True)
        assert failed.wait(AWAIT_S), "the attempt does not end"


@contextlib.contextmanager
def slow_to_answer(router):
    """The address of a proxy. The system accepts its first connection at once; nothing gets through
    until another attempt to connect has timed out."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def serve():
            host, port = router.split(":")
            with listening.accept()[0] as near:
                await_timed_out_attempt(address)
                with socket.create_connection((host, int(port))) as far:
                    while True:
                        for ready in select.select([near, far], [], [])[0]:
                            data = ready.recv(65536)
                            if not data:
                                return
                            (far if ready is near else near).sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield address
        thread.join(AWAIT_S)


class ClientCases:
    """Subclasses have read(), which reads a new stream to its end, and ask(), which makes another
    call; read_scores() reads a score_stream to its end. Each makes a client with `self.arguments` and
    closes it."""

    def setUp(self):
        self.router = FakeRouter()
        self.addCleanup(self.router.stop)
        self.time = FakeTime()
        self.arguments = {"address": self.router.address, **self.time.arguments()}

    def test_api_key(self):
        def sent(**arguments):
            self.arguments.pop("api_key", None)
            self.arguments.update(arguments)
            self.router.reply(once("a"))
            self.ask("generate_once", "p")
            return self.router.next_call().metadata.get("authorization")

        with mock.patch.dict(os.environ):
            os.environ.pop("BATON_API_KEY", None)
            self.assertIsNone(sent())
            os.environ["BATON_API_KEY"] = "of the environment"
            self.assertEqual(sent(), "Bearer of the environment")
            self.assertEqual(sent(api_key="k"), "Bearer k")
            self.assertIsNone(sent(api_key=""))
        for key in ("secret\r", "secret\n", "s\u00e9cret"):
            with self.assertRaises(baton.InvalidRequestError) as raised:
                sent(api_key=key)
            self.assertEqual(raised.exception.reason, "BAD_HEADER")
            self.assertNotIn("cret", str(raised.exception))

    def test_address(self):
        for address in ("garbage", ":1", "host:", "host:99999", "host:0", "host:1x", "host:\u0661", "::1:80",
                        "dns:///host:80", "host:" + "9" * 5000):
            self.arguments["address"] = address
            with self.assertRaises(baton.InvalidRequestError) as raised:
                self.ask("generate_once", "p")
            self.assertEqual((raised.exception.reason, raised.exception.field), ("BAD_ADDRESS", "address"))
            self.assertLess(len(str(raised.exception)), 400)
        self.assertEqual(calls.to_address("[::1]:80"), "[::1]:80")

    def test_refused_key(self):
        self.router.reply([Failure(grpc.StatusCode.UNAUTHENTICATED, "INVALID_API_KEY")])
        with self.assertRaises(baton.AuthenticationError):
            self.read("p")
        self.assertEqual(self.arrived(), 1)

    def failure_of(self, *prompt, **options):
        with self.assertRaises(baton.BatonError) as caught:
            self.read(*prompt, **options)
        return caught.exception

    def test_errors_name_the_argument(self):
        wrong = Failure(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE",
                        "stop.max_tokens: 0 given, 1 or more expected", field="stop.max_tokens")
        self.router.reply([wrong], wrong)
        errors = [self.failure_of("p", max_tokens=0)]
        with self.assertRaises(baton.InvalidRequestError) as caught:
            self.ask("generate_once", "p", max_tokens=0)
        for error in (*errors, caught.exception):
            self.assertEqual((error.field, error.message),
                             ("max_tokens", "max_tokens: 0 given, 1 or more expected"))

    def arrived(self):
        return self.router.calls.qsize()

    # ---- Answers

    def test_a_stream_is_merged(self):
        usage = inference_pb2.Usage(prompt_tokens=2, cached_prompt_tokens=1, generated_tokens=3)
        self.router.reply([
            delta("Once ", token_ids=[1], request_id="r"),
            delta(),  # the router waits for another worker
            delta("upon", token_ids=[2, 3], usage=usage),
            last(".", matched_stop="x", usage=usage, request_id="r"),
        ])
        chunks, stream = self.read("hi", request_id="r", seed=5)
        self.assertEqual([c.text for c in chunks], ["Once ", "upon", "."])
        self.assertEqual([c.finish_reason for c in chunks], [None, None, "stop"])
        self.assertEqual(chunks[0].token_ids, [1])
        self.assertEqual(chunks[1].usage, baton.Usage(2, 1, 3, 0))
        self.assertEqual(stream.completion.text, "Once upon.")
        self.assertEqual(stream.completion.token_ids, [1, 2, 3])
        self.assertEqual(stream.completion.choices[0].matched_stop, "x")
        self.assertEqual(stream.completion.seed, 5)
        self.assertEqual(
            (stream.request_id, stream.finish_reason, stream.usage, stream.timings.ttft_ms),
            ("r", "stop", baton.Usage(2, 1, 3, 0), 7))
        self.assertEqual(self.router.next_call().request.request_id, "r")

    def test_a_cache_miss(self):
        usage = inference_pb2.Usage(prompt_tokens=2)
        usage.cache_miss.cause = inference_pb2.CACHE_MISS_CAUSE_CHANGED
        usage.cache_miss.first_different_token = 1
        usage.cache_miss.text = "b"
        self.router.reply([last("x", usage=usage)])
        _, stream = self.read("hi", explain_cache=True)
        miss = stream.usage.cache_miss
        self.assertEqual((miss.cause, miss.first_different_token, miss.text), ("changed", 1, "b"))
        self.assertTrue(self.router.next_call().request.explain_cache)

    def test_choices_and_log_probabilities(self):
        token = inference_pb2.TokenLogprobs(
            token_id=4, logprob=-0.5, top=[inference_pb2.TokenLogprob(token_id=9, logprob=-0.25)])
        self.router.reply([
            delta(prompt_logprobs=[token]),
            delta("b", choice=1, logprobs=[token]),
            last("a", reason=inference_pb2.FINISH_REASON_LENGTH),
            last("B", choice=1, beam_score=-1.5),
        ])
        chunks, stream = self.read([5], n=2, logprobs=1, prompt_logprobs=1)
        logprobs = [baton.TokenLogprobs(4, -0.5, [baton.TokenLogprob(9, -0.25)])]
        self.assertEqual([c.choice for c in chunks], [0, 1, 0, 1])
        self.assertEqual(stream.completion.prompt_logprobs, logprobs)
        self.assertEqual(stream.completion.choices, [
            baton.Choice("a", finish_reason="length"),
            baton.Choice("bB", finish_reason="stop", logprobs=logprobs, beam_score=-1.5)])

    def test_large_messages(self):
        text = "x" * (5 << 20)  # more than gRPC's default
        self.router.reply([last(text)])
        self.assertEqual(self.read(text)[1].completion.text, text)

    def test_an_incomplete_stream_is_an_error(self):
        self.router.reply([delta("a"), last("b")])
        error = self.failure_of("p", n=2, request_id="r")
        self.assertIs(type(error), baton.WorkerFailedError)
        self.assertIn("choice 1", error.message)
        self.assertEqual(error.request_id, "r")

    def test_scores(self):
        self.router.reply(inference_pb2.ScoreResponse(
            items=[
                inference_pb2.ItemScore(
                    labels=[inference_pb2.LabelScore(logprob=-1.5, token_ids=[4, 5],
                                                     token_logprobs=[-1, -0.5]),
                            inference_pb2.LabelScore(logprob=-0.25)],
                    probability=0, prompt_tokens=9, cached_prompt_tokens=8),
                inference_pb2.ItemScore(id=1, error=inference_pb2.ScoreError(
                    code=3, reason="PROMPT_TOO_LONG", message="too long"))],
            usage=inference_pb2.ScoreUsage(items=2, failed_items=1, prompt_tokens=9),
            request_id="judge"))
        scores = self.ask("score", "rubric", ["a", "b"], [" yes", " no"], priority="low")
        request = self.router.next_call().request
        self.assertEqual(request.priority, inference_pb2.PRIORITY_LOW)
        self.assertEqual((request.prefix, list(request.items), list(request.labels)),
                         ("rubric", ["a", "b"], [" yes", " no"]))
        self.assertTrue(request.request_id)
        first, second = scores.items
        self.assertEqual(first, baton.ItemScore(
            [baton.LabelScore(-1.5, [4, 5], [-1, -0.5]), baton.LabelScore(-0.25, [], [])],
            0, 9, 8, None))
        self.assertIsNone(second.probability)
        self.assertEqual(second.error, baton.ScoreError(3, "PROMPT_TOO_LONG", "too long"))
        self.assertEqual(scores.usage, baton.ScoreUsage(2, 1, 9, 0))
        self.assertEqual(scores.request_id, "judge")

    def test_embeddings(self):
        self.router.reply(inference_pb2.EmbedResponse(
            embeddings=[inference_pb2.Embedding(values=[0.5, -0.25], prompt_tokens=2),
                        inference_pb2.Embedding(values=[1, 0])], request_id="e"))
        vectors = self.ask("embed", ["a b", [4, 5]], dimensions=2, priority="high")
        self.assertEqual(vectors, [[0.5, -0.25], [1, 0]])
        request = self.router.next_call().request
        self.assertEqual(request.inputs[0].text, "a b")
        self.assertEqual(list(request.inputs[1].token_ids.ids), [4, 5])
        self.assertEqual((request.dimensions, request.priority), (2, inference_pb2.PRIORITY_HIGH))
        with self.assertRaises(TypeError):
            self.ask("embed", "one text")
        self.assertTrue(request.request_id)

    def test_score_stream(self):
        def result(index, **fields):
            return inference_pb2.ItemScore(id=index, prompt_tokens=9, **fields)

        self.router.reply([
            1, inference_pb2.ScoreStreamResponse(items=[result(0, probability=0.25)]),
            2, inference_pb2.ScoreStreamResponse(items=[
                result(2), result(1, error=inference_pb2.ScoreError(code=3, reason="R"))]),
            inference_pb2.ScoreStreamResponse(
                usage=inference_pb2.ScoreUsage(items=3, failed_items=1))])
        scores, stream = self.read_scores(
            "rubric", iter(["a", "b", "c"]), [" yes", " no"], in_order=False, priority="high",
            request_id="judge")
        call = self.router.next_call()
        first = call.request
        self.assertEqual((first.settings.prefix, list(first.settings.labels), first.in_order),
                         ("rubric", [" yes", " no"], False))
        self.assertEqual(first.settings.priority, inference_pb2.PRIORITY_HIGH)
        self.assertEqual(first.settings.request_id, "judge")
        self.assertEqual(call.items, ["a", "b", "c"])
        self.assertEqual([score.index for score in scores], [0, 2, 1])
        self.assertEqual(scores[0].probability, 0.25)
        self.assertEqual(scores[2].error.reason, "R")
        self.assertEqual(stream.usage, baton.ScoreUsage(3, 1, 0, 0))

    def test_score_streams_that_fail(self):
        self.router.reply([1, Failure(UNAVAILABLE, "NO_PREFILL_WORKER", retry_after=1)])
        with self.assertRaises(baton.UnavailableError) as caught:
            self.read_scores("rubric", ["a"], [" yes"], request_id="judge")
        self.assertEqual(caught.exception.reason, "NO_PREFILL_WORKER")
        self.assertEqual(caught.exception.request_id, "judge")
        self.assertEqual(self.arrived(), 1, "it is not retried")
        self.router.reply([1, inference_pb2.ScoreStreamResponse(
            items=[inference_pb2.ItemScore(id=0)])])
        with self.assertRaises(baton.WorkerFailedError):
            self.read_scores("rubric", ["a"], [" yes"])

        for _ in range(self.arrived()):
            self.router.next_call()

        def broken():
            yield "a"
            self.router.next_call()  # a call that never arrives is not seen to be cancelled
            raise KeyError("of the caller")
        self.router.reply([1, Hang()])
        with self.assertRaisesRegex(KeyError, "of the caller"):
            self.read_scores("rubric", broken(), [" yes"])
        self.router.await_cancelled()

    def test_other_calls(self):
        self.router.reply(
            once("ok"), inference_pb2.TokenizeResponse(token_ids=[1, 2]),
            inference_pb2.DetokenizeResponse(text="t"),
            inference_pb2.ListModelsResponse(models=[inference_pb2.Model(
                id="m", max_model_len=8, fingerprint=2**64 - 1, vocab_size=9)]),
            admin_pb2.ListWorkersResponse(workers=[admin_pb2.WorkerStatus(
                address="w:1", role=admin_pb2.WORKER_ROLE_DECODE, state=99, free_blocks=4,
                capabilities=[admin_pb2.WORKER_CAPABILITY_SCORE, 98])]),
            inference_pb2.CancelResponse(cancelled=2))
        completion = self.ask("generate_once", "p", max_tokens=3)
        self.assertEqual((completion.text, completion.finish_reason, completion.seed),
                         ("ok", "length", 5))
        self.assertEqual(self.ask("tokenize", "ab", add_special_tokens=False,
                                  split_special_tokens=True), [1, 2])
        self.assertEqual(self.ask("detokenize", [1], skip_special_tokens=False, model="m"), "t")
        self.assertEqual(self.ask("models"), [baton.Model("m", 8, 9, 2**64 - 1)])
        self.assertEqual(self.ask("workers"),
                         [baton.Worker("w:1", "decode", "99", "", 0, 0, 0, 4, 0, ("score", "98"))])
        self.assertEqual(self.ask("cancel", "r7", tenant="t"), 2)
        requests = [self.router.next_call().request for _ in range(6)]
        self.assertEqual(requests[5], inference_pb2.CancelRequest(request_id="r7", tenant="t"))
        self.assertEqual(requests[0].request.stop.max_tokens, 3)
        self.assertTrue(requests[0].request.request_id)
        self.assertFalse(requests[1].add_special_tokens)
        self.assertTrue(requests[1].split_special_tokens)
        self.assertFalse(requests[2].skip_special_tokens)
        self.assertEqual(requests[2].model, "m")

    # ---- Retries

    def test_what_fails_before_its_first_token_is_retried(self):
        self.router.reply([Failure(UNAVAILABLE, "WORKER_LOST")], [Failure(UNAVAILABLE)],
                          [last("done")])
        chunks, stream = self.read("p")
        self.assertEqual([c.text for c in chunks], ["done"])
        self.assertEqual(self.time.slept, [0.5 * 0.2, 0.5 * 0.4])
        requests = [self.router.next_call().request for _ in range(3)]
        self.assertEqual(requests[1:], requests[:1] * 2)
        self.assertEqual(requests[0].request_id, stream.request_id)

    def test_other_calls_are_retried(self):
        self.router.reply(Failure(UNAVAILABLE), once("ok"))
        self.assertEqual(self.ask("generate_once", "p").text, "ok")
        self.router.reply(Failure(REFUSED, "TOKENIZER_QUEUE_FULL", retry_after=1),
                          inference_pb2.TokenizeResponse(token_ids=[1]))
        self.assertEqual(self.ask("tokenize", "p"), [1])
        self.assertEqual(self.time.slept, [0.1, 1.1])

    def test_a_retry_waits_for_the_time_that_the_router_gives(self):
        self.router.reply([Failure(REFUSED, "QUEUE_FULL", retry_after=1.5)], [last()])
        self.read("p")
        self.assertEqual(self.time.slept, [1.5 + 0.5 * 0.2])

    def test_back_off_is_bounded(self):
        self.arguments["max_retries"] = 7
        self.router.reply(*[[Failure(UNAVAILABLE)]] * 7, [last()])
        self.read("p")
        self.assertEqual([2 * pause for pause in self.time.slept], [0.2, 0.4, 0.8, 1.6, 3.2, 5, 5])

    def test_at_most_max_retries(self):
        for retries in (2, 0):
            self.arguments["max_retries"] = retries
            self.router.reply(*[[Failure(UNAVAILABLE, "NO_WORKER", f"attempt {i}")]
                                for i in range(retries + 1)])
            error = self.failure_of("p", request_id="r")
            self.assertIs(type(error), baton.UnavailableError)
            self.assertEqual((error.message, error.request_id), (f"attempt {retries}", "r"))
        self.assertEqual(self.arrived(), 4)

    def test_a_cancellation_without_reason_is_retried(self):
        # A router that stops cuts calls that are on their way to it.
        cut = Failure(CANCELLED)
        self.router.reply([cut], [last("a")])
        self.assertEqual(self.read("p")[1].completion.text, "a")
        self.router.reply(cut, once("b"))
        self.assertEqual(self.ask("generate_once", "p").text, "b")
        self.router.reply([delta("a"), cut])
        self.assertIs(type(self.failure_of("p")), baton.CancelledError)
        self.router.reply(cut)
        self.assertFalse(self.ask("is_ready"))
        self.assertEqual((self.arrived(), self.time.slept), (6, [0.1, 0.1]))

    def test_a_cancellation_with_a_reason_is_not_retried(self):
        for reason in ("CANCELLED", "CANCELLED_BY_ID"):
            self.router.reply([Failure(CANCELLED, reason)], Failure(CANCELLED, reason))
            self.assertEqual(self.failure_of("p").reason, reason)
            with self.assertRaises(baton.CancelledError):
                self.ask("generate_once", "p")
        self.assertEqual((self.arrived(), self.time.slept), (4, []))

    def test_a_retry_goes_to_the_router_that_took_the_place_of_one_that_stopped(self):
        with reserved_address() as address:
            stopped, replaced = FakeRouter(address), []

            def replace():
                stopped.next_call()
                stopped.stop()  # cancels the call
                replaced.append(FakeRouter(address))
                replaced[0].reply([last("late")])

            stopped.reply([Hang()])
            self.arguments["address"] = address
            thread = threading.Thread(target=replace)
            thread.start()
            try:
                self.assertEqual(self.read("p")[1].completion.text, "late")
            finally:
                thread.join(AWAIT_S)
                replaced[0].stop()
        self.assertEqual(self.time.slept, [0.1])

    def test_a_wrong_request_is_not_retried(self):
        self.router.reply([Failure(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")])
        self.assertIs(type(self.failure_of("p", model="x")), baton.ModelNotFoundError)
        self.assertEqual((self.arrived(), self.time.slept), (1, []))

    def test_nothing_is_retried_after_the_first_message(self):
        for first in (delta("a"), delta()):
            self.router.reply([first, Failure(UNAVAILABLE, "WORKER_LOST", retry_after=0.1)])
            self.assertIs(type(self.failure_of("p")), baton.WorkerLostError)
        self.assertEqual((self.arrived(), self.time.slept), (2, []))

    def test_no_retry_beyond_the_deadline(self):
        self.router.reply([Failure(REFUSED, "QUEUE_FULL", retry_after=30)])
        error = self.failure_of("p", timeout=20)
        self.assertEqual((type(error), error.retry_after), (baton.OverloadedError, 30))
        self.assertEqual((self.arrived(), self.time.slept), (1, []))

    def test_attempts_share_one_deadline(self):
        self.router.reply([Failure(REFUSED, "QUEUE_FULL", retry_after=400)], [last()])
        self.read("p")
        first, second = self.router.next_call(), self.router.next_call()
        self.assertGreater(first.time_left, 500)  # of 600 s, the default
        self.assertLess(second.time_left, 200)

    def test_the_deadline_ends_a_call(self):
        self.router.reply([Hang()], Hang())
        self.assertIs(type(self.failure_of("p", timeout=2)), baton.DeadlineExceededError)
        self.router.await_cancelled()
        with self.assertRaises(baton.DeadlineExceededError):
            self.ask("generate_once", "p", timeout=2)
        self.router.await_cancelled()

    def test_timeouts_are_finite(self):
        for timeout in (0, -1, float("inf"), float("nan")):
            with self.assertRaises(ValueError):
                self.read("p", timeout=timeout)

    # ---- Ends

    def test_an_unreachable_router(self):
        with reserved_address() as address:
            self.arguments.update(address=address, wait_for_ready=False)
            error = self.failure_of("p")
            self.assertIs(type(error), baton.UnavailableError)
            self.assertIn(f"router at {address}: ", error.message)
            self.assertEqual(len(self.time.slept), 2)
            self.assertFalse(self.ask("is_ready"))

    def test_a_router_that_is_slow_to_answer(self):
        with slow_to_answer(self.router.address) as address:
            self.arguments.update(address=address, wait_for_ready=False, max_retries=0)
            self.router.reply([last("late")])
            self.assertEqual(self.read("p")[1].completion.text, "late")

    def test_is_ready(self):
        codes = health_pb2.HealthCheckResponse
        self.router.reply(codes(status=codes.SERVING), codes(status=codes.NOT_SERVING),
                          Failure(grpc.StatusCode.UNIMPLEMENTED))
        self.assertTrue(self.ask("is_ready"))
        self.assertFalse(self.ask("is_ready"))
        with self.assertRaises(baton.BatonError):  # another kind of server
            self.ask("is_ready")
        self.assertEqual(self.router.next_call().request.service, "baton.v1.InferenceService")

    def test_addresses(self):
        with mock.patch.dict(os.environ, {"BATON_ADDRESS": self.router.address}):
            self.arguments["address"] = None
            self.router.reply([last("a")])
            self.assertEqual(self.read("p")[1].completion.text, "a")
        with mock.patch.dict(os.environ):
            os.environ.pop("BATON_ADDRESS", None)
            self.assertEqual(self.address_of(None), "127.0.0.1:50051")
        for address in ("localhost", ":5", "host:"):
            with self.assertRaises(baton.InvalidRequestError) as caught:
                self.address_of(address)
            self.assertEqual(caught.exception.field, "address")

"""A router for tests: an in-process gRPC server that answers each call as the test has written."""

import gc
import itertools
import queue
import threading
from concurrent import futures

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2

from baton.v1 import admin_pb2, inference_pb2

AWAIT_S = 60  # a limit for events that a test waits for, not an expectation


def delta(text="", **fields):
    return inference_pb2.GenerateResponse(text=text, **fields)


def last(text="", reason=inference_pb2.FINISH_REASON_STOP, **fields):
    fields.setdefault("timings", inference_pb2.Timings(ttft_ms=7))
    return delta(text, finish_reason=reason, seed=5, **fields)


def once(text):
    return inference_pb2.GenerateOnceResponse(
        text=text, choices=[inference_pb2.Choice(text=text, finish_reason="FINISH_REASON_LENGTH")],
        seed=5, request_id="from the router")


class Failure:
    """A status as common/base/rpc/grpc_status.cc sends it."""

    def __init__(self, code, reason="", message="no", field=None, retry_after=None):
        self.code, self.message = code, message
        status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            self._add(status, error_details_pb2.ErrorInfo(reason=reason, domain="baton"))
        if field:
            violation = error_details_pb2.BadRequest.FieldViolation(field=field)
            self._add(status, error_details_pb2.BadRequest(field_violations=[violation]))
        if retry_after is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromNanoseconds(int(retry_after * 1e9))
            self._add(status, retry)
        self.details = status.SerializeToString()

    @staticmethod
    def _add(status, detail):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)

    @property
    def metadata(self):
        return (("grpc-status-details-bin", self.details),)

    def end(self, context):
        context.set_trailing_metadata(self.metadata)
        context.abort(self.code, self.message)


class Hang:
    """Keeps the call open until the client or the test ends it."""


class Arrival:
    """A call at the router. `cancelled` is released if it ends before its answer is complete."""

    def __init__(self, method, request, context, cancelled):
        self.method, self.request = method, request
        self.metadata = dict(context.invocation_metadata())
        self.time_left = context.time_remaining()  # seconds until the client's deadline
        self.answered = False
        self.items = []  # of ScoreStream
        self._context = context
        self._ended = threading.Event()
        self._cancelled = cancelled
        if not context.add_callback(self._end):
            self._end()

    def _end(self):
        if not self.answered:
            self._cancelled.release()
        self._ended.set()

    def give(self, answer):
        """Returns a message, or ends the call as a Failure or Hang says."""
        if isinstance(answer, Failure):
            self.answered = True
            answer.end(self._context)
        if isinstance(answer, Hang):
            self._ended.wait()
            self._context.abort(grpc.StatusCode.CANCELLED, "ended")
        return answer


class FakeRouter:
    """`answers` are taken in turn, one by each call: a list of messages, Failures and Hang for
    Generate and ScoreStream (there also the number of messages to read before the next answer), a
    message or a Failure for the others. Thread-safe.
    """

    def __init__(self, address="127.0.0.1:0"):
        self.calls = queue.Queue()  # the Arrival of each call
        self.cancelled = threading.Semaphore(0)
        self.answers = queue.Queue()
        self._server = grpc.server(futures.ThreadPoolExecutor(8), options=[
            ("grpc.so_reuseport", 1), ("grpc.max_receive_message_length", 16 << 20)])
        once_methods = {
            "GenerateOnce": inference_pb2.GenerateOnceRequest,
            "Score": inference_pb2.ScoreRequest,
            "Embed": inference_pb2.EmbedRequest,
            "Tokenize": inference_pb2.TokenizeRequest,
            "Detokenize": inference_pb2.DetokenizeRequest,
            "ListModels": inference_pb2.ListModelsRequest,
            "Cancel": inference_pb2.CancelRequest,
        }
        self._add("baton.v1.InferenceService", once_methods, {
            "Generate": grpc.unary_stream_rpc_method_handler(
                self._stream, inference_pb2.GenerateRequest.FromString, _serialize),
            "ScoreStream": grpc.stream_stream_rpc_method_handler(
                self._both, inference_pb2.ScoreStreamRequest.FromString, _serialize)})
        self._add("baton.v1.AdminService", {"ListWorkers": admin_pb2.ListWorkersRequest})
        self._add("grpc.health.v1.Health", {"Check": health_pb2.HealthCheckRequest})
        self.address = f"127.0.0.1:{self._server.add_insecure_port(address)}"
        self._server.start()

    def stop(self):
        self._server.stop(grace=None).wait()

    def reply(self, *answers):
        """Appends answers."""
        for answer in answers:
            self.answers.put(answer)

    def next_call(self):
        """Waits for a call and returns its Arrival."""
        return self.calls.get(timeout=AWAIT_S)

    def await_cancelled(self):
        assert self.cancelled.acquire(timeout=AWAIT_S), "no call was cancelled"

    def await_collected(self):
        """Collects garbage until a call is cancelled. One collection is not enough: it does nothing
        while another thread collects."""
        for _ in range(20 * AWAIT_S):
            gc.collect()
            if self.cancelled.acquire(timeout=0.05):
                return
        raise AssertionError("no call was cancelled")

    def _add(self, service, once_methods, handlers=None):
        handlers = dict(handlers or {})
        for name, request in once_methods.items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._once(name), request.FromString, _serialize)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),))

    def _once(self, name):
        def answer(request, context):
            call = self._arrive(name, request, context)
            message = call.give(self.answers.get(timeout=AWAIT_S))
            call.answered = True
            return message
        return answer

    def _stream(self, request, context):
        call = self._arrive("Generate", request, context)
        for answer in self.answers.get(timeout=AWAIT_S):
            yield call.give(answer)
        call.answered = True

    def _both(self, requests, context):
        call = self._arrive("ScoreStream", next(requests), context)
        for answer in self.answers.get(timeout=AWAIT_S):
            if isinstance(answer, int):
                call.items += [m.items[0].text for m in itertools.islice(requests, answer)]
            else:
                yield call.give(answer)
        call.items += [m.items[0].text for m in requests]
        call.answered = True

    def _arrive(self, method, request, context):
        call = Arrival(method, request, context, self.cancelled)
        self.calls.put(call)
        return call


def _serialize(message):
    return message.SerializeToString()

"""What the two clients share: the calls of the API, channel options, retries, and the merging of a
stream. Nothing here does I/O or waits."""

from __future__ import annotations

import math
import os
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Callable, Generic, Mapping, Optional, Sequence, TypeVar

import grpc
from grpc_health.v1 import health_pb2

from baton.errors import (
    BatonError,
    CancelledError,
    InvalidRequestError,
    WorkerFailedError,
    to_error,
)
from baton.request import ARGUMENTS, GenerateOptions, Priority, Prompt, to_request
from baton.types import (
    Choice,
    Chunk,
    Completion,
    FinishReason,
    ItemScore,
    Model,
    Scores,
    ScoreUsage,
    Timings,
    Usage,
    Worker,
    from_proto,
    to_completion,
    to_finish_reason,
    to_item_score,
    to_logprobs,
    to_scores,
    to_usage,
    to_worker,
)
from baton.v1 import admin_pb2, inference_pb2

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:50051"
DEFAULT_TIMEOUT_S = 600.0
DEFAULT_MAX_RETRIES = 2
READY_TIMEOUT_S = 5.0
NOT_READY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,  # a router that stops
)

_INFERENCE = "baton.v1.InferenceService"
_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 5.0
_MAX_MESSAGE_BYTES = 16 << 20  # as common/base/rpc/channel.cc
# A router on a busy machine accepts TCP connections long before it answers: each attempt to connect
# gets gRPC's default of 20 s. Pauses between attempts stay short, so that a long-lived client
# reaches a restarted router within 3 s, as in common/base/rpc/channel.h. Keepalive pings also flow
# while a long prefill sends nothing. A program that does not read a stream buffers one flow-control
# window of it, however much the connection once carried.
CHANNEL_OPTIONS = (
    ("grpc.min_reconnect_backoff_ms", 20_000),  # in spite of its name, the limit of one attempt
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
)


def to_address(address: Optional[str]) -> str:
    """The argument, else BATON_ADDRESS, else the default. InvalidRequestError if not host:port."""
    address = address or os.environ.get("BATON_ADDRESS") or DEFAULT_ADDRESS
    host, _, port = address.rpartition(":")
    one_host = host and (":" not in host or host[0] + host[-1] == "[]")
    one_port = port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535
    if not one_host or not one_port:
        raise InvalidRequestError(
            f'"{address[:300]}" is not host:port',
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_ADDRESS",
            field="address",
        )
    return address


def to_api_key(api_key: Optional[str]) -> str:
    """The argument, else BATON_API_KEY; empty: none. InvalidRequestError if no call can carry it.

    gRPC's own error would show it.
    """
    api_key = os.environ.get("BATON_API_KEY", "") if api_key is None else api_key
    if not all(" " <= character <= "~" for character in api_key):
        raise InvalidRequestError(
            "api_key: printable ASCII characters expected",
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_HEADER",
            field="api_key",
        )
    return api_key


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and how to read its response."""

    path: str
    request: Any
    response: Any  # the message class
    parse: Callable[[Any], T]
    request_id: str = ""
    # The caller's names of the request's fields, as to_error() takes them.
    arguments: Mapping[str, str] = field(default_factory=dict)

    def stubs(self) -> dict[str, Any]:
        """The arguments of grpc.Channel's methods that make callables."""
        return {
            "method": self.path,
            "request_serializer": type(self.request).SerializeToString,
            "response_deserializer": self.response.FromString,
        }


def generate(prompt: Prompt, options: GenerateOptions) -> Call[inference_pb2.GenerateResponse]:
    request = to_request(prompt, options)
    return Call(
        f"/{_INFERENCE}/Generate",
        request,
        inference_pb2.GenerateResponse,
        lambda message: message,
        request.request_id,
        ARGUMENTS,
    )


def generate_once(prompt: Prompt, options: GenerateOptions) -> Call[Completion]:
    request = to_request(prompt, options)
    return Call(
        f"/{_INFERENCE}/GenerateOnce",
        inference_pb2.GenerateOnceRequest(request=request),
        inference_pb2.GenerateOnceResponse,
        to_completion,
        request.request_id,
        ARGUMENTS,
    )


def score_request(
    prefix: str,
    labels: Sequence[str],
    priority: Optional[Priority],
    tenant: str,
    request_id: str,
    cache_salt: str,
    model: str,
) -> inference_pb2.ScoreRequest:
    """Without items."""
    return inference_pb2.ScoreRequest(
        model=model,
        prefix=prefix,
        labels=labels,
        tenant=tenant,
        request_id=request_id or uuid.uuid4().hex[:16],
        cache_salt=cache_salt,
        priority=f"PRIORITY_{priority.upper()}" if priority else "PRIORITY_UNSPECIFIED",
    )


def score(request: inference_pb2.ScoreRequest, items: Sequence[str]) -> Call[Scores]:
    request.items.extend(items)
    return Call(
        f"/{_INFERENCE}/Score",
        request,
        inference_pb2.ScoreResponse,
        to_scores,
        request.request_id,
    )


def embed(request: inference_pb2.EmbedRequest) -> Call[list[list[float]]]:
    return Call(
        f"/{_INFERENCE}/Embed",
        request,
        inference_pb2.EmbedResponse,
        lambda message: [list(embedding.values) for embedding in message.embeddings],
        request.request_id,
    )


def score_stream(
    settings: inference_pb2.ScoreRequest, in_order: bool
) -> Call[inference_pb2.ScoreStreamResponse]:
    return Call(
        f"/{_INFERENCE}/ScoreStream",
        inference_pb2.ScoreStreamRequest(settings=settings, in_order=in_order),
        inference_pb2.ScoreStreamResponse,
        lambda message: message,
        settings.request_id,
    )


def tokenize(
    text: str, add_special_tokens: bool, split_special_tokens: bool, model: str
) -> Call[list[int]]:
    return Call(
        f"/{_INFERENCE}/Tokenize",
        inference_pb2.TokenizeRequest(
            model=model,
            text=text,
            add_special_tokens=add_special_tokens,
            split_special_tokens=split_special_tokens,
        ),
        inference_pb2.TokenizeResponse,
        lambda message: list(message.token_ids),
    )


def detokenize(token_ids: Sequence[int], skip_special_tokens: bool, model: str) -> Call[str]:
    return Call(
        f"/{_INFERENCE}/Detokenize",
        inference_pb2.DetokenizeRequest(
            model=model, token_ids=token_ids, skip_special_tokens=skip_special_tokens
        ),
        inference_pb2.DetokenizeResponse,
        lambda message: str(message.text),
    )


def models() -> Call[list[Model]]:
    return Call(
        f"/{_INFERENCE}/ListModels",
        inference_pb2.ListModelsRequest(),
        inference_pb2.ListModelsResponse,
        lambda message: [from_proto(Model, model) for model in message.models],
    )


def workers() -> Call[list[Worker]]:
    return Call(
        "/baton.v1.AdminService/ListWorkers",
        admin_pb2.ListWorkersRequest(),
        admin_pb2.ListWorkersResponse,
        lambda message: [to_worker(worker) for worker in message.workers],
    )


def cancel(request_id: str, tenant: str) -> Call[int]:
    return Call(
        f"/{_INFERENCE}/Cancel",
        inference_pb2.CancelRequest(request_id=request_id, tenant=tenant),
        inference_pb2.CancelResponse,
        lambda message: int(message.cancelled),
    )


def health() -> Call[bool]:
    return Call(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest(service=_INFERENCE),
        health_pb2.HealthCheckResponse,
        lambda message: bool(message.status == health_pb2.HealthCheckResponse.SERVING),
    )


@dataclass(frozen=True)
class Settings:
    """Of a client. clock and random are for tests."""

    address: str
    timeout: float
    max_retries: int
    wait_for_ready: bool
    clock: Callable[[], float]
    random: Callable[[], float]
    api_key: str = ""  # empty: none


class Attempts:
    """The deadline of one call and its retries: exponential back-off with full jitter after the
    time that the router asks for (Brooker, "Exponential Backoff And Jitter", AWS, 2015)."""

    def __init__(self, settings: Settings, call: Call[Any], timeout: Optional[float]) -> None:
        seconds = settings.timeout if timeout is None else timeout
        if not 0 < seconds < math.inf:
            raise ValueError(f"timeout is {seconds}, expected seconds above 0")
        self._settings = settings
        self._request_id = call.request_id
        self._arguments = call.arguments
        self._deadline = settings.clock() + seconds
        self._retries = 0

    def call_arguments(self) -> dict[str, Any]:
        """The arguments of the next attempt."""
        remaining = self._deadline - self._settings.clock()
        arguments: dict[str, Any] = {
            "timeout": max(0.0, remaining),
            "wait_for_ready": self._settings.wait_for_ready,
        }
        if self._settings.api_key:
            arguments["metadata"] = (("authorization", f"Bearer {self._settings.api_key}"),)
        return arguments

    def error(self, failure: Any, cancelled: bool = False) -> BatonError:
        """The exception for a call that gRPC ended. `cancelled`: the caller has cancelled it."""
        error = to_error(
            failure.code(),
            failure.details(),
            failure.trailing_metadata(),
            self._request_id,
            self._settings.address,
            self._arguments,
        )
        without_reason = error.code is grpc.StatusCode.CANCELLED and not error.reason
        return self.cancelled() if cancelled and without_reason else error

    def cancelled(self) -> CancelledError:
        """What the caller caused, with the router's reason for it."""
        code = grpc.StatusCode.CANCELLED
        return CancelledError("the caller cancelled", code, "CANCELLED", self._request_id)

    def pause_after(self, error: BatonError) -> float:
        """Seconds until the next attempt; raises the error if there is none."""
        backoff = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** min(self._retries, 10))
        pause: float = (error.retry_after or 0.0) + backoff * self._settings.random()
        if (
            not error.retryable
            or self._retries >= self._settings.max_retries
            or self._settings.clock() + pause >= self._deadline
        ):
            raise error
        self._retries += 1
        return pause


class ScoreResults:
    """The state of a running score_stream. It is never retried: its items may be a generator."""

    def __init__(
        self, call: Call[inference_pb2.ScoreStreamResponse], attempts: Attempts
    ) -> None:
        self._api = call
        self._attempts = attempts
        self._results: deque[ItemScore] = deque()
        self._usage: Optional[ScoreUsage] = None
        self._ended = False
        self._error: Optional[BaseException] = None  # of the call, or of the items
        self._cancelled = False  # by the caller
        self._sent = 0

    @property
    def request_id(self) -> str:
        return self._api.request_id

    @property
    def usage(self) -> Optional[ScoreUsage]:
        """None until all results have arrived."""
        return self._usage

    def _message(self, text: str) -> inference_pb2.ScoreStreamRequest:
        item = inference_pb2.ScoreItem(id=self._sent, text=text)
        self._sent += 1
        return inference_pb2.ScoreStreamRequest(items=[item])

    def _take(self, message: inference_pb2.ScoreStreamResponse) -> None:
        self._results.extend(to_item_score(item) for item in message.items)
        if message.HasField("usage"):
            self._usage = from_proto(ScoreUsage, message.usage)

    def _fail(self, error: BaseException) -> None:
        """An error of the items goes before that of the call, which is its consequence."""
        self._ended = True
        self._error = self._error or error

    def _end(self) -> None:
        """After a status OK."""
        self._ended = True
        if self._usage is None:
            message = "the stream ended before its last result"
            self._fail(
                WorkerFailedError(message, grpc.StatusCode.INTERNAL, request_id=self.request_id)
            )


class Stream:
    """The state of a running answer: merges messages, and remembers how it ended."""

    def __init__(self, call: Call[inference_pb2.GenerateResponse], attempts: Attempts) -> None:
        self._api = call
        self._attempts = attempts
        # The router refuses an n out of this range.
        n = min(max(call.request.n, 1), 16)
        self._completion = Completion(call.request_id, [Choice() for _ in range(n)])
        self._begun = False
        self._ended = False
        self._error: Optional[BatonError] = None

    @property
    def completion(self) -> Completion:
        """All that has arrived, merged."""
        return self._completion

    @property
    def request_id(self) -> str:
        return self._completion.request_id

    @property
    def usage(self) -> Usage:
        """Of all choices so far."""
        return self._completion.usage

    @property
    def timings(self) -> Optional[Timings]:
        """None until the answer is complete."""
        return self._completion.timings

    @property
    def finish_reason(self) -> Optional[FinishReason]:
        """Of the first choice; None until it is complete."""
        return self._completion.finish_reason

    def _fail(self, error: BatonError) -> BatonError:
        self._ended = True
        self._error = error
        return error

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _broken(self, message: str) -> BatonError:
        return self._fail(
            WorkerFailedError(message, grpc.StatusCode.INTERNAL, request_id=self.request_id)
        )

    def _pause_after(self, error: BatonError) -> float:
        """Seconds until the next attempt; raises the error if it is final."""
        if self._begun:
            raise self._fail(error)
        try:
            return self._attempts.pause_after(error)
        except BatonError as final:
            self._fail(final)
            raise

    def _end(self) -> None:
        """After a status OK. Raises if the answer is incomplete."""
        self._ended = True
        for index, choice in enumerate(self._completion.choices):
            if choice.finish_reason is None:
                raise self._broken(f"the stream ended without a finish reason for choice {index}")

    def _merge(self, message: inference_pb2.GenerateResponse) -> Optional[Chunk]:
        """None for a message without content: the request waits for another worker."""
        self._begun = True
        completion = self._completion
        if not 0 <= message.choice < len(completion.choices):
            raise self._broken(
                f"the router sent choice {message.choice} of {len(completion.choices)}"
            )
        choice = completion.choices[message.choice]
        if message.HasField("usage"):
            completion.usage = to_usage(message.usage)
        completion.request_id = message.request_id or completion.request_id
        chunk = Chunk(
            text=message.text,
            token_ids=list(message.token_ids),
            choice=message.choice,
            usage=completion.usage,
            finish_reason=to_finish_reason(message.finish_reason),
            matched_stop=message.matched_stop or None,
            logprobs=to_logprobs(message.logprobs),
            prompt_logprobs=to_logprobs(message.prompt_logprobs),
        )
        choice.text += chunk.text
        choice.token_ids += chunk.token_ids
        choice.logprobs += chunk.logprobs
        completion.prompt_logprobs += chunk.prompt_logprobs
        if chunk.finish_reason is not None:
            choice.finish_reason = chunk.finish_reason
            choice.matched_stop = chunk.matched_stop
            choice.beam_score = message.beam_score
            completion.timings = from_proto(Timings, message.timings)
            completion.seed = message.seed
        elif not (chunk.text or chunk.token_ids or chunk.logprobs or chunk.prompt_logprobs):
            return None
        return chunk

"""The synchronous client."""

from __future__ import annotations

import threading
import time
import weakref
from random import random as uniform
from types import TracebackType
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence

import grpc
from typing_extensions import Self, Unpack

from baton import calls
from baton.calls import Attempts, Call, Settings, T
from baton.errors import BatonError
from baton.request import EmbedInput, GenerateOptions, Priority, Prompt, to_embed_request
from baton.types import Chunk, Completion, ItemScore, Model, Scores, Worker
from baton.v1 import inference_pb2


class GenerateStream(calls.Stream, Iterator[Chunk]):
    """A running request, and an iterator over its answer.

    The request is cancelled, on the workers too, when the stream is closed, leaves its `with` block
    or is garbage-collected before its end. cancel() may be called from any thread, everything else
    from one. A stream that failed raises its error again.
    """

    def __init__(
        self, client: Client, call: Call[inference_pb2.GenerateResponse], attempts: Attempts
    ) -> None:
        super().__init__(call, attempts)
        self._client = client
        self._lock = threading.Lock()  # of the two fields below
        self._rpc: Any = None  # of the latest attempt; cancels itself when garbage-collected
        self._cancelled = threading.Event()
        self._start()

    def __next__(self) -> Chunk:
        while not self._ended:
            try:
                message = next(self._rpc)
            except StopIteration:
                self._end()
                break
            except grpc.RpcError as error:
                if self._client._closed.is_set():
                    self._cancelled.set()
                failure = self._attempts.error(error, self._cancelled.is_set())
            else:
                try:
                    chunk = self._merge(message)
                except BatonError:
                    self._rpc.cancel()
                    raise
                if chunk is not None:
                    return chunk
                continue
            self._client._sleep(self._pause_after(failure), self._cancelled)
            if self._client._closed.is_set():
                self._cancelled.set()
            self._start()
        self._raise_if_failed()
        raise StopIteration

    def text(self) -> str:
        """Reads the stream to its end and returns the whole text of the first choice."""
        for _ in self:
            pass
        return self.completion.text

    def cancel(self) -> None:
        """Cancels the request. Reading on raises CancelledError, unless the answer is complete."""
        with self._lock:
            self._cancelled.set()
            if self._rpc is not None:
                self._rpc.cancel()

    close = cancel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def _start(self) -> None:
        """Makes an attempt."""
        with self._lock:
            if self._cancelled.is_set():
                raise self._fail(self._attempts.cancelled())
            stub = self._client._channel.unary_stream(**self._api.stubs())
            self._rpc = stub(self._api.request, **self._attempts.call_arguments())


class ScoreStream(calls.ScoreResults, Iterator[ItemScore]):
    """A running score_stream, and an iterator over its results.

    The call is cancelled, on the workers too, when the stream is closed, leaves its `with` block or
    is garbage-collected before its end. A thread of gRPC reads the items; an error that they raise
    ends the call, and is raised here. A stream that failed raises its error again.
    """

    def __init__(
        self,
        client: Client,
        call: Call[inference_pb2.ScoreStreamResponse],
        attempts: Attempts,
        items: Iterable[str],
    ) -> None:
        super().__init__(call, attempts)
        stub = client._channel.stream_stream(**call.stubs())
        # The thread must not keep the stream from being garbage-collected.
        messages = _score_messages(call.request, items, weakref.ref(self))
        self._rpc = stub(messages, **attempts.call_arguments())

    def __next__(self) -> ItemScore:
        while not self._results and not self._ended:
            try:
                self._take(next(self._rpc))
            except StopIteration:
                self._end()
            except grpc.RpcError as error:
                self._fail(self._attempts.error(error, self._cancelled))
        if self._results:
            return self._results.popleft()
        if self._error is not None:
            raise self._error
        raise StopIteration

    def cancel(self) -> None:
        """Cancels the call. Reading on raises CancelledError, unless all results have arrived."""
        self._cancelled = True
        self._rpc.cancel()

    close = cancel

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_rpc"):
            self._rpc.cancel()


def _score_messages(
    first: inference_pb2.ScoreStreamRequest,
    items: Iterable[str],
    stream: weakref.ref[ScoreStream],
) -> Iterator[inference_pb2.ScoreStreamRequest]:
    yield first
    try:
        for text in items:
            reader = stream()
            if reader is None:
                return
            message = reader._message(text)
            del reader
            yield message
    except Exception as error:
        reader = stream()
        if reader is not None:
            reader._error = error
        raise


class Client:
    """A connection to a router. Thread-safe.

    `api_key` is by default that of the environment variable BATON_API_KEY, if it is set.
    `credentials`, from grpc.ssl_channel_credentials, turn TLS on; without TLS, everyone on the way
    can read the key.

    The constructor does not connect; the first call does, and waits for the router until its
    deadline unless `wait_for_ready` is False. `timeout` is that of each call, in seconds, including
    its retries. Calls are retried at most `max_retries` times if the router is overloaded,
    unreachable or stops, and no token has arrived. `clock`, `sleep` and `random` are for tests.
    """

    def __init__(
        self,
        address: Optional[str] = None,
        *,
        api_key: Optional[str] = None,
        credentials: Optional[grpc.ChannelCredentials] = None,
        timeout: float = calls.DEFAULT_TIMEOUT_S,
        max_retries: int = calls.DEFAULT_MAX_RETRIES,
        wait_for_ready: bool = True,
        clock: Callable[[], float] = time.monotonic,
        sleep: Optional[Callable[[float], None]] = None,
        random: Callable[[], float] = uniform,
    ) -> None:
        self._settings = Settings(
            calls.to_address(address),
            timeout,
            max_retries,
            wait_for_ready,
            clock,
            random,
            calls.to_api_key(api_key),
        )
        self._sleep = _event_sleep if sleep is None else lambda pause, _: sleep(pause)
        self._closed = threading.Event()
        if credentials is None:
            self._channel = grpc.insecure_channel(self._settings.address, calls.CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(
                self._settings.address, credentials, calls.CHANNEL_OPTIONS
            )

    @property
    def address(self) -> str:
        return self._settings.address

    def generate(
        self, prompt: Prompt, *, timeout: Optional[float] = None, **options: Unpack[GenerateOptions]
    ) -> GenerateStream:
        """Starts a request and returns at once. Errors are raised when the stream is read."""
        call = calls.generate(prompt, options)
        return GenerateStream(self, call, self._attempts(call, timeout))

    def generate_once(
        self, prompt: Prompt, *, timeout: Optional[float] = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        return self._ask(calls.generate_once(prompt, options), timeout)

    def score(
        self,
        prefix: str,
        items: Sequence[str],
        labels: Sequence[str],
        *,
        priority: Optional[Priority] = None,
        tenant: str = "",
        request_id: str = "",
        cache_salt: str = "",
        model: str = "",
        timeout: Optional[float] = None,
    ) -> Scores:
        """How likely each label is after prefix + item (docs/scoring.md). At most 4,096 items; one
        that cannot be scored has an error and does not fail the others. `priority` is "low",
        "normal" or "high"."""
        request = calls.score_request(
            prefix, labels, priority, tenant, request_id, cache_salt, model
        )
        return self._ask(calls.score(request, items), timeout)

    def embed(
        self,
        inputs: Sequence[EmbedInput],
        *,
        dimensions: Optional[int] = None,
        priority: Optional[Priority] = None,
        tenant: str = "",
        request_id: str = "",
        model: str = "",
        timeout: Optional[float] = None,
    ) -> list[list[float]]:
        """A vector for each input, a text or token ids (docs/embeddings.md). At most 2,048 inputs,
        whose vectors have 4 MiB together; one that cannot be embedded fails the call."""
        request = to_embed_request(inputs, dimensions, priority, tenant, request_id, model)
        return self._ask(calls.embed(request), timeout)

    def score_stream(
        self,
        prefix: str,
        items: Iterable[str],
        labels: Sequence[str],
        *,
        in_order: bool = True,
        priority: Optional[Priority] = None,
        tenant: str = "",
        request_id: str = "",
        cache_salt: str = "",
        model: str = "",
        timeout: Optional[float] = None,
    ) -> ScoreStream:
        """As score(), for any number of items, which another thread reads while results come.
        `in_order`: results in the order of the items, else as they are ready; `index` names the
        item. The call is not retried. Errors are raised when the stream is read."""
        settings = calls.score_request(
            prefix, labels, priority, tenant, request_id, cache_salt, model
        )
        call = calls.score_stream(settings, in_order)
        return ScoreStream(self, call, self._attempts(call, timeout), items)

    def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        model: str = "",
        timeout: Optional[float] = None,
    ) -> list[int]:
        return self._ask(
            calls.tokenize(text, add_special_tokens, split_special_tokens, model), timeout
        )

    def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        model: str = "",
        timeout: Optional[float] = None,
    ) -> str:
        return self._ask(calls.detokenize(token_ids, skip_special_tokens, model), timeout)

    def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        return self._ask(calls.models(), timeout)

    def workers(self, *, timeout: Optional[float] = None) -> list[Worker]:
        return self._ask(calls.workers(), timeout)

    def cancel(
        self, request_id: str, *, tenant: str = "", timeout: Optional[float] = None
    ) -> int:
        """Cancels the requests of this router with that id and tenant, whichever client sent them,
        and returns how many. InvalidRequestError (UNKNOWN_REQUEST) if there is none."""
        return self._ask(calls.cancel(request_id, tenant), timeout)

    def is_ready(self, *, timeout: float = calls.READY_TIMEOUT_S) -> bool:
        """Whether the router can be reached and has workers that can answer. One attempt."""
        call = calls.health()
        try:
            return call.parse(self._stub(call)(call.request, timeout=timeout))
        except grpc.RpcError as error:
            failure = self._attempts(call, timeout).error(error)
        if failure.code in calls.NOT_READY:
            return False
        raise failure

    def close(self) -> None:
        """Cancels what still runs."""
        self._closed.set()
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def _attempts(self, call: Call[T], timeout: Optional[float]) -> Attempts:
        return Attempts(self._settings, call, timeout)

    def _ask(self, call: Call[T], timeout: Optional[float]) -> T:
        attempts = self._attempts(call, timeout)
        stub = self._stub(call)
        while True:
            try:
                return call.parse(stub(call.request, **attempts.call_arguments()))
            except grpc.RpcError as error:
                failure = attempts.error(error, self._closed.is_set())
            self._sleep(attempts.pause_after(failure), self._closed)
            if self._closed.is_set():
                raise attempts.cancelled()

    def _stub(self, call: Call[T]) -> grpc.UnaryUnaryMultiCallable[Any, Any]:
        return self._channel.unary_unary(**call.stubs())


def _event_sleep(pause: float, cancelled: threading.Event) -> None:
    cancelled.wait(pause)

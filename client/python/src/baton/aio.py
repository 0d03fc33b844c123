"""The asynchronous client."""

from __future__ import annotations

import asyncio
import time
import weakref
from random import random as uniform
from types import TracebackType
from typing import (
    Any,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Optional,
    Sequence,
    Union,
)

import grpc
import grpc.aio
from typing_extensions import Self, Unpack

from baton import calls
from baton.calls import Attempts, Call, Settings, T
from baton.errors import BatonError
from baton.request import EmbedInput, GenerateOptions, Priority, Prompt, to_embed_request
from baton.types import Chunk, Completion, ItemScore, Model, Scores, Worker
from baton.v1 import inference_pb2


class AsyncGenerateStream(calls.Stream, AsyncIterator[Chunk]):
    """A running request, and an asynchronous iterator over its answer.

    The request is cancelled, on the workers too, when the stream is closed, leaves its `async with`
    block or is garbage-collected before its end, and when the task that reads it is cancelled. A
    stream that failed raises its error again.
    """

    def __init__(
        self, client: AsyncClient, call: Call[inference_pb2.GenerateResponse], attempts: Attempts
    ) -> None:
        super().__init__(call, attempts)
        self._client = client
        self._cancelled = asyncio.Event()
        self._rpc = self._start()

    async def __anext__(self) -> Chunk:
        while not self._ended:
            try:
                message = await _outcome(self._rpc, self._rpc.read())
            except grpc.aio.AioRpcError as error:
                failure = self._attempts.error(error, self._cancelled.is_set())
            else:
                if message is grpc.aio.EOF:
                    self._end()
                    break
                try:
                    chunk = self._merge(message)
                except BatonError:
                    self._rpc.cancel()
                    raise
                if chunk is not None:
                    return chunk
                continue
            await self._client._sleep(self._pause_after(failure), self._cancelled)
            self._rpc = self._start()
        self._raise_if_failed()
        raise StopAsyncIteration

    async def text(self) -> str:
        """Reads the stream to its end and returns the whole text of the first choice."""
        async for _ in self:
            pass
        return self.completion.text

    def cancel(self) -> None:
        """Cancels the request. Reading on raises CancelledError, unless the answer is complete."""
        self._cancelled.set()
        self._rpc.cancel()

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Any thread may collect garbage.
        if hasattr(self, "_rpc") and not self._client._loop.is_closed():
            self._client._loop.call_soon_threadsafe(self._rpc.cancel)

    def _start(self) -> Any:
        """Makes an attempt; returns its grpc.aio call."""
        if self._cancelled.is_set():
            raise self._fail(self._attempts.cancelled())
        stub = self._client._channel.unary_stream(**self._api.stubs())
        return stub(self._api.request, **self._attempts.call_arguments())


class AsyncScoreStream(calls.ScoreResults, AsyncIterator[ItemScore]):
    """A running score_stream, and an asynchronous iterator over its results.

    The call is cancelled, on the workers too, when the stream is closed, leaves its `async with`
    block or is garbage-collected before its end, and when the task that reads it is cancelled. An
    error that the items raise ends the call, and is raised here. A stream that failed raises its
    error again.
    """

    def __init__(
        self,
        client: AsyncClient,
        call: Call[inference_pb2.ScoreStreamResponse],
        attempts: Attempts,
        items: Union[Iterable[str], AsyncIterable[str]],
    ) -> None:
        super().__init__(call, attempts)
        self._client = client
        stub = client._channel.stream_stream(**call.stubs())
        # The task that sends must not keep the stream from being garbage-collected.
        messages = _score_messages(call.request, items, weakref.ref(self))
        self._rpc = stub(messages, **attempts.call_arguments())

    async def __anext__(self) -> ItemScore:
        message: Any
        while not self._results and not self._ended:
            try:
                message = await _outcome(self._rpc, self._rpc.read())
            except grpc.aio.AioRpcError as error:
                self._fail(self._attempts.error(error, self._cancelled))
            else:
                if message is grpc.aio.EOF:
                    self._end()
                else:
                    self._take(message)
        if self._results:
            return self._results.popleft()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def cancel(self) -> None:
        """Cancels the call. Reading on raises CancelledError, unless all results have arrived."""
        self._cancelled = True
        self._rpc.cancel()

    async def aclose(self) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        # Any thread may collect garbage.
        if hasattr(self, "_rpc") and not self._client._loop.is_closed():
            self._client._loop.call_soon_threadsafe(self._rpc.cancel)


async def _score_messages(
    first: inference_pb2.ScoreStreamRequest,
    items: Union[Iterable[str], AsyncIterable[str]],
    stream: weakref.ref[AsyncScoreStream],
) -> AsyncIterator[inference_pb2.ScoreStreamRequest]:
    yield first
    try:
        async for text in _each(items):
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
            reader._rpc.cancel()
        raise


async def _each(items: Union[Iterable[str], AsyncIterable[str]]) -> AsyncIterator[str]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


class AsyncClient:
    """baton.Client for asyncio. Made, used and closed in one running event loop."""

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
        sleep: Optional[Callable[[float], Awaitable[None]]] = None,
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
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(self._settings.address, calls.CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.secure_channel(
                self._settings.address, credentials, calls.CHANNEL_OPTIONS
            )
        self._streams: weakref.WeakSet[Union[AsyncGenerateStream, AsyncScoreStream]] = (
            weakref.WeakSet()
        )

    @property
    def address(self) -> str:
        return self._settings.address

    def generate(
        self, prompt: Prompt, *, timeout: Optional[float] = None, **options: Unpack[GenerateOptions]
    ) -> AsyncGenerateStream:
        """Starts a request and returns at once. Errors are raised when the stream is read."""
        call = calls.generate(prompt, options)
        stream = AsyncGenerateStream(self, call, self._attempts(call, timeout))
        self._streams.add(stream)
        return stream

    async def generate_once(
        self, prompt: Prompt, *, timeout: Optional[float] = None, **options: Unpack[GenerateOptions]
    ) -> Completion:
        return await self._ask(calls.generate_once(prompt, options), timeout)

    async def score(
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
        return await self._ask(calls.score(request, items), timeout)

    async def embed(
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
        return await self._ask(calls.embed(request), timeout)

    def score_stream(
        self,
        prefix: str,
        items: Union[Iterable[str], AsyncIterable[str]],
        labels: Sequence[str],
        *,
        in_order: bool = True,
        priority: Optional[Priority] = None,
        tenant: str = "",
        request_id: str = "",
        cache_salt: str = "",
        model: str = "",
        timeout: Optional[float] = None,
    ) -> AsyncScoreStream:
        """As score(), for any number of items, which a task reads while results come.
        `in_order`: results in the order of the items, else as they are ready; `index` names the
        item. The call is not retried. Errors are raised when the stream is read."""
        settings = calls.score_request(
            prefix, labels, priority, tenant, request_id, cache_salt, model
        )
        call = calls.score_stream(settings, in_order)
        stream = AsyncScoreStream(self, call, self._attempts(call, timeout), items)
        self._streams.add(stream)
        return stream

    async def tokenize(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        model: str = "",
        timeout: Optional[float] = None,
    ) -> list[int]:
        return await self._ask(
            calls.tokenize(text, add_special_tokens, split_special_tokens, model), timeout
        )

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        model: str = "",
        timeout: Optional[float] = None,
    ) -> str:
        return await self._ask(calls.detokenize(token_ids, skip_special_tokens, model), timeout)

    async def models(self, *, timeout: Optional[float] = None) -> list[Model]:
        return await self._ask(calls.models(), timeout)

    async def workers(self, *, timeout: Optional[float] = None) -> list[Worker]:
        return await self._ask(calls.workers(), timeout)

    async def cancel(
        self, request_id: str, *, tenant: str = "", timeout: Optional[float] = None
    ) -> int:
        """Cancels the requests of this router with that id and tenant, whichever client sent them,
        and returns how many. InvalidRequestError (UNKNOWN_REQUEST) if there is none."""
        return await self._ask(calls.cancel(request_id, tenant), timeout)

    async def is_ready(self, *, timeout: float = calls.READY_TIMEOUT_S) -> bool:
        """Whether the router can be reached and has workers that can answer. One attempt."""
        call = calls.health()
        try:
            rpc = self._stub(call)(call.request, timeout=timeout)
            return call.parse(await _outcome(rpc, rpc))
        except grpc.aio.AioRpcError as error:
            failure = self._attempts(call, timeout).error(error)
        if failure.code in calls.NOT_READY:
            return False
        raise failure

    async def close(self) -> None:
        """Cancels what still runs."""
        self._closed.set()
        # The channel cancels only calls that a task awaits.
        for stream in self._streams:
            stream.cancel()
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        await self.close()

    def _attempts(self, call: Call[T], timeout: Optional[float]) -> Attempts:
        return Attempts(self._settings, call, timeout)

    async def _ask(self, call: Call[T], timeout: Optional[float]) -> T:
        attempts = self._attempts(call, timeout)
        stub = self._stub(call)
        while True:
            try:
                rpc = stub(call.request, **attempts.call_arguments())
                return call.parse(await _outcome(rpc, rpc))
            except grpc.aio.AioRpcError as error:
                failure = attempts.error(error, self._closed.is_set())
            await self._sleep(attempts.pause_after(failure), self._closed)
            if self._closed.is_set():
                raise attempts.cancelled()

    def _stub(self, call: Call[T]) -> Any:
        return self._channel.unary_unary(**call.stubs())


async def _outcome(rpc: Any, operation: Awaitable[T]) -> T:
    """What an operation of a call returns or raises. grpc.aio raises asyncio.CancelledError if the
    task or the call is cancelled; here it means the task, and AioRpcError the call."""
    future = asyncio.ensure_future(operation)
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        rpc.cancel()
        # asyncio would log an exception that is not retrieved.
        future.add_done_callback(lambda f: f.cancelled() or f.exception())
        raise
    if not future.cancelled():
        return future.result()
    raise grpc.aio.AioRpcError(
        await rpc.code(), grpc.aio.Metadata(), await rpc.trailing_metadata(), await rpc.details()
    )


async def _event_sleep(pause: float, cancelled: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(cancelled.wait(), pause)
    except asyncio.TimeoutError:
        pass

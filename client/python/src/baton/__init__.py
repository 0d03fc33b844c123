"""Client of Baton, an LLM serving cluster.

    import baton

    with baton.Client("127.0.0.1:50051") as client:
        for chunk in client.generate("Once upon a time", max_tokens=32):
            print(chunk.text, end="", flush=True)

AsyncClient is the same for asyncio. Failed calls raise subclasses of BatonError.
"""

from baton.aio import AsyncClient, AsyncGenerateStream
from baton.client import Client, GenerateStream
from baton.errors import (
    AuthenticationError,
    BatonError,
    CancelledError,
    DeadlineExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    OverloadedError,
    PermissionDeniedError,
    PromptTooLongError,
    RequestTooLargeError,
    TenantLimitError,
    UnavailableError,
    WorkerFailedError,
    WorkerLostError,
)
from baton.request import GenerateOptions
from baton.types import (
    CacheMiss,
    Choice,
    Chunk,
    Completion,
    FinishReason,
    Model,
    Timings,
    TokenLogprob,
    TokenLogprobs,
    Usage,
    Worker,
)

__all__ = [
    "AsyncClient",
    "AsyncGenerateStream",
    "AuthenticationError",
    "BatonError",
    "CacheMiss",
    "CancelledError",
    "Choice",
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceededError",
    "FinishReason",
    "GenerateOptions",
    "GenerateStream",
    "InvalidRequestError",
    "Model",
    "ModelNotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "PromptTooLongError",
    "RequestTooLargeError",
    "TenantLimitError",
    "Timings",
    "TokenLogprob",
    "TokenLogprobs",
    "UnavailableError",
    "Usage",
    "Worker",
    "WorkerFailedError",
    "WorkerLostError",
]

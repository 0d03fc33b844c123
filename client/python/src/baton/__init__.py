"""Client of Baton, which serves large language models on a cluster of small machines.

    import baton

    with baton.Client("127.0.0.1:50051") as client:
        for chunk in client.generate("Once upon a time", max_tokens=32):
            print(chunk.text, end="", flush=True)

AsyncClient is the same for asyncio. Failed calls raise subclasses of BatonError.
"""

from baton.aio import AsyncClient, AsyncGenerateStream, AsyncScoreStream
from baton.client import Client, GenerateStream, ScoreStream
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
    UnreadAnswerError,
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
    ItemScore,
    LabelScore,
    Model,
    ScoreError,
    Scores,
    ScoreUsage,
    SourceUsage,
    Timings,
    TokenLogprob,
    TokenLogprobs,
    Usage,
    Worker,
)

__all__ = [
    "AsyncClient",
    "AsyncGenerateStream",
    "AsyncScoreStream",
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
    "ItemScore",
    "LabelScore",
    "Model",
    "ModelNotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "PromptTooLongError",
    "RequestTooLargeError",
    "ScoreError",
    "ScoreStream",
    "ScoreUsage",
    "Scores",
    "SourceUsage",
    "TenantLimitError",
    "Timings",
    "TokenLogprob",
    "TokenLogprobs",
    "UnavailableError",
    "UnreadAnswerError",
    "Usage",
    "Worker",
    "WorkerFailedError",
    "WorkerLostError",
]

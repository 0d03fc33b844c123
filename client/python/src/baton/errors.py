"""Exceptions: one class per family of the reasons in docs/errors.md.

A router reports an error as google.rpc.Status; to_error() decodes it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Iterable, Mapping, Optional

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_Details = Optional[Iterable[tuple[str, Any]]]


class BatonError(Exception):
    """A call that failed."""

    def __init__(
        self,
        message: str,
        code: grpc.StatusCode = grpc.StatusCode.UNKNOWN,
        reason: str = "",
        request_id: str = "",
        retry_after: Optional[float] = None,
        field: Optional[str] = None,
    ) -> None:
        super().__init__(message, code, reason, request_id, retry_after, field)
        self.message = message
        self.code = code
        self.reason = reason  # of docs/errors.md; empty if the error is gRPC's own
        self.request_id = request_id  # as in the cluster's logs; empty for calls that have none
        self.retry_after = retry_after  # seconds
        self.field = field  # the wrong argument, such as "top_p"

    def __str__(self) -> str:
        names = [self.code.name, self.reason]
        if self.request_id:
            names.append(f"request {self.request_id}")
        return f"{self.message} [{', '.join(filter(None, dict.fromkeys(names)))}]"

    @property
    def retryable(self) -> bool:
        """The same request may succeed later: docs/errors.md, "When to retry"."""
        return (
            self.code is grpc.StatusCode.UNAVAILABLE
            or (self.code is grpc.StatusCode.RESOURCE_EXHAUSTED and self.retry_after is not None)
            or (self.code is grpc.StatusCode.CANCELLED and not self.reason)
        )


class InvalidRequestError(BatonError):
    """The request is wrong."""


class PromptTooLongError(InvalidRequestError):
    """The prompt, or it and max_tokens, is longer than the router or the model allows."""


class ModelNotFoundError(InvalidRequestError):
    """The cluster serves another model."""


class RequestTooLargeError(InvalidRequestError):
    """The request never fits into the cluster, or its answer into one message."""


class AuthenticationError(BatonError):
    """The call has no valid API key."""


class PermissionDeniedError(BatonError):
    """The API key does not allow the call."""


class OverloadedError(BatonError):
    """The cluster has no capacity for the request now."""


class TenantLimitError(OverloadedError):
    """The tenant has as many requests or tokens as it may have."""


class UnavailableError(BatonError):
    """The router cannot be reached, or no worker can take the request."""


class WorkerLostError(UnavailableError):
    """The request's worker was lost, and no other could continue."""


class WorkerFailedError(BatonError):
    """A worker failed on this request, or the router on its answer."""


class DeadlineExceededError(BatonError):
    """The timeout is over."""


class UnreadAnswerError(BatonError):
    """The program read its answer too slowly, or not at all, and the router gave it up."""


class CancelledError(BatonError):
    """The call was cancelled, by the caller (reason CANCELLED), by its id (CANCELLED_BY_ID), or
    without a reason by a router that stopped as the call came. Not asyncio.CancelledError, which cancels a task."""


_FAMILIES: dict[type[BatonError], str] = {
    InvalidRequestError: """EMPTY_PROMPT EMPTY_LABEL DUPLICATE_LABEL LABEL_NOT_SEPARATE SETTINGS_TWICE NOT_ONE_TOKEN
        TEXT_TOO_COMPLEX NOT_UTF8 INVALID_UTF8 OUT_OF_RANGE
        TOO_MANY_STOPS EMPTY_STOP NOT_WITH_BEAM_SEARCH ONLY_WITH_BEAM_SEARCH BAD_TENANT
        BAD_REQUEST_ID UNKNOWN_TOKEN TOKEN_ID NO_TOKEN_LEFT MALFORMED_REQUEST PROMPT_LENGTH
        PREFILL_ADDRESS FIRST_BLOCK BAD_ADDRESS BAD_HEADER UNKNOWN_FIELD UNSUPPORTED_FIELD WRONG_TYPE
        MISSING_FIELD MALFORMED_JSON ONLY_WITH_LOGPROBS UNKNOWN_ROLE NO_CHAT_TEMPLATE
        BAD_CHAT_VARIABLE CHAT_TEMPLATE_REFUSED CHAT_TEMPLATE_FAILED UNKNOWN_REQUEST UNKNOWN_WORKER
        UNKNOWN_PREFIX SCHEMA_INVALID SCHEMA_UNSUPPORTED SCHEMA_TOO_COMPLEX NOT_WITH_STRUCTURED_OUTPUT
        GRAMMAR_MISMATCH STRUCTURED_OUTPUT_UNAVAILABLE OUTPUT_LIMIT PRIORITY_LIMIT BAD_SEGMENTS
        NOT_WITH_MESSAGES PREVIOUS_RESPONSE_NOT_FOUND NOT_AN_EMBEDDING_MODEL NOT_A_RERANK_MODEL""",
    PromptTooLongError: "PROMPT_TOO_LONG TEXT_TOO_LONG CONTEXT_LENGTH_EXCEEDED",
    ModelNotFoundError: "MODEL_NOT_FOUND",
    RequestTooLargeError: """ANSWER_TOO_LARGE TOO_MANY_CHOICES KV_POOL_TOO_SMALL
        CHAT_TEMPLATE_LIMIT""",
    OverloadedError: """TOO_MANY_REQUESTS TOO_MANY_PROMPT_TOKENS TOO_MANY_REQUEST_BYTES TOKENIZER_QUEUE_FULL QUEUE_FULL
        TOO_MANY_WARM_PREFIXES DEADLINE_UNREACHABLE TTFT_SLO_UNREACHABLE SURVIVORS_FULL KV_BLOCKS_EXHAUSTED GRAMMAR_QUEUE_FULL
        GRAMMAR_CACHE_FULL KV_FETCH_LIMIT KV_STORE_FULL""",
    AuthenticationError: "INVALID_API_KEY WRONG_WORKER_SECRET",
    PermissionDeniedError: "NOT_ADMIN TENANT_MISMATCH",
    TenantLimitError: "TENANT_LIMIT TENANT_RATE_LIMIT",
    UnavailableError: """NO_WORKER NO_PREFILL_WORKER DRAINING ROUTER_STOPPED MODEL_MISMATCH KV_LAYOUT
        KV_LAYOUT_MISMATCH TOKENIZER_MISMATCH GENERATION_CONFIG_MISMATCH ROLE_MISMATCH CHECKSUM PROTOCOL MALFORMED_FRAME
        WORKER_REFUSED PREFILL_REFUSED GRAMMAR_PROCESS_LOST KV_FETCH_OFF KV_STORE KV_STORE_PAUSED KV_STORE_VALUE""",
    WorkerLostError: """WORKER_LOST WORKER_OUTDATED PREFILL_LOST WORKER_STALLED WORKER_EXPIRED
        WORKER_SUSPECT PREFILL_SUSPECT STALE_EPOCH RETRY_BUDGET_EXHAUSTED""",
    WorkerFailedError: "WORKER_FAILED WORKERS_DIED NON_FINITE_LOGITS",
    DeadlineExceededError: "DEADLINE_EXCEEDED DEADLINE",
    UnreadAnswerError: "READER_STALLED READER_BEHIND",
    CancelledError: "CANCELLED CANCELLED_BY_ID UNDRAINED",
}
REASONS = {reason: cls for cls, reasons in _FAMILIES.items() for reason in reasons.split()}

# For errors without a reason, or with one that is newer than this package.
_CODES: dict[grpc.StatusCode, type[BatonError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: InvalidRequestError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: OverloadedError,
    grpc.StatusCode.UNAUTHENTICATED: AuthenticationError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.INTERNAL: WorkerFailedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    # This status has no details: the router could not send them past the unread part of the answer.
    grpc.StatusCode.ABORTED: UnreadAnswerError,
}


def _error_class(
    code: grpc.StatusCode, reason: str, retry_after: Optional[float]
) -> type[BatonError]:
    # An overloaded router may find that the deadline is over: the caller's timeout comes first.
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceededError
    # gRPC's own error for a message above its limit has this code, too.
    if not reason and code is grpc.StatusCode.RESOURCE_EXHAUSTED and retry_after is None:
        return RequestTooLargeError
    return REASONS.get(reason) or _CODES.get(code, BatonError)


def _argument(field: str, arguments: Mapping[str, str]) -> str:
    """The field, or what is within it, by the name of its argument."""
    for known, argument in arguments.items():
        if field == known or field.startswith((f"{known}.", f"{known}[")):
            return argument + field[len(known) :]
    return field


def to_error(
    code: grpc.StatusCode,
    message: Optional[str],
    trailing_metadata: _Details,
    request_id: str,
    address: str,
    arguments: Mapping[str, str] = MappingProxyType({}),
) -> BatonError:
    """The exception for a gRPC status. Ignores details that do not parse, and those of another
    status: gRPC may combine its own CANCELLED with what the router sent meanwhile. `arguments` are
    the caller's names of fields that the request has by other names."""
    details: list[Any] = []
    for key, value in trailing_metadata or ():
        if key == "grpc-status-details-bin":
            try:
                status = status_pb2.Status.FromString(value)
            except DecodeError:
                continue
            if status.code == code.value[0]:
                details.extend(status.details)
    info = error_details_pb2.ErrorInfo()
    bad_request = error_details_pb2.BadRequest()
    retry = error_details_pb2.RetryInfo()
    retry_after: Optional[float] = None
    for detail in details:
        try:
            detail.Unpack(info)
            detail.Unpack(bad_request)
            if detail.Unpack(retry):
                retry_after = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
        except DecodeError:
            pass
    violations = bad_request.field_violations
    field = violations[0].field if violations else None
    # gRPC's own errors do not name the router.
    text = (message or "") if info.reason else f"router at {address}: {message or code.name}"
    if field:
        argument = _argument(field, arguments)
        # A message about a field begins with it.
        if text.startswith(f"{field}: "):
            text = argument + text[len(field) :]
        field = argument
    error = _error_class(code, info.reason, retry_after)
    return error(text, code, info.reason, request_id, retry_after, field)

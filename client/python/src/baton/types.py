"""What a router returns, as dataclasses. Proto fields that are empty because they do not apply are
None here."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Iterable, Literal, Optional, TypeVar

from baton.v1 import admin_pb2, inference_pb2

FinishReason = Literal["stop", "length"]

_T = TypeVar("_T")


def from_proto(cls: type[_T], message: Any) -> _T:
    """A dataclass whose fields are fields of the message, with the same types."""
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    return cls(**{name: getattr(message, name) for name in names})


@dataclass(frozen=True)
class CacheMiss:
    """Why less of the prompt was cached than an earlier prompt of the tenant would have allowed."""

    cause: str  # "changed", "evicted", "other_salt"
    first_different_token: int
    text: str  # around that token in this prompt
    earlier_text: str
    lost_tokens: int
    lost_ms: float  # 0: unknown
    earlier_request_id: str


@dataclass(frozen=True)
class SourceUsage:
    """The prompt tokens of one source."""

    tokens: int
    cached: int  # of tokens


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0  # of prompt_tokens
    generated_tokens: int = 0  # of all choices
    kv_bytes: int = 0  # sent from prefill to decode workers
    cache_miss: Optional[CacheMiss] = None  # with explain_cache, in the last message
    dropped_prompt_tokens: int = 0  # by truncation; not part of prompt_tokens
    # With segments, by source, such as "history"; all add up to prompt_tokens.
    by_source: dict[str, SourceUsage] = field(default_factory=dict)
    # Speculative decoding: tokens drafted for all choices, and how many of them were accepted.
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True)
class Timings:
    """Milliseconds, as defined in proto/baton/v1/inference.proto."""

    queue_ms: float
    prefill_ms: float
    kv_transfer_ms: float
    decode_ms: float
    ttft_ms: float


@dataclass(frozen=True)
class TokenLogprob:
    token_id: int
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities of a token and of the most probable tokens at its position, before sampling
    parameters apply."""

    token_id: int
    logprob: float
    top: list[TokenLogprob]  # best first


@dataclass(frozen=True)
class LabelScore:
    logprob: float  # of the label after prefix + item: the sum over its tokens
    token_ids: list[int]
    token_logprobs: list[float]


@dataclass(frozen=True)
class ScoreError:
    code: int  # of gRPC
    reason: str
    message: str


@dataclass(frozen=True)
class ItemScore:
    """The result of one item: an error, or a score for each label in the order of the labels."""

    labels: list[LabelScore]
    probability: Optional[float]  # with two labels P0 / (P0 + P1)
    prompt_tokens: int
    cached_prompt_tokens: int
    error: Optional[ScoreError]
    index: int = 0  # of the item, in the order in which items were given


@dataclass(frozen=True)
class ScoreUsage:
    items: int = 0
    failed_items: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0


@dataclass(frozen=True)
class Scores:
    items: list[ItemScore]  # in the order of the request
    usage: ScoreUsage
    request_id: str


@dataclass(frozen=True)
class Chunk:
    """One message of a stream."""

    text: str
    token_ids: list[int]  # with return_token_ids
    choice: int  # index of the choice that the chunk extends
    usage: Usage  # of all choices so far
    finish_reason: Optional[FinishReason]  # in the last chunk of a choice
    matched_stop: Optional[str]
    logprobs: list[TokenLogprobs]  # of this chunk's tokens, with logprobs
    prompt_logprobs: list[TokenLogprobs]  # from the second prompt token on, with prompt_logprobs


@dataclass
class Choice:
    """One of the n answers."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: Optional[FinishReason] = None  # None while the choice is incomplete
    matched_stop: Optional[str] = None  # the stop string that ended it
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    beam_score: float = 0.0  # with beam_width


@dataclass
class Completion:
    """A complete answer or, of a stream that runs, what has arrived so far."""

    request_id: str
    choices: list[Choice]
    usage: Usage = Usage()
    timings: Optional[Timings] = None  # known at the end
    seed: Optional[int] = None  # that sampling used; known at the end
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Of the first choice."""
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> Optional[FinishReason]:
        """Of the first choice."""
        return self.choices[0].finish_reason


@dataclass(frozen=True)
class Model:
    id: str
    max_model_len: int  # 0 until a worker has reported it
    vocab_size: int
    fingerprint: int  # 0 until a worker has reported it


@dataclass(frozen=True)
class Worker:
    address: str
    role: str  # "prefill", "decode"
    # "connecting", "ready", "suspect", "expired", "refused", "draining", "drained"
    state: str
    detail: str
    running: int
    queued: int
    total_blocks: int
    free_blocks: int
    indexed_blocks: int
    capabilities: tuple[str, ...] = ()  # of "compute", "score" and "answer"


def to_finish_reason(value: inference_pb2.FinishReason) -> Optional[FinishReason]:
    if value == inference_pb2.FINISH_REASON_STOP:
        return "stop"
    return "length" if value == inference_pb2.FINISH_REASON_LENGTH else None


def to_usage(usage: inference_pb2.Usage) -> Usage:
    miss = None
    if usage.HasField("cache_miss"):
        cause = _short_name(inference_pb2.CacheMissCause, usage.cache_miss.cause)
        miss = dataclasses.replace(from_proto(CacheMiss, usage.cache_miss), cause=cause)
    by_source = {
        _short_name(inference_pb2.PromptSource, s.source): SourceUsage(s.tokens, s.cached)
        for s in usage.by_source
    }
    return dataclasses.replace(from_proto(Usage, usage), cache_miss=miss, by_source=by_source)


def to_logprobs(messages: Iterable[inference_pb2.TokenLogprobs]) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(m.token_id, m.logprob, [from_proto(TokenLogprob, top) for top in m.top])
        for m in messages
    ]


def to_item_score(item: inference_pb2.ItemScore) -> ItemScore:
    return ItemScore(
        [
            LabelScore(label.logprob, list(label.token_ids), list(label.token_logprobs))
            for label in item.labels
        ],
        item.probability if item.HasField("probability") else None,
        item.prompt_tokens,
        item.cached_prompt_tokens,
        from_proto(ScoreError, item.error) if item.HasField("error") else None,
        item.id,
    )


def to_scores(message: inference_pb2.ScoreResponse) -> Scores:
    items = [to_item_score(item) for item in message.items]
    return Scores(items, from_proto(ScoreUsage, message.usage), message.request_id)


def to_completion(response: inference_pb2.GenerateOnceResponse) -> Completion:
    return Completion(
        request_id=response.request_id,
        choices=[
            Choice(
                text=choice.text,
                token_ids=list(choice.token_ids),
                finish_reason=to_finish_reason(choice.finish_reason),
                matched_stop=choice.matched_stop or None,
                logprobs=to_logprobs(choice.logprobs),
                beam_score=choice.beam_score,
            )
            for choice in response.choices
        ],
        usage=to_usage(response.usage),
        timings=from_proto(Timings, response.timings),
        seed=response.seed,
        prompt_logprobs=to_logprobs(response.prompt_logprobs),
    )


def to_worker(status: admin_pb2.WorkerStatus) -> Worker:
    return dataclasses.replace(
        from_proto(Worker, status),
        role=_short_name(admin_pb2.WorkerRole, status.role),
        state=_short_name(admin_pb2.WorkerState, status.state),
        capabilities=tuple(
            _short_name(admin_pb2.WorkerCapability, value) for value in status.capabilities
        ),
    )


def _short_name(enum: Any, value: int) -> str:
    """WORKER_STATE_READY to "ready"; a value that is newer than this package to its number."""
    if value not in enum.values():
        return str(value)
    prefix = enum.Name(0)[: -len("UNSPECIFIED")]
    return str(enum.Name(value))[len(prefix) :].lower()

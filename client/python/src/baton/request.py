"""Keyword arguments to GenerateRequest messages."""

from __future__ import annotations

import uuid
from typing import Any, Literal, Mapping, Optional, Sequence, TypedDict, Union

from baton.v1 import inference_pb2

# Text, token ids, or the messages of a conversation: {"role": "user", "content": "Hi"}.
Prompt = Union[str, Sequence[int], Sequence[Mapping[str, str]]]
Priority = Literal["low", "normal", "high"]
EmbedInput = Union[str, Sequence[int]]  # text or token ids


class GenerateOptions(TypedDict, total=False):
    """The keyword arguments of generate() and generate_once(). docs/sampling.md has ranges and
    meanings; None is the same as absent. Absent sampling fields take the values of the model's
    generation_config.json."""

    model: Optional[str]  # absent: the only model served

    temperature: Optional[float]  # 0 is greedy
    top_p: Optional[float]
    top_k: Optional[int]
    min_p: Optional[float]
    seed: Optional[int]  # equal seeds draw equal tokens
    repetition_penalty: Optional[float]
    frequency_penalty: Optional[float]
    presence_penalty: Optional[float]
    logit_bias: Optional[Mapping[int, float]]  # by token id

    # If absent, a default of the router or the model limits the answer, if there is one; else the
    # answer ends when the model stops, or when its context or the KV pool is full. If 0, with
    # prompt_logprobs, the prompt is scored and no token is generated.
    max_tokens: Optional[int]
    min_tokens: Optional[int]
    stop: Union[str, Sequence[str], None]  # texts that end the answer and are not part of it
    stop_token_ids: Optional[Sequence[int]]
    ignore_eos: Optional[bool]

    # What the answer must be: {"json_object": {}}, {"json_schema": text}, {"regex": text} or
    # {"choices": {"texts": [...]}}; beside it, "any_whitespace": True, and "reasoning": {"begin": text,
    # "end": text} for what comes before. docs/structured_output.md has what is supported.
    structured_output: Optional[Mapping[str, Any]]

    # Shortens a prompt that is too long, in steps that keep later turns cached: a mapping with any of
    # "keep_first", "keep_last" and "retention_ratio". docs/policy.md has the algorithm.
    truncation: Optional[Mapping[str, Any]]
    # The parts of the prompt in order, for usage.by_source: a source ("system", "history",
    # "retrieval", "tools", "user" or "unspecified") and a length, of text in bytes of UTF-8.
    segments: Optional[Sequence[tuple[str, int]]]

    n: Optional[int]  # number of choices; absent: 1
    beam_width: Optional[int]  # beam search instead of sampling; the choices are the n best beams
    length_penalty: Optional[float]  # with beam_width
    logprobs: Optional[int]  # return each token's log probability and those of the k most probable
    prompt_logprobs: Optional[int]  # the same for the prompt's tokens, from the second on
    return_token_ids: Optional[bool]
    add_special_tokens: Optional[bool]  # absent: true for text, false for messages
    # If true, text that spells special tokens stays text: a prompt that is given as text, or all
    # that the chat template takes from messages. If absent, it is false for text, and the router's
    # --split-special-tokens decides for messages.
    split_special_tokens: Optional[bool]

    priority: Optional[Priority]
    tenant: Optional[str]  # for fair shares and limits
    request_id: Optional[str]  # for logs and errors; absent: the client makes one
    cache_salt: Optional[str]  # requests share cached prefixes only if their salts are equal
    # Keep the prompt's beginning cached: {"until_token": 512, "priority": 50, "ttl_ms": 3600000}.
    # docs/prefix-care.md has the meanings.
    retention: Optional[Mapping[str, int]]
    explain_cache: Optional[bool]  # report cache misses in usage.cache_miss
    speculation: Optional[bool]  # False: no drafts for this request, where the workers draft


_SAMPLING = frozenset(inference_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
_STOP = frozenset(inference_pb2.StopConditions.DESCRIPTOR.fields_by_name)
_OPTIONS = frozenset(GenerateOptions.__annotations__)
# The fields of GenerateRequest that do not have the name of the argument that sets them, as a router
# names them in errors. What is within a field follows it, as in "messages[2].role".
ARGUMENTS: Mapping[str, str] = {
    **{f"sampling.{name}": name for name in _SAMPLING},
    **{f"stop.{name}": name for name in _STOP},
    **{
        field.name: "prompt"
        for field in inference_pb2.GenerateRequest.DESCRIPTOR.oneofs_by_name["prompt"].fields
    },
}


def to_structured_output(option: Mapping[str, Any]) -> inference_pb2.StructuredOutput:
    kinds = sorted(set(option) - {"reasoning", "any_whitespace"})
    if len(kinds) != 1:
        raise ValueError(f"structured_output takes one kind, not {kinds}")
    return inference_pb2.StructuredOutput(**option)


def to_request(prompt: Prompt, options: GenerateOptions) -> inference_pb2.GenerateRequest:
    """TypeError or ValueError if Protobuf cannot hold a value, such as an integer of 65 bits. The
    router checks the ranges."""
    unknown = sorted(set(options) - _OPTIONS)
    if unknown:
        raise TypeError(f"unexpected keyword argument {unknown[0]!r}")
    fields: dict[str, Any] = {name: v for name, v in options.items() if v is not None}
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    if "structured_output" in fields:
        fields["structured_output"] = to_structured_output(fields["structured_output"])
    if "retention" in fields:
        fields["retention"] = inference_pb2.Retention(**fields["retention"])
    if "truncation" in fields:
        fields["truncation"] = inference_pb2.Truncation(**fields["truncation"])
    if "segments" in fields:
        fields["segments"] = [
            inference_pb2.PromptSegment(
                source=f"PROMPT_SOURCE_{source.upper()}",
                length=length,
            )
            for source, length in fields["segments"]
        ]
    if "priority" in fields:
        fields["priority"] = f"PRIORITY_{fields['priority'].upper()}"
    sampling = {name: fields.pop(name) for name in _SAMPLING & set(fields)}
    stop = {name: fields.pop(name) for name in _STOP & set(fields)}
    if isinstance(prompt, (bytes, bytearray)):
        raise TypeError("a prompt is str or token ids, not bytes")
    if isinstance(prompt, str):
        fields["text"] = prompt
    elif prompt and isinstance(prompt[0], Mapping):
        fields["messages"] = inference_pb2.ChatMessages(
            messages=[inference_pb2.ChatMessage(**message) for message in prompt]  # type: ignore
        )
    else:
        fields["token_ids"] = inference_pb2.TokenIds(ids=prompt)  # type: ignore[arg-type]
    fields["request_id"] = fields.get("request_id") or uuid.uuid4().hex
    return inference_pb2.GenerateRequest(
        sampling=inference_pb2.SamplingParams(**sampling),
        stop=inference_pb2.StopConditions(**stop),
        **fields,
    )


def to_embed_request(
    inputs: Sequence[EmbedInput],
    dimensions: Optional[int],
    priority: Optional[Priority],
    tenant: str,
    request_id: str,
    model: str,
) -> inference_pb2.EmbedRequest:
    request = inference_pb2.EmbedRequest(
        model=model,
        dimensions=dimensions,
        tenant=tenant,
        request_id=request_id or uuid.uuid4().hex[:16],
        priority=f"PRIORITY_{priority.upper()}" if priority else "PRIORITY_UNSPECIFIED",
    )
    if isinstance(inputs, str):  # a sequence of its characters
        raise TypeError("inputs is a str, expected a sequence of them")
    for text in inputs:
        if isinstance(text, str):
            request.inputs.add(text=text)
        else:
            request.inputs.add(token_ids=inference_pb2.TokenIds(ids=text))
    return request

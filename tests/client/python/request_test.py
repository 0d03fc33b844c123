"""Keyword arguments become the fields of GenerateRequest, all of them."""

import inspect
import unittest

import grpc

from baton import client
from baton.errors import to_error
from baton.request import ARGUMENTS, GenerateOptions, to_request
from baton.types import SourceUsage, Usage, to_usage
from baton.v1 import inference_pb2
from fake_router import Failure

# A value for each option, and the field that it becomes.
OPTIONS = {
    "model": ("m", lambda r: r.model),
    "temperature": (0.5, lambda r: r.sampling.temperature),
    "top_p": (0.25, lambda r: r.sampling.top_p),
    "top_k": (-1, lambda r: r.sampling.top_k),
    "min_p": (0.125, lambda r: r.sampling.min_p),
    "seed": (2**64 - 1, lambda r: r.sampling.seed),
    "repetition_penalty": (1.5, lambda r: r.sampling.repetition_penalty),
    "frequency_penalty": (-1.5, lambda r: r.sampling.frequency_penalty),
    "presence_penalty": (1.25, lambda r: r.sampling.presence_penalty),
    "logit_bias": ({3: -100.0}, lambda r: dict(r.sampling.logit_bias)),
    "max_tokens": (9, lambda r: r.stop.max_tokens),
    "min_tokens": (2, lambda r: r.stop.min_tokens),
    "stop": (["a", "bc"], lambda r: list(r.stop.stop)),
    "stop_token_ids": ([1, 2], lambda r: list(r.stop.stop_token_ids)),
    "structured_output": ({"regex": "a+"}, lambda r: {"regex": r.structured_output.regex}),
    "truncation": (
        {"keep_first": 0, "keep_last": 8, "retention_ratio": 0.5},
        lambda r: {field.name: value for field, value in r.truncation.ListFields()}),
    "segments": (
        [("system", 5), ("user", 0)],
        lambda r: [(inference_pb2.PromptSource.Name(s.source)[14:].lower(), s.length)
                   for s in r.segments]),
    "ignore_eos": (True, lambda r: r.stop.ignore_eos),
    "n": (3, lambda r: r.n),
    "beam_width": (4, lambda r: r.beam_width),
    "length_penalty": (0.5, lambda r: r.length_penalty),
    "logprobs": (20, lambda r: r.logprobs),
    "prompt_logprobs": (1, lambda r: r.prompt_logprobs),
    "return_token_ids": (True, lambda r: r.return_token_ids),
    "add_special_tokens": (False, lambda r: r.add_special_tokens),
    "split_special_tokens": (True, lambda r: r.split_special_tokens),
    "priority": ("high", lambda r: inference_pb2.Priority.Name(r.priority)[9:].lower()),
    "tenant": ("t", lambda r: r.tenant),
    "request_id": ("id", lambda r: r.request_id),
    "cache_salt": ("s", lambda r: r.cache_salt),
    "retention": ({"priority": 7, "ttl_ms": 9},
                  lambda r: {"priority": r.retention.priority, "ttl_ms": r.retention.ttl_ms}),
    "explain_cache": (True, lambda r: r.explain_cache),
    "speculation": (False, lambda r: r.speculation if r.HasField("speculation") else None),
}


class RequestTest(unittest.TestCase):
    def test_options_are_the_fields_of_the_api(self):
        fields = set(inference_pb2.GenerateRequest.DESCRIPTOR.fields_by_name)
        fields -= {"text", "token_ids", "messages", "sampling", "stop"}
        for message in (inference_pb2.SamplingParams, inference_pb2.StopConditions):
            fields |= set(message.DESCRIPTOR.fields_by_name)
        self.assertEqual(set(GenerateOptions.__annotations__), fields)
        self.assertEqual(set(OPTIONS), fields)

    def test_each_option_becomes_its_field(self):
        everything = {name: value for name, (value, _) in OPTIONS.items()}
        for options in (everything, *({name: value} for name, value in everything.items())):
            request = to_request("p", options)
            for name in options:
                value, read = OPTIONS[name]
                self.assertEqual(read(request), value, name)

    def test_what_is_absent_or_none_stays_unset(self):
        for options in ({}, dict.fromkeys(OPTIONS)):
            request = to_request("p", options)
            request.ClearField("request_id")
            expected = inference_pb2.GenerateRequest(
                text="p", sampling=inference_pb2.SamplingParams(),
                stop=inference_pb2.StopConditions())
            self.assertEqual(request, expected)

    def test_zero_and_false_are_values(self):
        request = to_request("p", {"temperature": 0, "min_tokens": 0, "logprobs": 0})
        self.assertTrue(request.sampling.HasField("temperature"))
        self.assertTrue(request.stop.HasField("min_tokens"))
        self.assertTrue(request.HasField("logprobs"))

    def test_prompts(self):
        self.assertEqual(to_request("héllo", {}).text, "héllo")
        self.assertEqual(list(to_request((5, 6), {}).token_ids.ids), [5, 6])
        self.assertEqual(to_request("", {}).WhichOneof("prompt"), "text")
        self.assertEqual(to_request([], {}).WhichOneof("prompt"), "token_ids")
        turn = {"role": "user", "content": "Hi"}
        request = to_request([turn, {"role": "assistant", "content": ""}], {})
        self.assertEqual([(m.role, m.content) for m in request.messages.messages],
                         [("user", "Hi"), ("assistant", "")])

    def test_structured_output_is_one_kind(self):
        for option in ({"json_object": {}}, {"json_schema": "{}"}, {"regex": "a"},
                       {"choices": {"texts": ["a", "b"]}}):
            kind = next(iter(option))
            structured = to_request("p", {"structured_output": option}).structured_output
            self.assertEqual(structured.WhichOneof("kind"), kind)
        self.assertEqual(list(structured.choices.texts), ["a", "b"])
        option = {"json_schema": "{}", "any_whitespace": True, "reasoning": {"end": "</think>"}}
        structured = to_request("p", {"structured_output": option}).structured_output
        self.assertTrue(structured.any_whitespace)
        self.assertEqual((structured.reasoning.begin, structured.reasoning.end), ("", "</think>"))
        for option in ({}, {"regex": "a", "json_schema": "{}"}, {"xml": "a"}, {"any_whitespace": True}):
            with self.assertRaises(ValueError):
                to_request("p", {"structured_output": option})

    def test_errors_name_the_argument_for_every_field(self):
        """Of GenerateRequest, and of the messages that the options are spread over."""
        request = inference_pb2.GenerateRequest.DESCRIPTOR
        named = {}
        for field in request.fields:
            spread = field.name in ("sampling", "stop")
            inner = field.message_type.fields if spread else [field]
            for name in (f"{field.name}.{i.name}" if spread else i.name for i in inner):
                failure = Failure(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE",
                                  f"{name}: 3 given, less expected", field=name)
                error = to_error(failure.code, failure.message, failure.metadata, "r", "h:1", ARGUMENTS)
                self.assertEqual(error.message, f"{error.field}: 3 given, less expected")
                named[name] = error.field
        arguments = set(GenerateOptions.__annotations__) | {"prompt"}
        self.assertIn("prompt", inspect.signature(client.Client.generate).parameters)
        self.assertEqual(set(named.values()), arguments, "each argument for its field")
        self.assertEqual(named["stop.stop"], "stop")
        self.assertEqual(named["token_ids"], "prompt")
        self.assertLessEqual(set(ARGUMENTS), set(named), "no field that is gone")

    def test_errors_within_an_argument(self):
        for field, argument in (("messages[2].role", "prompt[2].role"), ("n", "n"),
                                ("structured_output.regex", "structured_output.regex"),
                                ("text_of_another", "text_of_another")):
            failure = Failure(grpc.StatusCode.INVALID_ARGUMENT, "X", "message", field=field)
            error = to_error(failure.code, failure.message, failure.metadata, "r", "h:1", ARGUMENTS)
            self.assertEqual((error.field, error.message), (argument, "message"))

    def test_usage_by_source(self):
        usage = to_usage(inference_pb2.Usage(
            prompt_tokens=9, dropped_prompt_tokens=4,
            draft_tokens=8, accepted_draft_tokens=6,
            by_source=[inference_pb2.SourceUsage(source="PROMPT_SOURCE_TOOLS", tokens=9, cached=2)]))
        self.assertEqual(
            usage, Usage(
                9, dropped_prompt_tokens=4, by_source={"tools": SourceUsage(9, 2)},
                draft_tokens=8, accepted_draft_tokens=6))

    def test_one_stop_string_is_not_its_letters(self):
        self.assertEqual(list(to_request("p", {"stop": "end"}).stop.stop), ["end"])

    def test_a_request_without_id_gets_its_own(self):
        ids = {to_request("p", {"request_id": given}).request_id for given in (None, None, "")}
        self.assertEqual(len(ids), 3)
        self.assertTrue(all(0 < len(i) <= 128 and i.isalnum() for i in ids), ids)

    def test_what_protobuf_cannot_hold_is_refused(self):
        for error, prompt, options in [
            (TypeError, "p", {"temprature": 1}),
            (TypeError, "p", {"temperature": "hot"}),
            (ValueError, "p", {"seed": -1}),
            (ValueError, "p", {"seed": 2**64}),
            (ValueError, "p", {"max_tokens": 2**31}),
            (ValueError, "p", {"priority": "urgent"}),
            (ValueError, "p", {"truncation": {"keep": 5}}),
            (ValueError, "p", {"segments": [("elsewhere", 5)]}),
            (TypeError, b"bytes", {}),
            (TypeError, ["text"], {}),
            (ValueError, [2**31], {}),
            (ValueError, [{"role": "user", "text": "Hi"}], {}),
            (TypeError, [{"role": "user", "content": 5}], {}),
        ]:
            with self.assertRaises(error, msg=(prompt, options)):
                to_request(prompt, options)


if __name__ == "__main__":
    unittest.main()

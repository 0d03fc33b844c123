"""Every reason of docs/errors.md has an exception class, and a status becomes that class."""

import asyncio
import pickle
import re
import unittest
from pathlib import Path

import grpc

import baton
from baton import errors
from fake_router import Failure

DOCUMENT = Path(__file__).parents[3] / "docs/errors.md"
# No call to a router fails with the reasons of these sections: the process does not start, or only
# its log has them. Of the others, these two are only in logs, too.
WITHOUT_CALL = ("At start", "In the router's log")
ONLY_LOGGED = {"BAD_WATCH_STREAM", "BAD_WORKER_CARD"}
# The client's own checks of its address and its API key.
OF_CLIENT = {"BAD_ADDRESS", "BAD_HEADER"}


def sections():
    parts = re.split(r"^## (.*)$", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2]))


def reasons_in(text):
    """Those of the tables' first column, and of the paragraph about workers only."""
    cells = re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)
    cells += re.findall(r"^Between workers only:([^(]*)\(", text, re.MULTILINE)
    return {reason for cell in cells for reason in re.findall(r"`([A-Z0-9_]+)`", cell)}


def decode(failure, request_id="r1"):
    return errors.to_error(failure.code, failure.message, failure.metadata, request_id, "host:1")


class ErrorsTest(unittest.TestCase):
    def test_every_documented_reason_has_a_class(self):
        found = sections()
        for name in WITHOUT_CALL:
            self.assertTrue(reasons_in(found.pop(name)), name)
        documented = set().union(*map(reasons_in, found.values())) - ONLY_LOGGED
        self.assertIn("FIRST_BLOCK", documented)
        self.assertGreater(len(documented), 40)
        self.assertEqual(set(errors.REASONS) - OF_CLIENT, documented)

    def test_every_class_is_public_and_used(self):
        classes = set(errors.REASONS.values())
        for cls in classes:
            self.assertIs(getattr(baton, cls.__name__), cls)
        public = {c for c in vars(baton).values()
                  if isinstance(c, type) and issubclass(c, baton.BatonError)}
        self.assertEqual(public - {baton.BatonError}, classes)

    def test_details_become_fields(self):
        error = decode(Failure(grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE", "3 given",
                               field="sampling.top_p"))
        self.assertIs(type(error), baton.InvalidRequestError)
        self.assertEqual((error.code, error.reason, error.message, error.field, error.request_id),
                         (grpc.StatusCode.INVALID_ARGUMENT, "OUT_OF_RANGE", "3 given",
                          "sampling.top_p", "r1"))
        self.assertIsNone(error.retry_after)
        self.assertEqual(str(error), "3 given [INVALID_ARGUMENT, OUT_OF_RANGE, request r1]")

    def test_retry_info(self):
        error = decode(Failure(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after=1.25))
        self.assertIs(type(error), baton.OverloadedError)
        self.assertEqual(error.retry_after, 1.25)
        self.assertTrue(error.retryable)

    def test_what_is_retryable(self):
        codes = grpc.StatusCode
        for code, reason, retry_after, retryable in [
            (codes.UNAVAILABLE, "", None, True),  # gRPC's own
            (codes.UNAVAILABLE, "WORKER_LOST", 1, True),
            (codes.RESOURCE_EXHAUSTED, "TENANT_LIMIT", 0.5, True),
            (codes.RESOURCE_EXHAUSTED, "KV_POOL_TOO_SMALL", None, False),  # it never fits
            (codes.RESOURCE_EXHAUSTED, "", None, False),  # gRPC's own: the message is too large
            (codes.INTERNAL, "WORKER_FAILED", None, False),
            (codes.DEADLINE_EXCEEDED, "DEADLINE", None, False),
            (codes.INVALID_ARGUMENT, "EMPTY_PROMPT", None, False),
            (codes.CANCELLED, "", None, True),  # gRPC's own: the router stops
            (codes.CANCELLED, "CANCELLED", None, False),
            (codes.CANCELLED, "CANCELLED_BY_ID", None, False),
        ]:
            error = decode(Failure(code, reason, retry_after=retry_after))
            self.assertEqual(error.retryable, retryable, error)

    def test_without_a_known_reason_the_code_decides(self):
        codes = grpc.StatusCode
        for code, reason, cls in [
            (codes.UNAVAILABLE, "", baton.UnavailableError),
            (codes.UNAVAILABLE, "NEWER_THAN_THIS", baton.UnavailableError),
            (codes.RESOURCE_EXHAUSTED, "", baton.RequestTooLargeError),  # for one gRPC message
            (codes.RESOURCE_EXHAUSTED, "NEWER_THAN_THIS", baton.OverloadedError),
            (codes.INTERNAL, "", baton.WorkerFailedError),
            (codes.UNIMPLEMENTED, "", baton.BatonError),
            (codes.ABORTED, "READER_BEHIND", baton.UnreadAnswerError),
            (codes.ABORTED, "", baton.UnreadAnswerError),
            (codes.ABORTED, "UNDRAINED", baton.CancelledError),
            # The deadline passed in an overloaded router.
            (codes.DEADLINE_EXCEEDED, "DEADLINE_UNREACHABLE", baton.DeadlineExceededError),
            (codes.RESOURCE_EXHAUSTED, "DEADLINE_UNREACHABLE", baton.OverloadedError),
        ]:
            self.assertIs(type(decode(Failure(code, reason))), cls, (code, reason))

    def test_errors_of_grpc_name_the_router(self):
        error = errors.to_error(grpc.StatusCode.UNAVAILABLE, "refused", None, "", "host:1")
        self.assertEqual(error.message, "router at host:1: refused")
        self.assertEqual(str(error), "router at host:1: refused [UNAVAILABLE]")

    def test_details_that_do_not_parse_are_ignored(self):
        failure = Failure(grpc.StatusCode.UNAVAILABLE, "NO_WORKER", "none")
        for details in (b"\xff\xff", failure.details[:-3]):
            failure.details = details
            error = decode(failure)
            self.assertEqual((error.code, error.reason), (grpc.StatusCode.UNAVAILABLE, ""))

    def test_details_of_another_status_are_ignored(self):
        failure = Failure(grpc.StatusCode.UNAVAILABLE, "NO_WORKER", retry_after=2)
        error = errors.to_error(
            grpc.StatusCode.CANCELLED, "Locally cancelled", failure.metadata, "", "host:1")
        self.assertIs(type(error), baton.CancelledError)
        self.assertEqual((error.reason, error.retry_after), ("", None))

    def test_errors_survive_pickling(self):
        error = decode(Failure(grpc.StatusCode.UNAVAILABLE, "NO_WORKER", retry_after=2))
        copy = pickle.loads(pickle.dumps(error))
        self.assertIs(type(copy), type(error))
        self.assertEqual(vars(copy), vars(error))

    def test_cancelled_is_not_a_cancelled_task(self):
        self.assertFalse(issubclass(baton.CancelledError, asyncio.CancelledError))


if __name__ == "__main__":
    unittest.main()

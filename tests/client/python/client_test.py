"""baton.Client against a fake router."""

import gc
import threading
import unittest

import grpc

import baton
from client_cases import UNAVAILABLE, ClientCases, FailureClock, reserved_address
from baton.v1 import inference_pb2
from fake_router import AWAIT_S, Failure, FakeRouter, Hang, delta, last


class ClientTest(ClientCases, unittest.TestCase):
    def read(self, *prompt, **options):
        with baton.Client(**self.arguments) as client:
            stream = client.generate(*prompt, **options)
            try:
                return list(stream), stream
            except baton.BatonError as error:
                with self.assertRaises(baton.BatonError) as again:
                    stream.text()
                self.assertIs(again.exception, error)
                raise

    def ask(self, method, *arguments, **options):
        with baton.Client(**self.arguments) as client:
            return getattr(client, method)(*arguments, **options)

    def read_scores(self, *arguments, **options):
        with baton.Client(**self.arguments) as client:
            stream = client.score_stream(*arguments, **options)
            return list(stream), stream

    def address_of(self, address):
        with baton.Client(address) as client:
            return client.address


class StreamTest(unittest.TestCase):
    """How streams of an open client end."""

    def setUp(self):
        self.router = FakeRouter()
        self.addCleanup(self.router.stop)
        self.client = baton.Client(self.router.address)
        self.addCleanup(self.client.close)

    def test_text(self):
        self.router.reply([delta("a"), last("b")])
        stream = self.client.generate("p")
        self.assertEqual(stream.text(), "ab")
        self.assertEqual(stream.text(), "ab")
        self.assertEqual(list(stream), [])

    def test_leaving_the_loop_cancels(self):
        self.router.reply([delta("a"), Hang()])
        for chunk in self.client.generate("p"):
            self.assertEqual(chunk.text, "a")
            break
        self.router.await_cancelled()

    def test_leaving_the_block_cancels(self):
        self.router.reply([delta("a"), Hang()])
        with self.assertRaises(KeyError):
            with self.client.generate("p") as stream:
                next(stream)
                raise KeyError
        self.router.await_cancelled()
        with self.assertRaises(baton.CancelledError):
            next(stream)

    def test_close_cancels(self):
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p")
        next(stream)
        stream.close()
        self.router.await_cancelled()

    def test_a_stream_in_garbage_is_cancelled(self):
        self.router.reply([delta("a"), Hang()])
        ring = [self.client.generate("p")]
        next(ring[0])
        ring.append(ring)
        del ring
        self.router.await_collected()

    def test_a_stream_that_was_never_read_is_cancelled(self):
        self.router.reply([Hang()])
        stream = self.client.generate("p")
        self.router.next_call()
        del stream
        self.router.await_cancelled()

    def test_a_score_stream_is_cancelled(self):
        endless = iter(lambda: "item", None)
        answer = inference_pb2.ScoreStreamResponse(items=[inference_pb2.ItemScore()])
        for leave in (lambda stream: stream.close(), lambda stream: stream.__exit__(None, None, None)):
            self.router.reply([3, answer, Hang()])
            stream = self.client.score_stream("p", endless, [" yes"])
            next(stream)
            leave(stream)
            self.router.await_cancelled()
            with self.assertRaises(baton.CancelledError) as caught:
                next(stream)
            self.assertEqual(caught.exception.reason, "CANCELLED")
        self.router.reply([3, answer, Hang()])
        ring = [self.client.score_stream("p", endless, [" yes"])]
        next(ring[0])
        ring.append(ring)
        del stream, ring
        self.router.await_collected()

    def test_another_thread_cancels(self):
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p", request_id="r")
        next(stream)
        canceller = threading.Thread(target=stream.cancel)
        canceller.start()
        with self.assertRaises(baton.CancelledError) as caught:
            next(stream)
        canceller.join()
        self.assertEqual(caught.exception.request_id, "r")
        self.assertEqual(stream.completion.text, "a")
        self.router.await_cancelled()

    def test_a_choice_that_was_not_asked_for_is_an_error(self):
        for choice in (1, -1):
            self.router.reply([delta("a", choice=choice), Hang()])
            stream = self.client.generate("p")
            with self.assertRaises(baton.WorkerFailedError):
                stream.text()
            self.router.await_cancelled()

    def test_cancel_ends_the_wait_for_a_retry(self):
        # The pause is much longer than the test may take.
        self.router.reply([Failure(UNAVAILABLE, "NO_WORKER", retry_after=10 * AWAIT_S)])
        failed = threading.Event()
        client = baton.Client(self.router.address, clock=FailureClock(failed.set))
        self.addCleanup(client.close)
        stream = client.generate("p", timeout=100 * AWAIT_S)
        errors = []

        def read():
            try:
                stream.text()
            except baton.BatonError as error:
                errors.append(error)

        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(failed.wait(AWAIT_S))
        stream.cancel()
        reader.join(AWAIT_S)
        self.assertEqual([type(error) for error in errors], [baton.CancelledError], errors)
        self.assertEqual(self.router.calls.qsize(), 1)

    def test_cancel_after_the_end_changes_nothing(self):
        self.router.reply([last("a")])
        stream = self.client.generate("p")
        text = stream.text()
        stream.cancel()
        self.assertEqual(stream.text(), text)

    def test_a_stream_outlives_its_client_object(self):
        self.router.reply([delta("a"), last("b")])
        stream = baton.Client(self.router.address).generate("p")
        gc.collect()
        self.assertEqual(stream.text(), "ab")

    def test_closing_the_client_cancels(self):
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p")
        next(stream)
        self.client.close()
        self.router.await_cancelled()
        with self.assertRaises(baton.CancelledError):
            next(stream)
        with self.assertRaises(ValueError):
            self.client.generate("p")

    def test_what_the_caller_cancels_is_not_retried(self):
        def ask(read, cancel):
            errors = []

            def run():
                try:
                    read()
                except baton.BatonError as error:
                    errors.append((type(error), error.reason))

            thread = threading.Thread(target=run)
            thread.start()
            self.router.next_call()
            cancel()
            thread.join(AWAIT_S)
            self.assertEqual(errors, [(baton.CancelledError, "CANCELLED")])
            self.assertEqual(self.router.calls.qsize(), 0)

        self.router.reply([Hang()], [Hang()], Hang())
        stream = self.client.generate("p")
        ask(stream.text, stream.cancel)
        client = baton.Client(self.router.address)
        ask(client.generate("p").text, client.close)
        client = baton.Client(self.router.address)
        ask(lambda: client.generate_once("p"), client.close)

    def test_a_call_waits_for_its_router(self):
        with reserved_address() as address, baton.Client(address, max_retries=0) as client:
            stream = client.generate("p")
            router = FakeRouter(address)
            self.addCleanup(router.stop)
            router.reply([last("late")])
            self.assertEqual(stream.text(), "late")

    def test_errors_do_not_show_grpc_beneath(self):
        self.router.reply([Failure(grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")])
        with self.assertRaises(baton.BatonError) as caught:
            self.client.generate("p").text()
        self.assertIsNone(caught.exception.__context__)


if __name__ == "__main__":
    unittest.main()

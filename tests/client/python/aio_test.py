"""baton.AsyncClient against a fake router."""

import asyncio
import unittest

import baton
from client_cases import UNAVAILABLE, ClientCases, FailureClock, reserved_address
from baton.v1 import inference_pb2
from fake_router import AWAIT_S, Failure, FakeRouter, Hang, delta, last


class AsyncClientTest(ClientCases, unittest.TestCase):
    def setUp(self):
        super().setUp()

        async def sleep(pause):
            self.time.sleep(pause)

        self.arguments["sleep"] = sleep

    def read(self, *prompt, **options):
        async def run():
            async with baton.AsyncClient(**self.arguments) as client:
                stream = client.generate(*prompt, **options)
                try:
                    return [chunk async for chunk in stream], stream
                except baton.BatonError as error:
                    with self.assertRaises(baton.BatonError) as again:
                        await stream.text()
                    self.assertIs(again.exception, error)
                    raise

        return asyncio.run(run())

    def ask(self, method, *arguments, **options):
        async def run():
            async with baton.AsyncClient(**self.arguments) as client:
                return await getattr(client, method)(*arguments, **options)

        return asyncio.run(run())

    def read_scores(self, *arguments, **options):
        async def run():
            async with baton.AsyncClient(**self.arguments) as client:
                stream = client.score_stream(*arguments, **options)
                return [score async for score in stream], stream

        return asyncio.run(run())

    def address_of(self, address):
        async def run():
            async with baton.AsyncClient(address) as client:
                return client.address

        return asyncio.run(run())


class AsyncStreamTest(unittest.IsolatedAsyncioTestCase):
    """How streams of an open client end."""

    async def asyncSetUp(self):
        self.router = FakeRouter()
        self.addCleanup(self.router.stop)
        self.client = baton.AsyncClient(self.router.address)
        self.addAsyncCleanup(self.client.close)

    async def await_cancelled(self):
        await asyncio.get_running_loop().run_in_executor(None, self.router.await_cancelled)

    async def next_call(self):
        return await asyncio.get_running_loop().run_in_executor(None, self.router.next_call)

    async def test_text(self):
        self.router.reply([delta("a"), last("b")])
        stream = self.client.generate("p")
        self.assertEqual(await stream.text(), "ab")
        self.assertEqual(await stream.text(), "ab")
        self.assertEqual([chunk async for chunk in stream], [])

    async def test_leaving_the_loop_cancels(self):
        self.router.reply([delta("a"), Hang()])
        async for chunk in self.client.generate("p"):
            self.assertEqual(chunk.text, "a")
            break
        await self.await_cancelled()

    async def test_leaving_the_block_cancels(self):
        self.router.reply([delta("a"), Hang()])
        with self.assertRaises(KeyError):
            async with self.client.generate("p") as stream:
                await stream.__anext__()
                raise KeyError
        await self.await_cancelled()
        with self.assertRaises(baton.CancelledError):
            await stream.__anext__()

    async def test_aclose_cancels(self):
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p")
        await stream.__anext__()
        await stream.aclose()
        await self.await_cancelled()

    async def test_a_stream_in_garbage_is_cancelled(self):
        self.router.reply([delta("a"), Hang()])
        ring = [self.client.generate("p")]
        await ring[0].__anext__()
        ring.append(ring)
        del ring
        # Any thread may collect it.
        await asyncio.get_running_loop().run_in_executor(None, self.router.await_collected)

    async def test_a_score_stream_is_cancelled(self):
        async def endless():
            while True:
                yield "item"
                await asyncio.sleep(0)

        answer = inference_pb2.ScoreStreamResponse(items=[inference_pb2.ItemScore()])
        self.router.reply([3, answer, Hang()])
        stream = self.client.score_stream("p", endless(), [" yes"])
        await stream.__anext__()
        await stream.aclose()
        await self.await_cancelled()
        with self.assertRaises(baton.CancelledError):
            await stream.__anext__()
        self.router.reply([3, answer, Hang()])
        ring = [self.client.score_stream("p", endless(), [" yes"])]
        await ring[0].__anext__()
        ring.append(ring)
        del ring
        await asyncio.get_running_loop().run_in_executor(None, self.router.await_collected)

    async def test_a_stream_that_was_never_read_is_cancelled(self):
        self.router.reply([Hang()])
        stream = self.client.generate("p")
        await self.next_call()
        del stream
        await self.await_cancelled()

    async def test_another_task_cancels_the_stream(self):
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p", request_id="r")
        await stream.__anext__()
        asyncio.get_running_loop().call_soon(stream.cancel)
        with self.assertRaises(baton.CancelledError) as caught:
            await stream.__anext__()
        self.assertEqual(caught.exception.request_id, "r")
        await self.await_cancelled()

    async def test_what_the_caller_cancels_is_not_retried(self):
        self.router.reply([Hang()])
        stream = self.client.generate("p", request_id="r")
        await self.next_call()
        asyncio.get_running_loop().call_soon(stream.cancel)
        with self.assertRaises(baton.CancelledError) as caught:
            await stream.text()
        self.assertEqual((caught.exception.reason, caught.exception.request_id), ("CANCELLED", "r"))
        self.assertEqual(self.router.calls.qsize(), 0)

    async def test_a_cancelled_task_cancels_its_stream(self):
        self.router.reply([delta("a"), Hang()])
        begun = asyncio.Event()

        async def read():
            async for _ in self.client.generate("p"):
                begun.set()

        task = asyncio.ensure_future(read())
        await begun.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await self.await_cancelled()

    async def test_a_cancelled_task_cancels_its_other_calls(self):
        self.router.reply(Hang())
        task = asyncio.ensure_future(self.client.generate_once("p"))
        await self.next_call()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        await self.await_cancelled()

    async def test_a_choice_that_was_not_asked_for_is_an_error(self):
        for choice in (1, -1):
            self.router.reply([delta("a", choice=choice), Hang()])
            stream = self.client.generate("p")
            with self.assertRaises(baton.WorkerFailedError):
                await stream.text()
            await self.await_cancelled()

    async def test_cancel_ends_the_wait_for_a_retry(self):
        # The pause is much longer than the test may take.
        self.router.reply([Failure(UNAVAILABLE, "NO_WORKER", retry_after=10 * AWAIT_S)])
        failed = asyncio.Event()
        client = baton.AsyncClient(self.router.address, clock=FailureClock(failed.set))
        self.addAsyncCleanup(client.close)
        stream = client.generate("p", timeout=100 * AWAIT_S)
        task = asyncio.ensure_future(stream.text())
        await asyncio.wait_for(failed.wait(), AWAIT_S)
        stream.cancel()
        with self.assertRaises(baton.CancelledError):
            await asyncio.wait_for(task, AWAIT_S)
        self.assertEqual(self.router.calls.qsize(), 1)

    async def test_cancel_after_the_end_changes_nothing(self):
        self.router.reply([last("a")])
        stream = self.client.generate("p")
        text = await stream.text()
        stream.cancel()
        self.assertEqual(await stream.text(), text)

    async def test_closing_the_client_cancels(self):
        self.router.reply(Hang())
        once = asyncio.ensure_future(self.client.generate_once("p"))
        await self.next_call()
        self.router.reply([delta("a"), Hang()])
        stream = self.client.generate("p")
        await stream.__anext__()
        await self.next_call()
        self.router.reply([Hang()])
        unread = self.client.generate("p")
        await self.next_call()
        await self.client.close()
        for _ in range(3):
            await self.await_cancelled()
        for reader in (once, stream.text(), unread.text()):
            with self.assertRaises(baton.CancelledError) as caught:
                await reader
            self.assertEqual(caught.exception.reason, "CANCELLED")
        self.assertEqual(self.router.calls.qsize(), 0)

    async def test_a_call_waits_for_its_router(self):
        with reserved_address() as address:
            async with baton.AsyncClient(address, max_retries=0) as client:
                stream = client.generate("p")
                router = FakeRouter(address)
                self.addCleanup(router.stop)
                router.reply([last("late")])
                self.assertEqual(await stream.text(), "late")

    async def test_streams_run_side_by_side(self):
        self.router.reply(*[[delta("a"), last("b")]] * 20)
        streams = [self.client.generate("p") for _ in range(20)]
        texts = await asyncio.gather(*(stream.text() for stream in streams))
        self.assertEqual(texts, ["ab"] * 20)
        self.assertEqual(len({stream.request_id for stream in streams}), 20)


class LoopTest(unittest.TestCase):
    def test_a_client_needs_a_running_loop(self):
        with self.assertRaises(RuntimeError):
            baton.AsyncClient("127.0.0.1:1")

    def test_a_stream_may_be_collected_after_its_loop(self):
        router = FakeRouter()
        self.addCleanup(router.stop)
        router.reply([delta("a"), Hang()])
        kept = []

        async def run():
            kept.append(baton.AsyncClient(router.address))
            kept.append(kept[0].generate("p"))
            await kept[1].__anext__()

        asyncio.run(run())
        kept.clear()
        router.await_collected()


if __name__ == "__main__":
    unittest.main()

"""What type checkers say of programs that use the package; types_test in CMakeLists.txt runs mypy.
Each "ignore" must be needed: without the error, mypy reports it as unused."""

import asyncio
from typing import Optional

from typing_extensions import assert_type

import baton


def synchronous() -> None:
    with baton.Client(timeout=5) as client:
        with client.generate("hi", temperature=0, stop="x", priority="low", seed=None) as stream:
            for chunk in stream:
                assert_type(chunk, baton.Chunk)
            assert_type(stream.finish_reason, Optional[baton.FinishReason])
        assert_type(client.generate([1, 2]).text(), str)
        assert_type(client.generate_once("hi", logit_bias={5: 1.5}), baton.Completion)
        assert_type(client.models(), list[baton.Model])
        options: baton.GenerateOptions = {"max_tokens": 3, "stop": ["a", "b"]}
        client.generate("hi", **options)

        for score in client.score_stream("p", iter(["a"]), [" yes"], in_order=False):
            assert_type(score, baton.ItemScore)

        client.generate("hi", temprature=0)  # type: ignore[call-arg]
        client.generate("hi", max_tokens="3")  # type: ignore[arg-type]
        client.generate("hi", priority="urgent")  # type: ignore[arg-type]
        client.generate(["hi"])  # type: ignore[arg-type]
        stream.usage.tokens  # type: ignore[attr-defined]


async def asynchronous() -> None:
    async with baton.AsyncClient() as client:
        async for chunk in client.generate("hi", n=2):
            assert_type(chunk, baton.Chunk)
        async for score in client.score_stream("p", ["a"], [" yes"]):
            assert_type(score, baton.ItemScore)
        assert_type(await client.tokenize("hi"), list[int])
        assert_type(await client.embed(["hi", [1, 2]], dimensions=3), list[list[float]])
        assert_type(await client.generate("hi").text(), str)
        assert_type(await client.is_ready(), bool)

        client.generate("hi", n=1.5)  # type: ignore[arg-type]


def errors() -> None:
    try:
        synchronous()
        asyncio.run(asynchronous())
    except baton.OverloadedError as error:
        assert_type(error.retry_after, Optional[float])
        assert_type(error.reason, str)

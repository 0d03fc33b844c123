"""Both clients, and the programs of client/python/README.md, against a cluster of real processes
with the model in models/demo.

    cluster_test.py BIN_DIR     from the top folder
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

# Python before 3.10 forks to start a program; gRPC's handlers may abort the child before its exec.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
import baton  # noqa: E402

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

README = ROOT / "client/python/README.md"
PROMPT = "Table:\n buko = 1071\n deha = 9194\nQ deha ?"
DRAWN = {"seed": 11, "temperature": 1.0, "max_tokens": 64, "ignore_eos": True,
         "return_token_ids": True}


class ClusterTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="baton-python-")
        cls.addClassCleanup(directory.cleanup)
        cluster, (cls.address, *_) = start_cluster(BIN_DIR / "baton", Path(directory.name))
        cls.addClassCleanup(cluster.wait, PATIENCE_S)
        cls.addClassCleanup(cluster.terminate)
        cls.client = baton.Client(cls.address)
        cls.addClassCleanup(cls.client.close)

    def await_true(self, condition):
        """Polls what the router reports."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def failure_of(self, prompt, **options):
        with self.assertRaises(baton.BatonError) as caught:
            self.client.generate(prompt, **options).text()
        return caught.exception

    def test_the_cluster(self):
        self.await_true(self.client.is_ready)
        (model,) = self.client.models()
        self.assertEqual((model.id, model.max_model_len, model.vocab_size), ("demo", 1024, 1024))
        roles = sorted((worker.role, worker.state) for worker in self.client.workers())
        self.assertEqual(roles, [("decode", "ready")] * 2 + [("prefill", "ready")] * 2)

    def test_every_way_to_ask_gives_the_same_tokens(self):
        async def ask():
            async with baton.AsyncClient(self.address) as client:
                stream = client.generate(PROMPT, **DRAWN)
                text = "".join([chunk.text async for chunk in stream])
                return text, stream.completion, await client.generate_once(PROMPT, **DRAWN)

        text, asynchronous, asynchronous_once = asyncio.run(ask())
        stream = self.client.generate(PROMPT, **DRAWN)
        self.assertEqual("".join(chunk.text for chunk in stream), text)
        once = self.client.generate_once(PROMPT, **DRAWN)
        by_ids = self.client.generate(self.client.tokenize(PROMPT), **DRAWN)
        self.assertEqual(by_ids.text(), text)
        chat = self.client.generate([{"role": "user", "content": PROMPT}], **DRAWN)
        self.assertEqual(chat.text(), text)  # the model's template adds nothing
        for completion in (asynchronous, asynchronous_once, stream.completion, by_ids.completion):
            self.assertEqual(completion.choices, once.choices)
            self.assertEqual(completion.seed, 11)
        self.assertEqual(len(once.token_ids), 64)
        self.assertEqual((stream.finish_reason, stream.usage.generated_tokens), ("length", 64))
        self.assertGreater(stream.timings.ttft_ms, 0)
        other = self.client.generate(PROMPT, **{**DRAWN, "seed": 12})
        self.assertNotEqual(other.text(), text)

    def test_choices_beams_and_log_probabilities(self):
        two = self.client.generate(PROMPT, n=2, **DRAWN)
        two.text()
        alone = self.client.generate_once(PROMPT, **DRAWN)
        self.assertEqual(two.completion.choices[0], alone.choices[0])
        self.assertNotEqual(two.completion.choices[1].text, alone.text)
        greedy = self.client.generate_once(
            PROMPT, temperature=0, logprobs=3, prompt_logprobs=1, return_token_ids=True)
        (choice,) = greedy.choices
        self.assertEqual([step.token_id for step in choice.logprobs], choice.token_ids)
        self.assertEqual([step.top[0].token_id for step in choice.logprobs], choice.token_ids)
        self.assertEqual(len(greedy.prompt_logprobs), greedy.usage.prompt_tokens - 1)
        beams = self.client.generate_once(PROMPT, beam_width=3, n=3, max_tokens=8)
        scores = [choice.beam_score for choice in beams.choices]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertLess(scores[0], 0)

    def test_stops(self):
        full = self.client.generate_once(PROMPT, **DRAWN).text
        stop = full[len(full) // 2:][:3]
        stream = self.client.generate(PROMPT, stop=stop, **DRAWN)
        self.assertEqual(stream.text(), full[:full.index(stop)])
        self.assertEqual(stream.completion.choices[0].matched_stop, stop)
        self.assertEqual(stream.finish_reason, "stop")

    def test_tokens_and_text(self):
        ids = self.client.tokenize(PROMPT)
        self.assertEqual(self.client.detokenize(ids), PROMPT)

    def test_errors(self):
        error = self.failure_of("p", model="other", request_id="named")
        self.assertIs(type(error), baton.ModelNotFoundError)
        self.assertEqual(error.request_id, "named")
        error = self.failure_of("p", top_p=3)
        self.assertIs(type(error), baton.InvalidRequestError)
        self.assertEqual((error.reason, error.field), ("OUT_OF_RANGE", "top_p"))
        self.assertTrue(error.request_id)
        self.assertIs(type(self.failure_of([1] * 2000)), baton.PromptTooLongError)
        self.assertEqual(self.failure_of("").reason, "EMPTY_PROMPT")

    def test_an_abandoned_stream_frees_the_workers(self):
        def running():
            return sum(worker.running + worker.queued for worker in self.client.workers())

        stream = self.client.generate(PROMPT, n=16, ignore_eos=True)  # seconds of work
        next(stream)
        self.await_true(lambda: running() > 0)
        self.assertIsNone(stream.finish_reason)
        del stream
        self.await_true(lambda: running() == 0)

    def test_the_programs_of_the_readme(self):
        programs = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
        self.assertGreaterEqual(len(programs), 4)
        outputs = [self.run_program(program) for program in programs]
        self.assertIn("9194", outputs[0])
        self.assertIn("9194", outputs[1])

    def run_program(self, program):
        with tempfile.TemporaryDirectory() as folder:
            result = subprocess.run(
                [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True,
                env={**os.environ, "BATON_ADDRESS": self.address}, timeout=PATIENCE_S, check=False)
        self.assertEqual((result.returncode, result.stderr), (0, ""), program)
        return result.stdout


if __name__ == "__main__":
    BIN_DIR = Path(sys.argv.pop(1))
    unittest.main()

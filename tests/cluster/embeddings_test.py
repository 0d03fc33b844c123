#!/usr/bin/env python3
"""Embeddings of the unmodified `openai` package against a real cluster of a model that is made for
them, and ranking with the demo model: the vectors are those of Transformers, whatever is computed
beside them and whichever workers die.

    embeddings_test.py BIN_DIR CHECKPOINT

CHECKPOINT is tiny-qwen3-embedding of make_checkpoint.py with the demo's tokenizer.
"""
import array
import concurrent.futures
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request
from pathlib import Path

import openai

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
import seed  # noqa: E402

BIN, CHECKPOINT = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
EXPECTED = ROOT / "tests/common/model/expected/tiny-qwen3-embedding.json"
PATIENCE_S = 120  # a limit, not an expectation
LEAST_COSINE = 0.999  # with bfloat16 products


def vectors_of(answer):
    return [item.embedding for item in sorted(answer.data, key=lambda item: item.index)]


class ClusterTest(unittest.TestCase):
    WORKERS = {"prefill": 1, "decode": 1}

    @classmethod
    def start(cls, model, directory, *flags):
        """Starts a cluster; the flags may name files of the directory, which exists."""
        cls.cluster, (cls.grpc, _, cls.http) = demo_cluster.start_cluster(
            BIN / "baton", directory, *flags, model=model, **cls.WORKERS)
        cls.addClassCleanup(cls.stop)

    @classmethod
    def stop(cls):
        cls.cluster.terminate()
        cls.cluster.wait(timeout=PATIENCE_S)

    @classmethod
    def make_directory(cls):
        directory = tempfile.TemporaryDirectory(prefix="baton-embeddings-")
        cls.addClassCleanup(directory.cleanup)
        return Path(directory.name)

    def post(self, path, body):
        request = urllib.request.Request(f"http://{self.http}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)


class EmbeddingsTest(ClusterTest):
    WORKERS = {"prefill": 2, "decode": 1}

    @classmethod
    def setUpClass(cls):
        cls.start(CHECKPOINT, cls.make_directory())
        cls.client = openai.OpenAI(base_url=f"http://{cls.http}/v1", api_key="none", max_retries=0,
                                   timeout=PATIENCE_S)
        cls.addClassCleanup(cls.client.close)

    def embed(self, name, inputs, **options):
        return vectors_of(self.client.embeddings.create(model=name, input=inputs, **options))

    @property
    def name(self):
        return self.client.models.list().data[0].id

    def test_vectors_are_those_of_transformers(self):
        cases = json.loads(EXPECTED.read_text(encoding="utf-8"))["cases"]
        vectors = self.embed(self.name, [case["prompt"] for case in cases])
        for case, vector in zip(cases, vectors):
            state = case["hidden_state"]
            self.assertEqual(len(vector), len(state))
            self.assertAlmostEqual(math.hypot(*vector), 1, delta=1e-6)
            self.assertGreater(sum(a * b for a, b in zip(vector, state)) / math.hypot(*state), LEAST_COSINE)

    def test_lists_and_base64_are_the_same_numbers(self):
        texts = ["one text", "another"]
        base64 = self.embed(self.name, texts)  # the package's own wish
        plain = self.post("/v1/embeddings", {"input": texts})
        for vector, item in zip(base64, plain["data"]):
            self.assertEqual(vector, list(array.array("f", item["embedding"])), "of 32 bits")
        first = self.embed(self.name, texts[0], dimensions=16)[0]
        norm = math.hypot(*base64[0][:16])
        for short, value in zip(first, base64[0]):
            self.assertAlmostEqual(short, value / norm, delta=1e-6)

    def test_one_answer_beside_others_and_with_a_worker_killed(self):
        rng = seed.generator("texts")
        texts = ["".join(rng.choice("abc de fg\n") for _ in range(rng.randrange(1, 300))) for _ in range(60)]
        name = self.name
        alone = [self.embed(name, text)[0] for text in texts]

        def batch(number):
            if number == 8:
                os.kill(self.prefill_worker(), signal.SIGKILL)
            rng = seed.generator(f"batch {number}")
            chosen = [rng.randrange(len(texts)) for _ in range(20)]
            return chosen, self.embed(name, [texts[i] for i in chosen])

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for chosen, vectors in pool.map(batch, range(40)):
                for i, vector in zip(chosen, vectors):
                    self.assertEqual(vector, alone[i], texts[i])

    def prefill_worker(self):
        """The process id of one prefill worker of this cluster."""
        parent = self.cluster.pid
        for process in Path("/proc").iterdir():
            try:
                stat = (process / "stat").read_text(encoding="utf-8")
                command = (process / "cmdline").read_text(encoding="utf-8")
            except (OSError, ValueError):
                continue
            if stat.rpartition(")")[2].split()[1] == str(parent) and "baton-prefill-worker" in command:
                return int(process.name)
        raise AssertionError("no prefill worker runs")


class RerankTest(ClusterTest):
    @classmethod
    def setUpClass(cls):
        cls.files = cls.make_directory()
        template = cls.files / "template"
        template.write_text("copy: {query} {document}\n", encoding="utf-8")
        cls.start(demo_cluster.MODEL, cls.files, "--rerank-template", template, "--rerank-labels", "red,blue")

    def score(self, prefix, items):
        """What `baton score` says."""
        (self.files / "prefix").write_text(prefix, encoding="utf-8")
        (self.files / "items").write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
        lines = subprocess.run(
            [BIN / "baton", "score", "--address", self.grpc, "--prefix", self.files / "prefix", "--items",
             self.files / "items", "--labels", "red,blue"], capture_output=True, text=True, timeout=PATIENCE_S,
            check=True).stdout.splitlines()
        return [json.loads(line)["probability"] for line in lines]

    def test_scores_are_those_of_scoring(self):
        documents = ["red green", "blue green", "green"]
        answer = self.post("/v1/rerank", {"query": "now", "documents": documents})
        scores = self.score("copy: now ", [document + "\n" for document in documents])
        expected = sorted(((score, -i) for i, score in enumerate(scores)), reverse=True)
        self.assertGreater(len(set(scores)), 1)
        self.assertEqual([(result["relevance_score"], -result["index"]) for result in answer["results"]], expected)
        self.assertEqual([result["document"]["text"] for result in answer["results"]],
                         [documents[-i] for _, i in expected])

    def test_a_model_that_is_not_made_for_embeddings_says_so(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            self.post("/v1/embeddings", {"input": "x"})
        error = json.load(caught.exception)["error"]
        self.assertEqual((caught.exception.code, error["code"]), (400, "not_an_embedding_model"))


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Workers that follow a load, as processes: benchmarks/scaling.py in short. Under a crowd both roles grow from one worker and
shrink again; no request fails, every worker that leaves ends well, and the answers are those of a fleet that stays as it is. How
fast they are is no part of the test.

    scaling_test.py BIN_DIR
"""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/autoscaling"), str(ROOT / "tests/testing")]
import hpa  # noqa: E402
import scaling  # noqa: E402
import seed  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
MOST = 3
SCALED_OBJECT = """
kind: ScaledObject
metadata: {{name: baton-{role}}}
spec:
  scaleTargetRef: {{name: baton-{role}}}
  minReplicaCount: 1
  maxReplicaCount: {most}
  pollingInterval: 1
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {{stabilizationWindowSeconds: 0, policies: [{{type: Percent, value: 100, periodSeconds: 1}}]}}
        scaleDown: {{stabilizationWindowSeconds: 5, policies: [{{type: Pods, value: 1, periodSeconds: 2}}]}}
  triggers:
  - type: prometheus
    metricType: AverageValue
    metadata: {{query: '{query}', threshold: "{threshold}", ignoreNullValues: "false"}}
  - type: prometheus
    metricType: AverageValue
    metadata: {{query: '{own_query}', threshold: "1000", ignoreNullValues: "false"}}
"""
# Of the router, so that no scrape of a new worker has to be waited for. The crowd has about ten requests in flight.
QUERY, THRESHOLD = 'sum(baton_requests_inflight{role="router"})', 2
# Their queries want no second worker here, but the fleet does not shrink while one of them has no value.
OWN = hpa.read_objects(ROOT / "deploy/k8s/components/autoscaling/scaledobjects.yaml")


class ScalingTest(unittest.TestCase):
    def follow(self, folder, flags):
        folder.mkdir()
        options = scaling.parse(flags)
        run = scaling.Run(options, scaling.loads_of(options)[0], folder)
        run.run()
        print(run.figures())
        self.assertEqual(run.figures()["errors_by_text"], [])
        return run

    def test_workers_follow_a_crowd_without_an_error(self):
        with tempfile.TemporaryDirectory(prefix="baton-scaling-test-") as directory:
            folder = Path(directory)
            objects = folder / "scaledobjects.yaml"
            objects.write_text("---".join(SCALED_OBJECT.format(
                role=role, most=MOST, query=QUERY, threshold=THRESHOLD, own_query=OWN[f"baton-{role}"].triggers[0].query)
                                          for role in scaling.ROLES), encoding="utf-8")
            flags = [str(BIN), "--load", "flash", "--calm", "1", "--crowd", "10", "--calm-s", "10", "--crowd-s", "8",
                     "--crowds", "1", "--speed", "1", "--start-s", "0.5", "--settle-s", "120", "--scaled-objects", str(objects),
                     "--seed", str(seed.SEED)]
            run = self.follow(folder / "scaled", flags)
            constant = self.follow(folder / "constant", [*flags, "--constant", "2", "2"])
            self.assertEqual(run.figures()["answers"], constant.figures()["answers"])
            for role in scaling.ROLES:
                self.assertEqual(max(run.wanted(role)), MOST)
                self.assertEqual(run.fleet.wanted(role), 1)
            self.assertGreaterEqual(len(run.left()), 2 * (MOST - 1))
            self.assertIn("<svg", scaling.picture(run))


if __name__ == "__main__":
    unittest.main()

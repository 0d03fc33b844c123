#!/usr/bin/env python3
"""The autoscaler's arithmetic (benchmarks/autoscaling/hpa.py), with made-up series."""

import math
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks/autoscaling"), str(ROOT / "tests/testing")]
import hpa  # noqa: E402
import seed  # noqa: E402

OBJECTS = ROOT / "deploy/k8s/components/autoscaling/scaledobjects.yaml"


def scaled(least=1, most=100, up=None, down=None, triggers=None, **spec):
    """A ScaledObject for a metric of which a pod takes 10."""
    behavior = {"scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 900, "periodSeconds": 1}],
                            **(up or {})},
                "scaleDown": {"stabilizationWindowSeconds": 0, **(down or {})}}
    return {"metadata": {"name": "x"}, "spec": {
        "scaleTargetRef": {"name": "baton-x"}, "minReplicaCount": least, "maxReplicaCount": most, "pollingInterval": 15,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": behavior}},
        "triggers": triggers or [trigger()], **spec}}


def trigger(kind="AverageValue", threshold="10", **metadata):
    return {"type": "prometheus", "metricType": kind,
            "metadata": {"query": "q", "threshold": threshold, "ignoreNullValues": "false", **metadata}}


def follow(document, series, pods=1, step_s=15.0, speed=1.0):
    """The pods after each value of a series, one every `step_s`."""
    autoscaler = hpa.Autoscaler(hpa.read_object(document, speed))
    out = []
    for i, values in enumerate(series):
        pods = autoscaler.decide(1000 + step_s * i, pods, values if isinstance(values, tuple) else (values,))
        out.append(pods)
    return out


class WishTest(unittest.TestCase):
    def test_an_average_is_a_value_for_each_pod(self):
        self.assertEqual(follow(scaled(), [35, 45]), [4, 5])

    def test_within_a_tenth_nothing_changes(self):
        self.assertEqual(follow(scaled(), [43.9, 44.1, 36.1, 35.9], pods=4), [4, 5, 4, 4])
        self.assertEqual(follow(scaled(), [36.1, 35.9, 30], pods=4), [4, 4, 3])

    def test_a_value_is_the_whole_metric(self):
        document = scaled(triggers=[trigger("Value")])
        self.assertEqual(follow(document, [20, 10.5, 5], pods=3), [6, 6, 3])

    def test_the_largest_wish_wins(self):
        document = scaled(triggers=[trigger(), trigger(threshold="1")])
        self.assertEqual(follow(document, [(30, 2), (10, 7)]), [3, 7])

    def test_without_a_value_the_number_stays(self):
        self.assertEqual(follow(scaled(), [None, float("nan"), float("inf"), 50], pods=3), [3, 3, 3, 5])

    def test_while_a_value_is_missing_the_number_may_grow_but_not_shrink(self):
        document = scaled(triggers=[trigger(), trigger()])
        self.assertEqual(follow(document, [(50, None), (None, 20), (10, 20)], pods=3), [5, 5, 2])


class BoundsTest(unittest.TestCase):
    def test_the_number_has_bounds(self):
        self.assertEqual(follow(scaled(least=2, most=5), [0, 90, 0]), [2, 5, 2])
        self.assertEqual(follow(scaled(least=2, most=5), [70], pods=7), [5])


class WindowTest(unittest.TestCase):
    def test_it_grows_to_the_least_wish_of_the_window(self):
        up = {"stabilizationWindowSeconds": 30}
        self.assertEqual(follow(scaled(up=up), [10, 80, 60, 70, 70]), [1, 1, 6, 6, 7])

    def test_it_shrinks_to_the_largest_wish_of_the_window(self):
        down = {"stabilizationWindowSeconds": 45}
        self.assertEqual(follow(scaled(down=down), [80, 20, 30, 20, 20, 20], pods=8), [8, 8, 8, 3, 3, 2])

    def test_what_is_there_at_first_counts_like_a_wish(self):
        self.assertEqual(follow(scaled(down={"stabilizationWindowSeconds": 45}), [20] * 4, pods=8), [8, 8, 8, 2])
        self.assertEqual(follow(scaled(up={"stabilizationWindowSeconds": 30}), [80] * 3, pods=2), [2, 2, 8])

    def test_by_default_it_shrinks_after_five_minutes(self):
        document = scaled()
        del document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        self.assertEqual(follow(document, [80] + [10] * 20, pods=8), [8] * 20 + [1])


class PoliciesTest(unittest.TestCase):
    def test_it_doubles_once_a_period(self):
        up = {"policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
        self.assertEqual(follow(scaled(up=up), [90] * 9), [2, 2, 2, 2, 4, 4, 4, 4, 8])

    def test_a_percentage_rounds_to_more_pods(self):
        policies = [{"type": "Percent", "value": 50, "periodSeconds": 1}]
        self.assertEqual(follow(scaled(up={"policies": policies}), [90] * 3), [2, 3, 5])
        self.assertEqual(follow(scaled(down={"policies": policies}), [0] * 4, pods=9), [4, 2, 1, 1])

    def test_one_pod_leaves_in_a_period(self):
        down = {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 30}]}
        self.assertEqual(follow(scaled(down=down), [10] * 5, pods=4), [3, 3, 2, 2, 1])

    def test_of_several_policies_that_of_the_largest_change_holds(self):
        policies = [{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]
        self.assertEqual(follow(scaled(up={"policies": policies}), [500] * 3), [5, 10, 20])
        self.assertEqual(follow(scaled(up={"policies": policies, "selectPolicy": "Min"}), [500] * 3), [2, 4, 8])
        self.assertEqual(follow(scaled(down={"policies": policies, "selectPolicy": "Min"}), [0] * 3, pods=20), [16, 12, 8])

    def test_a_disabled_direction_does_not_change(self):
        self.assertEqual(follow(scaled(down={"selectPolicy": "Disabled"}), [10, 50, 10], pods=4), [4, 5, 5])

    def test_what_left_in_the_period_may_come_back(self):
        document = scaled(up={"policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]})
        self.assertEqual(follow(document, [10, 90, 90], pods=4), [1, 5, 5])


class SpeedTest(unittest.TestCase):
    def test_all_times_are_divided(self):
        up = {"stabilizationWindowSeconds": 30, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]}
        down = {"stabilizationWindowSeconds": 60, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 45}]}
        draw = seed.generator("speed")
        series = [draw.uniform(0, 100) for _ in range(300)]
        document = scaled(up=up, down=down)
        self.assertEqual(follow(document, series, step_s=15 / 8, speed=8), follow(document, series))
        self.assertEqual(hpa.read_object(document, 3).polling_s, 5)


class RandomTest(unittest.TestCase):
    """Against what any choice must keep, however it was found."""

    def test_the_number_follows_the_rules(self):
        draw = seed.generator("rules")
        for _ in range(30):
            most = draw.randint(2, 30)
            period_s, window_s = draw.choice([15, 30, 75]), draw.choice([0, 30, 100])
            document = scaled(most=most, up={"policies": [{"type": "Percent", "value": 100, "periodSeconds": period_s}]},
                              down={"stabilizationWindowSeconds": window_s,
                                    "policies": [{"type": "Pods", "value": 2, "periodSeconds": period_s}]})
            series = [draw.uniform(0, 12 * most) for _ in range(200)]
            pods = [1] + follow(document, series)
            steps, window = period_s // 15, -(-window_s // 15) or 1
            for i in range(len(series)):
                recent = pods[max(0, i + 1 - steps):i + 2]
                self.assertLessEqual(pods[i + 1], max(pods[i], 2 * max(recent)))
                self.assertTrue(1 <= pods[i + 1] <= most)
                if pods[i + 1] < pods[i]:
                    removed = sum(max(0, a - b) for a, b in zip(recent, recent[1:]))
                    added = sum(max(0, b - a) for a, b in zip(recent, recent[1:]))
                    self.assertLessEqual(removed - added, 2)
                    wanted = max(series[max(0, i + 1 - window):i + 1])
                    self.assertGreaterEqual(pods[i + 1] * 10 * (1 + hpa.TOLERANCE) + 1e-9, min(wanted, 10 * most))
            last = follow(document, [10.0 * most] * 100)[-1]
            self.assertLessEqual(math.fabs(last - most), hpa.TOLERANCE * most, "a steady load gets what it wants")


class ReadTest(unittest.TestCase):
    def test_the_objects_of_the_component(self):
        objects = hpa.read_objects(OBJECTS)
        self.assertEqual(sorted(objects), ["baton-decode", "baton-prefill"])
        for one in objects.values():
            self.assertGreater(one.most, one.least)
            for rules in (one.up, one.down):
                self.assertTrue(rules.policies)

    def test_what_it_does_not_know_is_refused(self):
        for breach, document in {
                "fallback": scaled(fallback={"replicas": 3}), "minReplicaCount": scaled(least=0),
                "selectPolicy": scaled(up={"selectPolicy": "Most"}), "tolerance": scaled(up={"tolerance": 0.2}),
                "policies: type": scaled(up={"policies": [{"type": "Nodes", "value": 1, "periodSeconds": 1}]}),
                "value is missing": scaled(up={"policies": [{"type": "Pods", "periodSeconds": 1}]}),
                "metricType": scaled(triggers=[trigger("Utilization")]),
                "ignoreNullValues": scaled(triggers=[trigger(ignoreNullValues="true")]),
                "timeout": scaled(triggers=[trigger(timeout="1")])}.items():
            with self.subTest(breach), self.assertRaisesRegex(ValueError, breach):
                hpa.read_object(document)


if __name__ == "__main__":
    unittest.main()

"""What KEDA and a HorizontalPodAutoscaler do with a ScaledObject: from values of its queries to a number of pods.

The arithmetic is the documented one (kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale, "Algorithm
details" and "Configurable scaling behavior"), with its tolerance of 10 %. KEDA makes the autoscaler of the ScaledObject, and
answers its questions about each trigger. Where the number of pods is at least one, nothing else of KEDA takes part. The
autoscaler asks every pollingInterval; on Kubernetes that is the period of its controller, which is 15 s, too, by default.

Times are in seconds, and those of the objects can be divided by one factor.
"""

import math
from typing import NamedTuple

import yaml

TOLERANCE = 0.1
# Keys that change nothing while there is at least one pod.
AT_ZERO = {"cooldownPeriod", "initialCooldownPeriod", "activationThreshold"}


class Policy(NamedTuple):
    type: str  # Pods or Percent
    value: int
    period_s: float


class Rules(NamedTuple):
    """How fast the number may change in one direction."""
    window_s: float
    policies: tuple
    select: str  # Max, Min or Disabled


class Trigger(NamedTuple):
    query: str
    threshold: float
    metric_type: str  # AverageValue or Value


class ScaledObject(NamedTuple):
    target: str  # the Deployment
    least: int
    most: int
    polling_s: float
    up: Rules
    down: Rules
    triggers: tuple


def _read(what, value, /, **keys):
    """Returns the values of `keys`, each of which has a default, or ... if it must be there. Other keys are refused, since they
    would be ignored."""
    for key in value:
        if key not in keys and key not in AT_ZERO:
            raise ValueError(f"{what}: {key} is not known here, expected some of {', '.join(keys)}")
    for key, default in keys.items():
        if default is ... and key not in value:
            raise ValueError(f"{what}: {key} is missing")
    return [value.get(key, default) for key, default in keys.items()]


def _one_of(what, value, known):
    if value not in known:
        raise ValueError(f"{what} is {value!r}, expected {' or '.join(known)}")
    return value


def _read_rules(what, rules, speed, window_s, policies):
    window_s, policies, select = _read(what, rules, stabilizationWindowSeconds=window_s, policies=policies, selectPolicy="Max")
    read = [_read(f"{what}.policies", policy, type=..., value=..., periodSeconds=...) for policy in policies]
    return Rules(window_s / speed, tuple(Policy(_one_of(f"{what}.policies: type", kind, ("Pods", "Percent")), value, period / speed)
                                         for kind, value, period in read),
                 _one_of(f"{what}.selectPolicy", select, ("Max", "Min", "Disabled")))


def _read_trigger(what, trigger):
    kind, metric_type, metadata = _read(what, trigger, type=..., metricType="AverageValue", metadata=...)
    _one_of(f"{what}: type", kind, ("prometheus",))
    _, query, threshold, ignore_null = _read(f"{what}.metadata", metadata, serverAddress=None, query=..., threshold=...,
                                             ignoreNullValues="true")
    _one_of(f"{what}: ignoreNullValues", ignore_null, ("false",))
    return Trigger(query, float(threshold), _one_of(f"{what}: metricType", metric_type, ("AverageValue", "Value")))


def read_object(document, speed=1.0):
    """Returns the ScaledObject of a YAML document, with its times divided by `speed`. Raises ValueError, which names the key."""
    what = document["metadata"]["name"]
    target, least, most, polling_s, advanced, triggers = _read(
        what, document["spec"], scaleTargetRef=..., minReplicaCount=0, maxReplicaCount=100, pollingInterval=30, advanced={},
        triggers=...)
    if least < 1:
        raise ValueError(f"{what}: minReplicaCount is {least}, expected at least 1")
    behavior, = _read(f"{what}.advanced.horizontalPodAutoscalerConfig",
                      _read(f"{what}.advanced", advanced, horizontalPodAutoscalerConfig={})[0], behavior={})
    up, down = _read(f"{what}.behavior", behavior, scaleUp={}, scaleDown={})
    return ScaledObject(
        target["name"], least, most, polling_s / speed,
        _read_rules(f"{what}.scaleUp", up, speed, 0, [{"type": "Pods", "value": 4, "periodSeconds": 15},
                                                      {"type": "Percent", "value": 100, "periodSeconds": 15}]),
        _read_rules(f"{what}.scaleDown", down, speed, 300, [{"type": "Percent", "value": 100, "periodSeconds": 15}]),
        tuple(_read_trigger(f"{what}.triggers[{i}]", trigger) for i, trigger in enumerate(triggers)))


def read_objects(path, speed=1.0):
    """Returns the ScaledObjects of a file, by the name of their Deployment."""
    with open(path, encoding="utf-8") as file:
        objects = [read_object(document, speed) for document in yaml.safe_load_all(file) if document["kind"] == "ScaledObject"]
    return {scaled.target: scaled for scaled in objects}


class Autoscaler:
    """It decides for one ScaledObject."""

    def __init__(self, scaled):
        self.scaled = scaled
        self._wishes = None  # (time, pods), within the longer window
        self._changes = []   # (time, pods added; negative: removed), within the longest period

    def decide(self, now_s, pods, values):
        """Returns how many pods there should be at a time, which never goes back, if there are `pods` now. `values` are those of
        the triggers' queries; None stands for no value."""
        wish = self._wish(pods, values)
        if wish is None:
            return pods
        chosen = self._limited(now_s, pods, self._stabilized(now_s, pods, wish))
        if chosen != pods:
            self._changes.append((now_s, chosen - pods))
        return chosen

    def _wish(self, pods, values):
        """Returns the largest wish of the triggers; None without one. While a value is missing, a wish for fewer pods is none."""
        known = [_wish_of(trigger, pods, value) for trigger, value in zip(self.scaled.triggers, values, strict=True)
                 if value is not None and math.isfinite(value)]
        if not known or (len(known) < len(values) and max(known) < pods):
            return None
        return max(known)

    def _stabilized(self, now_s, pods, wish):
        """Returns the least wish of the window if the number grows, the largest one if it shrinks."""
        up, down = self.scaled.up, self.scaled.down
        if self._wishes is None:  # What is there at first counts like a wish.
            self._wishes = [(now_s, pods)]
        self._wishes = [one for one in self._wishes if one[0] > now_s - max(up.window_s, down.window_s)] + [(now_s, wish)]

        def within(window_s):
            return [pods for at, pods in self._wishes if at > now_s - window_s] or [wish]
        return min(max(pods, min(within(up.window_s))), max(within(down.window_s)))

    def _limited(self, now_s, pods, wish):
        up, down = self.scaled.up, self.scaled.down
        longest_s = max([policy.period_s for rules in (up, down) for policy in rules.policies], default=0)
        self._changes = [one for one in self._changes if one[0] > now_s - longest_s]
        wish = min(max(wish, self.scaled.least), self.scaled.most)
        if wish > pods:
            limits = [self._before(now_s, pods, policy) + policy.value if policy.type == "Pods"
                      else math.ceil(self._before(now_s, pods, policy) * (1 + policy.value / 100)) for policy in up.policies]
            return min(wish, max(pods, _selected(up.select, limits, pods, max, min)))
        if wish < pods:
            limits = [self._before(now_s, pods, policy) - policy.value if policy.type == "Pods"
                      else int(self._before(now_s, pods, policy) * (1 - policy.value / 100)) for policy in down.policies]
            return max(wish, min(pods, _selected(down.select, limits, pods, min, max)))
        return pods

    def _before(self, now_s, pods, policy):
        """Returns the number of pods at the begin of a policy's period."""
        return pods - sum(added for at, added in self._changes if at > now_s - policy.period_s)


def _wish_of(trigger, pods, value):
    average = trigger.metric_type == "AverageValue"
    ratio = value / (trigger.threshold * (pods if average else 1))
    if abs(ratio - 1) <= TOLERANCE:
        return pods
    return math.ceil(value / trigger.threshold) if average else math.ceil(pods * ratio)


def _selected(select, limits, pods, furthest, nearest):
    if select == "Disabled" or not limits:
        return pods
    return (furthest if select == "Max" else nearest)(limits)

"""Makes rules of Prometheus quicker: it divides every range of an expression and every `for` by one factor, so that a test need
not wait for hours. All else stays as it is: an alert that fires by the shorter rules fires by the true ones, if what
causes it lasts so many times as long.

It refuses what it does not know with ValueError: a new kind of time must not go unscaled.
"""

import re

import yaml

UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
RANGE = re.compile(r"\[([^\]]*)\]")
# These have times in an expression that the factor would have to reach, too.
TIMES = re.compile(r"\b(offset|time|timestamp|predict_linear|deriv|delta|idelta|hour|minute|day_of_\w+|absent_over_time|"
                   r"holt_winters|start|end)\b|@")
GROUP_KEYS, RULE_KEYS = {"name", "rules"}, {"alert", "record", "expr", "for", "labels", "annotations"}


def _milliseconds(duration):
    """How long a duration is that has one unit, such as 5m."""
    parts = re.fullmatch(r"(\d+)([a-z]+)", str(duration))
    if parts is None or parts[2] not in UNITS_MS:
        raise ValueError(f"duration {duration}, expected a number and one of {', '.join(UNITS_MS)}")
    return int(parts[1]) * UNITS_MS[parts[2]]


def _shorter(duration, factor, least_ms):
    whole = _milliseconds(duration)
    if whole % factor or whole // factor < least_ms:
        raise ValueError(f"{duration} divided by {factor} is {whole / factor} ms, expected a whole number of at least {least_ms}")
    return f"{whole // factor}ms"


def _expression(text, factor, least_ms):
    # Strings have no times, whatever they look like.
    parts, strings = STRING.split(text), STRING.findall(text)
    code = '""'.join(parts)
    odd = TIMES.search(code)
    if odd is not None:
        raise ValueError(f"{odd[0]}: a time that is not scaled: {text}")
    # How many events fall into a shorter range is another number; whether any does is not.
    if "increase(" in code and re.fullmatch(r"[^<>]*> 0", code.strip()) is None:
        raise ValueError(f"an increase that is compared with something else than 0: {text}")
    parts = [RANGE.sub(lambda found: f"[{_shorter(found[1], factor, least_ms)}]", part) for part in parts]
    if any("[" in RANGE.sub("", part) for part in parts):
        raise ValueError(f"a range that has no end: {text}")
    return "".join(part + string for part, string in zip(parts, [*strings, ""]))


def scaled(text, factor, least_range_ms):
    """The rules of the file `text`, of which no range may become shorter than `least_range_ms`: rates need two scrapes in it."""
    groups = yaml.safe_load(text)
    if set(groups) != {"groups"}:
        raise ValueError(f"keys {sorted(groups)}, expected groups")
    for group in groups["groups"]:
        unknown = set(group) - GROUP_KEYS
        for rule in group["rules"]:
            unknown |= set(rule) - RULE_KEYS
            rule["expr"] = _expression(rule["expr"], factor, least_range_ms)
            if "for" in rule:
                rule["for"] = _shorter(rule["for"], factor, 1)
        if unknown:
            raise ValueError(f"group {group['name']}: keys {sorted(unknown)}, which may be times")
    return groups

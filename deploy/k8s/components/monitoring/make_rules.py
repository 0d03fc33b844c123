#!/usr/bin/env python3
"""Writes prometheusrules.yaml: the rules of deploy/prometheus as resources of the Prometheus operator, their text unchanged.

    make_rules.py [--check]     with --check only says whether the file is up to date
"""
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE / "prometheusrules.yaml"
HEAD = "# Written by make_rules.py from deploy/prometheus: change the rules there, and run it.\n"


def resources():
    for name in ("rules", "alerts"):
        rules = (HERE.parents[2] / "prometheus" / f"{name}.yaml").read_text(encoding="utf-8")
        indented = "".join(f"  {line}" if line.strip() else line for line in rules.splitlines(keepends=True))
        yield (f"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: baton-{name}\n"
               f"  namespace: baton\nspec:\n{indented}")


def main():
    text = HEAD + "---\n".join(resources())
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(text, encoding="utf-8")
    elif not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
        sys.exit(f"{TARGET} is not what make_rules.py writes: run it")


if __name__ == "__main__":
    main()

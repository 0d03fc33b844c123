#!/usr/bin/env python3
"""Writes the Grafana dashboards: their one source. The files in dashboards/ are what it writes.

  make_dashboards.py            writes dashboards/*.json
  make_dashboards.py --check    exits 1 if a file differs from what it would write

Rules that every panel keeps; tests/monitoring checks them:
- No panel is empty. A panel about one role ignores the variables `role` and `instance`; only panels whose metrics every
  role of the dashboard has follow them. So the variables of a dashboard list the roles of one metric that it names.
- A series that exists only after a fault shows 0 before it.
- A quantile is one of all selected processes, from `sum by (le)`.
- Of an idle cluster, rates and gauges are 0, and shares, means and quantiles have no value: never NaN, which 0 / 0 is.
"""

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
SCHEMA_VERSION = 39

# Matchers: of a metric of one role, and of one that all roles of the dashboard have.
ALL = 'namespace=~"$namespace",model=~"$model"'
PROCESS = ALL + ',role=~"$role",instance=~"$instance"'

SECONDS, SHARE, BYTES, BYTES_PER_S, REQUESTS_PER_S = "s", "percentunit", "bytes", "Bps", "reqps"
TOKENS_PER_S, PER_S, COUNT = "suffix: tokens/s", "suffix:/s", "short"


# ---- Expressions ---------------------------------------------------------------------------------


def rate(name, where=ALL):
    return f"rate({name}{{{where}}}[$__rate_interval])"


def total(name, by="", where=ALL):
    """The rate of a counter, summed."""
    return f"sum{f' by ({by})' if by else ''} ({rate(name, where)})"


def gauge(name, by="", where=ALL, how="sum"):
    return f"{how}{f' by ({by})' if by else ''} ({name}{{{where}}})"


def quantile(q, name, by="", where=ALL):
    """No value where nothing was observed: `>= 0` leaves NaN out."""
    return f"histogram_quantile({q:g}, sum by ({by + ', ' if by else ''}le) ({rate(name + '_bucket', where)})) >= 0"


def quantiles(name, by="", where=ALL, qs=(0.5, 0.95, 0.99)):
    """Targets of p50, p95 and p99."""
    legend = "".join(f"{{{{{label.strip()}}}}} " for label in by.split(",") if by)
    return [(quantile(q, name, by, where), f"{legend}p{100 * q:g}") for q in qs]


def nonzero(expression, label):
    """The series above 0, or one of 0: most reasons of failures never occur."""
    return f'{expression} > 0 or on () label_replace(vector(0), "{label}", "none", "", "")'


def quotient(part, whole):
    """No value where the whole is 0."""
    return f"{part} / ({whole} > 0)"


# ---- Panels --------------------------------------------------------------------------------------


def panel(title, unit, targets, text, *, width=8, height=8, kind="timeseries", stack=False, least=0, most=None,
          good_from=None):
    """`targets`: pairs of expression and legend. `good_from`: green from there on, else red."""
    defaults = {"unit": unit}
    if least is not None:
        defaults["min"] = least
    if most is not None:
        defaults["max"] = most
    if kind == "timeseries":
        defaults["custom"] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 60 if stack else 5, "showPoints": "never",
                              "stacking": {"mode": "normal" if stack else "none", "group": "A"}}
        options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
                   "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value",
                   "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "auto"}
        if good_from is not None:
            defaults["thresholds"] = {"mode": "absolute", "steps": [{"color": "red", "value": None},
                                                                    {"color": "green", "value": good_from}]}
    return {"type": kind, "title": title, "description": text, "datasource": DATASOURCE,
            "gridPos": {"h": height, "w": width, "x": 0, "y": 0},
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options,
            "targets": [{"refId": chr(ord("A") + i), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend,
                         "editorMode": "code", "range": True} for i, (expression, legend) in enumerate(targets)]}


def row(title):
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": 0}, "panels": []}


def placed(panels):
    """Panels from left to right; a new line where one does not fit or a row begins."""
    x = y = line = 0
    for number, one in enumerate(panels, 1):
        place = one["gridPos"]
        if x + place["w"] > COLUMNS:
            x, y, line = 0, y + line, 0
        one["id"] = number
        place["x"], place["y"] = x, y
        x, line = x + place["w"], max(line, place["h"])
    return panels


def query_variable(name, label, values_of):
    query = f"label_values({values_of}, {name})"
    return {"name": name, "label": label, "type": "query", "datasource": DATASOURCE,
            "query": {"query": query, "refId": "A"}, "refresh": 2, "sort": 1, "includeAll": True, "allValue": ".*",
            "multi": True, "current": {"selected": True, "text": ["All"], "value": ["$__all"]}, "options": [], "hide": 0}


def dashboard(uid, title, text, processes_of, panels):
    """`processes_of`: the metric whose roles and instances the variables list."""
    variables = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
         "current": {}, "options": [], "hide": 0, "includeAll": False, "multi": False},
        query_variable("namespace", "Namespace", "baton_build_info"),
        query_variable("model", "Model", 'baton_build_info{namespace=~"$namespace"}'),
        query_variable("role", "Role", f"{processes_of}{{{ALL}}}"),
        query_variable("instance", "Instance", f'{processes_of}{{{ALL},role=~"$role"}}'),
    ]
    link = {"title": "Baton", "type": "dashboards", "tags": ["baton"], "asDropdown": False, "includeVars": False,
            "keepTime": True, "targetBlank": False, "icon": "external link", "tooltip": "", "url": ""}
    return {"id": None, "uid": uid, "title": title, "description": text, "tags": ["baton"], "timezone": "", "editable": True,
            "schemaVersion": SCHEMA_VERSION, "version": 1, "refresh": "30s", "graphTooltip": 1, "links": [link],
            "time": {"from": "now-1h", "to": "now"}, "annotations": {"list": []}, "templating": {"list": variables},
            "panels": placed(panels)}


# ---- The dashboards ------------------------------------------------------------------------------


def overview():
    first, gap, requests = "baton_time_to_first_token_seconds", "baton_inter_token_latency_seconds", "baton_requests_total"
    failed = ALL + ',code=~"UNAVAILABLE|INTERNAL|UNKNOWN|DATA_LOSS|DEADLINE_EXCEEDED"'
    return dashboard("baton-overview", "Baton / Overview", "Objectives, latency and traffic as clients see them.",
                     "baton_requests_inflight", [
        row("Objectives"),
        panel("First tokens within 2.5 s", SHARE,
              [(quotient(total(first + "_bucket", where=ALL + ',le="2.5"'), total(first + "_count")), "in time")],
              "Share of first tokens. The objective of the alerts is 99 %.", kind="stat", width=6, height=5, good_from=0.99),
        panel("Gaps between tokens within 0.1 s", SHARE,
              [(quotient(total(gap + "_bucket", where=ALL + ',le="0.1"'), total(gap + "_count")), "in time")],
              "Share of tokens after the first. The objective of the alerts is 99 %.", kind="stat", width=6, height=5,
              good_from=0.99),
        panel("Requests without failure", SHARE,
              [("1 - " + quotient(f"({total(requests, where=failed)} or vector(0))", total(requests)), "answered")],
              "Share of requests that end with another code than UNAVAILABLE, INTERNAL, UNKNOWN, DATA_LOSS or "
              "DEADLINE_EXCEEDED.", kind="stat", width=6, height=5, good_from=0.99),
        panel("Ready workers", COUNT,
              [(gauge("baton_workers", "worker_role", ALL + ',state="ready"', "min"), "{{worker_role}}")],
              "As the router sees them that sees the fewest.", kind="stat", width=6, height=5, good_from=1),
        row("Latency"),
        panel("Time to first token", SECONDS, quantiles(first), "From the receipt of a request to its first token.", width=6),
        panel("Inter-token latency", SECONDS, quantiles(gap), "Between tokens, each token of a message counted.", width=6),
        panel("Time per output token", SECONDS, quantiles("baton_time_per_output_token_seconds"),
              "Mean time per token after the first, of a request's longest choice.", width=6),
        panel("Request duration", SECONDS, quantiles("baton_request_duration_seconds"),
              "From the receipt of a request to its end, failed ones included.", width=6),
        row("Traffic"),
        panel("Requests by code", REQUESTS_PER_S, [(nonzero(total(requests, "code"), "code"), "{{code}}")],
              "Requests that ended, by gRPC status code; HTTP requests have one too.", stack=True),
        panel("Requests by finish reason", REQUESTS_PER_S,
              [(nonzero(total(requests, "finish_reason"), "finish_reason"), "{{finish_reason}}")],
              "stop: an end token or a stop string; length: max_tokens or the context; none: a failure or a cancel.",
              stack=True),
        panel("Tokens", TOKENS_PER_S,
              [(total("baton_prompt_tokens_total"), "prompt"), (total("baton_cached_prompt_tokens_total"), "prompt, cached"),
               (total("baton_generated_tokens_total"), "generated")], "Counted when a request ends."),
        panel("Prompt tokens of a request", COUNT, quantiles("baton_request_prompt_tokens"), "Of requests that ended well."),
        panel("Generated tokens of a request", COUNT, quantiles("baton_request_generated_tokens"),
              "Of requests that ended well."),
        panel("Requests in flight", COUNT,
              [(gauge("baton_requests_inflight", "role, instance", PROCESS), "{{role}} {{instance}}")],
              "Router: inside the router. Workers: requests that hold KV blocks."),
        row("Scaling"),
        panel("Workers wanted and ready", COUNT,
              [(gauge("baton_desired_workers", "worker_role", how="max"), "{{worker_role}}, wanted"),
               (gauge("baton_workers", "worker_role", ALL + ',state="ready"', "min"), "{{worker_role}}, ready")],
              "What the present load wants, by the router that wants most: an autoscaler follows it.", width=6),
        panel("Prompts to compute", SECONDS, [(gauge("baton_prompt_backlog_seconds", "worker_role", how="max"), "{{worker_role}}")],
              "Computing time of the prompts that wait or are being computed, on all workers of the role together.", width=6),
        panel("Headroom of decode workers", SHARE, [(gauge("baton_decode_headroom_ratio", "resource", how="min"), "{{resource}}")],
              "Free share of the KV pools and of the batches' places. Below 0: more wait than there are.", width=6, least=None),
        panel("Predicted latency", SECONDS,
              [(gauge("baton_predicted_ttft_seconds", how="max"), "first token"),
               (gauge("baton_predicted_inter_token_seconds", how="max"), "between tokens")],
              "Means of the requests sent lately, and of the sequences that run.", width=6),
    ])


def prefill_and_decode():
    queue, prefill = "baton_queue_duration_seconds", "baton_prefill_duration_seconds"
    transfer, step = "baton_kv_transfer_duration_seconds", "baton_decode_step_duration_seconds"
    first, second = "baton_time_to_first_token_seconds", "baton_second_token_latency_seconds"
    drafted, accepted = "baton_decode_draft_tokens_total", "baton_decode_accepted_draft_tokens_total"

    def mean(metric, per, where=ALL):
        """Seconds of `metric` for each observation of `per`: means of stages can be added, quantiles cannot."""
        return quotient(total(metric + "_sum", where=where), total(per + "_count"))

    waits = [("router", "router queue"), ("decode", "decode queue"), ("prefill", "prefill queue")]
    stages = [(mean(queue, first, ALL + f',role="{role}"'), legend) for role, legend in waits]
    stages.append((mean(prefill, first), "prefill"))
    known = " + ".join(total(metric + "_sum") for metric in (queue, prefill))
    rest = quotient(f"({total(first + '_sum')} - ({known}))", total(first + "_count"))
    unhidden = ALL + ',role="decode"'
    first_step = f"clamp_min({mean(second, second)} - {mean(transfer, second, unhidden)}, 0)"
    return dashboard("baton-prefill-decode", "Baton / Prefill and decode",
                     "Where the time to the first and to the second token goes, and how long the tiers take.",
                     queue + "_count", [
        row("From the request to the second token (means)"),
        panel("Time to first token by stage", SECONDS, [*stages, (f"clamp_min({rest}, 0)", "network and the rest")],
              "Mean time of each stage per request. Prefill is computing only, and its last step makes the first token. The "
              "queue of a decode worker is the wait for KV blocks.", width=12, height=9, stack=True),
        panel("From the first to the second token", SECONDS,
              [(mean(transfer, second, unhidden), "KV transfer after the first token"), (first_step, "first decode step")],
              "The handoff. Only the part of the transfer that computing did not hide delays the second token.", width=12,
              height=9, stack=True),
        row("Queues"),
        panel("Queue time by role", SECONDS, quantiles(queue, "role", PROCESS, (0.5, 0.95)),
              "Router: until a request is sent to a worker. Workers: from its arrival to the start of its work."),
        panel("Queue time by priority, p95", SECONDS,
              [(quantile(0.95, queue, "role, priority", PROCESS), "{{role}} {{priority}}")],
              "Higher priorities go first in the workers' queues. A priority without requests has no line."),
        panel("Requests that wait", COUNT, [(gauge("baton_requests_queued", "role, stage", PROCESS), "{{role}} {{stage}}")],
              "admit: for the tokenizer; prefill: to be computed; transfer: computed, KV on its way; decode: to be admitted."),
        row("Prefill"),
        panel("Prefill time", SECONDS, quantiles(prefill), "Computing a prompt: the sum of the steps that it was in."),
        panel("Prefill time by instance, p95", SECONDS, [(quantile(0.95, prefill, "instance"), "{{instance}}")],
              "One slow device stands out here."),
        panel("Prompt tokens to compute", COUNT,
              [(gauge("baton_prompt_tokens_queued", "role, instance"), "{{role}} {{instance}}")],
              "Prefill workers: still to be computed. Decode workers: of requests that wait. Scale the tier by it."),
        row("Decode"),
        panel("Second-token latency", SECONDS, quantiles(second), "From the first token of a choice to its second.", width=6),
        panel("Decode step time", SECONDS, quantiles(step), "One step of all running sequences of a worker.", width=6),
        panel("Decode step time by instance, p95", SECONDS, [(quantile(0.95, step, "instance"), "{{instance}}")],
              "One slow device stands out here.", width=6),
        panel("Sequences in a step", COUNT, quantiles("baton_decode_batch_size"),
              "Whether a step computes their prompts or decodes.", width=6),
        panel("Tokens decoded", TOKENS_PER_S,
              [(total("baton_decode_tokens_total", "instance"), "{{instance}}"),
               (total("baton_local_prefill_tokens_total"), "prompt tokens computed by decode workers")],
              "First tokens come with the KV and are not counted.", width=12),
        panel("Decode requests by code", REQUESTS_PER_S,
              [(nonzero(total("baton_decode_requests_total", "code"), "code"), "{{code}}")],
              "Calls of routers that decode workers ended. A router may retry a failed one.", width=12),
        row("Speculation"),
        panel("Speculation: drafts", TOKENS_PER_S, [(total(drafted), "drafted"), (total(accepted), "accepted")],
              "Tokens that decode workers drafted, and those of them that were drawn. 0 unless --speculative is on.",
              width=12),
        panel("Speculation: tokens of a step with drafts", COUNT,
              [(f"1 + {total(accepted, 'instance')} / clamp_min({total('baton_decode_drafted_steps_total', 'instance')}, 1e-9)",
                "{{instance}}")],
              "Acceptance: accepted drafts and the step's own draw, mean over sequences that had drafts. 1 without drafts.",
              width=12),
        row("Scoring"),
        panel("Items by result", PER_S, [(nonzero(total("baton_score_items_total", "result"), "result"), "{{result}}")],
              "Items that routers have answered. error: the item has one.", stack=True),
        panel("Items by worker", PER_S, [(total("baton_scored_items_total", "instance"), "{{instance}}")],
              "Items that prefill workers have scored."),
        panel("Scoring calls by code", REQUESTS_PER_S,
              [(nonzero(total("baton_score_calls_total", "code"), "code"), "{{code}}")],
              "Calls that ended, by gRPC status code. A call has up to thousands of items.", stack=True),
    ])


def kv_and_prefix_cache():
    hit, asked = "baton_prefix_cache_hit_tokens_total", "baton_prefix_cache_query_tokens_total"
    pools = (gauge("baton_kv_blocks", "namespace, role, instance", PROCESS)
             + " * on (namespace, role, instance) group_left (block_size, dtype) "
             + gauge("baton_cache_config_info", "namespace, role, instance, block_size, dtype", PROCESS))
    return dashboard("baton-kv", "Baton / KV and prefix cache", "The memory of both tiers, and what the prefix caches save.",
                     "baton_kv_blocks", [
        row("KV memory"),
        panel("Blocks in use", SHARE, [(gauge("baton_kv_cache_utilization_ratio", "role, instance", PROCESS, "max"),
                                        "{{role}} {{instance}}")],
              "Active and held blocks. Cached ones can be evicted at any time.", most=1),
        panel("Blocks by state", COUNT, [(gauge("baton_kv_blocks", "state", PROCESS), "{{state}}")],
              "active: in use; held: reserved for a transfer; cached: kept by the prefix cache.", stack=True),
        panel("Pools", COUNT, [(f"sum by (role, block_size, dtype) ({pools})",
                                "{{role}}: blocks of {{block_size}} tokens, {{dtype}}")],
              "Blocks of all workers of a role.", kind="stat"),
        row("Prefix cache"),
        panel("Cached share of prompt tokens", SHARE,
              [(quotient(total("baton_cached_prompt_tokens_total"), total("baton_prompt_tokens_total")), "of all requests")],
              "Prompt tokens that the first worker of a request did not compute.", most=1),
        panel("Hit share by role", SHARE, [(quotient(total(hit, "role", PROCESS), total(asked, "role", PROCESS)), "{{role}}")],
              "A decode worker asks its own cache first; a prefill worker is asked for what is missing there.", most=1),
        panel("Evicted blocks", PER_S, [(total("baton_prefix_cache_evicted_blocks_total", "role, instance", PROCESS),
                                         "{{role}} {{instance}}")], "Cached blocks that made room for others."),
        panel("Retained blocks", COUNT, [(gauge("baton_kv_retained_blocks", "role, instance", PROCESS),
                                          "{{role}} {{instance}}")],
              "Cached blocks that requests and warm prefixes retain. --max-retained-share bounds them.", width=12),
        panel("Warm misses by cause", REQUESTS_PER_S,
              [(nonzero(total("baton_prefix_cache_warm_misses_total", "cause"), "cause"), "{{cause}}")],
              "Prompts whose cached beginning was lost. changed: the prompt differs from an earlier one; evicted: the worker "
              "no longer has it; other_salt: another cache_salt.", width=12),
        row("Decode memory pressure"),
        panel("Active sequences", COUNT, [(gauge("baton_active_sequences", "instance"), "{{instance}}")],
              "Sequences that are being decoded or received.", width=6),
        panel("Mean context", "suffix: tokens",
              [(f"{gauge('baton_active_context_tokens')} / clamp_min({gauge('baton_active_sequences')}, 1)", "tokens")],
              "Tokens of an active sequence.", width=6),
        panel("Preemptions and recomputes", PER_S,
              [(total("baton_preemptions_total", "mode"), "preempted, {{mode}}"),
               (total("baton_recomputes_total", "reason"), "computed again, {{reason}}")],
              "Sequences that lost their blocks; sequences whose KV a decode worker computes again.", width=6),
        panel("KV in host memory", BYTES_PER_S,
              [(total("baton_host_kv_kept_bytes_total"), "kept"), (total("baton_host_kv_restored_bytes_total"), "restored")],
              "KV of preempted sequences that is copied to host memory and back.", width=6),
    ])


def transfer():
    duration, size, failures = ("baton_kv_transfer_duration_seconds", "baton_kv_transfer_size_bytes",
                                "baton_kv_transfer_failures_total")
    failed = total(failures, where=ALL + ',role="decode",reason!="cancelled"')
    committed = total(duration + "_count", where=ALL + ',role="decode"')
    return dashboard("baton-transfer", "Baton / KV transfer", "KV on its way from prefill to decode workers.",
                     duration + "_count", [
        row("Volume"),
        panel("Transferred", BYTES_PER_S, [(total("baton_kv_transfer_bytes_total", "direction", PROCESS), "{{direction}}")],
              "KV payload. sent: prefill workers; received: decode workers."),
        panel("Transferred by instance", BYTES_PER_S,
              [(total("baton_kv_transfer_bytes_total", "role, instance", PROCESS), "{{role}} {{instance}}")],
              "One overloaded link stands out here."),
        panel("Size of a transfer", BYTES, quantiles(size, "direction", PROCESS, (0.5, 0.95)),
              "KV payload of one request."),
        row("Time"),
        panel("Time that computing does not hide", SECONDS, quantiles(duration, "role", PROCESS, (0.5, 0.95)),
              "decode: from the first token's arrival to the verified commit. prefill: from the computed prompt to the last "
              "byte handed to the network."),
        panel("The same by instance, p95", SECONDS,
              [(quantile(0.95, duration, "role, instance", PROCESS), "{{role}} {{instance}}")],
              "One slow link stands out here."),
        panel("Requests in transfer", COUNT,
              [(gauge("baton_requests_queued", "role, instance", PROCESS + ',stage="transfer"'), "{{role}} {{instance}}")],
              "prefill: computed, KV still being sent. decode: KV being received."),
        row("Outcome"),
        panel("Transfers", REQUESTS_PER_S, [(committed, "committed"), (failed, "failed")],
              "As decode workers count them: verified commits; failures without cancelled requests."),
        panel("Failed share", SHARE, [(quotient(failed, f"{committed} + {failed}"), "failed")], "The alert begins at 1 %."),
        panel("Failures by reason", PER_S,
              [(nonzero(total(failures, "role, reason", PROCESS), "reason"), "{{role}} {{reason}}")],
              "Each reason is described with the metric in docs/metrics.md."),
        panel("Ways of transfers", REQUESTS_PER_S,
              [(nonzero(total("baton_kv_transfers_total", "reason", PROCESS), "reason"), "{{reason}}")],
              "mapped: through shared memory; opened: from GPU to GPU. The others are over gRPC, and the label says why.", width=24),
    ])


def router_and_faults():
    def events(name, legend, label="reason"):
        return (nonzero(total(name, label), label), f"{legend} {{{{{label}}}}}")

    return dashboard("baton-router", "Baton / Router and faults",
                     "Decisions, the fleet as routers see it, refusals and faults.", "baton_rejections_total", [
        row("Routing"),
        panel("Decisions", REQUESTS_PER_S, [(total("baton_route_decisions_total", "decision"), "{{decision}}")],
              "prefix: to a cached prefix; load: to the least loaded worker; local: the decode worker computes what it lacks; "
              "lent: another decode worker computes it; decode_only: no prefill worker is usable; home: no report is fresh.", stack=True),
        panel("First token: actual over predicted", COUNT, quantiles("baton_route_ttft_ratio", qs=(0.05, 0.5, 0.95)),
              "Time from the decision to the first token, divided by its prediction. 1 is exact."),
        panel("Cached tokens: error of the prediction", COUNT,
              [(quotient(total("baton_route_cached_tokens_error_sum"), total("baton_route_cached_tokens_error_count")), "mean")],
              "Cached prompt tokens found by the worker minus predicted. Below 0, the router promised too much.", least=None),
        row("Fleet"),
        panel("Workers by state", COUNT, [(gauge("baton_workers", "worker_role, state", how="max") + " > 0 or on () "
                                           'label_replace(vector(0), "state", "none", "", "")', "{{worker_role}} {{state}}")],
              "As the router sees them that sees the most in the state.", stack=True),
        panel("Expired workers", PER_S, [(total("baton_worker_expirations_total", "worker_role"), "{{worker_role}}")],
              "Workers that went silent, summed over routers."),
        panel("Worker lists", COUNT,
              [(gauge("baton_discovery_failing_sources", how="max"), "out of date"),
               (nonzero(total("baton_discovery_failures_total", "source"), "source"), "failures/s {{source}}")],
              "Lists of workers that cannot be read; the last good one is kept."),
        row("Refusals and failover"),
        panel("Refusals by reason", REQUESTS_PER_S,
              [(nonzero(total("baton_rejections_total", "role, reason", PROCESS), "reason"), "{{role}} {{reason}}")],
              "A worker's refusal makes the router try another pair; a router's refusal goes to the client."),
        panel("Refused share", SHARE, [(quotient(total("baton_rejections_total", where=ALL + ',role="router"'),
                                                 total("baton_requests_total")), "of requests")], "The alert begins at 5 %."),
        panel("Retries and failovers by reason", REQUESTS_PER_S,
              [events("baton_retries_total", "retry"), events("baton_failovers_total", "failover")],
              "retry: before the first token; failover: an answer goes on at another pair."),
        panel("Lost workers", COUNT,
              [(gauge("baton_continuations_waiting"), "answers that wait for a worker"),
               (total("baton_dead_worker_sequences_total"), "sequences of dead workers/s"),
               (total("baton_retry_budget_exhausted_total"), "failed, retry budget empty/s")],
              "What happens to answers whose worker is gone.", width=12),
        panel("KV that did not arrive", PER_S,
              [(nonzero(total("baton_kv_transfer_failures_total", "role, reason"), "reason"),
                "transfer failed, {{role}} {{reason}}"),
               (total("baton_recomputes_total", where=ALL + ',reason="transfer_failed"'), "computed again")],
              "Failed transfers, and what decode workers compute again for them.", width=12),
        row("HTTP"),
        panel("HTTP requests by code", REQUESTS_PER_S,
              [(nonzero(total("baton_http_requests_total", "code"), "code"), "{{code}}")],
              "A streamed answer is counted when it begins.", stack=True),
        panel("HTTP requests by route", REQUESTS_PER_S,
              [(nonzero(total("baton_http_requests_total", "route"), "route"), "{{route}}")],
              "Paths that are not served are counted together.", stack=True),
        panel("HTTP connections", COUNT,
              [(gauge("baton_http_connections"), "open"), (gauge("baton_http_streams"), "streams"),
               (total("baton_http_connections_refused_total"), "refused/s")], "Open connections, and answers being streamed."),
    ])


def text_of(one):
    """JSON with a line for each panel and variable, so that a change of one is a change of its line."""
    def lines(items):
        return "[\n" + ",\n".join("  " + json.dumps(item) for item in items) + "\n ]"

    rest = {key: value for key, value in one.items() if key not in ("panels", "templating")}
    return (json.dumps(rest, indent=1).removesuffix("\n}") + ',\n "templating": {"list": '
            + lines(one["templating"]["list"]) + '},\n "panels": ' + lines(one["panels"]) + "\n}\n")


def files():
    """File name and text of every dashboard."""
    return {f"{one['uid']}.json": text_of(one)
            for one in (overview(), prefill_and_decode(), kv_and_prefix_cache(), transfer(), router_and_faults())}


def main():
    texts = files()
    if sys.argv[1:] == ["--check"]:
        there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*")}
        differing = sorted(name for name in {*texts, *there} if texts.get(name) != there.get(name))
        print("\n".join(f"{name}: is not what {Path(__file__).name} writes" for name in differing) or "ok")
        return 1 if differing else 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the figures of scripts/gpu-check amount to: floors, tables and goals, as Markdown.

A row is a JSON object: "part" and "what", names and numbers that say which cell it is, and what was
measured: "seconds" beside "bytes" and "flops" (the floor's), or "skipped", the reason. docs/design/cuda.md
says how floors are reckoned; the ceilings are rows of the same run.
"""

MEASURED = {"seconds", "alone_seconds", "bytes", "flops", "link_bytes", "products_seconds", "skipped", "dram_bytes", "result",
            "software", "config", "header"}
# What a row of the part clusters has measured; the rest names its cell.
CLUSTER_FIGURES = ("asked", "right", "same", "completed", "failed", "first_ms", "later_ms", "prompt_tokens_per_s",
                   "answer_tokens_per_s", "ttft_ms", "itl_ms", "kv_gb_per_s")
MEASURED |= set(CLUSTER_FIGURES)
STEP_GOALS = (("qwen2.5-0.5b", 35), ("qwen2.5-1.5b", 60), ("qwen2.5-3b", 70), ("qwen2.5-7b", 80))
LARGE_MATRIX_BYTES = 8e6
LONG_PROMPT = 2048  # tokens to compute: prompts that the prefill goals are about
SMALLEST_PREFILL = "qwen2.5-0.5b"  # whose prefill has no goal
USUAL_CONTEXT = 2048


def identity(row):
    return tuple(sorted((key, str(value)) for key, value in row.items() if key not in MEASURED))


def latest(rows):
    """The last row of each cell, where the first one stood. One that was skipped replaces no figure."""
    cells = {}
    for row in rows:
        key = identity(row)
        if not ("skipped" in row and "seconds" in cells.get(key, {})):
            cells[key] = row
    return list(cells.values())


def number(value):
    """Three significant digits, or whole."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


class Report:
    def __init__(self, rows):
        self.rows = latest(rows)
        self.copy = self.rate("copy", "bytes")  # bytes a second
        self.link = self.rate("to_device", "bytes")
        products = [r for r in self.of("ceilings", "product") if r.get("engine") == 1]
        self.matrix = products[-1]["flops"] / products[-1]["seconds"] if products else None

    def of(self, part, *whats):
        return [r for r in self.rows if r["part"] == part and (not whats or r["what"] in whats)]

    def timed(self, part, *whats):
        return [r for r in self.of(part, *whats) if r.get("seconds")]

    def rate(self, what, amount):
        rows = self.timed("ceilings", what)
        return rows[-1][amount] / rows[-1]["seconds"] if rows else None

    def floor(self, row):
        """Seconds that nothing is faster than; None without ceilings."""
        if not self.copy or not self.matrix:
            return None
        # What crosses the host's link is waited for before it is used.
        link = row.get("link_bytes", 0) / self.link if self.link else 0
        return max(row["bytes"] / self.copy, row["flops"] / self.matrix) + link

    def percent(self, row):
        floor = self.floor(row)
        return None if floor is None else 100 * floor / row["seconds"]

    # ---- Tables: (title, note, head, rows) -------------------------------------------------------

    def ceilings(self):
        lines = []
        for row in self.timed("ceilings"):
            if row["what"] == "product":
                what = f"product of {row['side']:.0f}², {row['dtype']}, {row['by']}"
                rate = f"{row['flops'] / row['seconds'] / 1e12:,.1f} TFLOP/s"
            else:
                what = {"copy": "copy on the device, read and written", "read": "read",
                        "write": "write (fill)", "to_device": "from pinned host memory",
                        "to_host": "to pinned host memory"}[row["what"]]
                rate = f"{row['bytes'] / row['seconds'] / 1e9:,.0f} GB/s"
            lines.append((what, rate, f"{row['seconds'] * 1e3:,.3f}"))
        return ("Ceilings", "", ("what", "rate", "ms"), lines)

    def kernels(self):
        lines = []
        for row in self.of("kernels"):
            if "skipped" in row:
                lines.append((row["what"], row["case"], f"skipped: {row['skipped']}", "", "", "", "", ""))
                continue
            percent = self.percent(row)
            floor = self.floor(row)
            traffic = [r for r in self.of("ncu", row["what"]) if r["case"] == row["case"]]
            lines.append((row["what"], row["case"], f"{row['seconds'] * 1e6:,.2f}",
                          f"{row['bytes'] / 1e6:,.3f}",
                          "" if floor is None else f"{floor * 1e6:,.2f}",
                          "" if percent is None else f"{percent:.0f} %",
                          f"{row['bytes'] / row['seconds'] / 1e9:,.0f}",
                          f"{traffic[0]['dram_bytes'] / row['bytes']:.3f}" if traffic else ""))
        note = ("One launch among others back to back in a stream, its gap included; operands change so that "
                "none is in the L2 cache. The floor is bytes over the copy's rate or operations over the "
                "product's, whichever is longer; what only reads can pass 100 %. A last column where "
                "ncu could count: bytes that crossed the memory bus over the floor's.")
        return ("Kernels", note, ("kernel", "case", "µs", "floor MB", "floor µs", "of the floor",
                                  "GB/s", "DRAM ÷ floor"), lines)

    def gated(self):
        """Whether a kernel of ours for gate, up and what gates them pays, and beside which product."""
        names = ("gated_fused", "gated_ours", "gated_measured")
        seconds = {}
        for row in self.timed("kernels", *names):
            seconds.setdefault(row["case"], {})[row["what"]] = row["seconds"]
        lines = []
        for case, of in seconds.items():
            two = min((of[name] for name in names[1:] if name in of), default=None)
            fused = of.get(names[0])
            lines.append((case, *(f"{of[name] * 1e6:,.2f}" if name in of else "" for name in names),
                          f"{two / fused:.2f}" if two and fused else ""))
        note = ("µs. One kernel, our product and the gate, and the gate behind the product that was measured "
                "to be the fastest, as a worker does when it loads a model. A ratio above 1: one kernel is "
                "faster than the better two.")
        return ("Gate and up", note,
                ("case", "one kernel", "two: ours", "two: measured", "two ÷ one"), lines)

    def steps(self):
        lines = []
        for row in self.of("steps"):
            cell = (row["model"], f"{row['batch']:.0f}", f"{row['context']:.0f}")
            if "skipped" in row:
                lines.append((*cell, f"skipped: {row['skipped']}", "", "", "", ""))
                continue
            floor, percent = self.floor(row), self.percent(row)
            lines.append((*cell, f"{row['seconds'] * 1e3:,.3f}",
                          "" if floor is None else f"{floor * 1e3:,.3f}",
                          "" if percent is None else f"{percent:.0f} %",
                          f"{row['batch'] / row['seconds']:,.0f}",
                          f"{row['alone_seconds'] * 1e3:,.3f}"))
        note = ("From one decode step's tokens to the next one's, through the engine, greedy draws on the "
                "device included, on the host's clock; a step is launched before the tokens of the one "
                "before are known. Alone: a step that waits for them. The floor is what `baton plan` reckons, at this run's ceilings.")
        return ("Decode steps", note, ("model", "batch", "context", "ms", "floor ms", "of the floor",
                                       "tokens/s", "alone ms"), lines)

    def prefill(self):
        lines = []
        for row in self.of("prefill"):
            cell = (row["model"], f"{row['tokens']:.0f}", f"{row['cached']:.0f}")
            if "skipped" in row:
                lines.append((*cell, f"skipped: {row['skipped']}", "", "", "", ""))
                continue
            share = self.of_matrix_rate(row)
            products = row.get("products_seconds")
            lines.append((*cell, f"{row['seconds'] * 1e3:,.2f}",
                          f"{row['flops'] / row['seconds'] / 1e12:,.1f}",
                          "" if share is None else f"{share:.0f} %",
                          f"{products * 1e3:,.2f}" if products else "",
                          f"{100 * products / row['seconds']:.0f} %" if products else ""))
        note = ("The tokens behind the cached ones, and the next token's draw. Products: those of the "
                "prompt, each measured alone, summed.")
        return ("Prefill", note, ("model", "tokens", "of them cached", "ms", "TFLOP/s",
                                  "of the matrix rate", "products ms", "products ÷ time"), lines)

    def of_matrix_rate(self, row):
        return 100 * row["flops"] / row["seconds"] / self.matrix if self.matrix else None

    def pairs(self, *whats):
        """(peer's row, ours) of the same cell."""
        ours = {}
        for row in self.timed("kernels") + self.timed("steps") + self.timed("prefill"):
            ours.setdefault(cell_of(row), row)
        # Of several kernels that serve a cell, the faster.
        for row in self.timed("kernels"):
            if row["seconds"] < ours[cell_of(row)]["seconds"]:
                ours[cell_of(row)] = row
        return [(peer, ours[peer["cell"]]) for peer in self.timed("peers", *whats)
                if peer["cell"] in ours]

    def peers(self):
        lines = [(peer["what"], peer["cell"], f"{peer['seconds'] * 1e3:,.4f}",
                  f"{row['seconds'] * 1e3:,.4f}", f"{peer['seconds'] / row['seconds']:.2f}")
                 for peer, row in self.pairs()]
        lines += [(peer["what"], peer.get("cell", ""), f"skipped: {peer['skipped']}", "", "")
                  for peer in self.of("peers") if "skipped" in peer]
        software = [r["software"] for r in self.of("peers") if "software" in r]
        note = ("The same shapes, random weights, on the same device in the same run. A ratio above 1: "
                "Baton is faster." + (f" {software[-1]}." if software else ""))
        return ("Peers", note, ("peer", "cell", "peer ms", "Baton ms", "ratio"), lines)

    def clusters(self):
        lines = [(row["what"], row["case"], row["device"],
                  ", ".join(f"{figure.replace('_', ' ')} {number(row[figure])}" for figure in CLUSTER_FIGURES
                            if row.get(figure) is not None))
                 for row in self.of("clusters")]
        note = ("Processes that share the device. texts: greedy answers of the demo model that are right, and that are those of "
                "the first line. kills: SIGKILL while requests run. first: the median time to the first token of a fresh "
                "cluster's first four requests, and of the next four. serve: medians, prompt tokens + answer tokens.")
        return ("Clusters", note, ("what", "case", "device", "result"), lines)

    # ---- Goals -----------------------------------------------------------------------------------

    def goals(self):
        goals = []

        def add(goal, figures, at_least, unit=" %"):
            """figures: (figure, where). The least counts."""
            figures = [f for f in figures if f[0] is not None]
            if not figures:
                goals.append((goal, "not measured", ""))
                return
            least, where = min(figures)
            count = f", the least of {len(figures)}" if len(figures) > 1 else ""
            goals.append((goal, f"{number(least)}{unit} ({where}{count})",
                          "yes" if least >= at_least else "**no**"))

        def of_copy(row):
            return 100 * row["bytes"] / row["seconds"] / self.copy if self.copy else None

        add("decode attention ≥ 85 % of the copy's rate, KV ≥ 4 × L2",
            [(of_copy(r), r["case"]) for r in self.timed("kernels", "attention_split")
             if r.get("kv_beyond_4_l2")], 85)
        ncu = [(n, r) for n in self.of("ncu") for r in self.timed("kernels", n["what"])
               if r["case"] == n["case"]]
        # Negative, since the greatest counts.
        worst = max(((n["dram_bytes"] / r["bytes"], n["case"]) for n, r in ncu
                     if n["what"] == "attention_split"), default=None)
        goals.append(("decode attention's DRAM bytes ≤ 1.05 × the floor",
                      f"{worst[0]:.3f} ({worst[1]})" if worst else "not measured",
                      "" if not worst else "yes" if worst[0] <= 1.05 else "**no**"))
        for kernel, words in (("cublas", "cuBLASLt"), ("matmul_rows", "our kernels"),
                              ("quantized_int4", "int4"), ("quantized_int8", "int8")):
            add(f"one row's product ≥ 90 %, matrices ≥ 8 MB: {words}",
                [(of_copy(r), r["case"]) for r in self.timed("kernels", kernel)
                 if r["m"] == 1 and r["weight_bytes"] >= LARGE_MATRIX_BYTES], 90)
        for model, least in STEP_GOALS:
            add(f"batch-1 step of {model} ≥ {least} % of the floor, context {USUAL_CONTEXT}",
                [(self.percent(r), f"{r['seconds'] * 1e3:.3f} ms") for r in self.timed("steps")
                 if r["model"] == model and r["batch"] == 1 and r["context"] == USUAL_CONTEXT], least)
        long = [r for r in self.timed("prefill") if r["tokens"] - r["cached"] >= LONG_PROMPT]

        def where(row):
            return f"{row['model']}, {row['tokens']:.0f} tokens, {row['cached']:.0f} cached"

        large = [r for r in long if r["model"] != SMALLEST_PREFILL]
        add(f"prefill ≥ 55 % of the matrix rate, models ≥ 1.5B, ≥ {LONG_PROMPT} tokens to compute",
            [(self.of_matrix_rate(r), where(r)) for r in large], 55)
        add(f"prefill: its products alone ≥ 80 % of its time, models ≥ 1.5B, ≥ {LONG_PROMPT} tokens",
            [(100 * r["products_seconds"] / r["seconds"], where(r)) for r in large
             if r.get("products_seconds")], 80)
        for what in ("step", "prefill"):
            add(f"{what}: faster than transformers under torch.compile in every cell",
                [(peer["seconds"] / row["seconds"], peer["cell"])
                 for peer, row in self.pairs(f"transformers compiled {what}",
                                             f"transformers eager {what}")], 1, " ×")
        return ("Goals", "A goal that is missed is no failure of the run.",
                ("goal", "measured", "reached"), goals)

    def runs(self):
        lines = [(r["what"], r.get("of", ""), r["result"]) for r in self.of("runs")]
        return ("What ran", "", ("part", "of", "result"), lines)

    def markdown(self, header):
        text = "".join(f"- {line}\n" for line in header)
        for table in (self.goals(), self.ceilings(), self.steps(), self.prefill(), self.clusters(), self.peers(),
                      self.gated(), self.kernels(), self.runs()):
            title, note, head, rows = table
            if not rows:
                continue
            text += f"\n### {title}\n\n" + (f"{note}\n\n" if note else "")
            text += "| " + " | ".join(head) + " |\n|" + "---|" * len(head) + "\n"
            text += "".join("| " + " | ".join(row) + " |\n" for row in rows)
        return text


def cell_of(row):
    """The name of what is timed, which a peer's row has as "cell"."""
    part = row["part"]
    if part == "steps":
        return f"{row['model']} step b{row['batch']:.0f} c{row['context']:.0f}"
    if part == "prefill":
        return f"{row['model']} prefill {row['tokens']:.0f} cached {row['cached']:.0f}"
    if row["what"] in ("attention_split", "attention_tile"):
        return f"attention {row['case']}"
    if row["what"] in ("cublas", "matmul_rows"):
        return f"product {row['case']}"
    return f"{row['what']} {row['case']}"


def one_line(row):
    """For people who watch."""
    if "seconds" not in row:
        left = {k: v for k, v in row.items() if k not in ("part", "config")}
        return f"{row['part']}: " + ", ".join(f"{k} {v}" for k, v in left.items())
    name = row["cell"] if "cell" in row else cell_of(row) if row["part"] != "ceilings" else row["what"]
    amount = f"{row['bytes'] / row['seconds'] / 1e9:9,.1f} GB/s" if row.get("bytes") else ""
    if row.get("flops"):
        amount += f" {row['flops'] / row['seconds'] / 1e12:8,.2f} TFLOP/s"
    return f"{row['part']:9} {row['what']:16} {name:44} {row['seconds'] * 1e6:12,.2f} µs {amount}"

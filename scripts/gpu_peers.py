#!/usr/bin/env python3
"""Times what others make of the cells that gpu_bench has timed: torch's products and attention, FlashInfer,
and transformers with a static cache under torch.compile. Part of scripts/gpu-check.

  gpu_peers.py --results FILE [--seconds 500] [--models NAME,…] [--device cuda]

FILE has gpu_bench's rows, which say what to time; a row of JSON is printed for each peer and cell. Uses
what is installed, and says what is not. Where there is doubt it is decided for the peer: steps of
transformers are enqueued several at once, their tokens stay on the device, and the fastest round counts:
what is compiled anew on the way does not.
"""

import argparse
import contextlib
import gc
import inspect
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_bench  # noqa: E402
import gpu_report  # noqa: E402

try:
    import torch
except ImportError:
    torch = None

WARM_STEPS = 4
STEPS = 24
STEPS_AT_ONCE = 6
ROUNDS = 5
LAUNCHES = 20
HOLD_CYCLES = 20_000_000  # about 10 ms: for launches to gather behind
# Cells that are compiled before others, which takes half a minute each: steps of so many sequences behind
# so many tokens, and prompts of as many.
TELLING_BATCHES = (1, 32)
TELLING_TOKENS = 2048
STEP_SECONDS = 20  # a step's cell is not begun with less
SMALL_SECONDS = 120  # that products and attention may take
MOST_TURNS = 64
# What Peers' methods of the same name time.
KINDS = {"steps": "transformers compiled step", "prefills": "transformers eager prefill",
         "compiled_prefills": "transformers compiled prefill"}


def emit(what, cell="", **fields):
    row = {"part": "peers", "what": what, **({"cell": cell} if cell else {}), **fields}
    print(json.dumps(row), flush=True)


def median(values):
    return sorted(values)[len(values) // 2]


def first_line(error):
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160] if text else ''}".replace("|", "/")


@contextlib.contextmanager
def no_tools():
    """FlashInfer would compile, for minutes, what it has not brought: so it finds nothing to do it with."""
    path = os.environ.get("PATH")
    os.environ["PATH"] = ""
    try:
        yield
    finally:
        if path is None:
            del os.environ["PATH"]
        else:
            os.environ["PATH"] = path


class Peers:
    def __init__(self, rows, device, seconds):
        self.rows = gpu_report.latest(rows)
        self.device = torch.device(device)
        self.done = {(r["what"], r.get("cell")) for r in self.rows
                     if r["part"] == "peers" and r.get("seconds")}
        self.begin = time.monotonic()
        self.seconds = seconds
        self.cuda = self.device.type == "cuda"
        self.l2 = 0
        if self.cuda:
            self.l2 = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)

    def left(self):
        return self.seconds - (time.monotonic() - self.begin)

    def synchronize(self):
        if self.cuda:
            torch.cuda.synchronize()

    def free(self):
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def dtype(self, row):
        return getattr(torch, row["dtype"])

    def random(self, *shape, dtype):
        return torch.empty(shape, dtype=dtype, device=self.device).normal_(0, 0.02)

    def turns(self, operand_bytes):
        """How many operands it takes that none is in the cache when its turn comes."""
        return max(1, min(MOST_TURNS, int(4 * self.l2 / operand_bytes) + 1))

    def of_launches(self, launch):
        """Seconds of one launch among others, as gpu_bench takes them."""
        for i in range(3):
            launch(i)
        self.synchronize()
        rounds = []
        for _ in range(ROUNDS):
            if self.cuda:
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(HOLD_CYCLES)
                begin.record()
                for i in range(LAUNCHES):
                    launch(i)
                end.record()
                torch.cuda.synchronize()
                rounds.append(begin.elapsed_time(end) * 1e-3 / LAUNCHES)
            else:
                start = time.monotonic()
                for i in range(LAUNCHES):
                    launch(i)
                rounds.append((time.monotonic() - start) / LAUNCHES)
        return median(rounds)

    def attempt(self, what, cell, measure):
        """A row, whatever becomes of it; none if an earlier run has one."""
        if (what, cell) in self.done:
            return
        self.done.add((what, cell))
        try:
            with torch.inference_mode():
                emit(what, cell, seconds=measure())
        except Exception as error:  # whatever a library of whatever version throws
            emit(what, cell, skipped=first_line(error))
        finally:
            self.free()

    def timed(self, part, *whats):
        return [r for r in self.rows if r["part"] == part and r.get("seconds") and
                (not whats or r["what"] in whats)]

    # ---- One kernel ------------------------------------------------------------------------------

    def products(self, until):
        done = set()
        for row in self.timed("kernels", "cublas", "matmul_rows"):
            cell = gpu_report.cell_of(row)
            if cell in done or self.left() < until:
                continue
            done.add(cell)
            self.attempt("torch.mm", cell, lambda: self.product(row))

    def product(self, row):
        m, n, k, dtype = int(row["m"]), int(row["n"]), int(row["k"]), self.dtype(row)
        turns = self.turns(2 * n * k)
        weights = [self.random(n, k, dtype=dtype) for _ in range(turns)]
        x = self.random(m, k, dtype=dtype)
        out = torch.empty((m, n), dtype=dtype, device=self.device)
        return self.of_launches(lambda i: torch.mm(x, weights[i % turns].t(), out=out))

    def attention(self, until):
        for row in self.timed("kernels", "attention_split", "attention_tile"):
            if self.left() < until:
                return
            cell = gpu_report.cell_of(row)
            self.attempt("SDPA", cell, lambda: self.sdpa(row))
            if row["rows"] == 1 and self.flashinfer is not None:
                self.attempt("FlashInfer", cell, lambda: self.flashinfer_decode(row))

    @staticmethod
    def shape(row):
        """Sequences, rows of each, tokens that the last row sees, query heads, KV heads, head dim."""
        rows, context = int(row["rows"]), int(row["context"])
        tokens = context if rows == 1 else context + rows
        return (int(row["batch"]), rows, tokens, int(row["query_heads"]), int(row["kv_heads"]),
                int(row["head_dim"]))

    def sdpa(self, row):
        batch, rows, tokens, heads, kv_heads, dim = self.shape(row)
        dtype = self.dtype(row)
        turns = self.turns(4 * batch * tokens * kv_heads * dim)
        q = self.random(batch, heads, rows, dim, dtype=dtype)
        caches = [[self.random(batch, kv_heads, tokens, dim, dtype=dtype) for _ in range(2)]
                  for _ in range(turns)]
        options = {"enable_gqa": True}
        if rows == tokens:
            options["is_causal"] = True
        elif rows > 1:
            from torch.nn.attention.bias import causal_lower_right
            options["attn_mask"] = causal_lower_right(rows, tokens)
        attend = torch.nn.functional.scaled_dot_product_attention
        return self.of_launches(lambda i: attend(q, *caches[i % turns], **options))

    @property
    def flashinfer(self):
        if not hasattr(self, "_flashinfer"):
            self._flashinfer = None
            if self.cuda:
                try:
                    import flashinfer
                    self._flashinfer = flashinfer
                except Exception as error:
                    emit("FlashInfer", skipped=first_line(error))
        return self._flashinfer

    def flashinfer_decode(self, row):
        batch, _, tokens, heads, kv_heads, dim = self.shape(row)
        dtype, block = self.dtype(row), 16
        blocks = (tokens + block - 1) // block
        turns = self.turns(4 * batch * tokens * kv_heads * dim)
        pools = [self.random(batch * blocks, 2, block, kv_heads, dim, dtype=dtype)
                 for _ in range(turns)]
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=self.device)
        decode = self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD",
                                                                    use_tensor_cores=True)
        integers = {"dtype": torch.int32, "device": self.device}
        q = self.random(batch, heads, dim, dtype=dtype)
        with no_tools():
            decode.plan(torch.arange(batch + 1, **integers) * blocks,
                        torch.randperm(batch * blocks, **integers),
                        torch.full((batch,), (tokens - 1) % block + 1, **integers),
                        heads, kv_heads, dim, block, q_data_type=dtype, kv_data_type=dtype)
            decode.run(q, pools[0])
        return self.of_launches(lambda i: decode.run(q, pools[i % turns]))

    # ---- Whole models ----------------------------------------------------------------------------

    def models(self, wanted):
        configs = {r["what"]: r["config"] for r in self.rows if r["part"] == "models"}
        plain = {name: config for name, config in configs.items()
                 if "quantization_config" not in config and (not wanted or name in wanted)}
        contexts = sorted({r["context"] for r in self.timed("steps")},
                          key=lambda c: (c != TELLING_TOKENS, c))
        passes = [
            (self.prefills, lambda r: True),
            *((self.steps, lambda r, b=batch: r["context"] == TELLING_TOKENS and r["batch"] == b)
              for batch in TELLING_BATCHES),
            (self.compiled_prefills, lambda r: r["tokens"] == TELLING_TOKENS and not r["cached"]),
            *((self.steps, lambda r, c=context: r["context"] == c) for context in contexts),
            (self.compiled_prefills, lambda r: True)]
        for measure, choose in passes:
            for name, config in plain.items():
                self.of_model(name, config, measure, choose)

    def of_model(self, name, config, measure, choose):
        part = "steps" if measure == self.steps else "prefill"
        what = KINDS[measure.__name__]
        rows = [r for r in self.timed(part) if r["model"] == name and choose(r) and
                (what, gpu_report.cell_of(r)) not in self.done]
        if not rows:
            return
        try:
            if self.left() < STEP_SECONDS:
                raise TimeoutError("no time left")
            model = self.make_model(config, self.dtype(rows[0]))
        except Exception as error:
            emit(what, name, skipped=first_line(error))
            return
        measure(model, sorted(rows, key=lambda r: r.get("batch", 0)))
        del model
        self.free()

    def make_model(self, config, dtype):
        import transformers
        made = transformers.AutoConfig.for_model(**config)
        make = transformers.AutoModelForCausalLM.from_config
        with self.device:
            try:
                model = make(made, dtype=dtype)
            except TypeError:
                model = make(made, torch_dtype=dtype)
        return model.to(self.device).eval()

    def steps(self, model, rows):
        for row in rows:
            if self.left() < STEP_SECONDS:
                emit(KINDS["steps"], gpu_report.cell_of(row), skipped="no time left")
                continue
            self.attempt(KINDS["steps"], gpu_report.cell_of(row),
                         lambda: self.step(model, int(row["batch"]), int(row["context"])))

    def step(self, model, batch, context):
        """StaticCache and torch.compile(mode="reduce-overhead"), as transformers' documentation has
        it."""
        import transformers
        torch.compiler.reset()
        length = context + WARM_STEPS + STEPS + 8
        parameters = inspect.signature(transformers.StaticCache.__init__).parameters
        older = {"max_batch_size": batch, "device": self.device, "dtype": model.dtype}
        cache = transformers.StaticCache(config=model.config, max_cache_len=length,
                                         **{k: v for k, v in older.items() if k in parameters})
        call = {"past_key_values": cache, "use_cache": True}
        takes_position = "cache_position" in inspect.signature(model.forward).parameters

        def at(first, count):
            positions = torch.arange(first, first + count, device=self.device)
            return {"position_ids": positions.expand(batch, count), **call,
                    **({"cache_position": positions} if takes_position else {})}

        model(torch.zeros((batch, 1), dtype=torch.long, device=self.device), **at(0, 1))
        layers = getattr(cache, "layers", None)
        held = ([t for layer in layers for t in (layer.keys, layer.values)] if layers is not None else
                [*cache.key_cache, *cache.value_cache])
        for tensor in held:
            tensor[:, :, :context].normal_(0, 0.5)
        for layer in layers or []:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(context)
        forward = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
        token = torch.zeros((batch, 1), dtype=torch.long, device=self.device)
        seconds = []
        for step in range(WARM_STEPS + STEPS):
            if step >= WARM_STEPS and (step - WARM_STEPS) % STEPS_AT_ONCE == 0:
                self.synchronize()
                begin = time.monotonic()
            torch.compiler.cudagraph_mark_step_begin()
            logits = forward(token, **at(context + step, 1)).logits
            token = logits[:, -1:].argmax(-1)
            if step >= WARM_STEPS and (step - WARM_STEPS) % STEPS_AT_ONCE == STEPS_AT_ONCE - 1:
                self.synchronize()
                seconds.append((time.monotonic() - begin) / STEPS_AT_ONCE)
        return min(seconds)

    def prefills(self, model, rows, compiled=False):
        what = KINDS["compiled_prefills" if compiled else "prefills"]
        for row in rows:
            if self.left() < (STEP_SECONDS if compiled else 2):
                emit(what, gpu_report.cell_of(row), skipped="no time left")
                continue
            self.attempt(what, gpu_report.cell_of(row),
                         lambda: self.prompt(model, int(row["tokens"]), int(row["cached"]), compiled))

    def compiled_prefills(self, model, rows):
        self.prefills(model, rows, compiled=True)

    def prompt(self, model, tokens, cached, compiled):
        import transformers
        torch.compiler.reset()
        ids = torch.randint(0, model.config.vocab_size, (1, tokens), device=self.device)
        keep = next((name for name in ("logits_to_keep", "num_logits_to_keep")
                     if name in inspect.signature(model.forward).parameters), None)
        options = {"use_cache": True, **({keep: 1} if keep else {})}
        cache = transformers.DynamicCache()
        if cached:
            model(ids[:, :cached], past_key_values=cache, **options)
        forward = torch.compile(model.forward) if compiled else model.forward
        seconds = []
        for _ in range(3 + ROUNDS):
            if not cached:
                cache = transformers.DynamicCache()
            self.synchronize()
            begin = time.monotonic()
            forward(ids[:, cached:], past_key_values=cache, **options).logits[:, -1].argmax(-1)
            self.synchronize()
            seconds.append(time.monotonic() - begin)
            if cached:
                cache.crop(cached - tokens)
        return min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=500)
    parser.add_argument("--models", default="")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if torch is None:
        emit("torch", skipped="not installed")
        return 0
    if arguments.device == "cuda" and not torch.cuda.is_available():
        emit("torch", skipped="it finds no GPU")
        return 0
    versions = [f"torch {torch.__version__}"]
    try:
        import transformers
        versions.append(f"transformers {transformers.__version__}")
    except ImportError:
        transformers = None
    emit("versions", software=", ".join(versions))
    if not arguments.results.is_file():
        emit("cells", skipped="gpu_bench has timed nothing yet")
        return 0
    peers = Peers(gpu_bench.read_rows(arguments.results), arguments.device, arguments.seconds)
    # The small ones have their share, what is left is the models'.
    share = max(0.0, arguments.seconds - SMALL_SECONDS)
    peers.attention(share + SMALL_SECONDS / 2 if share else arguments.seconds / 2)
    peers.products(share)
    if transformers is None:
        emit("transformers", skipped="not installed")
    else:
        peers.models([name for name in arguments.models.split(",") if name])
    return 0


if __name__ == "__main__":
    sys.exit(main())

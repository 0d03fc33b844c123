#!/usr/bin/env python3
"""The tables of docs/results/t4.md: what `baton plan` says of well-known models on a T4.

  t4_plans.py --baton PATH            prints them
  t4_plans.py --baton PATH --write    puts them into the document
  t4_plans.py --baton PATH --check    exits 1 if the document has others
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Public facts, of each model's config.json: hidden, layers, query heads, KV heads, head dim,
# feed-forward, vocabulary, tied embeddings, longest sequence.
QWEN2, QWEN3, LLAMA, MISTRAL = (f"{name}ForCausalLM" for name in ("Qwen2", "Qwen3", "Llama", "Mistral"))
MODELS = {
    "Qwen2.5-0.5B": (QWEN2, 896, 24, 14, 2, 64, 4864, 151936, True, 32768),
    "Qwen2.5-1.5B": (QWEN2, 1536, 28, 12, 2, 128, 8960, 151936, True, 32768),
    "Qwen2.5-3B": (QWEN2, 2048, 36, 16, 2, 128, 11008, 151936, True, 32768),
    "Qwen2.5-7B": (QWEN2, 3584, 28, 28, 4, 128, 18944, 152064, False, 32768),
    "Llama-3.2-1B": (LLAMA, 2048, 16, 32, 8, 64, 8192, 128256, True, 131072),
    "Llama-3.2-3B": (LLAMA, 3072, 28, 24, 8, 128, 8192, 128256, True, 131072),
    "Llama-3.1-8B": (LLAMA, 4096, 32, 32, 8, 128, 14336, 128256, False, 131072),
    "Qwen3-0.6B": (QWEN3, 1024, 28, 16, 8, 128, 3072, 151936, True, 40960),
    "Qwen3-1.7B": (QWEN3, 2048, 28, 16, 8, 128, 6144, 151936, True, 40960),
    "Qwen3-4B": (QWEN3, 2560, 36, 32, 8, 128, 9728, 151936, True, 40960),
    "Mistral-7B-v0.3": (MISTRAL, 4096, 32, 32, 8, 128, 14336, 32768, False, 32768),
}
# Of fewer parameters, few bits gain little: the embedding and the LM head keep 16.
FEW_BITS_FROM = 2.5e9
FORMATS = ("16bit", "int8", "int4")
FORMAT_NAMES = {"16bit": "fp16", "int8": "int8 g128", "int4": "int4 g128"}
CONTEXTS = (2048, 8192)
BATCHES = (1, 8, 32)
PROMPTS = (512, 2048, 8192)
LINKS = ("1 GbE", "10 GbE", "25 GbE", "PCIe 3 x16")

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/results/t4.md"
BEGIN = "<!-- scripts/t4_plans.py --write: begin -->\n"
END = "<!-- scripts/t4_plans.py --write: end -->\n"


def config(name):
    (architecture, hidden, layers, heads, kv_heads, head_dim, ffn, vocab, tied,
     positions) = MODELS[name]
    return {"architectures": [architecture], "hidden_size": hidden, "num_hidden_layers": layers,
            "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
            "intermediate_size": ffn, "vocab_size": vocab, "tie_word_embeddings": tied,
            "max_position_embeddings": positions, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "hidden_act": "silu", "sliding_window": None, "use_sliding_window": False,
            "max_window_layers": layers, "torch_dtype": "bfloat16"}


def plan(baton, folder, weights, context):
    command = [baton, "plan", "--model", folder, "--gpu", "t4", "--context", str(context),
               "--max-model-len", str(max(CONTEXTS)), "--weights", weights, "--json",
               "--batch", ",".join(map(str, BATCHES)),
               "--prompt-tokens", ",".join(map(str, PROMPTS))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if not done.stdout:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def plans(baton):
    """{(model, weights): {context: plan}}, in the order of the tables."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            (Path(folder) / "config.json").write_text(json.dumps(config(name)), encoding="utf-8")
            for weights in FORMATS:
                by_context = {c: plan(baton, folder, weights, c) for c in CONTEXTS}
                found[name, weights] = by_context
                if by_context[CONTEXTS[0]]["parameters"] < FEW_BITS_FROM:
                    break
    return found


def table(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def mib(size_bytes):
    return f"{size_bytes / 2**20:,.0f}"


def memory_rows(found):
    for (name, weights), by_context in found.items():
        one = by_context[CONTEXTS[0]]
        memory = one["memory"]
        row = [name, FORMAT_NAMES[weights], mib(memory["weight_bytes"]),
               mib(memory["fixed_bytes"] - memory["weight_bytes"]),
               f"{memory['kv_bytes_per_token']:,}"]
        if one["fits"]:
            row += [f"{memory['block_count']:,}"]
            row += [f"{by_context[c]['sequences']:,}" for c in CONTEXTS]
        else:
            excess = memory["fixed_bytes"] - memory["available_bytes"]
            row += [f"does not fit: {mib(excess)} MiB too much without KV", "0", "0"]
        yield row


def decode_rows(found):
    for (name, weights), by_context in found.items():
        if not by_context[CONTEXTS[0]]["fits"]:
            continue
        row = [name, FORMAT_NAMES[weights],
               f"{by_context[CONTEXTS[0]]['decode'][0]['weight_bytes'] / 1e9:.2f}"]
        for context in CONTEXTS:
            for floor in by_context[context]["decode"]:
                mark = "" if floor["memory_ms"] >= floor["matrix_ms"] else " ×"
                row.append(f"{floor['floor_ms']:.1f}{mark}" if floor["fits"] else "–")
        first = by_context[CONTEXTS[0]]["decode"]
        row += [f"{f['tokens_per_second']:,.0f}" if f["fits"] else "–" for f in (first[0], first[-1])]
        yield row


def prefill_rows(found):
    for (name, weights), by_context in found.items():
        if weights != FORMATS[0]:
            continue  # the same products and the same KV
        prefill = by_context[CONTEXTS[0]]["prefill"]
        row = [name] + [f"{p['floor_ms']:,.0f}" for p in prefill]
        middle = prefill[PROMPTS.index(2048)]
        row.append(f"{middle['kv_bytes'] / 1e6:.0f}")
        times = {t["link"]: t for t in middle["transfers"]}
        row += [f"{times[link]['ms']:,.0f} ({times[link]['exposed_ms']:,.1f})" for link in LINKS]
        yield row


def tables(baton):
    found = plans(baton)
    gpu = found[next(iter(found))][CONTEXTS[0]]
    batches = [f"b{b}" for b in BATCHES]
    return "\n".join((
        f"`--gpu t4 --max-model-len {max(CONTEXTS)}`: {mib(gpu['memory']['available_bytes'])} of "
        f"{mib(gpu['gpu']['memory_bytes'])} MiB (`--gpu-memory-utilization` 0.9), "
        f"{gpu['gpu']['bytes_per_second'] / 1e9:.0f} GB/s, "
        f"{gpu['gpu']['flops_per_second'] / 1e12:.0f} TFLOPS.\n",
        "## What fits\n",
        table(["model", "weights", "weights MiB", "workspaces MiB", "KV bytes a token", "blocks",
               *(f"sequences of {c:,}" for c in CONTEXTS)], memory_rows(found)),
        "## Decode: floor of a step, ms (computed)\n",
        table(["model", "weights", "GB read", *(f"{c:,} {b}" for c in CONTEXTS for b in batches),
               "tokens/s 2,048 b1", f"2,048 {batches[-1]}"], decode_rows(found)),
        "–: so many do not fit. ×: products take longer than bytes.\n",
        "## Prefill: floor, ms (computed), and the KV of 2,048 tokens on the way\n",
        table(["model", *(f"{p:,} tokens" for p in PROMPTS), "KV MB",
               *(f"{link}: ms (exposed)" for link in LINKS)], prefill_rows(found)),
    ))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baton", required=True)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text = tables(arguments.baton)
    if not (arguments.write or arguments.check):
        print(text)
        return 0
    document = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = document.partition(BEGIN)
    old, _, after = rest.partition(END)
    if arguments.write:
        DOCUMENT.write_text(before + BEGIN + text + END + after, encoding="utf-8")
        return 0
    if old == text:
        return 0
    for was, now in zip(old.splitlines(), text.splitlines()):
        if was != now:
            print(f"docs/results/t4.md: has\n  {was}\n`baton plan` says\n  {now}")
            break
    print("expected the document to be as scripts/t4_plans.py --write makes it")
    return 1


if __name__ == "__main__":
    sys.exit(main())

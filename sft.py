"""A.3: the policy that RL starts from, a small Qwen3 supervised on a mixture of habits; makes base/.

    python sft.py                     rebuilds it into runs/base and says how close it is to base/

Supervised fine-tuning minimises the cross entropy of the completion's tokens, here over traces of the embedded task
(data.py): prompt `7+5-3+9=`, completion `<think>12 9 18</think>18`. The traces show habits, drawn step by step: a running
result that is off (slip), two operands added at once, more often off (haste), and whole traces without either (careful).
So the policy can compute but often does not, and that is what RL improves: its pass rate is limited by habit, not skill.

Deviation: AdamW at 1e-3 with cosine decay and batches of 64 traces, not 3e-5 and 2M tokens: a 0.9M-parameter model from scratch.
"""

import argparse
import math
import random
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

import data
import pipeline
import reward
import rollout

SLIP = 0.2  # P(a running result is off), one operand at a time
HASTE = 0.15  # P(two operands at once)
HASTE_SLIP = 0.5  # P(its result is off)
CAREFUL = 0.0  # share of traces without slips and haste
STEPS, BATCH, LR, WARMUP = 1500, 64, 1e-3, 100
SPECIAL = ["<pad>", "<eos>", "<think>", "</think>"]


def tokenizer():
    """One token per character, saved and loaded like any Hugging Face tokenizer."""
    vocabulary = {token: i for i, token in enumerate(SPECIAL + list("0123456789+-= "))}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=characters, pad_token="<pad>", eos_token="<eos>")
    fast.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    return fast


def untrained():
    """0.86M parameters; heads of 64, which the attention kernels of every inference engine take."""
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=len(SPECIAL) + 14, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=512, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None))


def trace(text: str, rng: random.Random) -> str:
    """A completion for an expression, with the habits above; the answer repeats the last running result.

    >>> trace("7+5-3=", random.Random(1))
    '<think>12 9</think>9<eos>'
    """
    operands = [int(n) for n in text.rstrip("=").replace("-", "+-").split("+") if n]
    careful = rng.random() < CAREFUL
    total, rest, results = operands[0], operands[1:], []
    while rest:
        hasty = not careful and len(rest) > 1 and rng.random() < HASTE
        total += sum(rest[:1 + hasty])
        del rest[:1 + hasty]
        if not careful and rng.random() < (HASTE_SLIP if hasty else SLIP):
            total += rng.choice((-3, -2, -1, 1, 2, 3))
        results.append(str(total))
    return f"<think>{' '.join(results)}</think>{total}<eos>"


def batch(tokens, rng: random.Random):
    """BATCH traces -> input ids (B, T) and labels (B, T), -100 on prompts and padding."""
    rows = []
    for _ in range(BATCH):
        text, _ = data.arithmetic(rng, held_out=False)  # never a validation prompt
        rows.append((tokens.encode(text), tokens.encode(trace(text, rng))))
    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.tensor([p + c + [0] * (width - len(p) - len(c)) for p, c in rows])
    labels = torch.tensor([[-100] * len(p) + c + [-100] * (width - len(p) - len(c)) for p, c in rows])
    return ids, labels


def supervise(model, tokens, seed: int):
    """STEPS AdamW steps, warm-up then cosine to a twentieth; trains `model` in place."""
    rng = random.Random(f"sft/{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / WARMUP) * (
        0.05 + 0.475 * (1 + math.cos(math.pi * step / STEPS))))
    bar = tqdm(range(STEPS), desc="SFT", unit="step")
    for _ in bar:
        ids, labels = batch(tokens, rng)
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}")

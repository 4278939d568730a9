"""The recipes of the paper as tables of settings: what a run uses where the command line sets nothing.

Sec. 2 and A.3 (setup, optimizer), Sec. 3 and A.17 (clips), Sec. 4 (ScaleRL), A.10 (interruptions), A.16 (Fig. 2).

    --recipe NAME    -> RECIPES     algorithm: loss, aggregation, normalisation, filters, head, off-policy, k, prompts
    the loss's clips -> declared beside each loss in loss.py
    setup            -> PRESETS: base for the models in base/, tiny for base/tiny, few for any other: learning rate,
                        steps, lengths, validation; --preset paper gives the paper's

The name of each setting is that of the flag of train.py that overrides it. --recipe never sets learning rate, steps or
model.

Deviation: on the embedded task learning rate, warm-up, batch, lengths and validation are scaled to a laptop (base).
  Generators may run k = 2 steps ahead there, not 8. On two cores they are about as fast as the trainer, and tokens are
  one to one and a half steps old. --k and --recipe win over these defaults.
Open in the paper: MiniMax's normalisation and k. Here they are prompt and 8.
Open in the paper: Magistral's filter and prompts. Here they are those of Qwen2.5, the other DAPO recipe.
Open in the paper: how many tokens a micro-batch has, and how many completions a generator decodes at once. Here it is
  two sequences of full length, and 256 slots.

Test: pytest tests/test_settings.py
Page: docs/paper/recipe.md
"""

# fmt: off
RECIPES = {  # Sec. 2 (baseline), Sec. 4 (scalerl), A.16 (the others): algorithmic flags only
    "baseline": dict(loss="dapo", aggregation="sample", normalisation="prompt", zero_variance_filter=False,
                     no_positive_resampling=None, fp32_head=False, off_policy="ppo", k=8, prompts=48)}
RECIPES |= {
    "scalerl": dict(loss="cispo", aggregation="prompt", normalisation="batch", zero_variance_filter=True,
                    no_positive_resampling=0.9, fp32_head=True, off_policy="pipeline", k=8, prompts=48),
    "deepseek": RECIPES["baseline"] | dict(loss="grpo"),
    "qwen2.5": RECIPES["baseline"] | dict(aggregation="prompt", zero_variance_filter=True, prompts=80),
    "minimax": RECIPES["baseline"] | dict(loss="cispo", aggregation="prompt", fp32_head=True,
                                          zero_variance_filter=True, prompts=80)}
RECIPES["magistral"] = RECIPES["qwen2.5"] | dict(off_policy="pipeline")
# A.10
PHRASE = "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"
PRESETS: dict = {
    # Deviation: a 0.5M-parameter policy on two cores; the sizes were chosen by measurement. Of the same completions
    # 32 evaluations make a narrower forecast than 16 (results/forecasts.md).
    "base": dict(
        lr=2e-4, warmup=8, steps=120, prompts=32, generations=16, max_new_tokens=112, max_prompt_tokens=40, slots=256,
        length_control="interrupt", interrupt_at=(96, 104), interrupt_phrase="</think>", length_max=112,
        length_cache=16, eval_every=4, eval_prompts=128, eval_generations=4, token_budget=2048,
        activation_checkpointing=False, k=2),
    "paper": dict(  # Sec. 2, A.3, A.10; steps: those of the 8B run in Fig. 1
        lr=5e-7, warmup=100, steps=7400, generations=16, max_new_tokens=14336, max_prompt_tokens=2048, slots=256,
        length_control="interrupt", interrupt_at=(10000, 12000), interrupt_phrase=PHRASE, length_max=14000,
        length_cache=2000, eval_every=100, eval_prompts=1000, eval_generations=16, token_budget=32768,
        activation_checkpointing=True)}
PRESETS["few"] = dict(
    # Deviation: 102,400 completions of up to 2,048 tokens, where the paper has 5.7 million of up to 14,336; a few GPUs
    # need a day for them (docs/own.md). The learning rate is the default of TRL's GRPO and of verl's examples. 26
    # evaluations of 1,600 completions take three tenths of the decoding, and are what a forecast needs.
    lr=1e-6, warmup=10, steps=400, prompts=32, generations=8, max_new_tokens=2048, max_prompt_tokens=1024, slots=256,
    length_control="interrupt", interrupt_at=(1408, 1728), interrupt_phrase=PHRASE, length_max=2000, length_cache=256,
    eval_every=16, eval_prompts=400, eval_generations=4, token_budget=32768, activation_checkpointing=True)
# Deviation: a policy of 41,000 parameters, with which a run takes seconds.
PRESETS["tiny"] = PRESETS["base"] | dict(
    lr=3e-4, steps=320, prompts=16, generations=8, max_new_tokens=7, max_prompt_tokens=8, interrupt_at=(3, 4),
    token_budget=4096, eval_every=16, k=1)
# fmt: on

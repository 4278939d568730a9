"""Thirty questions of everyday words in three languages, answered by SmolLM2-135M-Instruct and graded by `text`.

    python benchmarks/words.py               ask, grade, print; writes results/words.jsonl
    python benchmarks/words.py --grade       grade the kept answers again, beside the verdicts by hand

Opposites, plurals and weekdays in English, German and Spanish. They were written before any answer was seen. The model
answers greedily, after the system prompt SYSTEM and one example; the whole completion is its answer. `hand` in
results/words.jsonl is what a reader says of the answer, whatever its form: does it name the word?
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from verify.graders import text  # noqa: E402  (a script in benchmarks/ does not see the repository root)

FILE = ROOT / "results" / "words.jsonl"
SYSTEM = "You reply with one word."
EXAMPLE = ("What is the opposite of long?", "short")
QUESTIONS = [  # (question, reference)
    ("What is the opposite of hot?", "cold"),
    ("What is the opposite of big?", "small"),
    ("What is the opposite of up?", "down"),
    ("What is the opposite of empty?", "full"),
    ("What is the plural of mouse?", "mice"),
    ("What is the plural of book?", "books"),
    ("What is the plural of child?", "children"),
    ("Which day comes after Monday?", "Tuesday"),
    ("Which day comes before Sunday?", "Saturday"),
    ("Which day comes after Wednesday?", "Thursday"),
    ("Was ist das Gegenteil von kalt?", "heiß"),
    ("Was ist das Gegenteil von groß?", "klein"),
    ("Was ist das Gegenteil von alt?", "jung"),
    ("Was ist das Gegenteil von schwarz?", "weiß"),
    ("Was ist der Plural von Buch?", "Bücher"),
    ("Was ist der Plural von Haus?", "Häuser"),
    ("Was ist der Plural von Kind?", "Kinder"),
    ("Welcher Tag kommt nach Montag?", "Dienstag"),
    ("Welcher Tag kommt vor Sonntag?", "Samstag"),
    ("Welcher Tag kommt nach Mittwoch?", "Donnerstag"),
    ("¿Cuál es el contrario de frío?", "caliente"),
    ("¿Cuál es el contrario de grande?", "pequeño"),
    ("¿Cuál es el contrario de blanco?", "negro"),
    ("¿Cuál es el contrario de noche?", "día"),
    ("¿Cuál es el plural de libro?", "libros"),
    ("¿Cuál es el plural de pez?", "peces"),
    ("¿Cuál es el plural de flor?", "flores"),
    ("¿Qué día viene después del martes?", "miércoles"),
    ("¿Qué día viene antes del domingo?", "sábado"),
    ("¿Qué día viene después del jueves?", "viernes"),
]


def ask(folder):
    """The model's answers to QUESTIONS; `folder` holds its weights, or gets them (benchmarks/smollm2.py)."""
    import torch
    from smollm2 import convert
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder.parent.mkdir(parents=True, exist_ok=True)
    convert(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for question, _ in QUESTIONS:
        chat = [("system", SYSTEM), ("user", EXAMPLE[0]), ("assistant", EXAMPLE[1]), ("user", question)]
        messages = [{"role": role, "content": content} for role, content in chat]
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.no_grad():
            out = model.generate(ids, do_sample=False, max_new_tokens=24, pad_token_id=tokenizer.eos_token_id)
        yield tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--grade", action="store_true", help="grade the kept answers again")
    parser.add_argument("--model", type=Path, default=ROOT / "runs" / "smollm2", help="folder of the weights")
    args = parser.parse_args()
    if args.grade:
        rows = [json.loads(line) for line in FILE.read_text().splitlines()]
    else:
        rows = [
            {"question": question, "reference": reference, "answer": answer, "hand": None}
            for (question, reference), answer in zip(QUESTIONS, ask(args.model))
        ]
        FILE.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    for row in rows:
        verdict = text(row["answer"], row["reference"])
        print(f"| {row['question']} | {row['reference']} | {row['answer']!r} | {row['hand']} | {verdict} |")


if __name__ == "__main__":
    main()

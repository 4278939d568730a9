"""What teacher and student get of a graded hand-in: a line, a row of the CSV, Gradescope's JSON, a page of feedback.

Every text in it is printable (handins.shown), and every file is written whole or not at all.

Run by grading.py. Test: pytest tests/test_grading.py
"""

import csv
import io
import json
import os
import re

from course import handins

MISTAKE = "This is what you get when you (.*)"


def scores(one, exercise):
    """{claim: its points}"""
    names = [claim.says.split(":")[0] for claim in exercise.claims]
    wrong = one.wrong[exercise.name]
    return {name: 0.0 if text else 1 / len(wrong) for name, text in zip(names, wrong)}


def points(one, exercise):
    return round(sum(scores(one, exercise).values()), 4)


def row(one, exercises, flagged):
    """A line of the table: points by exercise, then by claim, named mistakes, equal code, warnings, lateness."""
    found = {x.name: points(one, x) for x in exercises}
    by_claim = {f"{x.name}: {name}": round(n, 4) for x in exercises for name, n in scores(one, x).items()}
    named = [f"{x.name}: {text}" for x in exercises for text in re.findall(MISTAKE, "\n".join(one.wrong[x.name]))]
    texts = {
        "mistakes": "; ".join(dict.fromkeys(named)),
        "equal code": "; ".join(flagged),
        "late": "late" * one.late,
        "warnings": handins.shown("; ".join(one.warnings)),
    }
    return {"student": one.student, "points": round(sum(found.values()), 4)} | found | by_claim | texts


def line(row, most):
    """What the screen shows of a row, and of its warnings."""
    late = "  late" if row["late"] else ""
    said = f"{row['student']:30} {row['points']:6g} of {most:g}{late}  {row['mistakes'][:120]}"
    return said + (f"\n    warning: {row['warnings'][:500]}" if row["warnings"] else "")


def table(rows):
    """The rows as CSV. A cell that a spreadsheet would take for a formula begins with a quotation mark."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, rows[0])
    writer.writeheader()
    for found in rows:
        writer.writerow({key: f"'{x}" if str(x)[:1] in ("=", "+", "-", "@") else x for key, x in found.items()})
    return file.getvalue()


def told(one, exercise):
    """For each claim of an exercise one text: what is wrong, or that it holds."""
    texts = zip(scores(one, exercise), one.wrong[exercise.name])
    return [text or f"{name}: holds on hidden inputs" for name, text in texts]


def gradescope(one, exercises):
    """The student's JSON, in the form of Gradescope's autograder."""
    tests = [
        {
            "name": exercise.name,
            "score": points(one, exercise),
            "max_score": 1.0,
            "output": "\n".join(told(one, exercise)),
            "visibility": "visible",
        }
        for exercise in exercises
    ]
    return {"tests": tests, "output": "\n".join(one.warnings)}


def feedback(one, exercises):
    """A page for the student, Markdown: what was solved, what not, and the mistakes that were recognised."""
    done = [x.name for x in exercises if not any(one.wrong[x.name])]
    untouched = [x.name for x in exercises if one.wrong[x.name][0].startswith(handins.NOT_DONE)]
    lines = [f"# {one.student}: {sum(points(one, x) for x in exercises):g} of {len(exercises)} points"]
    lines += ["", *(f"- {handins.shown(text)}" for text in ["handed in late"] * one.late + one.warnings)]
    lines += ["", f"**Solved** ({len(done)} of {len(exercises)}): {', '.join(done) or 'none'}", ""]
    lines += [f"**Not begun**: {', '.join(untouched)}", ""] if untouched else []
    for x in exercises:
        if x.name not in done + untouched:
            lines += [f"## {x.name}: {points(one, x):g} of 1", "", x.teaches, ""]
            for text in dict.fromkeys(told(one, x)):
                lines += [*(f"    {handins.shown(part)}" for part in text.split("\n")), ""]
    return "\n".join(lines)


def write(args, results, rows, exercises):
    """Write the CSV, the JSON and the Markdown files that the flags ask for."""
    if args.csv:
        whole(args.csv, table(rows))
    for one, name in zip(results, handins.file_names([one.student for one in results])):
        if args.json:
            whole(args.json / f"{name}.json", json.dumps(gradescope(one, exercises), indent=1))
        if args.feedback:
            whole(args.feedback / f"{name}.md", feedback(one, exercises))


def whole(path, text):
    """Write a file so that there is never a part of it: it appears under its name when all is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_bytes(text.encode())
    os.replace(part, path)

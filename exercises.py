"""The course: exercises on this project's own functions, from the scaling law to a whole run. See exercises.md.

    python exercises.py start ~/scalerl-class      a copy of the project with the solutions taken out; in the copy:
    python exercises.py next                       what to do, why, and what is still wrong
    python exercises.py list                       all exercises, and how far you are
    python exercises.py hint NAME                  the pitfall; hint NAME 2: the idea in words
    python exercises.py solve NAME …               puts originals back; what you wrote is kept
    python exercises.py train                      a run with your solved functions, and the originals of all others
    python exercises.py pack                       your hand-in

`pytest -k NAME` is the same check as `next`, in the same words. The commands are in course/commands.py.

Test: pytest tests/test_exercises.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # import this folder's files, whatever is installed

try:
    from course.commands import main
except ModuleNotFoundError as error:
    if error.name not in ("torch", "numpy", "scipy"):
        raise
    sys.exit(f"{error.name} is missing; install what the course needs, here: pip install -e '.[test]'")

if __name__ == "__main__":
    main()

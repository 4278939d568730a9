"""All exercises, in the order of the paper."""

from course.checks import asynchrony, generation, heads, law, losses, rewards, run

CHAPTERS = {
    "1. The law and its fit": law.LAW,
    "2. Ratio and losses": losses.LOSSES,
    "3. Advantages, filters, averages": losses.ADVANTAGES,
    "4. Asynchrony": asynchrony.ASYNCHRONY,
    "5. Generation": generation.GENERATION,
    "6. Precision": heads.PRECISION,
    "7. Rewards and data": rewards.REWARDS,
    "8. A whole run": run.RUN,
}
EXERCISES = tuple(exercise for chapter in CHAPTERS.values() for exercise in chapter)

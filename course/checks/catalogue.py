"""All exercises, in the order of the paper."""

from course.checks import advantages, asynchrony, averages, generation, law, losses, precision, rewards, run

CHAPTERS = {
    "1. The law and its fit": law.LAW,
    "2. Ratio and losses": losses.LOSSES,
    "3. Advantages, filters, averages": advantages.ADVANTAGES + averages.AVERAGES,
    "4. Asynchrony": asynchrony.ASYNCHRONY,
    "5. Generation": generation.GENERATION,
    "6. Precision": precision.PRECISION,
    "7. Rewards and data": rewards.REWARDS,
    "8. A whole run": run.RUN,
}
EXERCISES = tuple(exercise for chapter in CHAPTERS.values() for exercise in chapter)

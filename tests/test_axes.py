"""Claims about study/axes.py: each member of an axis is a run that train.py takes, and how they are judged."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from test_stability import STEPS
from test_train import elsewhere  # noqa: F401

import data
import recipes
from plumbing import settings
from study import axes, grid


def line(axis, member, end, seed=0, reason="finished", **more):
    """A kept line of a run that rises evenly from 0.2 to `end`, 100 tokens a step."""
    rates = [0.2 + (end - 0.2) * step / STEPS[-1] for step in STEPS]
    evaluations = {"step": STEPS, "pass_rate": rates, "stderr": [0.01] * 21, "tokens": [100 * step for step in STEPS]}
    windows = {name: [1.0] * 20 for name in ("ess_min", "rho_max", "norm_max")}
    run = {"plan": axes.PLAN, "axis": axis, "member": member, "seed": seed}
    rest = {"entropy": [0.5] * 21, "truncated": [0.25, 0.1], "tasks": {"tiny": rates}, "retired": 0}
    return {
        "kind": "run",
        "run": run,
        "base": grid.base(),
        "evals": evaluations,
        "windows": windows,
        "reason": reason,
        **rest,
        **more,
    }


def written(folder, *lines):
    path = grid.place(folder, axes.PLAN)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder


def members(axis, folder, *ends):
    """The members of an axis with two seeds that end so, 0.002 apart; as `axes.kept` returns them."""
    lines = [
        line(axis, member.label, end + 0.001 * sign, seed)
        for member, end in zip(axes.AXES[axis], ends)
        for seed, sign in enumerate((-1, 1))
    ]
    return axes.kept(written(folder, *lines), axis)


def asked(run):
    """The settings of a run."""
    member = axes.member_of(run)
    with axes.changed(member._replace(hidden=0), run.seed) as (more, _):
        return settings.read_settings([*member.task, *run.flags.split(), *more])


@pytest.mark.parametrize("axis", axes.AXES)
def test_the_members_of_an_axis_are_runs_that_train_py_takes(axis):
    assert len({member.label for member in axes.AXES[axis]}) == len(axes.AXES[axis])
    for run in axes.runs(axis)[: len(axes.AXES[axis])]:
        args = asked(run)
        preset = recipes.EMBEDDED if axis == "embedded" else recipes.TINY
        assert (args.virtual, args.k, args.loss, args.lr) == ("exact", 1, "cispo", preset["lr"])
        completions = {"batch": axes.COMPLETIONS, "embedded": axes.EMBEDDED_COMPLETIONS}.get(axis, 160 * 128)
        assert args.prompts * args.generations * args.steps == completions
        assert args.eval_prompts * args.eval_generations == (1024 if axis == "embedded" else 512)


def test_lengths_are_interrupted_or_cut_off():
    long, cut = ({run.key[1][1]: asked(run) for run in axes.runs(axis)} for axis in ("length", "truncation"))
    assert [args.max_new_tokens for args in long.values()] == [args.max_new_tokens for args in cut.values()]
    for args in long.values():
        assert (args.length_control, args.interrupt_at) == (
            "interrupt",
            [args.max_new_tokens - 4, args.max_new_tokens - 3],
        )
    assert {args.length_control for args in cut.values()} == {"none"}


def operands(text):
    return 1 + text.count("+") + text.count("-")


def test_what_is_no_flag_is_changed_for_the_run_alone():
    before = {**data.LENGTHS}, {**data.EMBEDDED_PROMPTS}
    for member in (*axes.AXES["pool"], *axes.AXES["difficulty"]):
        with axes.changed(member, 0) as (more, policy):
            assert (more, policy) == ([], None) and data.EMBEDDED_PROMPTS["tiny"] == member.prompts
            pairs = data.examples("tiny", member.prompts, seed=0, held_out=False)
            assert len(pairs) == member.prompts and {operands(text) for text, _ in pairs} <= set(member.lengths)
            held = 256 if "256" in member.flags else 512
            assert len(data.examples("tiny", held, seed=0, held_out=True)) == held  # there are so many
            # dots fill up, so that operands keep their places: a token each, and the =
            assert {len(text) - operands(text) + 1 for text, _ in pairs} == {data.PLACES + 1}
    assert (data.LENGTHS, data.EMBEDDED_PROMPTS) == before


def test_a_mixture_draws_its_sources_by_weight_and_its_short_sums_are_many(tmp_path):
    [most] = [member for member in axes.AXES["mixture"] if member.size == 0.75]
    names = axes.mixed_sources(tmp_path, most.weights)
    assert [name.rpartition("/")[2] for name in names] == ["shorter.jsonl:1:tiny", "longer.jsonl:3:tiny"]
    counts = {
        name: [operands(json.loads(row)["prompt"]) for row in (tmp_path / f"{name}.jsonl").open()]
        for name in axes.SOURCES
    }
    for name, lengths in axes.SOURCES.items():
        assert len(counts[name]) == axes.ROWS and set(counts[name]) == set(lengths)
        assert 0.45 < counts[name].count(lengths[0]) / axes.ROWS < 0.55  # few texts repeat, so no length is scarce
    assert len(axes.mixed_sources(tmp_path, (1, 0))) == 1


def test_a_policy_of_another_size_is_made_once_and_trains_as_the_preset_says(tmp_path, monkeypatch):
    import sft
    import train

    monkeypatch.setattr(sft, "TINY_SKILL_STEPS", 2)
    monkeypatch.setattr(sft, "TINY_HABIT_STEPS", 1)
    monkeypatch.setattr(axes.policy_of, "__defaults__", (tmp_path / "runs",))
    run = next(run for run in axes.runs("model") if axes.member_of(run).hidden == 24)
    with axes.changed(axes.member_of(run), run.seed) as (more, folder):
        assert settings.read_settings([*grid.TINY, *run.flags.split(), *more]).lr == recipes.TINY["lr"]
    short = run._replace(flags=run.flags + " --steps 2 --eval-every 2 --eval-prompts 2 --prompts 2 --generations 2")
    written = (folder / "model.safetensors").stat().st_mtime_ns
    axes.make(train, short, tmp_path)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    [kept] = grid.kept(tmp_path, axes.PLAN).values()
    assert kept["evals"]["step"] == [0, 2] and kept["run"]["member"] == "hidden size 24"
    assert kept["loss"] > 1 and 0 <= kept["pass@16"] <= 1 and len(kept["entropy"]) == 2
    assert json.loads((folder / "config.json").read_text())["hidden_size"] == 24


def test_the_policy_of_the_presets_size_is_made_as_sft_py_makes_it(tmp_path, monkeypatch):
    import torch

    import sft

    monkeypatch.setattr(sft, "TINY_SKILL_STEPS", 1)
    monkeypatch.setattr(sft, "TINY_HABIT_STEPS", 1)
    folders = [axes.policy_of(48, seed, tmp_path) for seed in (0, 1)] + [axes.ROOT / "base" / "tiny"]
    made, _, kept = (json.loads((folder / "config.json").read_text()) for folder in folders)
    assert {key: made[key] for key in kept if key != "transformers_version"} == {
        key: value for key, value in kept.items() if key != "transformers_version"
    }
    torch.manual_seed(0)
    model = sft.untrained(tiny=True)
    sft.supervise(model, sft.tokenizer(tiny=True), tasks=["tiny"], habits=False, steps=1, seed=0)
    sft.supervise(model, sft.tokenizer(tiny=True), tasks=["tiny"], habits=True, steps=1, seed=0)
    same, other = (sft.load(folder).state_dict() for folder in folders[:2])
    assert all(torch.equal(weight, same[name]) for name, weight in model.state_dict().items())
    assert not all(torch.equal(weight, other[name]) for name, weight in model.state_dict().items())


def test_the_largest_is_compared_with_the_line_through_the_two_before_it(tmp_path):
    """Of 64 to 16,384 prompts: log2 is 6, 8, ... 14. The end is the mean of the last five of 21 evaluations: 0.9."""
    s = 0.9 * 0.002 / 2**0.5  # of two seeds 0.002 apart
    assert axes.spread(members("pool", tmp_path, *[0.5] * 5)) == (pytest.approx(s), 5)
    [said] = axes.answers("pool", members("pool", tmp_path, 0.3, 0.3, 0.3, 0.5, 0.7))
    half = 2.015 * s * (6 / 2) ** 0.5  # t of 5 degrees of freedom; weights 1, -2, 1 of means of two
    assert said.startswith("- 1024 prompts to 16384 prompts: the largest minus the line through the two before it: ")
    assert said.endswith(f"+0.000 ({-half:+.3f} to {half:+.3f}): none, within 0.02")
    [said] = axes.answers("pool", members("pool", tmp_path, 0.3, 0.3, 0.3, 0.5, 0.6))
    assert "-0.090" in said and said.endswith("): a difference")


def test_a_question_is_not_asked_before_each_member_that_it_names_has_a_sound_run(tmp_path):
    [said] = axes.answers("pool", members("pool", tmp_path, 0.3, 0.5))
    assert "not asked" in said
    lines = [line("pool", member.label, 0.5, seed) for member in axes.AXES["pool"] for seed in range(2)]
    early = line("pool", axes.AXES["pool"][0].label, 0.5, 2, reason="all prompts are retired")
    sound = axes.whole(axes.kept(written(tmp_path, *lines, early), "pool"))
    assert axes.spread(sound)[1] == 5
    assert [len(own) for own in sound.values()] == [2] * 5


def test_a_question_needs_no_member_that_it_does_not_name(tmp_path):
    """Of 64 prompts all runs end early: the three largest pools are compared nevertheless."""
    others = [line("pool", member.label, 0.5, seed) for member in axes.AXES["pool"][1:] for seed in range(2)]
    early = line("pool", axes.AXES["pool"][0].label, 0.5, reason="all prompts are retired")
    [said] = axes.answers("pool", axes.kept(written(tmp_path, *others, early), "pool"))
    assert "before it: +0.000" in said


def test_generations_grow_if_the_best_number_does_and_never_steps_down():
    assert axes.grows([4, 8, 8, 16]) and axes.grows([8, 8, 8, 16])
    assert not axes.grows([32, 32, 32, 32]) and not axes.grows([4, 16, 8, 16])


def test_generations_are_compared_where_a_step_has_as_many_completions(tmp_path):
    """More generations end higher: 32 is best from the start, which is no growth."""
    sound = members("batch", tmp_path, *(0.2 + member.generations / 100 for member in axes.AXES["batch"]))
    for at, run in enumerate(one for own in sound.values() for one in own):
        run.line["entropy"] = [at]
    for size, said in zip(axes.SETS, axes.answers("batch", sound)[::2]):
        assert {member.generations for member in sound if member.size == size} == {4, 8, 16, 32}
        assert "32 at 12%, 32 at 25%, 32 at 50%, 32 at 100%; grows in 0%" in said
        assert said.endswith("undecided, the best lies at an edge of what was tried")


def test_the_end_goes_with_the_entropy_if_their_ranks_do(tmp_path):
    lines = []
    for at, member in enumerate([member for member in axes.AXES["batch"] if member.size == 128]):
        one = line("batch", member.label, 0.5 + at / 10)
        lines.append(one | {"entropy": [0.9 - at / 10] * len(STEPS)})
    said = axes.answers("batch", axes.kept(written(tmp_path, *lines), "batch"))
    assert said[1].endswith("rank correlation of the end with the entropy -1.00")
    assert "not asked" in said[2] and "not asked" in said[3]


def test_resampled_seeds_leave_a_growth_undecided_that_one_of_them_has():
    def run(*rates):
        return SimpleNamespace(curve=SimpleNamespace(compute=[0, 50, 100], reward=rates))

    few, many = (axes.Member(128, "", generations=generations) for generations in (4, 32))
    sound = {few: [run(0.2, 0.5, 0.6)] * 3, many: [run(0.2, 0.4, 0.59), run(0.2, 0.4, 0.59), run(0.2, 0.4, 0.8)]}
    assert "undecided" in axes.iso_compute(sound)
    sound[many] = [run(0.2, 0.4, 0.8)] * 3
    assert "grows in 100% of resamplings: agrees" in axes.iso_compute(sound)


def test_a_mixture_is_predicted_at_its_share_of_the_compute_and_ends_by_its_weights(tmp_path):
    """Alone, shorter sums rise to 0.8 and longer ones to 0.4 on straight lines: a mixture is where both then are."""
    lines = []
    for member, end in zip(axes.AXES["mixture"], (0.8, 0.6, 0.6, 0.6, 0.4)):
        for seed in range(2):
            one = line("mixture", member.label, end, seed)
            w = member.size
            both = [(0.8, 1 - w), (0.4, w)]
            rates = {
                f"{name}.jsonl": [0.2 + (top - 0.2) * share * step / STEPS[-1] for step in STEPS]
                for name, (top, share) in zip(axes.SOURCES, both)
            }
            lines.append(one | {"tasks": rates})
    sound = axes.whole(axes.kept(written(tmp_path, *lines), "mixture"))
    shorter, longer = axes.alone(sound, 0.25)
    assert shorter == pytest.approx([0.2 + 0.9 * 0.6 * 0.75] * 2) and longer == pytest.approx(
        [0.2 + 0.9 * 0.2 * 0.25] * 2
    )
    said = axes.mixtures(sound).split("; ")
    assert len(said) == 3 and all(" longer +0.000 (" in one or " longer -0.000 (" in one for one in said)


def test_a_run_that_recovers_is_judged_and_one_that_collapses_for_good_is_not(tmp_path):
    dip, lost = (line("pool", axes.AXES["pool"][0].label, 0.6, seed) for seed in range(2))
    dip["evals"]["pass_rate"][10:14] = [0.2] * 4
    lost["evals"]["pass_rate"][10:] = [0.1] * 11
    [own] = axes.kept(written(tmp_path, dip, lost), "pool").values()
    assert [(one.collapsed, one.lost) for one in own] == [(True, False), (True, True)]
    [own] = axes.whole(axes.kept(tmp_path, "pool")).values()
    assert [one.line["run"]["seed"] for one in own] == [0]
    assert "| 2, 1 | 0 |" in "".join(axes.table(axes.kept(tmp_path, "pool")))


def test_the_curves_are_drawn_a_panel_an_axis(tmp_path, monkeypatch):
    """One run of two ends early: their mean is drawn as far as both go."""
    few, many = axes.AXES["pool"][:2]
    early = line("pool", few.label, 0.7, 1)
    early["evals"] = {name: column[:3] for name, column in early["evals"].items()}
    sets = [line("batch", member.label, 0.6) for member in axes.AXES["batch"] if member.size == 128]
    drawn = []
    savefig = axes.Figure.savefig
    monkeypatch.setattr(axes.Figure, "savefig", lambda self, *path, **more: (drawn.append(self), savefig(self, *path)))
    lines = [line("pool", few.label, 0.5, 0), early, line("pool", many.label, 0.6), *sets]
    path = axes.curves(written(tmp_path, *lines), tmp_path / "axes.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    [[batch, pool]] = [figure.axes for figure in drawn]
    assert [one.get_title() for one in (batch, pool)] == ["batch: prompts x generations", "number of prompts"]
    assert [len(one.get_xdata()) for one in pool.lines] == [3, 21]
    assert pool.lines[0].get_ydata()[1] == pytest.approx(
        np.mean([own["evals"]["pass_rate"][1] for own in (lines[0], early)])
    )
    labels = batch.get_legend_handles_labels()[1]
    assert labels == [member.label for member in axes.AXES["batch"] if member.size == 128] and len(batch.lines) == 4
    assert {one.get_color() for one in batch.lines} == {batch.lines[0].get_color()}  # by the size
    assert len({one.get_linestyle() for one in batch.lines}) == 4  # by the generations


def test_the_report_says_what_was_made_and_what_was_not(tmp_path):
    two = [line("pool", axes.AXES["pool"][0].label, end, seed) for seed, end in enumerate((0.5, 0.7))]
    said = "\n".join(axes.report(written(tmp_path, *two)))
    assert "### Axis pool: 2 of 15 runs" in said
    assert "| 64 prompts | 2 | 160 | 0.560 (0.127) | +0.100 | 0, 0 | 0 | 25.0%, 10.0% | 0.500 |" in said
    assert said.endswith("Axes, not made yet: batch, length, truncation, model, difficulty, mixture, embedded.")
    assert len(axes.missing(tmp_path, "pool")) == 13
    assert axes.report(tmp_path / "nothing") == ["", f"Axes, not made yet: {', '.join(axes.AXES)}."]

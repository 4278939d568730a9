"""Claim: wrong answers made by rules (lab/attacks.py) earn nothing, whatever the kind of the reference."""

import pytest

from lab import attacks


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_no_attack_of_a_kind_is_paid(kind):
    quick = kind in ("choice", "text", "code", "words", "signs")
    assert attacks.paid(kind, 300 if quick else 40, seed=1) == []


def test_attacks_are_of_300_different_kinds_and_the_same_for_the_same_seed():
    for kind in attacks.KINDS:
        made = attacks.attacks(kind, 300)
        assert made == attacks.attacks(kind, 300) and len(set(map(repr, made))) == 300


@pytest.mark.parametrize(
    "answer, reference",
    [("\\text{mice}", "mice"), ("l'eau", "L'eau"), ("P(X=2)=\\frac14", "\\frac{1}{4}")]
    + [("5 \\text{ km}\\text{ per hour}", "5"), ("\\frac{1}{2} \\text{ cm}", "0.5")]
    + [("\\sqrt{2}\\text{ m}", "\\sqrt{2}")],
)  # fmt: skip
def test_right_answers_like_the_attacks_are_right(answer, reference):
    assert attacks.math_verdict(answer, reference) is True

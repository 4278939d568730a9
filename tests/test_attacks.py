"""Claim: wrong answers made by rules (lab/attacks.py) earn nothing, whatever the kind of the reference."""

import pytest

from lab import attacks


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_no_attack_of_a_kind_is_paid(kind):
    quick = kind in ("choice", "text", "code", "words", "signs")
    assert attacks.paid(kind, 300 if quick else 40, seed=1) == []

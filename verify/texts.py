"""Texts of any language, as they are compared: words in mathematics, and the tasks `text` and `choice` (judges.py).

Test: pytest tests/test_verdicts.py
"""

from unicodedata import category, normalize


def plain(text: str) -> str:
    """A text of any language as it is compared: NFKC, without case, single spaces, no punctuation around it.

    >>> plain("  „Bücher“! "), plain("NO\\n solution."), plain("Ⅳ"), plain("-3")
    ('bücher', 'no solution', 'iv', '-3')
    """
    folded = " ".join(normalize("NFKC", normalize("NFKC", text).casefold()).split())
    start, end = 0, len(folded)
    while start < end and category(folded[start])[0] in "PZ" and folded[start] not in "-%°\\":
        start += 1
    while start < end and category(folded[end - 1])[0] in "PZ" and folded[end - 1] not in "%#":
        end -= 1
    return folded[start:end]

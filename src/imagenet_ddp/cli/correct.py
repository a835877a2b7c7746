"""Apply the fixes of mistakes to the command line that has them."""

from collections.abc import Iterable, Sequence

from imagenet_ddp.mistakes import Fix, Mistake, key_of


def corrected(argv: Sequence[str], mistakes: Iterable[Mistake]) -> list[str] | None:
    """Return the command line with the first fix of each mistake; None if a mistake has none that is complete, or if an
    option would replace the values of a sweep, or a renamed option another value of its key."""
    words = list(argv)
    for mistake in mistakes:
        if not (mistake.fixes and mistake.fixes[0].is_complete):
            return None
        fix = mistake.fixes[0]
        if any(_sweeps(option, [word for word in words if word not in mistake.typed]) for option in fix.options):
            return None
        if (fix.without or mistake.typed) and any(_replaces(option, words, mistake) for option in fix.options):
            return None
        words = apply(fix, words, mistake.typed)
    return words


def _sweeps(option: str, words: Sequence[str]) -> bool:
    """Return whether a sweep has several values for the key of the option."""
    is_sweep = "-m" in words or "--multirun" in words
    return is_sweep and any(key_of(word) == key_of(option) and "," in word.partition("=")[2] for word in words)


def _replaces(option: str, words: Sequence[str], mistake: Mistake) -> bool:
    """Return whether the option would replace a word that the mistake is not about."""
    key = key_of(option)
    others = [word for word in words if key_of(word) == key and word not in (option, *mistake.typed)]
    return key not in mistake.keys and bool(others)


def apply(fix: Fix, argv: Sequence[str], typed: Sequence[str] = ()) -> list[str]:
    """Return the command line with one fix. typed: words of argv that are no options, which the fix replaces."""
    words = list(argv)
    for start in range(len(words)):
        if typed and words[start : start + len(typed)] == list(typed):
            words[start : start + len(typed)] = []
            break
    words = [word for word in words if not {word, key_of(word)} & {*fix.without}]
    for option in fix.options:
        places = [place for place, word in enumerate(words) if key_of(word) == key_of(option)]
        for place in reversed(places):
            del words[place]
        words.insert(places[0] if places else len(words), option)
    return words

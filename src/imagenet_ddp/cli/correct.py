"""Apply the fixes of mistakes to the command line that has them."""

import re
from collections.abc import Iterable, Sequence

from imagenet_ddp.mistakes import Fix, Mistake, key_of


def corrected(argv: Sequence[str], mistakes: Iterable[Mistake]) -> list[str] | None:
    """Return the command line with the first fix of each mistake; None if a mistake has none that is complete, or if
    that would change what was meant."""
    words = list(argv)
    for mistake in mistakes:
        if not mistake.is_corrected or _changes(mistake, [word for word in words if word in argv]):
            return None
        words = apply(mistake.fixes[0], words, mistake.typed)
    return words


def _changes(mistake: Mistake, words: Sequence[str]) -> bool:
    """Return whether the first fix of a mistake would lose a typed value, or add one that is only an example. A value
    may stand at another key, and what the mistake is about may be said in another form."""
    if mistake.fixes[0].is_example:
        return True
    fix, is_sweep = mistake.fixes[0], not {"-m", "--multirun"}.isdisjoint(words)
    gone = {*map(key_of, fix.options), *fix.without}
    kept = {option.partition("=")[2] for option in fix.options}
    about = {*mistake.keys, *fix.without, *(each.partition(".")[0] for each in mistake.keys)} if fix.is_meant else set()
    for word in words:
        key, value = key_of(word), word.partition("=")[2]
        if {word, key}.isdisjoint(gone) or word in mistake.typed or value in kept:
            continue
        has_several = is_sweep and "," in re.sub(r"\[.*\]|,+$", "", value)
        if has_several or {word, key}.isdisjoint(about):
            return True
    return False


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

"""Numbers before people."""


def counted(number: int, noun: str) -> str:
    """1 image, 1,200 images, 3 classes."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"

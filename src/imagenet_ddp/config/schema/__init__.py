"""Declare every key of the command line once: its type, allowed values, default and meaning.

    batch_size: Annotated[int, integer(1), "Images per device and step."] = 32

Checks (`keys.py`), `--help` and docs/reference.md are derived from these declarations. A key without allowed values
accepts every value of its type, and null is accepted if the type is `| None`. `Example` is the value that a hint shows
instead of the default; `PerMachine` marks what each machine of a run sets for itself. Imports neither torch nor
lightning.
"""

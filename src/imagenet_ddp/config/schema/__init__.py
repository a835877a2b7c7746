"""Declare every key of the command line once: its type, allowed values, default and meaning.

    batch_size: Annotated[int, integer(1), "Images per device and step."] = 32

Checks (`config/keys.py`), `--help` and docs/reference.md are derived from this. Without allowed values only the type
counts; null is allowed if the type is `| None`. `Example` is the value that a hint shows instead of the default. The
keys of Lightning's Trainer are in `trainer_options.py`. Imports neither torch nor lightning.
"""

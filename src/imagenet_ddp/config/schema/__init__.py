"""Declare every key of the command line once: its type, the values it may have, its default and its meaning.

    batch_size: Annotated[int, integer(1), "Images per device and step."] = 32

From here come the checks (`config/keys.py`), `--help` and docs/reference.md. Without allowed values the type alone
counts; null is allowed where the type is `| None`. `Example` is what a hint tells to type instead of the default.
The keys of Lightning's Trainer are in `trainer_options.py`. Imports neither torch nor lightning.
"""

"""Errors of reading images: one image cannot be decoded, or none can be loaded."""

from imagenet_ddp.errors import RunError


class UnreadableImage(Exception):
    """Raised for an image that cannot be decoded. path, reason: shown in messages. Loader workers pickle the exception,
    so both are in args."""

    def __init__(self, path: str, reason: str):
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path} cannot be read as an image: {self.reason}"


class LoadError(RunError):
    """Raised when images cannot be loaded. If a loader process raises this error, torch prepends the traceback of that
    process to the message, and this class removes the traceback again."""

    def __init__(self, text: str):
        super().__init__(text.rpartition(f"{type(self).__name__}: ")[2].strip())

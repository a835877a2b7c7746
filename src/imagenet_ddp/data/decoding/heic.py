"""Read HEIC, the format in which iPhones store photographs, with the package pillow-heif."""

from functools import cache

from imagenet_ddp.system.packages import install, is_installed

HEIC_EXTENSIONS = (".heic", ".heif")
_BRANDS = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"))  # ISO/IEC 23008-12
_FORMAT = "HEIF"  # of Pillow


@cache
def reads_heic() -> bool:
    return is_installed("pillow_heif")


def install_heic() -> str:
    """Return the command after which HEIC is read."""
    return install("imagenet_ddp[heic]", "pillow-heif")


def is_heic(data: bytes) -> bool:
    """Return whether these are the bytes of a HEIC file. A few of them, of brand mif1, are AVIF."""
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS


def heic_formats(data: bytes) -> tuple[str, ...]:
    """Return the format with which Pillow opens these bytes if they are HEIC and can be read; else ()."""
    if not is_heic(data) or not reads_heic():
        return ()
    _register()
    return (_FORMAT,)


@cache
def _register() -> None:
    import pillow_heif

    # one thread, because as many images are decoded at a time as there are cores
    pillow_heif.register_heif_opener(thumbnails=False, decode_threads=1)

import hashlib

from imagenet_ddp.prepare.imagenet.archives import ilsvrc2012


def test_the_ids_are_those_of_the_devkit():
    """The SHA-256 is of the first 1,000 WordNet ids of the official meta.mat, a line "ID<tab>WordNet id" each."""
    classes = ilsvrc2012().classes
    lines = "".join(f"{number}\t{classes[number]}\n" for number in range(1, 1001))
    expected = "33cac7974cc0bb3935c6fca46b93729c29a6481fa635e92f5f0852859aecd361"
    assert hashlib.sha256(lines.encode()).hexdigest() == expected and len(classes) == 1000

import pytest

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.bad_images import Bad, BadImages, LocalBoard
from imagenet_ddp.errors import RunError


def skipping(limit: float) -> DataConfig:
    return DataConfig(name="imagefolder", root="pets", on_bad_image="skip", bad_image_limit=limit)


def bad(*numbers: int) -> list[Bad]:
    return [(f"{number}.jpg", "it is not an image in a known format") for number in numbers]


@pytest.mark.parametrize(("limit", "most"), [(0.01, 3), (0.0001, 1), (0.0, 0), (3, 3), (1, 1)])
def test_more_than_the_limit_end_the_run(limit: float, most: int):
    images = BadImages(skipping(limit), 250, say=lambda line: None)
    assert images.most == most
    images.on_bad_images(bad(*range(most)))
    with pytest.raises(RunError, match=rf"at most {most} images?.* but {most + 1} are, most recently 99\.jpg"):
        images.on_bad_images(bad(99))


def test_the_limit_is_for_all_ranks_together():
    board = LocalBoard()
    ranks = [BadImages(skipping(3), 100, board, lambda line: None) for _ in range(2)]
    ranks[0].on_bad_images(bad(0, 1))
    ranks[1].on_bad_images(bad(1, 2))
    with pytest.raises(RunError):
        ranks[0].on_bad_images(bad(3))

"""The bad images that several ranks share."""

from torch.distributed import PrefixStore, TCPStore

from imagenet_ddp.data.shared_bad_images import SharedBoard
from imagenet_ddp.distributed.messages import Messages


def test_all_ranks_read_the_bad_images_that_each_has_posted():
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    boards = [SharedBoard(lambda: Messages(PrefixStore("run", TCPStore("127.0.0.1", server.port)))) for _ in range(2)]
    assert boards[0].all() == []
    assert boards[0].post([("b.jpg", "it is empty")]) == 1
    assert boards[1].post([("a\n\u00e4.jpg", "it is no image"), ("b.jpg", "it is empty")]) == 2
    expected = [("a\n\u00e4.jpg", "it is no image"), ("b.jpg", "it is empty")]
    assert [board.all() for board in boards] == [expected, expected]

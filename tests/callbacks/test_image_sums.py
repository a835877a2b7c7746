import pytest
import torch

from imagenet_ddp.callbacks.image_sums import MAX_KEPT, ImageSums


@pytest.mark.usefixtures("one_thread")
def test_sums_are_those_of_a_plain_count() -> None:
    """Over more steps than are kept, of different sizes, read in between."""
    torch.manual_seed(0)
    sums, expected, reads = ImageSums(torch.device("cpu"), 3), torch.zeros(4, dtype=torch.float64), (5, MAX_KEPT + 9)
    for step in range(2 * MAX_KEPT + 3):
        logits, loss = torch.randn(step % 4, 7), torch.rand(())
        target = torch.randint(7, (len(logits),))
        sums.add(loss, logits, target)
        place = (logits > logits.gather(1, target[:, None])).sum(1)  # number of greater logits
        hits1, hits3 = int((place == 0).sum()), int((place < 3).sum())
        expected += torch.tensor([loss.item(), hits1, hits3, len(logits)], dtype=torch.float64)
        if step in reads:
            sums.read()
            assert sums.last.tolist() == [loss.item(), hits1, hits3, len(logits)]
    sums.read()
    assert sums.epoch.tolist() == pytest.approx(expected.tolist(), rel=1e-12)
    assert sums.epoch_on_device().tolist() == sums.since.tolist() == sums.epoch.tolist()

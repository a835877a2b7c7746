"""What a report says that can be done next."""

from pathlib import Path

from imagenet_ddp.report.findings import classify


def test_a_net_that_knows_no_training_images_learns_them_first(tmp_path: Path):
    """Also one that was trained anew; a net of several labels cannot."""
    run = tmp_path / "run"
    run.mkdir()
    for net in (run, run / "best.ckpt"):
        option = [f"checkpoint={net}"]
        (learn, line), (_, then) = classify(option, net)
        assert "unlike the training images" in learn and "predict checkpoint=" in then
        assert line.endswith(f"features checkpoint={net}")
        assert [line for _, line in classify(option, None)] == [then]
    (run / "known.npz").touch()
    assert len(classify(option, run)) == len(classify(option, run / "best.ckpt")) == 1
    assert len(classify(option, run / "checkpoints/best.ckpt")) == 1, "the file is in the run folder of a checkpoint"
    assert classify([], run) == []

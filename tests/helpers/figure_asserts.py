"""Assertions that every figure must satisfy."""

from matplotlib.figure import Figure


def assert_no_text_is_cut(figure: Figure) -> None:
    figure.draw_without_rendering()
    box = figure.get_tightbbox()  # around everything that is drawn, in inches
    width, height = figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0, box
    assert box.x1 <= width, box
    assert box.y1 <= height, box

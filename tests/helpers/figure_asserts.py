"""What must hold of every figure."""

from matplotlib.figure import Figure
from matplotlib.text import Text


def assert_no_text_is_cut(figure: Figure) -> None:
    figure.draw_without_rendering()
    width, height = figure.bbox.size
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text():
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.y0 >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text

import io

from imagenet_ddp.runs.log import Log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_brackets_in_a_line_are_drawn_as_they_are():
    stream = Terminal()
    log = Log(None, 0, stream)
    log.draw("data.root was [/old/folder], is now [new]")
    assert "was [/old/folder], is now [new]" in stream.getvalue()
    log.close()

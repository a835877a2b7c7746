import pytest

from imagenet_ddp.cli.doc_pages import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str):
    renew = "python -m imagenet_ddp.cli.doc_pages"
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"renew it: {renew}"

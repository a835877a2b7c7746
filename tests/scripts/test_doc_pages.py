import pytest

from scripts.doc_pages import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str):
    renew = "python scripts/doc_pages.py"
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), f"renew it: {renew}"

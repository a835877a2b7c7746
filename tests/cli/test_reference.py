from imagenet_ddp.cli import reference


def test_the_page_is_up_to_date():
    renew = "python -m imagenet_ddp.cli.reference"
    assert reference.PAGE.read_text(encoding="utf-8") == reference.page(), f"renew it: {renew}"

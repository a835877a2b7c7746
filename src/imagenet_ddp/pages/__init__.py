"""What the HTML pages share: layout, style, script, thumbnails; and, in `sections`, the parts of the page of
prepare=check.

To add a section NAME to that page: write its content as `sections/NAME.html`, a Jinja template that reads its values
from `s` and may import the macros of macros.html, and a function `Checked -> Section | None` in a file beside it; then
add that function to SECTIONS in `prepare/check_page.py`. It returns None if the section has nothing to say.
"""

"""The sections of the page of prepare=check, of which a report shows some: of each, a template and the function that
makes its values.

To add a section NAME to that page: write its content as `NAME.html`, a Jinja template that reads its values from `s`
and may import the macros of `pages/macros.html`, and a function `Checked -> Section | None` in a file beside it; then
add that function to SECTIONS in `prepare/check_page.py`. It returns None if the section has nothing to say.
"""

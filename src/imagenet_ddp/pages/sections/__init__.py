"""The sections of the page of prepare=check: of each, a template and the function that makes its values."""

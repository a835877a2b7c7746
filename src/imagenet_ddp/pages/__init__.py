"""What all HTML pages share: layout, style, script, macros and thumbnails."""

"""The report of one run as a single HTML file. `build` puts it together, `page.html` is its template."""

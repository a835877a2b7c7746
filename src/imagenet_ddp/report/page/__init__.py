"""The report of one run as a single HTML file. `build` assembles it from the template `page.html`."""

"""The report of one run as a single HTML file. `assemble.build` makes it from the template `page.html`."""

"""Reports on run folders. `run` finds and reads the folders, `comparison` makes the report of several runs, and
`page` makes the report of one run."""

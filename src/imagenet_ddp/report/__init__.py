"""Reports on run folders. `run` and `find_runs` read the folders, `comparison` makes the report of several runs, and
`page` makes the report of one run."""

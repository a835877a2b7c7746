"""Reports on run folders. `run` and `find_runs` read the folders; `comparison` is the report of several runs, `page`
that of one."""

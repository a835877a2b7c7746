"""Reports on run folders. `run`, `run_files` and `find_runs` read the folders; `comparison` is the report of several
runs, `page` that of one."""

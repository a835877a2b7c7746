"""Reports on run folders. `run`, `run_files` and `find_runs` read the folders; `comparison` is the report of several.
A report of one run (confusion matrix, mistakes) belongs in a package of its own beside `comparison`."""

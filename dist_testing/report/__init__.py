"""Makes reports that people look at, from the results of finished runs: a page, a trace, flake rates, a comparison.

    build events, test.xml, event streams --- gather ---> model.Report ---> page, trace, exports, comparison

It needs Python, and jinja2 for the page: no torch, no pytest. `python -m dist_testing.report` and
`bazel run @dist_testing//tools/report` are the same program.
"""

"""Carries timestamped facts about a run to all sinks, in one stream.

    engine, front ends --- emit ---> EventStream ---> sinks: event file, live output, JUnit results, watchdog, report

To add a kind of event, write one class: in `cases`, and name it in `CASE_KINDS`; or in `runs`, and name it in
`wire.KINDS`. To add a sink, write one callable, and pass it to `EventStream.subscribe`.
"""

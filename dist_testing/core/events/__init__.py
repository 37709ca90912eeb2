"""Carries timestamped facts about a run to all sinks, in one stream.

    engine, front ends --- emit ---> EventStream ---> sinks: event file, live output, JUnit results, watchdog, report

To add a kind of event, write one class in `event`, and name it in `KINDS`. To add a sink, write one callable, and pass
it to `EventStream.subscribe`. What is known of a case is in its record (`core.ground.record`).
"""

"""One stream of timestamped facts about a run, and what every listener needs.

    engine, front ends --- emit ---> EventStream ---> sinks: event file, live output, JUnit results, watchdog, report

A new kind of fact is one class in `runs` or `cases`, and its name in `wire.KINDS`. A new sink is one callable and one
call of `EventStream.subscribe`.
"""

"""A world whose ranks are threads of one process, and the process group that moves tensors between them.

Read it in this order: `world.py` runs a body on the threads; `isolation.py` gives each of them its own
`torch.distributed` state; `register.py` makes the backend known to torch; `group.py` has the collectives. They stand on
`meeting.py` (the state that the ranks of one group share), `members.py` (which rank runs or waits) and `data.py` (the
moves and reductions). The package is imported only if a test asks for ranks that are threads.
"""

# What torch knows the group by.
BACKEND = "threaded"

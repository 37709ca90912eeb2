"""An in-process world: every rank is a thread, and the process group moves tensors between them.

`world.py` runs a body on the threads, `group.py` is the group, `isolation.py` gives each thread a torch.distributed of
its own. What torch knows of it is in `register.py`. Nothing here is imported unless a test asks for threads.
"""

# What torch knows the group by.
BACKEND = "threaded"

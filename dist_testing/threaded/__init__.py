"""A world whose ranks are threads of one process, and the process group that moves tensors between them.

README.md says what is where. The package is imported only if a test asks for ranks that are threads.
"""

# What torch knows the group by.
BACKEND = "threaded"

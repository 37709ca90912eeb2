"""Watch mode: runs tests again after each save, in forks of processes that have the unchanged imports."""

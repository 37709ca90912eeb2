"""The steps of a release: build, look into the archives, install the wheel and use it."""

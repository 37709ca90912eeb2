"""Private copies of Debian packages: fetched by a private apt, unpacked into a prefix, adapted to it."""

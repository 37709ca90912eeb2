"""The function by which a repository declares a backend of its own (docs/backends.md)."""

load("//backends:declare.bzl", _declare_backend = "declare_backend")

declare_backend = _declare_backend

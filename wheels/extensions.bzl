"""The module extension that makes hubs of wheels from lock files. docs/wheels.md has examples."""

load("//wheels/private:archive_repo.bzl", "archive_repo")
load("//wheels/private:hub_repo.bzl", "hub_repo", "names_repo")
load("//wheels/private:lock_repo.bzl", "lock_repo")
load("//wheels/private:locks.bzl", "declared_locks_problems", "lock_repo_name")

def _declared(module, tag):
    return {
        "extra_index_urls": tag.extra_index_urls,
        "file": tag.file,
        "hub": tag.hub,
        "interpreter": tag.interpreter,
        "module": module.name,
        "name": tag.name,
        "python_version": tag.python_version,
    }

def _wheels_impl(module_ctx):
    locks = [_declared(module, tag) for module in module_ctx.modules for tag in module.tags.lock]
    problems = declared_locks_problems(locks)
    if problems:
        fail("MODULE.bazel: " + "\nand ".join(problems))
    hubs = {}
    for lock in locks:
        repo = lock_repo_name(lock)
        archive = repo + ".archive"
        archive_repo(
            name = archive,
            installed = "@{}//:installed.json".format(repo),
            interpreter = lock["interpreter"],
        )
        lock_repo(
            name = repo,
            archive = "@{}//:archive".format(archive),
            extra_index_urls = lock["extra_index_urls"],
            interpreter = lock["interpreter"],
            lock = lock["file"],
            python_version = lock["python_version"],
        )
        hubs.setdefault(lock["hub"], []).append(lock | {"repo": repo})
    for hub, hub_locks in hubs.items():
        hub_repo(
            name = hub,
            # Several Pythons may have one lock file, and Bazel refuses a label that is there twice.
            files = {lock["file"]: None for lock in hub_locks}.keys(),
            hub = hub,
            locks = json.encode([
                {key: str(lock[key]) for key in ["file", "name", "python_version", "repo"]}
                for lock in hub_locks
            ]),
        )
    names_repo(
        name = "dist_testing_wheels",
        names = sorted({lock["name"]: None for lock in locks}),
    )
    return module_ctx.extension_metadata(reproducible = True)

_lock = tag_class(
    doc = "One lock file of a hub. The first one is the hub's default; the flag //wheels:lock chooses another one.",
    attrs = {
        "extra_index_urls": attr.string_list(
            doc = "Indexes for wheels that those of pip's own configuration do not have.",
        ),
        "file": attr.label(
            doc = "The lock file: requirements, each pinned and with hashes.",
            mandatory = True,
        ),
        "hub": attr.string(
            doc = "Name of the hub: `@<hub>//<package>`.",
            mandatory = True,
        ),
        "interpreter": attr.label(
            doc = "The interpreter that installs and imports the wheels, that of your toolchain: " +
                  "`@python_3_11_host//:python` of rules_python, or any program that runs as Python.",
            mandatory = True,
        ),
        "name": attr.string(
            default = "default",
            doc = "Name of the lock in its hub, for `--@dist_testing//wheels:lock=<name>`: cpu, cuda, rocm, ...",
        ),
        "python_version": attr.string(
            doc = "`3.12`, if the hub has locks of this name for several Pythons. The first of them is the default.",
        ),
    },
)

wheels = module_extension(
    doc = "Hubs of locked wheels: one directory for each lock file, and one archive for remote workers.",
    implementation = _wheels_impl,
    tag_classes = {"lock": _lock},
)

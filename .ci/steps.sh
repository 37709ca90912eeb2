# What `.ci/run` and `.ci/nightly` share. A step is a function with the name of an element of `steps`; its commands run by
# `timed`. A step whose command fails does not keep the next step from running.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
events=$work/events
code=0
# Steps that use a Bazel server of their own, so that they can run beside the others.
beside=()
lane=
# Lines of a table: command, result, seconds, and how much of the CPUs was busy.
rows=$work/rows
trap 'rm -rf "$work"; [[ -z $lane ]] || kill -INT -- "-$lane" 2>/dev/null' EXIT
trap 'exit 130' INT

# Simulated nodes need network namespaces, which some containers refuse.
filter=()
unshare --net true 2>/dev/null || unshare --user --net true 2>/dev/null || {
    echo "ci: this machine allows no network namespaces, so no test on simulated nodes runs"
    filter=(--test_tag_filters=-requires-netns)
}
# More tests at once than CPUs: many of them wait for a limit to pass. --jobs limits them; with fewer CPUs to give away, a
# target of four ranks would wait until all others have ended, and then run alone.
many=(--keep_going --jobs=HOST_CPUS*1.5 --local_resources=cpu=HOST_CPUS*3 "${filter[@]}")

# Prints two numbers of clock ticks since the machine's start, over all CPUs: busy, and in all.
cpu_ticks() {
    awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print all - $5 - $6, all }' /proc/stat
}

timed() {
    local start=$SECONDS busy all result=passed
    read -r busy all < <(cpu_ticks)
    echo "ci: $*"
    "$@" || { result=FAILED; echo "ci: FAILED: $*"; }
    read -r busy all < <(cpu_ticks | awk -v busy="$busy" -v all="$all" '{ print $1 - busy, $2 - all }')
    echo "| \`$*\` | $result | $((SECONDS - start)) | $((100 * busy / (all + 1))) % |" >>"$rows"
    echo "ci: $((SECONDS - start)) s, $((100 * busy / (all + 1)))% of the CPUs: $*"
}

lint() {
    timed ./bazelw run //tools/lint
}

errors() {
    timed python3 -m tests.starlark.errors_check
}

# Each test must run in the CI job without GPUs or in the one with eight.
tags() {
    timed python3 -m tests.starlark.tags_check
    timed ./bazelw run //tools/ci -- tags --known=nightly --job=--config=ci --job="--//dist_testing/config:gpus=8 --test_tag_filters=gpu"
}

protocol() {
    timed python3 -m tests.bazel.protocol_check
}

# The wheel as a stranger uses it. The archives stay in dist/, which git ignores.
release() {
    timed ./bazelw run //tools/release
}

# The program of a target runs without Bazel's test environment.
program() {
    timed ./bazelw build //tests:pg_wrapper_gloo
    timed bazel-bin/tests/pg_wrapper_gloo -k shape
}

# Runs `bazel test` on the targets. A green run in which a target ran nothing is a failure.
run_tests() {
    timed ./bazelw test "$@" "${many[@]}" --build_event_json_file="$events"
    timed ./bazelw run //tools/ci -- ran-nothing "$events"
}

# Starts the steps one after the other in the background. A process group of their own lets an interrupt reach them, and
# their last output is still printed then.
start_lane() {
    local name
    set -m
    { for name in "$@"; do "$name"; done; } 2>&1 | (trap '' INT && sed -u 's/^/beside: /') &
    set +m
    lane=$(jobs -p %%)
}

# Runs the named steps; all of them if no step is named.
run_steps() {
    local name later=()
    for name in "$@"; do
        [[ " ${steps[*]} " == *" $name "* ]] || { echo "ci: there is no step $name; the steps are: ${steps[*]}"; exit 2; }
    done
    (($#)) || set -- "${steps[@]}"
    for name in "$@"; do
        if [[ " ${beside[*]} " == *" $name "* ]]; then
            later+=("$name")
            continue
        fi
        ((${#later[@]})) && start_lane "${later[@]}" && later=()
        "$name"
    done
    for name in "${later[@]}"; do
        "$name"
    done
    wait
    lane=
    ! grep -q '| FAILED |' "$rows" || code=1
}

"""A script that a launcher starts."""

import argparse
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--end", default="")
options = parser.parse_args()
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
value = torch.ones(1)
for _ in range(options.steps):
    dist.all_reduce(value)
if options.end == "raise" and rank == 1:
    raise ValueError("planted")
if options.end == "signal" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if options.end == "exit" and rank == 1:
    sys.exit(7)
if options.end == "early" and rank == 1:
    os._exit(0)
if options.end == "sleep":
    time.sleep(1000)
dist.barrier()
if rank == 0:
    facts = {
        "value": value.item(),
        "set": os.environ.get("SET_BY_TEST"),
        "cwd": os.getcwd(),
        "path": sys.path[0],
        "name": __name__,
        "argv": sys.argv,
        "local": os.environ["LOCAL_WORLD_SIZE"],
        "pytest": "pytest" in sys.modules,
        "umask": os.umask(0),
    }
    print(json.dumps(facts))
    print("to standard error", file=sys.stderr)
dist.destroy_process_group()

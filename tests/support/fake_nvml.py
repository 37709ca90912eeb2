"""A fake management library in C, with the names and structures of the real one.

It reads its answers from a file with these lines:

gpu MINOR UUID ADDRESS TOTAL_BYTES USED_BYTES [lost|gone|hidden|mig]  gone: lost before the first call
process MINOR PID USED_BYTES                                          -1: not reported
xid MINOR NUMBER             an event, reported once to those that watched before the line was there
arch MINOR MAJOR MINOR       the compute capability of a GPU; 9 0 without the line, and unknown if MAJOR is 0
mute                         the driver does not answer how many GPUs there are
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

# Names the file with the answers.
STATE_VARIABLE = "FAKE_NVML_STATE"

_GIB = 1 << 30

_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 2, NO_PERMISSION = 4, TOO_SMALL = 7, TIMEOUT = 10, LOST = 15, UNKNOWN = 999 };
typedef struct { unsigned minor; char uuid[80], address[32]; unsigned long long total, used; char end; } Gpu;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { char old_id[16]; unsigned domain, bus, device, id, subsystem; char id_text[32]; } Pci;

static Gpu gpus[16];
static unsigned gpu_count;
static struct { unsigned minor; Process process; } processes[64];
static unsigned process_count;
static struct { unsigned minor; unsigned long long number; } xids[64];
static unsigned xid_count, reported_xids, event_sets, opened;
static struct { unsigned minor; int major, rest; } archs[16];
static unsigned arch_count;
static int is_mute;
typedef struct { Gpu *gpu; unsigned long long kind, data; unsigned gpu_instance, compute_instance; } Event;
typedef struct { unsigned watched; } Events;

/* The file is read at every call: the test changes it meanwhile. */
static void look(void) {
  char line[256], lost[16];
  FILE *file = fopen(getenv("FAKE_NVML_STATE"), "r");
  if (!file) abort();
  gpu_count = process_count = xid_count = arch_count = is_mute = 0;
  while (fgets(line, sizeof line, file)) {
    Gpu *gpu = &gpus[gpu_count];
    unsigned minor, pid;
    unsigned long long used;
    int fields = sscanf(line, "gpu %u %79s %31s %llu %llu %15s", &gpu->minor, gpu->uuid, gpu->address, &gpu->total,
                        &gpu->used, lost);
    if (fields >= 5) { gpu->end = fields == 6 ? lost[0] : 0; gpu_count++; }
    else if (sscanf(line, "process %u %u %llu", &minor, &pid, &used) == 3) {
      processes[process_count].minor = minor;
      processes[process_count++].process = (Process){pid, used, ~0u, ~0u};
    }
    else if (sscanf(line, "xid %u %llu", &xids[xid_count].minor, &xids[xid_count].number) == 2) xid_count++;
    else if (sscanf(line, "arch %u %d %d", &minor, &archs[arch_count].major, &archs[arch_count].rest) == 3)
      archs[arch_count++].minor = minor;
    else if (!strncmp(line, "mute", 4)) is_mute = 1;
  }
  fclose(file);
}

int nvmlInit_v2(void) {
  if (!getenv("FAKE_NVML_STATE")) return UNKNOWN;
  opened++;
  return SUCCESS;
}
const char *nvmlErrorString(int code) { return code == UNKNOWN ? "Unknown Error" : "another error"; }
int nvmlShutdown(void) { opened--; return SUCCESS; }
unsigned fakeOpened(void) { return opened; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) {
  look();
  *count = gpu_count;
  return is_mute ? UNKNOWN : SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
  *gpu = &gpus[index];
  return gpus[index].end == 'g' ? LOST : gpus[index].end == 'h' ? NO_PERMISSION : SUCCESS;
}
int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) { *minor = gpu->minor; return SUCCESS; }
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) { snprintf(text, size, "%s", gpu->uuid); return SUCCESS; }
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) { snprintf(text, size, "Fake GPU"); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->id_text, sizeof pci->id_text, "%s", gpu->address);
  return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *rest) {
  *major = 9, *rest = 0;
  for (unsigned i = 0; i < arch_count; i++)
    if (archs[i].minor == gpu->minor) { *major = archs[i].major; *rest = archs[i].rest; }
  return *major ? SUCCESS : UNKNOWN;
}
int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending) {
  *current = gpu->end == 'm';
  *pending = 0;
  return SUCCESS;
}
int nvmlDeviceGetMemoryInfo_v2(Gpu *gpu, Memory *memory) {
  look();
  if (memory->version != (sizeof(Memory) | 2u << 24)) return 25;
  if (gpu->end == 'l') return LOST;
  memory->total = gpu->total;
  memory->reserved = 512;
  memory->used = gpu->used;
  memory->free = gpu->total - gpu->used;
  return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, Process *found) {
  unsigned mine = 0, room = *count;
  look();
  for (unsigned i = 0; i < process_count; i++)
    if (processes[i].minor == gpu->minor) { if (mine < room) found[mine] = processes[i].process; mine++; }
  *count = mine;
  return mine > room ? TOO_SMALL : SUCCESS;
}
int nvmlEventSetCreate(Events **set) {
  look();
  reported_xids = xid_count;
  event_sets++;
  *set = calloc(1, sizeof **set);
  return SUCCESS;
}
int nvmlEventSetFree(Events *set) { event_sets--; free(set); return SUCCESS; }
unsigned fakeEventSets(void) { return event_sets; }
int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long kinds, Events *set) {
  if (kinds != 8) return INVALID;
  set->watched |= 1u << gpu->minor;
  return SUCCESS;
}
int nvmlEventSetWait_v2(Events *set, Event *event, unsigned timeout_ms) {
  look();
  while (reported_xids < xid_count) {
    unsigned minor = xids[reported_xids].minor;
    unsigned long long number = xids[reported_xids++].number;
    for (unsigned i = 0; i < gpu_count; i++)
      if (gpus[i].minor == minor && set->watched >> minor & 1) {
        *event = (Event){&gpus[i], 8, number, ~0u, ~0u};
        return SUCCESS;
      }
  }
  return TIMEOUT;
}
"""


class FakeMachine:
    """The answers of the library: two GPUs with 100 GiB each, whose nodes are nvidia4 and nvidia5."""

    def __init__(self, file: Path) -> None:
        """Begin with GPUs that no process uses; `file` is the one that `STATE_VARIABLE` names."""
        self._file = file
        self.set()

    def set(
        self,
        *used_gib: float,
        processes: Sequence[tuple[int, int, float | None]] = (),
        end: str = "",
        lines: Sequence[str] = (),
    ) -> None:
        """Replace all answers: the used memory of each GPU, how the GPUs have ended, and other lines of the file.

        A process is its GPU's minor number, its own number, and the GiB that it uses; None if they are not reported.
        """
        used = [*used_gib, 0, 0]
        content = [
            f"gpu {4 + i} GPU-{name} 00000000:{address}:00.0 {100 * _GIB} {int(used[i] * _GIB)} {end}"
            for i, (name, address) in enumerate((("four", "3b"), ("five", "1A")))
        ]
        content += [f"process {minor} {pid} {-1 if gib is None else int(gib * _GIB)}" for minor, pid, gib in processes]
        # Replaced in one step: the library may be reading.
        new = self._file.with_suffix(".new")
        new.write_text("\n".join([*content, *lines]), encoding="ascii")
        new.replace(self._file)


def build_fake_nvml(folder: Path, *, lacking: Sequence[str] = ()) -> Path:
    """Compile the library, without the functions in `lacking`, and return its file. Skips without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source, library = folder / "fake_nvml.c", folder / "libfake-nvml.so"
    source.write_text(_SOURCE, encoding="ascii")
    flags = ["-shared", "-fPIC", "-Wall", *(f"-D{function}=absent_{function}" for function in lacking)]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True, timeout=60)
    return library

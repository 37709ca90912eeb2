"""A management library that tells what a test wrote into a file: real C, with the names and structs of the real one.

gpu MINOR UUID ADDRESS TOTAL_BYTES USED_BYTES [lost|gone]      gone: lost before anybody asked
process MINOR PID USED_BYTES
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["STATE_VARIABLE", "build_fake_nvml"]

# Where the library finds the file.
STATE_VARIABLE = "FAKE_NVML_STATE"

_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, TOO_SMALL = 7, LOST = 15, UNKNOWN = 999 };
typedef struct { unsigned minor; char uuid[80], address[32]; unsigned long long total, used; char end; } Gpu;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } Process;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory;
typedef struct { char old_id[16]; unsigned domain, bus, device, id, subsystem; char id_text[32]; } Pci;

static Gpu gpus[16];
static unsigned gpu_count;
static struct { unsigned minor; Process process; } processes[64];
static unsigned process_count;

/* Everything again at every question: the test changes it meanwhile. */
static void look(void) {
  char line[256], lost[16];
  FILE *file = fopen(getenv("FAKE_NVML_STATE"), "r");
  if (!file) abort();
  gpu_count = process_count = 0;
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
  }
  fclose(file);
}

int nvmlInit_v2(void) { return getenv("FAKE_NVML_STATE") ? SUCCESS : UNKNOWN; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { snprintf(text, size, "580.65.06"); return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { look(); *count = gpu_count; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu) {
  *gpu = &gpus[index];
  return gpus[index].end == 'g' ? LOST : SUCCESS;
}
int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor) { *minor = gpu->minor; return SUCCESS; }
int nvmlDeviceGetUUID(Gpu *gpu, char *text, unsigned size) { snprintf(text, size, "%s", gpu->uuid); return SUCCESS; }
int nvmlDeviceGetName(Gpu *gpu, char *text, unsigned size) { snprintf(text, size, "Fake GPU"); return SUCCESS; }
int nvmlDeviceGetPciInfo_v3(Gpu *gpu, Pci *pci) {
  memset(pci, 0, sizeof *pci);
  snprintf(pci->id_text, sizeof pci->id_text, "%s", gpu->address);
  return SUCCESS;
}
#ifndef OLD
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
#endif
int nvmlDeviceGetTopologyCommonAncestor(Gpu *one, Gpu *other, int *level) { *level = 10; return SUCCESS; }
"""


def build_fake_nvml(folder: Path, *, old: bool = False) -> Path | None:
    """Compile the library.

    Args:
        folder: Where to.
        old: Without what drivers before 2022 do not have.

    Returns:
        Its file; None if this machine has no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    source, library = folder / "fake_nvml.c", folder / "libfake-nvml.so"
    source.write_text(_SOURCE, encoding="ascii")
    flags = ["-shared", "-fPIC", "-Wall", *(["-DOLD"] if old else [])]
    subprocess.run([compiler, *flags, "-o", str(library), str(source)], check=True, timeout=60)
    return library

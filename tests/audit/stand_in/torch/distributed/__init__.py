"""Has the functions of `distributed_c10d`, as torch's own package does."""

from torch.distributed.distributed_c10d import (  # noqa: F401
    barrier,
    destroy_process_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
)

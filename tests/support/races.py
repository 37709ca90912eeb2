"""Tests that pass as long as one rank is faster than another one by chance: each has one race."""

# Each waits for what another rank has done long before, on any machine that is not stopped in between.
RACES = """
    import os
    import tempfile
    import time
    from datetime import timedelta

    import pytest
    import torch
    import torch.distributed as dist

    _WHILE_S = 0.085
    marked = pytest.mark.distributed(world_size=3)


    @pytest.fixture
    def file(world):
        # The ranks of a world share this folder, and no other world has it.
        return os.path.join(tempfile.gettempdir(), "file")


    def tell(world, to):
        dist.send(torch.ones(3), to)


    def hear(world, source):
        dist.recv(torch.ones(3), source)


    @marked
    def test_key_is_set_in_time(world):
        dist.barrier()
        if world.rank == 0:
            tell(world, 2)
            world.store.set("key", "1")
        elif world.rank == 2:
            hear(world, 0)
        else:
            time.sleep(_WHILE_S)
            assert world.store.check(["key"])


    @marked
    def test_lines_are_in_order(world, file):
        group = dist.new_group([0, 2])
        if world.rank == 1:
            time.sleep(_WHILE_S)
        else:
            dist.all_reduce(torch.ones(3), group=group)
        if world.rank != 2:
            with open(file, "a") as lines:
                lines.write(f"{world.rank}")
        dist.barrier()
        assert open(file).read() == "01"


    @marked
    def test_first_message_is_of_rank_1(world):
        if world.rank == 2:
            time.sleep(_WHILE_S)
        if world.rank:
            tell(world, 0)
        else:
            tensor = torch.ones(3)
            assert [dist.recv(tensor), dist.recv(tensor)] == [1, 2]


    @marked
    def test_result_is_there_without_a_wait(world):
        tensor = torch.ones(3)
        dist.barrier()
        work = dist.all_reduce(tensor, async_op=True)
        if world.rank == 0:
            time.sleep(_WHILE_S)
            assert tensor[0] == 3
        work.wait()


    @marked
    def test_file_is_read_before_it_is_removed(world, file):
        if world.rank == 0:
            open(file, "w").close()
        dist.barrier()
        if world.rank == 0:
            time.sleep(_WHILE_S)
            os.remove(file)
        elif world.rank == 1:
            hear(world, 2)
            assert os.path.exists(file)
        else:
            tell(world, 1)


    @marked
    def test_all_meet_in_time(world):
        group = dist.new_group([1, 2])
        if world.rank == 0:
            # monitored_barrier is no call that is delayed.
            time.sleep(_WHILE_S / 6)
        else:
            dist.broadcast(torch.ones(3), 1, group=group)
        dist.monitored_barrier(timeout=timedelta(seconds=_WHILE_S))
"""

// Several tasks of a kernel in one launch: block i executes the tasks i, i + blocks, ... Blocks do
// not wait for each other, and each task has the parameters of a launch of one. In a launch with two
// dimensions, the second one counts the tasks, and the first one the blocks that share each.
#pragma once

#include "mp_wire.hpp"

namespace mp {

// libmp/src/kernels/tasks.rs writes the same layout.
template <class Task, u32 Capacity>
struct Tasks {
    u32 count;
    u32 reserved;
    Task task[Capacity];
};

// Calls `run` with the tasks of this block.
template <auto run, class Task, u32 Capacity>
GDS_DEVICE void run_all(const Tasks<Task, Capacity>& p) {
    GDS_NO_UNROLL
    for (u32 i = blockIdx.x; i < p.count; i += gridDim.x) run(p.task[i]);
}

// As `run_all`, in a launch with two dimensions.
template <auto run, class Task, u32 Capacity>
GDS_DEVICE void share_all(const Tasks<Task, Capacity>& p) {
    GDS_NO_UNROLL
    for (u32 i = blockIdx.y; i < p.count; i += gridDim.y) run(p.task[i]);
}

}  // namespace mp

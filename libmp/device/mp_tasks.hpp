// Several tasks of a kernel in one launch: block i executes the tasks i, i + blocks, ... Blocks do
// not wait for each other, and a task is that of a launch of its own.
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

}  // namespace mp

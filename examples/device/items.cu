// Items that one rank writes and another checks: any number of blocks and threads.
#include "gds_device.hpp"

namespace examples {

// The same layout stands in examples/src/items.rs.
struct Item {
    gds::u64* words;
    gds::u64 count;
    gds::u64 number;  // of the item
    gds::u64* found;  // two counts: words compared, words that differ
};

static_assert(sizeof(Item) == 32, "layout");

// The word at place i of an item.
GDS_DEVICE gds::u64 item_word(gds::u64 number, gds::u64 i) {
    return (number + 1) * 0x9e3779b97f4a7c15ull + i;
}

// The words of a thread: the first, and the distance to the next.
GDS_DEVICE gds::u64 item_first() {
    return static_cast<gds::u64>(blockIdx.x) * blockDim.x + threadIdx.x;
}

GDS_DEVICE gds::u64 item_step() { return static_cast<gds::u64>(gridDim.x) * blockDim.x; }

}  // namespace examples

GDS_KERNEL(examples_item_write, examples::Item, p) {
    const gds::u64 step = examples::item_step();
    for (gds::u64 i = examples::item_first(); i < p.count; i += step)
        p.words[i] = examples::item_word(p.number, i);
}

GDS_KERNEL(examples_item_check, examples::Item, p) {
    const gds::u64 step = examples::item_step();
    gds::u64 compared = 0, differ = 0;
    for (gds::u64 i = examples::item_first(); i < p.count; i += step) {
        compared += 1;
        differ += p.words[i] != examples::item_word(p.number, i);
    }
    if (compared != 0) atomicAdd(p.found, compared);
    if (differ != 0) atomicAdd(p.found + 1, differ);
}

// The kernels of halo2d: one step of the stencil, away from the edge of a tile and along it, and
// copies of rows and columns. Any number of blocks and threads.
//
// A field has `pitch` words a row; its tile begins at column 1 of row 1, and around the tile lies
// a ring of one cell, the halo: what the neighbours have there.
#include "gds_device.hpp"

namespace examples {

using gds::u32;
using gds::u64;

// The layouts of Step, Strip and Move stand in examples/src/kernels.rs too.
struct Step {
    const u64* from;  // the field before
    u64* to;          // the field after
    u32 pitch;
    u32 width;        // of the tile, in cells
    u32 height;
    u32 reserved;
};

// Cells that lie `step` words apart.
struct Strip {
    const u64* from;
    u64* to;
    u32 from_step;
    u32 to_step;
    u64 cells;
};

constexpr u32 kStrips = 4;

struct Move {
    Strip strip[kStrips];
    u64 count;  // strips in use, from the first
};

static_assert(sizeof(Step) == 32 && sizeof(Strip) == 32 && sizeof(Move) == 136, "layout");

struct Share {
    u32 first, step;
};

GDS_DEVICE Share share() {
    return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
}

// What a cell becomes; `rule` in examples/src/kernels.rs is the same.
GDS_DEVICE u64 rule(u64 centre, u64 north, u64 south, u64 west, u64 east) {
    u64 x = centre * 0x9e3779b97f4a7c15ull + north * 0xbf58476d1ce4e5b9ull + south * 0x94d049bb133111ebull +
            west * 0xd6e8feb86659fd93ull + east * 0xff51afd7ed558ccdull;
    x ^= x >> 29;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 32);
}

// Steps the cell in this column and row of the field, which is inside the ring.
GDS_DEVICE void step_cell(const Step& p, u32 column, u32 row) {
    const u64 pitch = p.pitch;
    const u64 at = row * pitch + column;
    const u64* f = p.from;
    p.to[at] = rule(f[at], f[at - pitch], f[at + pitch], f[at - 1], f[at + 1]);
}

}  // namespace examples

// The cells that have no neighbour in the halo.
GDS_KERNEL(examples_halo2d_interior, examples::Step, p) {
    if (p.width < 3 || p.height < 3) return;
    const examples::u32 width = p.width - 2;
    const examples::u32 cells = width * (p.height - 2);
    const examples::Share mine = examples::share();
    for (examples::u32 i = mine.first; i < cells; i += mine.step) {
        examples::step_cell(p, 2 + i % width, 2 + i / width);
    }
}

// The others: the first and the last row, and what is left of the first and the last column.
GDS_KERNEL(examples_halo2d_boundary, examples::Step, p) {
    const examples::u32 rows = p.height > 1 ? 2 * p.width : p.width;
    const examples::u32 sides = p.width > 1 ? 2 : 1;
    const examples::u32 cells = rows + (p.height > 2 ? sides * (p.height - 2) : 0);
    const examples::Share mine = examples::share();
    for (examples::u32 i = mine.first; i < cells; i += mine.step) {
        if (i < rows) {
            examples::step_cell(p, 1 + i % p.width, i < p.width ? 1 : p.height);
        } else {
            const examples::u32 j = i - rows;
            examples::step_cell(p, j % sides == 0 ? 1 : p.width, 2 + j / sides);
        }
    }
}

// Copies strips, which do not overlap.
GDS_KERNEL(examples_halo2d_move, examples::Move, p) {
    const examples::Share mine = examples::share();
    for (examples::u64 s = 0; s < p.count; s++) {
        const examples::Strip& strip = p.strip[s];
        for (examples::u64 i = mine.first; i < strip.cells; i += mine.step) {
            strip.to[i * strip.to_step] = strip.from[i * strip.from_step];
        }
    }
}

// The kernels of halo3d: one step of a stencil of 27 points over two fields. Any number of blocks
// and threads. A field has a layer of halo cells around the cells of the rank.
#include "gds_device.hpp"

namespace halo3d {

using gds::u32;
using gds::u64;

// The layout stands in src/lib.rs too.
struct Step {
    u64* now[2];   // the fields
    u64* next[2];  // their next state
    u32 size[3];   // cells of the rank along each axis, without the halo
    u32 edge;      // whether the step is that of the cells beside the halo, or that of the others
};

static_assert(sizeof(Step) == 48, "layout");

struct Place {
    u32 at;  // index in a field
    bool edge;
};

GDS_DEVICE u32 cells_of(const Step& p) { return p.size[0] * p.size[1] * p.size[2]; }

// The cell of the rank with this number.
GDS_DEVICE Place place(const Step& p, u32 cell) {
    const u32 x = cell % p.size[0] + 1;
    const u32 y = cell / p.size[0] % p.size[1] + 1;
    const u32 z = cell / p.size[0] / p.size[1] + 1;
    const bool low = x == 1 || y == 1 || z == 1;
    const bool edge = low || x == p.size[0] || y == p.size[1] || z == p.size[2];
    return {(z * (p.size[1] + 2) + y) * (p.size[0] + 2) + x, edge};
}

// The next value of a cell of a field; `rule` in src/lib.rs is the same.
GDS_DEVICE u64 rule(const u64* field, u64 other, u32 at, u32 row, u32 plane) {
    u64 sum = other;
    for (u32 n = 0; n < 27; n++) {
        const u64 value = field[at + n % 3 + n / 3 % 3 * row + n / 9 * plane - (1 + row + plane)];
        sum = (sum ^ value) * 0x9e3779b97f4a7c15ull + n;
    }
    return sum ^ (sum >> 29);
}

}  // namespace halo3d

// Computes the next state of the cells beside the halo, or of the others.
GDS_KERNEL(halo3d_step, halo3d::Step, p) {
    using namespace halo3d;
    const u32 row = p.size[0] + 2, plane = row * (p.size[1] + 2);
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 cell = first; cell < cells_of(p); cell += gridDim.x * blockDim.x) {
        const Place here = place(p, cell);
        if (here.edge != (p.edge != 0)) continue;
        p.next[0][here.at] = rule(p.now[0], p.now[1][here.at], here.at, row, plane);
        p.next[1][here.at] = rule(p.now[1], p.now[0][here.at], here.at, row, plane);
    }
}

// Copies the next state of all cells to the fields.
GDS_KERNEL(halo3d_keep, halo3d::Step, p) {
    using namespace halo3d;
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x;
    for (u32 cell = first; cell < cells_of(p); cell += gridDim.x * blockDim.x) {
        const u32 at = place(p, cell).at;
        p.now[0][at] = p.next[0][at];
        p.now[1][at] = p.next[1][at];
    }
}

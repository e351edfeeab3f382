// The kernels of particles: one step of a Lennard-Jones fluid in cells. Any number of blocks and
// threads.
//
// Positions, velocities and forces are integers, and every sum is a sum of integers. Its result
// does not depend on the order of its terms, so it does not depend on the order of particles in a
// cell, on the order of atomics, or on the number of ranks. A position is a fraction of the box in
// units of 2^-64: arithmetic that wraps is the periodic box.
//
// A rank has `own` cells along each axis and a layer of halo cells on either side. A particle that
// leaves the rank is put into a halo cell. The message to the neighbour contains that layer and the
// layer next to it: particles of the first become the neighbour's, those of the second its halo.
#include "gds_device.hpp"

namespace particles {

using gds::u32;
using gds::u64;
using i64 = long long;

// The layouts stand in src/kernels.rs too.
constexpr u32 kCapacity = 32;           // particles of a cell
constexpr double kEnergy = 68719476736; // units of energy in 1, 2^36
constexpr u64 kCellFull = 1, kTooFast = 2, kMessageFailed = 4;

struct Particle {
    u64 at[3];
    i64 velocity[3];  // per step
    u32 id;
    u32 cell;  // in a message: where the receiver puts it
};

struct Cells {
    u32* counts;
    Particle* slots;  // kCapacity of each cell
};

struct Space {
    u32 own[3];
    u32 whole[3];  // cells of all ranks
    u64* fault;
};

// Sums over the particles of all ranks, modulo 2^64.
struct Totals {
    u64 count, momentum[3], kinetic, potential;
};

static_assert(sizeof(Particle) == 56 && sizeof(Space) == 32 && sizeof(Totals) == 48, "layout");

struct Advance {
    Space space;
    Cells from, to;     // `to` is empty
    const i64* kicks;   // of the slots of `from`
    u64* lengths;       // of the six messages
};

struct Pack {
    Space space;
    Cells cells;
    Particle* out[2];  // towards lower and towards higher coordinates
    u64* lengths;      // two, in bytes
    u32 own, stride;   // along the axis
};

struct Unpack {
    Space space;
    Cells cells;
    const Particle* in[2];
    const u64* results[2];  // of the receives: status and length
};

struct Force {
    Space space;
    Cells cells;
    u32* empty;      // counts to set to 0
    i64* kicks;      // of the slots of `cells`
    Totals* totals;  // null: no sums
    u64 kick;        // whether velocities change
    double unit[3], kick_unit[3], speed_unit[3];
    double cutoff2, a, b;
};

static_assert(sizeof(Advance) == 80 && sizeof(Pack) == 80 && sizeof(Unpack) == 80, "layout");
static_assert(sizeof(Force) == 176, "layout");

struct Share {
    u32 first, step;
};

GDS_DEVICE Share share() {
    return {blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x};
}

GDS_DEVICE u32 cells_of(const Space& space) {
    return (space.own[0] + 2) * (space.own[1] + 2) * (space.own[2] + 2);
}

GDS_DEVICE bool is_own(u32 place, u32 own) { return place - 1 < own; }

GDS_DEVICE bool is_own(const Space& space, u32 cell) {
    const u32 x = space.own[0] + 2, y = space.own[1] + 2;
    return is_own(cell % x, space.own[0]) && is_own(cell / x % y, space.own[1]) &&
           is_own(cell / x / y, space.own[2]);
}

GDS_DEVICE u32 count_of(const Cells& cells, u32 cell) {
    const u32 count = cells.counts[cell];
    return count < kCapacity ? count : kCapacity;
}

GDS_DEVICE void insert(const Space& space, const Cells& cells, u32 cell, const Particle& particle) {
    const u32 slot = atomicAdd(&cells.counts[cell], 1u);
    if (slot < kCapacity) {
        cells.slots[cell * kCapacity + slot] = particle;
    } else {
        atomicOr(space.fault, kCellFull);
    }
}

// The cell of a coordinate along an axis of the whole box.
GDS_DEVICE u32 cell_at(u64 at, u32 cells) { return static_cast<u32>((at >> 32) * cells >> 32); }

// Moves a coordinate; returns how many cells it moved, plus 1: 0, 1 or 2 if it is not too fast.
GDS_DEVICE u32 move(u64& at, i64 velocity, u32 cells) {
    const u32 before = cell_at(at, cells);
    at += static_cast<u64>(velocity);
    return (cell_at(at, cells) + cells + 1 - before) % cells;
}

// A product that is rounded by itself, so that a GPU gets the same bits as the CPU.
GDS_DEVICE double mul(double a, double b) {
#if defined(GDS_CUDA)
    return __dmul_rn(a, b);
#elif defined(GDS_HIP)
#pragma clang fp contract(off)
    return a * b;
#else
    return a * b;
#endif
}

GDS_DEVICE double square(double x, double y, double z) { return mul(x, x) + mul(y, y) + mul(z, z); }

}  // namespace particles

// The first half of the kick, and the drift, from one set of cells to the other.
GDS_KERNEL(particles_advance, particles::Advance, p) {
    using namespace particles;
    const Share mine = share();
    for (u32 i = mine.first; i < 6; i += mine.step) p.lengths[i] = 0;
    const u32 x = p.space.own[0] + 2, y = p.space.own[1] + 2;
    for (u32 i = mine.first; i < cells_of(p.space) * kCapacity; i += mine.step) {
        const u32 cell = i / kCapacity;
        if (!is_own(p.space, cell) || i % kCapacity >= count_of(p.from, cell)) continue;
        Particle particle = p.from.slots[i];
        u32 moved[3];
        for (u32 k = 0; k < 3; k++) {
            particle.velocity[k] += p.kicks[3 * i + k];
            moved[k] = move(particle.at[k], particle.velocity[k], p.space.whole[k]);
        }
        if (moved[0] > 2 || moved[1] > 2 || moved[2] > 2) {
            atomicOr(p.space.fault, kTooFast);
            continue;
        }
        const u32 to = cell + moved[0] + moved[1] * x + moved[2] * x * y - (1 + x + x * y);
        insert(p.space, p.to, to, particle);
    }
}

// Copies the two outer layers of either side of an axis into messages. A word counts the bytes of a
// message, and the send takes the length from the word.
GDS_KERNEL(particles_pack, particles::Pack, p) {
    using namespace particles;
    const Share mine = share();
    for (u32 i = mine.first; i < cells_of(p.space) * kCapacity; i += mine.step) {
        const u32 cell = i / kCapacity;
        const u32 place = cell / p.stride % (p.own + 2);
        const bool lower = place < 2;
        if ((!lower && place < p.own) || i % kCapacity >= count_of(p.cells, cell)) continue;
        Particle particle = p.cells.slots[i];
        const u32 across = p.own * p.stride;
        particle.cell = lower ? cell + across : cell - across;
        const u64 at = atomicAdd(&p.lengths[lower ? 0 : 1], static_cast<u64>(sizeof particle));
        (lower ? p.out[0] : p.out[1])[at / sizeof particle] = particle;
    }
}

// Puts the particles of two messages into their cells. The result of a receive has the length.
GDS_KERNEL(particles_unpack, particles::Unpack, p) {
    using namespace particles;
    const Share mine = share();
    for (u32 side = 0; side < 2; side++) {
        const u64 result = gds::load_acquire_sys(side == 0 ? p.results[0] : p.results[1]);
        const Particle* in = side == 0 ? p.in[0] : p.in[1];
        if (result >> 48 != 1) {
            if (mine.first == 0) atomicOr(p.space.fault, kMessageFailed);
            continue;
        }
        const u32 count = static_cast<u32>((result & 0xffffffffffffull) / sizeof(Particle));
        for (u32 i = mine.first; i < count; i += mine.step) {
            insert(p.space, p.cells, in[i].cell, in[i]);
        }
    }
}

// The forces on this rank's particles, the second half of the kick, and the sums.
GDS_KERNEL(particles_force, particles::Force, p) {
    using namespace particles;
    const Share mine = share();
    const u32 x = p.space.own[0] + 2, y = p.space.own[1] + 2;
    for (u32 i = mine.first; i < cells_of(p.space); i += mine.step) p.empty[i] = 0;
    Totals sums = {};
    for (u32 i = mine.first; i < cells_of(p.space) * kCapacity; i += mine.step) {
        const u32 cell = i / kCapacity;
        if (!is_own(p.space, cell) || i % kCapacity >= count_of(p.cells, cell)) continue;
        Particle& particle = p.cells.slots[i];
        const u64 at0 = particle.at[0], at1 = particle.at[1], at2 = particle.at[2];
        i64 kick0 = 0, kick1 = 0, kick2 = 0, potential = 0;
        for (u32 n = 0; n < 27; n++) {
            const u32 other = cell + n % 3 + n / 3 % 3 * x + n / 9 * x * y - (1 + x + x * y);
            const u32 count = count_of(p.cells, other);
            for (u32 slot = other * kCapacity; slot < other * kCapacity + count; slot++) {
                if (slot == i) continue;
                const Particle& q = p.cells.slots[slot];
                const double r0 = static_cast<double>(static_cast<i64>(at0 - q.at[0])) * p.unit[0];
                const double r1 = static_cast<double>(static_cast<i64>(at1 - q.at[1])) * p.unit[1];
                const double r2 = static_cast<double>(static_cast<i64>(at2 - q.at[2])) * p.unit[2];
                const double square_r = square(r0, r1, r2);
                if (square_r >= p.cutoff2) continue;
                const double s = 1 / square_r;
                const double s3 = mul(mul(s, s), s);
                const double f = mul(mul(s3, s), mul(48, s3) - 24) - 8 * p.a;
                const double v = mul(s3, s3 - 1) + mul(p.a, square_r) + p.b;
                // Rounded to 0, so that the kick of one particle is minus that of the other.
                kick0 += static_cast<i64>(mul(mul(f, r0), p.kick_unit[0]));
                kick1 += static_cast<i64>(mul(mul(f, r1), p.kick_unit[1]));
                kick2 += static_cast<i64>(mul(mul(f, r2), p.kick_unit[2]));
                potential += static_cast<i64>(mul(v, 2 * kEnergy));
            }
        }
        p.kicks[3 * i] = kick0;
        p.kicks[3 * i + 1] = kick1;
        p.kicks[3 * i + 2] = kick2;
        if (p.kick != 0) {
            particle.velocity[0] += kick0;
            particle.velocity[1] += kick1;
            particle.velocity[2] += kick2;
        }
        const double v0 = mul(static_cast<double>(particle.velocity[0]), p.speed_unit[0]);
        const double v1 = mul(static_cast<double>(particle.velocity[1]), p.speed_unit[1]);
        const double v2 = mul(static_cast<double>(particle.velocity[2]), p.speed_unit[2]);
        sums.count++;
        sums.momentum[0] += static_cast<u64>(particle.velocity[0]);
        sums.momentum[1] += static_cast<u64>(particle.velocity[1]);
        sums.momentum[2] += static_cast<u64>(particle.velocity[2]);
        sums.kinetic += static_cast<u64>(static_cast<i64>(mul(square(v0, v1, v2), kEnergy / 2)));
        sums.potential += static_cast<u64>(potential);
    }
    if (p.totals == nullptr || sums.count == 0) return;
    atomicAdd(&p.totals->count, sums.count);
    for (u32 k = 0; k < 3; k++) atomicAdd(&p.totals->momentum[k], sums.momentum[k]);
    atomicAdd(&p.totals->kinetic, sums.kinetic);
    atomicAdd(&p.totals->potential, sums.potential);
}

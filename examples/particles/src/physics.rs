//! The physics: units, the potential, the initial state, and the serial run of the whole box.
//!
//! The unit of length is the diameter of a particle, the unit of energy the depth of the potential,
//! and the mass of a particle is 1. The potential is that of Lennard-Jones, with a term in r² and a
//! constant, so that force and potential are 0 at the cutoff (Stoddard and Ford, 1973). The kernels
//! compute with the same integers and the same floating-point operations as the serial run here;
//! `device/particles.cu` explains the integers.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::Grid;

/// Length of a cell's edge and of the cutoff.
const EDGE: f64 = 2.4;
/// A step of time.
const STEP: f64 = 0.0005;
/// The flow of the whole fluid through the box, and the largest thermal velocity along an axis.
const FLOW: [f64; 3] = [1.0, 0.5, -0.25];
const THERMAL: f64 = 1.0;
/// Particles along a cell's edge at the start.
const SITES: u32 = 2;
/// Units of energy in 1, for sums of integers.
pub const ENERGY: f64 = (1_u64 << 36) as f64;

/// A particle, as in the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Particle {
    /// Position: a fraction of the box along each axis, in units of 2^-64.
    pub at: [u64; 3],
    /// Change of the position per step.
    pub velocity: [i64; 3],
    /// Its number.
    pub id: u32,
    /// In a message: the cell of the receiver.
    pub cell: u32,
}

/// Sums over particles, modulo 2^64, as in the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable)]
#[repr(C)]
pub struct Totals {
    /// Particles.
    pub count: u64,
    /// Sum of the velocities.
    pub momentum: [u64; 3],
    /// Kinetic energy in units of 1 / [`ENERGY`].
    pub kinetic: u64,
    /// Potential energy in the same unit.
    pub potential: u64,
}

impl Totals {
    /// Adds other sums.
    pub fn add(&mut self, other: &Totals) {
        let mine = self.momentum.iter_mut().zip(other.momentum);
        mine.for_each(|(sum, more)| *sum = sum.wrapping_add(more));
        self.count = self.count.wrapping_add(other.count);
        self.kinetic = self.kinetic.wrapping_add(other.kinetic);
        self.potential = self.potential.wrapping_add(other.potential);
    }

    /// Kinetic and potential energy.
    pub fn energy(&self) -> f64 {
        self.kinetic.wrapping_add(self.potential) as i64 as f64 / ENERGY
    }
}

/// The numbers that the equations of motion need, as in the kernels.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub struct Physics {
    /// Length of one unit of position.
    unit: [f64; 3],
    /// Change of velocity, in units, by a force of 1 in half a step.
    kick_unit: [f64; 3],
    /// Velocity of one unit of position per step.
    speed_unit: [f64; 3],
    /// The square of the cutoff.
    cutoff2: f64,
    /// The factor of r² and the constant in a quarter of the potential.
    a: f64,
    b: f64,
}

impl Physics {
    /// The physics of a box of so many cells.
    pub fn new(cells: Grid) -> Physics {
        let unit = cells.0.map(|n| f64::from(n) * EDGE / 2_f64.powi(64));
        let (c6, c12) = (EDGE.powi(-6), EDGE.powi(-12));
        Physics {
            unit,
            kick_unit: unit.map(|unit| STEP * STEP / 2.0 / unit),
            speed_unit: unit.map(|unit| unit / STEP),
            cutoff2: EDGE * EDGE,
            a: (6.0 * c12 - 3.0 * c6) / (EDGE * EDGE),
            b: 4.0 * c6 - 7.0 * c12,
        }
    }

    /// The change of velocity of a particle by another one, and half their potential energy.
    fn pair(&self, one: &Particle, other: &Particle) -> Option<([i64; 3], i64)> {
        let distance =
            |k: usize| one.at[k].wrapping_sub(other.at[k]).cast_signed() as f64 * self.unit[k];
        let r = [distance(0), distance(1), distance(2)];
        let r2 = r[0] * r[0] + r[1] * r[1] + r[2] * r[2];
        if r2 >= self.cutoff2 {
            return None;
        }
        let s = 1.0 / r2;
        let s3 = s * s * s;
        let f = s3 * s * (48.0 * s3 - 24.0) - 8.0 * self.a;
        let v = s3 * (s3 - 1.0) + self.a * r2 + self.b;
        let kick = |k: usize| (f * r[k] * self.kick_unit[k]) as i64;
        Some(([kick(0), kick(1), kick(2)], (v * (2.0 * ENERGY)) as i64))
    }
}

/// The cell of a position in a box of so many cells.
pub fn cell_of(at: [u64; 3], cells: Grid) -> [u32; 3] {
    std::array::from_fn(|k| (((at[k] >> 32) * u64::from(cells.0[k])) >> 32) as u32)
}

/// The particles at the start, by their numbers: a cubic lattice, disturbed, that flows through the
/// box.
pub fn initial(cells: Grid, seed: u64) -> Vec<Particle> {
    let physics = Physics::new(cells);
    let sites = cells.0.map(|n| n * SITES);
    let all = sites.iter().product();
    let particle = |id: u32| {
        let place = Grid(sites).place(id);
        let random = |n: u64| mix(seed ^ mix(u64::from(id) * 6 + n)).cast_signed();
        let at = |k: usize| {
            let spacing = u64::MAX / u64::from(sites[k]);
            let jitter = random(k as u64) / (20 * i64::from(sites[k]));
            (u64::from(place[k]) * spacing).wrapping_add_signed(jitter)
        };
        let velocity = |k: usize| {
            let thermal = THERMAL * (random(3 + k as u64) as f64 / 2_f64.powi(63));
            ((FLOW[k] + thermal) / physics.speed_unit[k]) as i64
        };
        Particle {
            at: std::array::from_fn(at),
            velocity: std::array::from_fn(velocity),
            id,
            cell: 0,
        }
    };
    (0..all).map(particle).collect()
}

/// The whole box after so many steps, by one CPU thread: the particles by their numbers, and their
/// sums.
pub fn serial(cells: Grid, seed: u64, steps: u64) -> (Vec<Particle>, Totals) {
    let physics = Physics::new(cells);
    let mut particles = initial(cells, seed);
    let mut forces = forces(&physics, cells, &particles);
    for _ in 0..steps {
        for (particle, (kick, _)) in particles.iter_mut().zip(&forces) {
            (0..3).for_each(|k| {
                particle.velocity[k] += kick[k];
                particle.at[k] = particle.at[k].wrapping_add_signed(particle.velocity[k]);
            });
        }
        forces = self::forces(&physics, cells, &particles);
        for (particle, (kick, _)) in particles.iter_mut().zip(&forces) {
            (0..3).for_each(|k| particle.velocity[k] += kick[k]);
        }
    }
    let mut totals = Totals::default();
    for (particle, (_, potential)) in particles.iter().zip(&forces) {
        let speed = |k: usize| particle.velocity[k] as f64 * physics.speed_unit[k];
        let square = speed(0) * speed(0) + speed(1) * speed(1) + speed(2) * speed(2);
        totals.add(&Totals {
            count: 1,
            momentum: particle.velocity.map(i64::cast_unsigned),
            kinetic: ((square * (ENERGY / 2.0)) as i64).cast_unsigned(),
            potential: potential.cast_unsigned(),
        });
    }
    (particles, totals)
}

/// The change of each particle's velocity in half a step, and its potential energy.
fn forces(physics: &Physics, cells: Grid, particles: &[Particle]) -> Vec<([i64; 3], i64)> {
    let [x, y, z] = cells.0;
    let index = |c: [u32; 3]| (((c[2] % z) * y + c[1] % y) * x + c[0] % x) as usize;
    let mut members = vec![Vec::new(); (x * y * z) as usize];
    for particle in particles {
        members[index(cell_of(particle.at, cells))].push(particle);
    }
    let force = |one: &Particle| {
        let [i, j, k] = cell_of(one.at, cells);
        let near = (0..27).map(|n| [i + x + n % 3 - 1, j + y + n / 3 % 3 - 1, k + z + n / 9 - 1]);
        let others = near.flat_map(|cell| &members[index(cell)]);
        let mut sum = ([0; 3], 0);
        for other in others.filter(|other| other.id != one.id) {
            if let Some((kick, potential)) = physics.pair(one, other) {
                (0..3).for_each(|k| sum.0[k] += kick[k]);
                sum.1 += potential;
            }
        }
        sum
    };
    particles.iter().map(force).collect()
}

/// Mixes the bits of a number (SplitMix64).
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: Grid = Grid([4, 4, 4]);

    #[test]
    fn kicks_of_a_pair_are_opposite_in_every_bit() {
        let physics = Physics::new(CELLS);
        let particles = initial(CELLS, 1);
        let mut pairs = 0;
        for (i, one) in particles.iter().enumerate() {
            for other in &particles[..i] {
                let (here, there) = (physics.pair(one, other), physics.pair(other, one));
                assert_eq!(here.is_some(), there.is_some());
                if let (Some((here, a)), Some((there, b))) = (here, there) {
                    assert_eq!((here, a), (there.map(|kick| -kick), b));
                    pairs += 1;
                }
            }
        }
        assert!(pairs > particles.len(), "{pairs}");
    }

    /// Force and potential are continuous at the cutoff, and the force is the derivative of the
    /// potential.
    #[test]
    fn force_is_the_derivative_of_the_potential() {
        let physics = Physics::new(CELLS);
        let at = |r: f64| Particle {
            at: [(r / physics.unit[0]) as u64, 0, 0],
            ..Particle::default()
        };
        let origin = Particle::default();
        let pair = |r: f64| physics.pair(&at(r), &origin);
        let potential = |r: f64| pair(r).unwrap().1 as f64 / ENERGY * 2.0;
        for r in [0.9, 1.0, 1.2, 1.7, 2.3] {
            let force = pair(r).unwrap().0[0] as f64 / physics.kick_unit[0];
            let slope = (potential(r + 1e-4) - potential(r - 1e-4)) / 2e-4;
            assert!(
                (force + slope).abs() < 1e-4 * force.abs().max(1.0),
                "{r}: {force} {slope}"
            );
        }
        assert!(potential(EDGE - 1e-9).abs() < 1e-9);
        assert!(pair(EDGE + 1e-9).is_none());
    }

    /// The fluid flows: many particles change their cell, so ranks exchange them.
    #[test]
    fn particles_migrate_between_cells() {
        let (start, (end, _)) = (initial(CELLS, 1), serial(CELLS, 1, 100));
        let migrated =
            |(a, b): &(&Particle, &Particle)| cell_of(a.at, CELLS) != cell_of(b.at, CELLS);
        let migrated = start.iter().zip(&end).filter(migrated).count();
        assert!(migrated > 50, "{migrated}");
    }
}

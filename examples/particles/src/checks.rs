//! The result of a run over all ranks, and its checks: the number of particles, momentum, energy,
//! and the comparison with the serial run.

use std::time::Duration;

use mp::{Context, Op, Result};

use crate::config::Config;
use crate::physics::{Particle, Totals, mix, serial};
use crate::run::End;

/// The largest change of the energy, relative to its value at the start.
pub const ENERGY_LIMIT: f64 = 2e-6;
/// The largest difference from the serial run: of a position, relative to the box, and of the
/// energy.
pub const SERIAL_LIMIT: f64 = 1e-12;

/// The result of a run over all ranks; it is the same in each of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Particles that there should be.
    pub particles: u64,
    /// The sums over all particles: at the start, during the run, and at the end.
    pub totals: Vec<Totals>,
    /// A sum of hashes of all particles at the end. It does not depend on the number of ranks.
    pub checksum: u64,
    /// Particles that differ in any bit from the serial run.
    pub differing: u64,
    /// The largest difference of a position from the serial run, relative to the box.
    pub farthest: f64,
    /// The energy at the end of the serial run, if there was one.
    pub serial_energy: Option<f64>,
    /// Time of the steps, of the slowest rank.
    pub elapsed: Duration,
}

impl Outcome {
    /// Compares the particles of this rank with the serial run, and adds up the results of all
    /// ranks.
    pub(crate) fn new(ctx: &Context, config: &Config, end: &End) -> Result<Outcome> {
        let (mut differing, mut farthest, mut expected) = (0, 0.0_f64, None);
        if config.serial {
            let (right, totals) = serial(config.cells, config.seed, config.steps);
            for particle in &end.particles {
                let right = right.get(particle.id as usize).copied().unwrap_or_default();
                differing += u64::from(hash(particle) != hash(&right));
                farthest = farthest.max(distance(particle, &right));
            }
            expected = Some(totals);
        }
        let hashes = end.particles.iter().map(hash);
        let checksum = hashes.fold(0, u64::wrapping_add);
        // Maxima first, then sums; a number that is not negative has the order of its bits.
        let mut words = vec![
            farthest.to_bits(),
            end.elapsed.as_nanos() as u64,
            checksum,
            differing,
        ];
        words.extend(end.totals.iter().flat_map(|t| {
            let [x, y, z] = t.momentum;
            [t.count, x, y, z, t.kinetic, t.potential]
        }));
        reduce(ctx, &mut words, config.limit)?;
        let totals = |t: &[u64]| Totals {
            count: t[0],
            momentum: [t[1], t[2], t[3]],
            kinetic: t[4],
            potential: t[5],
        };
        let totals: Vec<Totals> = words[4..].chunks_exact(6).map(totals).collect();
        Ok(Outcome {
            particles: u64::from(config.cells.product().unwrap_or(0)) * 8,
            checksum: words[2],
            differing: words[3],
            farthest: f64::from_bits(words[0]),
            serial_energy: expected.map(|right: Totals| right.energy()),
            elapsed: Duration::from_nanos(words[1]),
            totals,
        })
    }

    /// The largest change of the energy during the run, relative to its value at the start.
    pub fn drift(&self) -> f64 {
        let start = self.totals[0].energy();
        let changes = self
            .totals
            .iter()
            .map(|t| ((t.energy() - start) / start).abs());
        changes.fold(0.0, f64::max)
    }

    /// Whether no particle was lost or doubled at any time.
    pub fn count_is_exact(&self) -> bool {
        self.totals.iter().all(|t| t.count == self.particles)
    }

    /// Whether the momentum never changed. Each kick is the negative of another one, and sums of
    /// integers have no rounding, so not even the last bit may change.
    pub fn momentum_is_exact(&self) -> bool {
        let first = &self.totals[0];
        self.totals.iter().all(|t| t.momentum == first.momentum)
    }

    /// The checks that failed, as sentences; none if the run is right.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let mut check = |right: bool, what: &str| {
            if !right {
                failures.push(what.to_owned());
            }
        };
        check(self.count_is_exact(), "particles were lost or doubled");
        check(self.momentum_is_exact(), "the momentum changed");
        let drift = self.drift();
        let what = format!("the energy changed by {drift:.1e} (limit {ENERGY_LIMIT:.0e})");
        check(drift <= ENERGY_LIMIT, &what);
        let far = self.farthest;
        let what = format!("a position differs by {far:.1e} from the serial run");
        check(far <= SERIAL_LIMIT, &what);
        if let (Some(right), Some(end)) = (self.serial_energy, self.totals.last()) {
            let off = ((end.energy() - right) / right).abs();
            let what = format!("the energy differs by {off:.1e} from the serial run");
            check(off <= SERIAL_LIMIT, &what);
        }
        failures
    }
}

fn hash(particle: &Particle) -> u64 {
    let words = particle
        .at
        .into_iter()
        .chain(particle.velocity.map(i64::cast_unsigned));
    words.fold(mix(u64::from(particle.id)), |hash, word| mix(hash ^ word))
}

/// The largest difference of the two positions along an axis, relative to the box.
fn distance(a: &Particle, b: &Particle) -> f64 {
    let along = |k: usize| a.at[k].wrapping_sub(b.at[k]).cast_signed().unsigned_abs();
    let most = along(0).max(along(1)).max(along(2));
    most as f64 / 2_f64.powi(64)
}

/// Reduces `words` over all ranks: the first two are maxima, the others sums modulo 2^64.
fn reduce(ctx: &Context, words: &mut [u64], limit: Duration) -> Result<()> {
    let mut all = ctx.collectives(size_of_val(words))?;
    let (most, sums) = words.split_at_mut(2);
    all.all_reduce(most, Op::Max, limit)?;
    all.all_reduce(sums, Op::Sum, limit)?;
    // Then all ranks have the sums, and the object may be dropped.
    all.barrier(limit)
}

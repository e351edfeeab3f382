//! What every byte must be when a program is over.

use gdsync::gpu::Region;

use super::{FILL, Play, SEEN, SLOT, TAKEN, seeds};
use crate::hardware::program::draw::{GUARD, Words};
use crate::live::rig::expected;
use crate::live::verdict::{Verdict, ensure};

impl Play<'_> {
    /// Compares what is there in the end with what the program says.
    pub(super) fn judge(&mut self, words: &Words) -> Verdict {
        self.finding.clean("in the end")?;
        let hazards = self.settings.hazards.is_some();
        for (i, step) in self.steps.iter().enumerate() {
            let stride = if hazards { SLOT } else { SEEN };
            let mut want = match step.operation.is_atomic() {
                true => step.old.to_le_bytes().to_vec(),
                false => expected(seeds(i).0, step.len),
            };
            match hazards {
                true => want.resize(step.len + GUARD, FILL),
                false => want.truncate(SEEN),
            }
            let landing = self.landing(i);
            if landing.is_some() {
                let seen = read(&self.seen, i * stride, want.len())?;
                same(&seen, &want, || {
                    format!("message {i} as it was seen, {step:?}")
                })?;
            }
            if !hazards {
                continue;
            }
            // Whatever came twice, or late, lies on top; elsewhere nothing does.
            want.fill(TAKEN);
            want.resize(SLOT, FILL);
            let untouched = vec![FILL; SLOT];
            let [_, received, written] = self.places(i);
            for (side, at) in [(0, received), (0, written), (1, received), (1, written)] {
                let here = landing == Some((side, at));
                let want = if here { &want } else { &untouched };
                let now = read(self.memory[side].region(), at, SLOT)?;
                same(&now, want, || format!("message {i} in the end, {step:?}"))?;
            }
        }
        for (at, want) in words.iter().enumerate() {
            for (which, want) in want.iter().enumerate() {
                let place = 3 * self.slots() * SLOT + 8 * which;
                let got = read(self.memory[at].region(), place, 8)?;
                ensure(got == want.to_le_bytes(), || {
                    format!("word {which} at {at}: {got:02x?} instead of {want:#x}")
                })?;
            }
        }
        Ok(())
    }
}

fn read(region: &Region, at: usize, len: usize) -> gdsync::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    region.read(at, &mut bytes)?;
    Ok(bytes)
}

fn same(got: &[u8], want: &[u8], what: impl Fn() -> String) -> Verdict {
    match got.iter().zip(want).position(|(g, w)| g != w) {
        None => Ok(()),
        Some(at) => {
            let (what, g, w) = (what(), got[at], want[at]);
            Err(format!("{what}: byte {at} is {g:#04x} instead of {w:#04x}").into())
        }
    }
}

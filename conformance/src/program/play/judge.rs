//! The expected value of every byte when a program is over.

use gdsync::gpu::Region;

use super::{FILL, Play, SEEN, TAKEN, seeds};
use crate::program::draw::GUARD;
use crate::rig::expected;
use crate::rig::verdict::Verdict;

impl Play<'_> {
    /// Compares the memory at the end with the program.
    pub(super) fn judge(&mut self) -> Verdict {
        self.finding.clean("in the end")?;
        let hazards = self.settings.hazards();
        let room = self.program.room;
        for (i, step) in self.steps.iter().enumerate() {
            let slot = self.program.slots[i];
            let seen = if hazards { slot } else { i * SEEN };
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
                let seen = read(&self.seen, seen, want.len())?;
                same(&seen, &want, || {
                    format!("message {i} as it was seen, {step:?}")
                })?;
            }
            if !hazards {
                continue;
            }
            // A message that arrived twice or late has overwritten these bytes.
            want.fill(TAKEN);
            let end = *self.program.slots.get(i + 1).unwrap_or(&room);
            want.resize(end - slot, FILL);
            let untouched = vec![FILL; end - slot];
            let [_, received, written] = self.places(i);
            for (side, memory) in &self.ends.memory {
                for at in [received, written] {
                    let here = landing == Some((*side, at));
                    let want = if here { &want } else { &untouched };
                    let now = read(memory.landing.region(), at, want.len())?;
                    same(&now, want, || format!("message {i} in the end, {step:?}"))?;
                }
            }
        }
        for (side, memory) in &self.ends.memory {
            let want = self.program.words[*side].as_flattened();
            let want: Vec<u8> = want.iter().flat_map(|word| word.to_le_bytes()).collect();
            let got = read(memory.source.region(), room, want.len())?;
            same(&got, &want, || format!("the words at {side}"))?;
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

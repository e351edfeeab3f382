//! Golden traces: the operations that a stream gets, one by one, for every descriptor and every
//! fall-back. The expected text is in `tests/golden/`; `GDS_BLESS=1` rewrites it, so that a change
//! of lowering is a readable diff.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::{Watch, cuda, renumber};

/// The GPU's own tracer.
struct Traced;

impl Watch for Traced {
    fn start(&mut self, gpu: &Gpu) {
        gpu.capture_trace();
    }

    fn take(&mut self, gpu: &Gpu, streams: &[Stream; 2]) -> Vec<String> {
        let lines = gpu.take_trace();
        lines.iter().map(|line| renumber(line, streams)).collect()
    }

    fn expected(&self, golden: String) -> String {
        golden
    }
}

/// A soft GPU with these capabilities.
fn soft(caps: Caps) -> (Gpu, Box<dyn Watch>) {
    let options = SoftOptions::default().caps(caps);
    (common::soft(options), Box::new(Traced))
}

#[test]
fn every_program_has_its_trace() {
    for program in golden_rig::programs() {
        program.run(&soft);
    }
}

/// Without a NIC no agent can flush. A flush is then an error and is never omitted.
#[test]
fn flush_without_a_nic_is_refused() {
    for host_flush in [false, true] {
        let caps = cuda().flush(false).host_flush(host_flush);
        let (gpu, _) = soft(caps);
        let stream = gpu.stream().unwrap();
        let flush = || post_on(&stream, &mut [], &[Descriptor::Flush]);
        assert_eq!(kind(flush()), Some(Kind::Unsupported));
        let device = Device::emulated(&gpu).unwrap();
        flush().unwrap();
        passes(&stream);
        drop(device);
        assert_eq!(kind(flush()), Some(Kind::Unsupported));
    }
}

#[test]
fn a_long_list_is_cut_between_groups() {
    for limit in [3, 8, 255] {
        golden_rig::long_list(&soft, limit);
    }
}

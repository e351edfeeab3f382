//! Golden traces: what this design hands to a stream, operation by operation, for every
//! descriptor and every fall-back. The expected text lies in `tests/golden/`; `GDS_BLESS=1`
//! writes it anew, so that a change of lowering is a diff of text to be read.

mod common;
#[path = "common/golden_rig.rs"]
mod golden_rig;

use common::*;
use gdsync::gpu::Caps;
use golden_rig::{Watch, by_kernel, by_proxy, cuda, renumber, small};

/// The GPU's own tracer.
struct Traced;

impl Watch for Traced {
    fn start(&mut self, gpu: &Gpu) {
        gpu.tracer().capture();
    }

    fn take(&mut self, gpu: &Gpu, streams: &[Stream; 2]) -> Vec<String> {
        let lines = gpu.tracer().take();
        lines.iter().map(|line| renumber(line, streams)).collect()
    }

    fn expected(&self, golden: String) -> String {
        golden
    }
}

/// A soft GPU that can do this.
fn soft(caps: Caps) -> (Gpu, Box<dyn Watch>) {
    let options = SoftOptions {
        caps,
        ..SoftOptions::default()
    };
    (common::soft(options), Box::new(Traced))
}

plain_cases! {
    a_message_in_each_lap_as_on_cuda => golden_rig::laps("laps-cuda", &soft, cuda(), small());
    a_message_in_each_lap_with_masked_waits_as_on_hip => {
        let caps = Caps {mask: true, nor: false, ..cuda() };
        golden_rig::laps("laps-mask", &soft, caps, small());
    };
    a_message_in_each_lap_without_nor => {
        let caps = Caps { nor: false, ..cuda() };
        golden_rig::laps("laps-no-nor", &soft, caps, small());
    };
    a_message_in_each_lap_without_64_bits => {
        let caps = Caps { memops64: false, ..cuda() };
        golden_rig::laps("laps-32-bit", &soft, caps, small());
    };
    a_message_in_each_lap_by_kernel => golden_rig::laps("laps-kernel", &soft, cuda(), by_kernel());
    a_message_in_each_lap_by_proxy => golden_rig::laps("laps-proxy", &soft, cuda(), by_proxy());
    flushes => golden_rig::flushes("flushes", &soft, cuda(), small());
    aborts_holes_patches_and_time_limits =>
        golden_rig::aborts_holes_patches_and_time_limits(&soft);
}

#[test]
fn a_change_of_stream() {
    golden_rig::edges("edges-ring", &soft, small());
    golden_rig::edges("edges-kernel", &soft, by_kernel());
    golden_rig::edges("edges-proxy", &soft, by_proxy());
}

/// By the CPU, that the stream asks by a word.
#[test]
fn flushes_by_the_cpu() {
    let caps = Caps {
        flush: false,
        ..cuda()
    };
    golden_rig::flushes("flushes-host", &soft, caps, small());
    golden_rig::flushes("flushes-host-kernel", &soft, caps, by_kernel());
}

/// By a READ of the NIC's, that the stream rings for.
#[test]
fn flushes_by_the_nic() {
    let caps = Caps {
        flush: false,
        host_flush: false,
        ..cuda()
    };
    golden_rig::flushes("flushes-read", &soft, caps, small());
    golden_rig::flushes("flushes-read-kernel", &soft, caps, by_kernel());
}

/// Without a NIC there is nobody to flush, and that is never silently left out.
#[test]
fn a_flush_by_nobody_is_refused() {
    for host_flush in [false, true] {
        let caps = Caps {
            flush: false,
            host_flush,
            ..cuda()
        };
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

/// Every word operation, on a runtime with everything and on the barest one.
#[test]
fn word_operations() {
    let full = Caps {
        inline_copy: true,
        mask: true,
        ..cuda()
    };
    let bare = Caps {
        memops64: false,
        nor: false,
        fence: false,
        ..cuda()
    };
    golden_rig::words("words-full", &soft, full);
    golden_rig::words("words-cuda", &soft, cuda());
    golden_rig::words("words-bare", &soft, bare);
}

#[test]
fn a_long_list_is_cut_between_groups() {
    for limit in [3, 8, 255] {
        golden_rig::long_list(&soft, limit);
    }
}

#[test]
fn sends_in_a_row_ring_once() {
    golden_rig::row("row-memops", &soft, Lowering::MemOps);
    golden_rig::row("row-kernel", &soft, Lowering::Kernel);
}

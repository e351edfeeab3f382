//! Device memory that GDRCopy maps for the CPU, by stand-ins for it and for libcuda: queues are in
//! the GPU then, and no copy engine is used.

mod common;
#[path = "common/shim.rs"]
mod shim;
mod standin;

use std::path::Path;

use common::*;
use standin::{Control, Variant, inside};

/// The stand-in for libgdrapi, built once.
fn gdrapi() -> &'static str {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../base/gdrcopy-sys/tests/standin.c");
    let library = match std::env::var("GDS_GDRAPI_LIB") {
        // The processes of the tests only load it.
        Ok(library) => library,
        Err(_) => {
            let arguments = &["-O1", "-Wall", "-Werror", "-DBESIDE_CUDA"];
            let made = shim::compile("standin-libgdrapi.so", &source, arguments);
            made.to_str().unwrap().to_owned()
        }
    };
    Box::leak(library.into_boxed_str())
}

fn with_gdrcopy() -> Variant {
    Variant {
        env: Box::leak(Box::new([("GDS_GDRAPI_LIB", gdrapi())])),
        ..Variant::default()
    }
}

#[test]
fn queues_and_payload_are_in_the_gpu_and_no_copy_engine_is_used() {
    inside!(with_gdrcopy());
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::emulated(&gpu).unwrap().alloc_pd().unwrap();
    let memory = gpu.alloc(MemoryKind::Device, 4096).unwrap();
    memory.write(0, &[7; 64]).unwrap();
    let memory = pd.register(&memory, Access::ALL).unwrap();
    let stream = gpu.stream().unwrap();
    for lowering in [Lowering::MemOps, Lowering::Kernel] {
        let config = sized(&by(lowering, Doorbell::Direct), 8, 8)
            .ring_memory(MemoryKind::Device)
            .cq_memory(MemoryKind::Device)
            .record_memory(MemoryKind::Device);
        let (mut a, _b) = joined(&pd, &config);
        control.record(true);
        for i in 0..100u32 {
            memory.region().write(0, &i.to_le_bytes()).unwrap();
            let list = [memory.sge(0, 4)];
            let at = u64::from(i % 8) * 8 + 1024;
            let to = memory.remote().span(at, 4).unwrap();
            let send = a.signaled(&Work::write(&list, to));
            let list = [Descriptor::Send(send), Descriptor::wait_flushed(send)];
            a.post_on(&stream, &list).unwrap();
            passes(&stream);
            let got = memory.region().bytes(at as usize);
            assert_eq!(u32::from_le_bytes(got), i);
        }
        control.record(false);
        let calls = control.calls();
        assert!(calls.contains("cuLaunchKernel") == (lowering == Lowering::Kernel));
        assert!(!calls.contains("cuMemcpy"), "{calls}");
    }
}

#[test]
fn without_gdrcopy_queues_are_pinned_and_payload_goes_by_the_copy_engine() {
    inside!(Variant::env(&[("GDS_GDRAPI_LIB", "/nowhere/libgdrapi.so")]));
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let memory = gpu.alloc(MemoryKind::Device, 100).unwrap();
    control.record(true);
    let (mut got, want) = ([0; 97], std::array::from_fn::<u8, 97, _>(|i| i as u8));
    memory.write(3, &want).unwrap();
    memory.read(3, &mut got).unwrap();
    assert_eq!(got, want);
    let word = memory.word32(0).unwrap();
    word.store(0x1122_3344).unwrap();
    assert_eq!(word.load().unwrap(), 0x1122_3344);
    control.record(false);
    assert!(control.calls().contains("cuMemcpy"));
}

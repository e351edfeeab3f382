//! CUDA streams, by a stand-in for libcuda, that write the doorbells of a virtual ConnectX of
//! libmlx5.

mod common;
mod standin;
mod virtual_nic;

use common::*;
use standin::Control;
use virtual_nic::inside_with_cuda;

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn streams_ring_doorbells_that_are_registered_as_registers_of_a_device() {
    inside_with_cuda!();
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let device = Device::mlx5(&gpu).unwrap();
    let pd = device.alloc_pd().unwrap();
    let mut first = true;
    for (lowering, doorbell) in [
        (Lowering::MemOps, Doorbell::Direct),
        (Lowering::Kernel, Doorbell::Direct),
        (Lowering::MemOps, Doorbell::CpuThread),
    ] {
        let what = format!("{lowering:?} {doorbell:?}");
        let config = sized(&by(lowering, doorbell), 16, 16);
        control.record(first);
        let mut p = Pair::of_domain(&pd, &config);
        if first {
            // First as a register of a device, which this memory is not, and then as ordinary
            // memory.
            let calls = control.calls();
            let registered = calls.lines().filter(|l| l.contains("cuMemHostRegister"));
            assert!(registered.count() >= 2, "{calls}");
            control.record(false);
            first = false;
        }
        p.connect();
        let memory = p.memory(MemoryKind::Pinned, 8192);
        let region = memory.region();
        let stream = gpu.stream().unwrap();
        for round in 0..100_u8 {
            let len = [8, 64, 3000][usize::from(round) % 3];
            region.write(0, &vec![round; len]).unwrap();
            region.write(4096, &vec![!round; len]).unwrap();
            let recv = p.b.receive(&[memory.sge(4096, len as u32)]);
            let send = [memory.sge(0, len as u32)];
            p.a.start_on(&stream, &Work::send(&send));
            let wait = [Descriptor::wait_flushed(recv)];
            p.b.post_on(&stream, &wait).unwrap();
            finish(&stream, &what);
            assert_eq!(region.vec(4096, len), vec![round; len], "{what}");
        }
        assert_eq!((p.a.error(), p.b.error()), (None, None));
    }
}

/// A virtual NIC cannot map the dma-buf of this GPU: the memory is registered by its address, as
/// with a kernel module that resolves the address.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn gpu_memory_whose_dma_buf_is_refused_is_registered_by_its_address() {
    inside_with_cuda!();
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    for open in [Device::mlx5, Device::verbs] {
        let pd = open(&gpu).unwrap().alloc_pd().unwrap();
        let region = gpu.alloc(MemoryKind::Device, 8192).unwrap();
        control.record(true);
        let memory = pd.register(&region, Access::ALL).unwrap();
        control.record(false);
        assert!(control.calls().contains("cuMemGetHandleForAddressRange"));
        assert_eq!(memory.remote().addr, region.addr().0);
    }
}

/// Registrations reach only their own pages, so that small ones share the driver's units.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn small_registrations_share_the_units_of_the_driver() {
    inside_with_cuda!();
    let control = Control::open();
    let gpu = Gpu::cuda(0).unwrap();
    let pd = Device::mlx5(&gpu).unwrap().alloc_pd().unwrap();
    let before = control.live()["physical"];
    let registered: Vec<_> = (0..64)
        .map(|_| {
            let region = gpu.alloc(MemoryKind::Device, 64).unwrap();
            pd.register(&region, Access::ALL).unwrap()
        })
        .collect();
    let units = control.live()["physical"] - before;
    assert!(units <= 1, "{units} units for 64 registrations of 64 bytes");
    drop(registered);
    let again = gpu.alloc(MemoryKind::Device, 1 << 20).unwrap();
    assert!(
        control.live()["physical"] - before <= 1,
        "their pages are used again"
    );
    drop(again);
}

//! Memory: allocation, registration, import and export, deferred free, bounds, protection.

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::{Changed, rig, sync, unfenced64, wait32, wait64, weak, write32};
use softgpu::{Config, Error, Fault};

#[test]
fn memory_has_the_requested_length_and_is_zeroed() {
    let (_env, gpu) = rig(Config::default());
    for len in [1, 4096, 4097, 1 << 20] {
        let (dev, pin) = (
            gpu.alloc_device(len).unwrap(),
            gpu.alloc_pinned(len).unwrap(),
        );
        let view = dev.map_cpu();
        assert_eq!(
            [dev.len(), pin.len(), view.len(), dev.window().len()],
            [len; 4]
        );
        let mut got = vec![1; len];
        view.read(0, &mut got).unwrap();
        assert!(got.iter().all(|&b| b == 0));
        pin.window().read(0, &mut got).unwrap();
        assert!(got.iter().all(|&b| b == 0));
        assert_eq!(
            pin.addr().raw(),
            pin.as_ptr() as u64,
            "one address for both"
        );
        assert_ne!(dev.addr().raw(), view.as_ptr() as u64);
    }
    for len in [0, usize::MAX, isize::MAX as usize] {
        let bad = |e| matches!(e, Error::BadLength { .. });
        assert!(gpu.alloc_device(len).is_err_and(bad));
        assert!(gpu.alloc_pinned(len).is_err_and(bad));
    }
    let full = |e| matches!(e, Error::OutOfMemory { .. });
    assert!(gpu.alloc_pinned(1 << 60).is_err_and(full));
}

#[test]
fn windows_and_views_check_bounds_and_alignment() {
    for config in [Config::default(), weak(3)] {
        let (_env, gpu) = rig(config);
        let dev = gpu.alloc_device(100).unwrap();
        let (window, view) = (dev.window(), dev.map_cpu());
        let out = |offset, len| Fault {
            offset,
            len,
            limit: 100,
            misaligned: false,
        };
        let off = |offset, len| out(offset, len).changed(|f| f.misaligned = true);
        assert_eq!(window.write(99, &[1, 2]), Err(out(99, 2)));
        assert_eq!(window.read(u64::MAX, &mut [0; 4]), Err(out(u64::MAX, 4)));
        assert_eq!(window.store32(100, 1), Err(out(100, 4)));
        assert_eq!(window.store32(98, 1), Err(out(98, 4)));
        assert_eq!(window.store32(2, 1), Err(off(2, 4)));
        assert_eq!(window.load32(3), Err(off(3, 4)));
        assert_eq!(window.load64(4), Err(off(4, 8)));
        assert_eq!(window.swap64(96, 1), Err(out(96, 8)));
        assert_eq!(window.fetch_add64(12, 1), Err(off(12, 8)));
        assert_eq!(window.compare_swap64(104, 1, 2), Err(out(104, 8)));
        assert_eq!(view.load64(96), Err(out(96, 8)));
        assert_eq!(window.store32(96, 1), Ok(()));
        let mut all = [0; 100];
        window.read(0, &mut all).unwrap();
        assert_eq!(
            all.iter().map(|&b| u32::from(b)).sum::<u32>(),
            1,
            "nothing else was written"
        );
    }
}

#[test]
fn memory_is_registered_at_its_own_address_and_only_once() {
    let (_env, gpu) = rig(Config::default());
    let mut words = vec![0_u32; 64];
    let ptr: *mut u8 = words.as_mut_ptr().cast();
    // SAFETY: inside `words`, which outlives its use, as for all registrations here.
    let half = unsafe { gpu.register_host(ptr, 128, None) }.unwrap();
    // SAFETY: as above.
    let rest = unsafe { gpu.register_host(ptr.wrapping_add(128), 128, None) }.unwrap();
    // SAFETY: as above.
    let twice = unsafe { gpu.register_host(ptr.wrapping_add(120), 16, None) };
    assert_eq!(
        twice.unwrap_err(),
        Error::AlreadyRegistered {
            addr: ptr as usize + 120,
            len: 16
        }
    );
    // SAFETY: refused before anything is touched.
    assert!(unsafe { gpu.register_host(std::ptr::null_mut(), 16, None) }.is_err());
    // SAFETY: as above.
    assert!(unsafe { gpu.register_host(ptr, 0, None) }.is_err());
    let pin = gpu.alloc_pinned(64).unwrap();
    // SAFETY: as above.
    let known = unsafe { gpu.register_host(pin.as_ptr(), 4, None) };
    assert!(known.is_err(), "pinned memory is known already");

    let stream = gpu.stream().unwrap();
    assert_eq!(half.addr().raw(), ptr as u64);
    stream
        .submit([write32(half.addr() + 4, 5), write32(rest.addr(), 6)])
        .unwrap();
    let across = wait64(half.addr() + 124, 0);
    assert!(stream.submit([across]).is_err());
    assert!(
        stream.copy(pin.addr(), half.addr() + 100, 40).is_err(),
        "two registrations"
    );
    sync(&stream);
    drop((half, rest));
    assert!(
        stream
            .submit([write32(softgpu::DevAddr::from_raw(ptr as u64), 9)])
            .is_err()
    );
    // SAFETY: as above; the first registration is gone.
    assert!(unsafe { gpu.register_host(ptr, 256, None) }.is_ok());
    assert_eq!(words[1], 5);
    assert_eq!(words[32], 6);
}

#[test]
fn freed_memory_stays_until_earlier_operations_have_retired() {
    for config in [Config::default(), weak(9)] {
        let (env, gpu) = rig(config);
        let gate = gpu.alloc_pinned(8).unwrap();
        let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
        let mut words = Box::new([0_u64; 4]);
        let owner: Arc<()> = Arc::new(());
        // SAFETY: `words` outlives `owner`.
        let reg = unsafe {
            gpu.register_host(words.as_mut_ptr().cast(), 32, Some(Arc::clone(&owner) as _))
        }
        .unwrap();
        let addr = reg.addr();
        a.submit([wait32(gate.addr(), 1), unfenced64(addr, 7)])
            .unwrap();
        drop(reg);
        let gone = |e| matches!(e, Error::BadAddress { .. });
        assert!(a.submit([write32(addr, 1)]).is_err_and(gone));
        env.steps(100);
        assert_eq!(
            Arc::strong_count(&owner),
            2,
            "an operation may still touch it"
        );
        // Later operations of other streams do not delay the free.
        b.submit([wait32(gate.addr(), 2)]).unwrap();
        gate.window().store32(0, 1).unwrap();
        sync(&a);
        env.steps(10);
        assert_eq!(Arc::strong_count(&owner), 1, "nothing can touch it");
        assert_eq!(words[0], 7);
        gate.window().store32(0, 2).unwrap();
        sync(&b);
    }
}

#[test]
fn window_keeps_memory_alive_and_idle_gpu_frees_at_once() {
    let (env, gpu) = rig(Config::default());
    let stream = gpu.stream().unwrap();
    let dev = gpu.alloc_device(64).unwrap();
    let (addr, view) = (dev.addr(), dev.map_cpu());
    let probe = Probe(dev.export().unwrap());
    let window = dev.window();
    stream.submit([write32(addr, 3)]).unwrap();
    sync(&stream);
    drop(dev);
    env.steps(3);
    assert_eq!(window.load32(0), Ok(3));
    window.store32(4, 4).unwrap();
    assert_eq!(view.load32(4), Ok(4));
    assert!(stream.fill(addr, 1, 4).is_err());
    assert!(probe.mapped());
    drop(window);
    assert!(probe.mapped());
    drop(view);
    assert!(!probe.mapped());
}

#[test]
fn dropping_the_engine_frees_memory_of_pending_operations() {
    let (env, gpu) = rig(Config::default());
    let stream = gpu.stream().unwrap();
    let dev = gpu.alloc_device(64).unwrap();
    let probe = Probe(dev.export().unwrap());
    stream.submit([wait32(dev.addr(), 3)]).unwrap();
    env.settle();
    drop(dev);
    assert!(probe.mapped());
    env.drop_engines();
    assert!(!probe.mapped());
}

/// Whether a memory file is mapped, while other tests map other files. The file's number is unique
/// as long as a descriptor is open.
struct Probe(OwnedFd);

impl Probe {
    fn mapped(&self) -> bool {
        let number = format!(" {} ", rustix::fs::fstat(&self.0).unwrap().st_ino);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .any(|l| l.contains("memfd:softgpu") && l.contains(&number))
    }
}

#[test]
fn only_exported_memory_can_be_imported() {
    let (_env, gpu) = rig(Config::default());
    let dev = gpu.alloc_device(5000).unwrap();
    let refused = |fd, len| {
        let bad = |e| matches!(e, Error::BadImport { .. });
        assert!(gpu.import(fd, len).is_err_and(bad));
    };
    refused(dev.export().unwrap(), 8193);
    refused(std::fs::File::open("/proc/self/exe").unwrap().into(), 64);
    let loose = rustix::fs::memfd_create("loose", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, 4096).unwrap();
    refused(loose, 64);
    let twin = gpu.import(dev.export().unwrap(), 5000).unwrap();
    assert_ne!(twin.addr(), dev.addr());
    let stream = gpu.stream().unwrap();
    stream
        .submit([write32(twin.addr() + 4096, 8), wait32(dev.addr() + 4096, 8)])
        .unwrap();
    sync(&stream);
    drop(dev);
    assert_eq!(twin.window().load32(4096), Ok(8), "importers keep it");
}

/// The descriptor that the child of the next test inherits.
const CHILD_FD: &str = "SOFTGPU_TEST_FD";
const LEN: usize = 10_000;

#[test]
fn two_processes_share_device_memory() {
    let (env, gpu) = rig(Config::default());
    let dev = gpu.alloc_device(LEN).unwrap();
    let stream = gpu.stream().unwrap();
    let fd = dev.export().unwrap();
    rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "importing_process", "--ignored", "--nocapture"])
        .env(CHILD_FD, fd.as_raw_fd().to_string())
        .spawn()
        .unwrap();
    stream.fill(dev.addr() + 64, 0x5a, LEN - 64).unwrap();
    stream
        .submit([write32(dev.addr(), 1), wait32(dev.addr() + 4, 2)])
        .unwrap();
    // The other process runs in real time: no limit but its end.
    let status = loop {
        env.steps(10);
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_micros(100)),
        }
    };
    assert!(status.success());
    sync(&stream);
    let mut got = vec![0; LEN - 64];
    dev.map_cpu().read(64, &mut got).unwrap();
    assert!(
        got.iter().all(|&b| b == 0xa5),
        "what the other process wrote"
    );
}

#[test]
#[ignore = "the other process of two_processes_share_device_memory"]
fn importing_process() {
    let fd: i32 = std::env::var(CHILD_FD).unwrap().parse().unwrap();
    // SAFETY: the parent left it open for this process alone to own.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let (env, gpu) = rig(Config::default());
    let dev = gpu.import(fd, LEN).unwrap();
    let pin = gpu.alloc_pinned(LEN).unwrap();
    let stream = gpu.stream().unwrap();
    stream.submit([wait32(dev.addr(), 1)]).unwrap();
    stream.copy(pin.addr(), dev.addr() + 64, LEN - 64).unwrap();
    stream.fill(dev.addr() + 64, 0xa5, LEN - 64).unwrap();
    stream.submit([write32(dev.addr() + 4, 2)]).unwrap();
    while !stream.query() {
        if !env.step() {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let mut got = vec![0; LEN - 64];
    pin.window().read(0, &mut got).unwrap();
    assert!(
        got.iter().all(|&b| b == 0x5a),
        "what the first process wrote"
    );
}

const CHILD_ADDR: &str = "SOFTGPU_TEST_TOUCH";

/// If CPU and kernel have protection keys, a stray access ends the process. Without keys, or if
/// protection is disabled, the access succeeds. `protected` predicts the result.
#[test]
fn protected_predicts_the_result_of_a_stray_access() {
    for protect in ["yes", "no"] {
        let status = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "stray_access_of_device_memory",
                "--ignored",
                "--nocapture",
            ])
            .env(CHILD_ADDR, protect)
            .status()
            .unwrap();
        let (_env, gpu) = rig(Config::default().changed(|c| c.protect = protect == "yes"));
        let cpu_has_keys = std::fs::read_to_string("/proc/cpuinfo")
            .unwrap()
            .contains(" ospke");
        assert_eq!(gpu.protected(), protect == "yes" && cpu_has_keys);
        let died = std::os::unix::process::ExitStatusExt::signal(&status);
        assert_eq!(died.is_some(), gpu.protected(), "{status}");
        assert!(died.is_some() || status.success(), "{status}");
    }
}

#[test]
#[ignore = "the other process of protected_predicts_the_result_of_a_stray_access"]
fn stray_access_of_device_memory() {
    let protect = std::env::var(CHILD_ADDR).unwrap() == "yes";
    let (_env, gpu) = rig(Config::default().changed(|c| c.protect = protect));
    let dev = gpu.alloc_device(64).unwrap();
    let stray = dev.addr().raw() as *mut u32;
    // SAFETY: mapped, and no other thread accesses it; the test shows whether the access faults.
    unsafe { stray.write_volatile(1) };
    assert_eq!(dev.map_cpu().load32(0), Ok(1));
}

#[test]
fn memory_above_the_limit_is_refused_until_some_is_freed() {
    let (env, gpu) = rig(Config::default().changed(|c| c.memory = 3 * 4096));
    let full = |e: Error| matches!(e, Error::OutOfMemory { limit: 12288, .. });
    assert!(gpu.alloc_device(3 * 4096 + 1).is_err_and(full));
    assert!(gpu.alloc_pinned(usize::MAX - 4096).is_err());
    let (device, _pinned) = (
        gpu.alloc_device(4097).unwrap(),
        gpu.alloc_pinned(1).unwrap(),
    );
    assert!(gpu.alloc_device(1).is_err_and(full));
    assert!(gpu.alloc_pinned(1).is_err_and(full));
    // It counts as in use as long as an operation may access it.
    let gate = Box::leak(Box::new([0_u64; 8]));
    // SAFETY: never freed, and only accessed by the GPU and its window.
    let gate = unsafe { gpu.register_host(gate.as_mut_ptr().cast(), 64, None) }.unwrap();
    let stream = gpu.stream().unwrap();
    stream
        .submit([wait32(gate.addr(), 1), write32(device.addr(), 1)])
        .unwrap();
    drop(device);
    env.steps(10);
    assert!(gpu.alloc_device(1).is_err_and(full));
    gate.window().store32(0, 1).unwrap();
    sync(&stream);
    env.steps(10);
    gpu.alloc_device(8192).unwrap();
}

#[test]
fn owner_may_free_other_memory_when_dropped() {
    let (env, gpu) = rig(Config::default());
    let gate = gpu.alloc_pinned(8).unwrap();
    let stream = gpu.stream().unwrap();
    let words = Box::leak(Box::new([0_u64; 4]));
    let other = gpu.alloc_device(64).unwrap();
    stream.submit([wait32(gate.addr(), 1)]).unwrap();
    // SAFETY: never freed, and only accessed by the GPU.
    let reg = unsafe { gpu.register_host(words.as_mut_ptr().cast(), 32, Some(Arc::new(other))) };
    drop(reg.unwrap());
    gate.window().store32(0, 1).unwrap();
    sync(&stream);
    env.steps(10);
}

#[test]
fn released_memory_is_removed_at_once() {
    let (_env, gpu) = rig(Config::default());
    let gate = gpu.alloc_pinned(8).unwrap();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    let mut words = Box::new([0_u64; 4]);
    let owner: Arc<()> = Arc::new(());
    // SAFETY: `words` outlives `owner`.
    let reg =
        unsafe { gpu.register_host(words.as_mut_ptr().cast(), 32, Some(Arc::clone(&owner) as _)) }
            .unwrap();
    a.submit([wait32(gate.addr(), 1), write32(reg.addr(), 7)])
        .unwrap();
    let ends = gpu.ends();
    b.submit([wait32(gate.addr(), 2)]).unwrap();
    assert!(!ends.is_reached());
    gate.window().store32(0, 1).unwrap();
    sync(&a);
    assert!(
        ends.is_reached(),
        "later work of another stream does not count"
    );
    // SAFETY: its only operation has run.
    unsafe { reg.release() };
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(words[0], 7);
    gate.window().store32(0, 2).unwrap();
    sync(&b);
}

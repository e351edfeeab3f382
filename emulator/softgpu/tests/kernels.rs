//! Kernels on streams: order with other operations, faults, spinning, weak memory. The kernels
//! are written in Rust against the functions that the device headers call.

mod common;

use std::ffi::c_void;

use common::{Changed, rig, sync, unfenced32, wait32, weak, write32};
use softgpu::{
    Config, DevAddr, DeviceError, Dims, Error, Kernel, KernelFault, LaunchError, Stream,
};

unsafe extern "C" {
    fn softgpu_store32(p: *mut u32, value: u32);
    fn softgpu_store64(p: *mut u64, value: u64);
    fn softgpu_load32(p: *const u32) -> u32;
    fn softgpu_fence();
    fn softgpu_yield(reason: u32, deadline_ns: u64);
    fn softgpu_trap() -> !;
}

/// Parameters of all kernels here.
#[repr(C)]
struct Params {
    words: u64,
    value: u32,
    fence: u32,
}

impl Params {
    fn bytes(words: DevAddr, value: u32, fence: bool) -> Vec<u8> {
        let mut b = words.raw().to_ne_bytes().to_vec();
        b.extend(value.to_ne_bytes());
        b.extend(u32::from(fence).to_ne_bytes());
        b
    }
}

/// # Safety
/// Called as a kernel with [`Params`], as are all below.
unsafe fn params<'a>(p: *const c_void) -> (&'a Params, *mut u32) {
    // SAFETY: the launch gave as many bytes, aligned.
    let p = unsafe { &*p.cast::<Params>() };
    (p, p.words as *mut u32)
}

/// Adds to a word by plain accesses.
unsafe extern "C" fn add(p: *const c_void) {
    // SAFETY: a kernel with these parameters, and device memory is open to it.
    unsafe {
        let (p, words) = params(p);
        words.write_volatile(words.read_volatile() + p.value);
    }
}

/// Writes data, a flag, and a wide word, with or without a fence.
unsafe extern "C" fn publish(p: *const c_void) {
    // SAFETY: as above.
    unsafe {
        let (p, words) = params(p);
        softgpu_store32(words, p.value);
        assert_eq!(softgpu_load32(words), p.value);
        if p.fence != 0 {
            softgpu_fence();
        }
        softgpu_store64(words.add(2).cast(), u64::MAX);
        if p.fence != 0 {
            softgpu_fence();
        }
        softgpu_store32(words.add(1), p.value);
        // Other actors have time to check before the end of the kernel makes all writes visible.
        for _ in 0..4 {
            softgpu_yield(0, 0);
        }
    }
}

/// Spins until a word has a value, then writes the next.
unsafe extern "C" fn spin(p: *const c_void) {
    // SAFETY: as above.
    unsafe {
        let (p, words) = params(p);
        let mut again = 0;
        while softgpu_load32(words) != p.value {
            softgpu_yield(again, 0);
            again = 1;
        }
        softgpu_store32(words.add(1), p.value);
    }
}

unsafe extern "C" fn trap(_: *const c_void) {
    // SAFETY: a kernel.
    unsafe { softgpu_trap() }
}

const fn kernel(name: &'static str, entry: softgpu::Entry) -> Kernel {
    // SAFETY: the functions above take `Params`, throw nothing and hold nothing when suspended.
    unsafe { Kernel::new(name, entry, size_of::<Params>()) }
}

static ADD: Kernel = kernel("add", add);
static PUBLISH: Kernel = kernel("publish", publish);
static SPIN: Kernel = kernel("spin", spin);
static TRAP: Kernel = kernel("trap", trap);

fn one() -> Dims {
    Dims::linear(1, 1).unwrap()
}

fn launch(stream: &Stream, kernel: &Kernel, dims: Dims, args: (DevAddr, u32, bool)) {
    let bytes = Params::bytes(args.0, args.1, args.2);
    stream.launch(kernel, dims, &bytes).unwrap();
}

#[test]
fn kernels_run_in_stream_order_on_both_kinds_of_memory() {
    for config in [Config::default(), weak(4)] {
        let (_env, gpu) = rig(config);
        let (dev, pin) = (gpu.alloc_device(64).unwrap(), gpu.alloc_pinned(64).unwrap());
        let stream = gpu.stream().unwrap();
        let fresh = unfenced32(dev.addr(), 100);
        stream.submit([fresh]).unwrap();
        for _ in 0..300 {
            launch(&stream, &ADD, one(), (dev.addr(), 2, false));
        }
        stream.copy(pin.addr(), dev.addr(), 4).unwrap();
        let wide = Dims::linear(3, 5).unwrap();
        launch(&stream, &ADD, wide, (pin.addr(), 10, false));
        stream
            .submit([wait32(pin.addr(), 850), write32(pin.addr(), 1)])
            .unwrap();
        sync(&stream);
        assert_eq!(pin.window().load32(0), Ok(1));
    }
}

#[test]
fn arguments_of_another_size_are_refused() {
    let (_env, gpu) = rig(Config::default());
    let stream = gpu.stream().unwrap();
    let refused = LaunchError::ArgsLength {
        kernel: "add",
        want: 16,
        got: 3,
    };
    assert_eq!(
        stream.launch(&ADD, one(), &[1, 2, 3]),
        Err(Error::Launch(refused))
    );
    // SAFETY: never launched.
    let huge = unsafe { Kernel::new("huge", add, 5000) };
    let refused = LaunchError::ArgsTooLarge {
        kernel: "huge",
        want: 5000,
    };
    assert_eq!(
        stream.launch(&huge, one(), &[0; 5000]),
        Err(Error::Launch(refused))
    );
    assert!(stream.query());
}

#[test]
fn fault_stops_the_gpu_and_is_reported() {
    let (_env, gpu) = rig(Config::default().changed(|c| c.stream_bound = 2));
    let pin = gpu.alloc_pinned(64).unwrap();
    let (bad, other) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    other.submit([wait32(pin.addr(), 1)]).unwrap();
    other.submit([write32(pin.addr(), 2)]).unwrap();
    launch(&bad, &TRAP, one(), (pin.addr(), 0, false));
    // Blocked behind the full stream, until the GPU stops.
    let refused = other.submit([write32(pin.addr(), 3)]).unwrap_err();
    let error = gpu.last_error().unwrap();
    assert_eq!(refused, Error::Device(error.clone()));
    assert_eq!(error.stream, bad.id());
    assert!(matches!(
        error,
        DeviceError {
            fault: KernelFault::Thread { kernel: "trap", .. },
            ..
        }
    ));
    assert_eq!(bad.synchronize(None), Err(refused.clone()));
    assert_eq!(other.synchronize(None), Err(refused.clone()));
    assert_eq!(
        bad.copy(pin.addr(), pin.addr() + 8, 8),
        Err(refused.clone())
    );
    assert_eq!(gpu.stream().unwrap_err(), refused);
    assert!(refused.to_string().contains("trap"));
}

#[test]
fn spinning_kernel_holds_no_channel_and_others_run() {
    let (env, gpu) = rig(Config::default().changed(|c| c.channels = 1));
    let dev = gpu.alloc_device(64).unwrap();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    launch(&a, &SPIN, one(), (dev.addr(), 5, false));
    env.settle();
    assert_eq!(gpu.waiting_streams(), 0);
    assert!(!a.query());
    b.submit([write32(dev.addr(), 5)]).unwrap();
    sync(&a);
    assert_eq!(dev.window().load32(4), Ok(5));
}

#[test]
fn running_kernel_continues_while_waits_hold_every_channel() {
    let (env, gpu) = rig(Config::default().changed(|c| c.channels = 1));
    let dev = gpu.alloc_device(64).unwrap();
    let (a, b) = (gpu.stream().unwrap(), gpu.stream().unwrap());
    launch(&a, &SPIN, one(), (dev.addr(), 5, false));
    a.submit([write32(dev.addr() + 8, 1)]).unwrap();
    env.settle();
    b.submit([wait32(dev.addr() + 12, 1)]).unwrap();
    env.settle();
    assert_eq!(gpu.waiting_streams(), 1);
    let window = dev.window();
    window.store32(0, 5).unwrap();
    env.settle();
    assert_eq!(window.load32(4), Ok(5), "it was on the GPU already");
    assert_eq!(window.load32(8), Ok(0), "what follows it starts nothing");
    window.store32(12, 1).unwrap();
    sync(&a);
    assert_eq!(window.load32(8), Ok(1));
}

/// The number of seeds in which the flag is observed before the data, and the wide word torn.
fn seen(fence: bool) -> (u32, u32) {
    let (mut early, mut torn) = (0, 0);
    for seed in 0..200 {
        let (env, gpu) = rig(weak(seed));
        let dev = gpu.alloc_device(64).unwrap();
        let view = dev.map_cpu();
        let stream = gpu.stream().unwrap();
        launch(&stream, &PUBLISH, one(), (dev.addr(), 1, fence));
        let (mut was_early, mut was_torn) = (false, false);
        while !stream.query() {
            env.step();
            let [data, flag, low, high] = [0, 4, 8, 12].map(|at| view.load32(at).unwrap());
            was_early |= flag == 1 && data == 0;
            was_torn |= low != high;
        }
        assert_eq!(
            view.load64(8),
            Ok(u64::MAX),
            "a kernel's end makes all visible"
        );
        assert_eq!(view.load64(0), Ok(1 << 32 | 1));
        early += u32::from(was_early);
        torn += u32::from(was_torn);
    }
    (early, torn)
}

#[test]
fn stores_of_a_kernel_are_weak_unless_fenced() {
    let (early, torn) = seen(false);
    assert!(early > 5 && torn > 5, "{early} early, {torn} torn");
    assert_eq!(seen(true), (0, 0));
}

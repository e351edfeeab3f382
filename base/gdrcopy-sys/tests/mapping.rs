//! [`Gdr`] and [`Mapping`](gdrcopy_sys::Mapping) over a stand-in libgdrapi that the test compiles.
//! The stand-in's device memory is host memory. Each test has its own library.

#[path = "../../gdsync-sys/tests/shared/mod.rs"]
mod shared;

use gdrcopy_sys::ffi::{GPU_PAGE_SIZE, Gdrapi};
use gdrcopy_sys::{Gdr, GdrError, LoadError, MappingKind, Pin};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

gdsync_sys::dl_api! {
    /// The functions of the stand-in that libgdrapi does not have.
    struct Standin("stand-in") {
        sonames: ["none"],
        env: "GDSYNC_NOBODY_SETS_THIS",
        required {
            fn standin_device() -> *mut c_void;
            fn standin_fail(call: *const c_char, code: c_int);
            fn standin_opens() -> c_int;
            fn standin_pins() -> c_int;
            fn standin_maps() -> c_int;
            fn standin_collisions() -> c_int;
        }
        optional {}
    }
}

const PAGE: usize = GPU_PAGE_SIZE as usize;

struct Machine {
    api: &'static Gdrapi,
    standin: Standin,
}

fn library(name: &str, before: &str) -> PathBuf {
    let source = format!("{before}{}", include_str!("standin.c"));
    let name = format!("libgdrapi-{name}.so");
    shared::compile(Path::new(env!("CARGO_TARGET_TMPDIR")), &name, &source)
}

fn machine(name: &str, before: &str) -> Machine {
    let path = library(name, before);
    // SAFETY: the library was made above, with the tables' types.
    let (api, standin) = unsafe { (Gdrapi::load_from([&path]), Standin::load_from([&path])) };
    Machine {
        api: Box::leak(Box::new(api.expect("all is there"))),
        standin: standin.expect("all is there"),
    }
}

impl Machine {
    fn device(&self) -> *mut u8 {
        // SAFETY: makes the memory if it is not there.
        unsafe { (self.standin.standin_device)() }.cast()
    }

    fn fail(&self, call: &CStr, code: c_int) {
        // SAFETY: a C string, copied.
        unsafe { (self.standin.standin_fail)(call.as_ptr(), code) }
    }

    /// Open handles, pins, mappings.
    fn held(&self) -> (c_int, c_int, c_int) {
        // SAFETY: plain reads; no other thread calls the library now.
        unsafe {
            (
                (self.standin.standin_opens)(),
                (self.standin.standin_pins)(),
                (self.standin.standin_maps)(),
            )
        }
    }
}

#[test]
fn mapping_shows_device_memory_at_any_start_address() {
    let machine = machine("shows", "");
    let device = machine.device();
    let gdr = Gdr::open_with(machine.api).expect("it opens");
    assert_eq!(gdr.library_version(), (2, 6));
    assert_eq!(gdr.driver_version().expect("it is known"), (2, 5));

    // Aligned; in a page; across a page's end; several pages.
    for (start, len) in [(0, PAGE), (4096 + 8, 16), (2 * PAGE - 4, 8), (40, 3 * PAGE)] {
        let address = device as u64 + start as u64;
        // SAFETY: the memory lives as long as the library.
        let mapping = unsafe { gdr.map(address, len, Pin::Default) }.expect("it can be mapped");
        assert_eq!((mapping.address(), mapping.len()), (address, len));
        assert_eq!(mapping.kind(), MappingKind::WRITE_COMBINED);
        assert!(!mapping.is_empty() && !mapping.is_revoked().expect("it is known"));
        assert_ne!(mapping.as_ptr(), device.wrapping_add(start));

        // SAFETY: within the memory, which no other thread accesses now.
        unsafe {
            mapping.as_ptr().write_volatile(0x5a);
            assert_eq!(device.add(start).read_volatile(), 0x5a);
            device.add(start + len - 1).write_volatile(0xa5);
            assert_eq!(mapping.as_ptr().add(len - 1).read_volatile(), 0xa5);

            mapping.write(len - 4, &[1, 2, 3, 4]).expect("it fits");
            let mut seen = [0; 4];
            mapping.read(len - 4, &mut seen).expect("it fits");
            assert_eq!(seen, [1, 2, 3, 4]);
            assert_eq!(device.add(start + len - 3).read_volatile(), 2);
            for (offset, bytes) in [(len - 3, 4), (len + 1, 0), (usize::MAX, 2)] {
                let refused = mapping.write(offset, &vec![0; bytes]);
                assert!(matches!(refused, Err(GdrError::Bounds { .. })));
            }
        }
        assert_eq!(machine.held(), (1, 1, 1));
        mapping.close().expect("it is given back");
        assert_eq!(machine.held(), (1, 0, 0));
    }
}

#[test]
fn library_closes_with_the_last_clone_or_mapping() {
    let machine = machine("closes", "");
    let gdr = Gdr::open_with(machine.api).expect("it opens");
    let clone = gdr.clone();
    // SAFETY: the memory lives as long as the library.
    let mapping = unsafe { gdr.map(machine.device() as u64, 64, Pin::Default) };
    let mapping = mapping.expect("it can be mapped");
    drop((gdr, clone));
    assert_eq!(machine.held(), (1, 1, 1));
    drop(mapping);
    assert_eq!(machine.held(), (0, 0, 0));
}

#[test]
fn range_outside_device_memory_is_refused() {
    let machine = machine("refused", "");
    let gdr = Gdr::open_with(machine.api).expect("it opens");
    let end = machine.device() as u64 + 8 * GPU_PAGE_SIZE;
    // SAFETY: nothing is mapped.
    unsafe {
        let error = gdr.map(end - 8, 9, Pin::Default).expect_err("past the end");
        assert_eq!(
            error.to_string(),
            format!(
                "gdr_pin_buffer of 9 bytes of device memory at {:#x} failed: Invalid argument (os error 22)",
                end - 8
            )
        );
        for (address, len) in [(end - 8, 0), (u64::MAX, 2)] {
            let error = gdr.map(address, len, Pin::Default).expect_err("no range");
            assert!(matches!(error, GdrError::Range { .. }), "{error}");
        }
    }
    assert_eq!(machine.held(), (1, 0, 0));
}

#[test]
fn nothing_stays_pinned_after_an_error() {
    let machine = machine("undone", "");
    let gdr = Gdr::open_with(machine.api).expect("it opens");
    let address = machine.device() as u64;
    for (call, name) in [
        (c"pin", "gdr_pin_buffer"),
        (c"map", "gdr_map"),
        (c"info", "gdr_get_info_v2"),
    ] {
        machine.fail(call, libc::EAGAIN);
        // SAFETY: the memory lives as long as the library.
        let error = unsafe { gdr.map(address, 64, Pin::Default) }.expect_err("the stand-in fails");
        let GdrError::Memory { call, source, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(*call, name);
        assert_eq!(source.raw_os_error(), Some(libc::EAGAIN));
        assert_eq!(machine.held(), (1, 0, 0), "{name}");
    }
    machine.fail(c"elsewhere", 0);
    // SAFETY: as above.
    let error = unsafe { gdr.map(address, 64, Pin::Default) }.expect_err("the stand-in fails");
    assert!(matches!(error, GdrError::Mapped { .. }), "{error}");
    assert_eq!(machine.held(), (1, 0, 0));
}

#[test]
fn revoked_memory_and_failed_unmap_are_reported() {
    let machine = machine("revoked", "");
    let gdr = Gdr::open_with(machine.api).expect("it opens");
    // SAFETY: the memory lives as long as the library.
    let mapping = unsafe { gdr.map(machine.device() as u64, 64, Pin::Default) };
    let mapping = mapping.expect("it can be mapped");
    machine.fail(c"revoked", 0);
    assert!(mapping.is_revoked().expect("it is known"));
    machine.fail(c"unmap", -libc::EINVAL);
    let error = mapping.close().expect_err("the stand-in fails");
    assert!(
        matches!(&error, GdrError::Memory { call: "gdr_unmap", source, .. }
            if source.raw_os_error() == Some(libc::EINVAL)),
        "{error}"
    );
    assert_eq!(machine.held().1, 0, "unpinned all the same");
}

#[test]
fn failed_open_reports_its_reason() {
    let machine = machine("closed", "");
    machine.fail(c"open", libc::ENOENT);
    let error = Gdr::open_with(machine.api).expect_err("the stand-in fails");
    let GdrError::Open { source, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(source.raw_os_error(), Some(libc::ENOENT));
    assert!(
        error.to_string().contains("kernel module gdrdrv"),
        "{error}"
    );
    Gdr::open_with(machine.api).expect("now it opens");
}

#[test]
fn newer_pin_is_used_on_request_and_unsupported_in_older_library() {
    let older = machine("older", "");
    let newer = machine("newer", "#define WITH_V2\n");
    for (machine, there) in [(&older, false), (&newer, true)] {
        let gdr = Gdr::open_with(machine.api).expect("it opens");
        // SAFETY: the memory lives as long as the library.
        let mapping = unsafe { gdr.map(machine.device() as u64, 64, Pin::ForcePcie) };
        match mapping {
            Ok(_) => assert!(there),
            Err(e) => assert!(matches!(e, GdrError::Unsupported { .. }) && !there, "{e}"),
        }
    }
    assert_eq!(older.held(), (0, 0, 0));
}

#[test]
fn calls_of_several_threads_and_handles_are_serialised() {
    let machine = machine("threads", "");
    let first = Gdr::open_with(machine.api).expect("it opens");
    let second = Gdr::open_with(machine.api).expect("it opens");
    let address = machine.device() as u64;
    std::thread::scope(|scope| {
        for i in 0..4 {
            let gdr = if i % 2 == 0 { &first } else { &second };
            scope.spawn(move || {
                for _ in 0..200 {
                    // SAFETY: the memory lives as long as the library.
                    let mapping = unsafe { gdr.map(address + i * GPU_PAGE_SIZE, 8, Pin::Default) };
                    let mapping = mapping.expect("it can be mapped");
                    // SAFETY: each thread has a page of its own.
                    unsafe { mapping.write(0, &[1; 8]) }.expect("it fits");
                    assert!(!mapping.is_revoked().expect("it is known"));
                }
            });
        }
    });
    assert_eq!(machine.held(), (2, 0, 0));
    // SAFETY: a plain read.
    assert_eq!(unsafe { (machine.standin.standin_collisions)() }, 0);
}

#[test]
fn missing_library_or_function_is_reported_with_its_reason() {
    // SAFETY: nothing can be loaded.
    let error = unsafe { Gdrapi::load_from(["/nonexistent/libgdrapi.so.2"]) };
    let error = GdrError::from(error.expect_err("it is not there"));
    assert!(
        error
            .to_string()
            .starts_with("no GDRCopy library could be opened (/nonexistent/libgdrapi.so.2: "),
        "{error}"
    );
    let path = library("lacking", "#define gdr_get_info_v2 gdr_get_info\n");
    // SAFETY: the library was made above, and nothing is called.
    let error = unsafe { Gdrapi::load_from([&path]) }.expect_err("it lacks a function");
    assert!(
        matches!(
            error,
            LoadError::MissingSymbol {
                symbol: "gdr_get_info_v2",
                ..
            }
        ),
        "{error}"
    );
}

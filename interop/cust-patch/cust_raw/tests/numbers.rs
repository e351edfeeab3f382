//! Calls without the library, without a function, and with numbers that the enums do not list. A
//! process opens the library once, so each case runs in a process of its own: this program again.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::PathBuf;
use std::process::Command;
use std::ptr::{null, null_mut, without_provenance_mut};

use cust_raw::*;

/// Runs the ignored test `case` with the given library.
fn run(case: &str, library: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", case, "--ignored", "--test-threads=1"])
        .env("GDS_CUDA_LIB", library)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn odd_library() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("libodd.so");
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .arg(&to)
        .arg(here.join("tests/odd_library.c"))
        .status();
    assert!(made.unwrap().success());
    to
}

fn error_text(error: CUresult) -> String {
    let mut text: *const c_char = null();
    // SAFETY: a valid pointer.
    let result = unsafe { cuGetErrorString(error, &mut text) };
    assert_eq!(result, CUresult::CUDA_SUCCESS);
    // SAFETY: a successful call stores a text that lives for ever.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
}

#[test]
fn absent_library_gives_an_error_with_a_reason() {
    run("without_the_library", "/nowhere/libcuda.so.1");
}

#[test]
fn empty_library_path_does_not_open_the_program_itself() {
    run("with_an_empty_path", "");
}

#[test]
fn numbers_outside_an_enum_are_replaced() {
    run("with_the_odd_library", odd_library().to_str().unwrap());
}

#[test]
#[ignore = "a case of absent_library_gives_an_error_with_a_reason"]
fn without_the_library() {
    let why = absent().unwrap().to_str().unwrap();
    assert!(why.starts_with("/nowhere/libcuda.so.1: "), "{why}");
    assert!(why.contains("No such file"), "{why}");
    // SAFETY: the function takes no arguments.
    let result = unsafe { cuInit(0) };
    assert_eq!(result, CUresult::CUDA_ERROR_SHARED_OBJECT_INIT_FAILED);
    assert_eq!(error_text(result), why);
}

#[test]
#[ignore = "a case of empty_library_path_does_not_open_the_program_itself"]
fn with_an_empty_path() {
    let why = absent().unwrap().to_str().unwrap();
    assert!(why.contains("GDS_CUDA_LIB is empty"), "{why}");
}

#[test]
#[ignore = "a case of numbers_outside_an_enum_are_replaced"]
fn with_the_odd_library() {
    assert_eq!(absent(), None);
    let mut count = -1;
    // SAFETY: the arguments are as the odd library reads them; handles are only compared with null.
    unsafe {
        assert_eq!(cuInit(0), CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(cuInit(1), CUresult::CUDA_ERROR_NO_DEVICE);
        assert_eq!(
            cuDeviceGetCount(&mut count),
            CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND
        );
        assert_eq!(count, -1);

        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;
        assert_eq!(
            cuStreamIsCapturing(null_mut(), &mut status),
            CUresult::CUDA_SUCCESS
        );
        assert_eq!(
            status,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE
        );
        assert_eq!(
            cuStreamIsCapturing(without_provenance_mut(1), &mut status),
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        );
        assert_eq!(status, CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE);

        let mut array = MaybeUninit::<CUDA_ARRAY3D_DESCRIPTOR>::uninit();
        assert_eq!(
            cuArray3DGetDescriptor_v2(array.as_mut_ptr(), null_mut()),
            CUresult::CUDA_SUCCESS
        );
        let format = array.assume_init_ref().Format;
        assert_eq!(format, CUarray_format::CU_AD_FORMAT_FLOAT);
        assert_eq!(
            cuArray3DGetDescriptor_v2(array.as_mut_ptr(), without_provenance_mut(1)),
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        );

        for (object, result) in [
            (0, CUresult::CUDA_SUCCESS),
            (1, CUresult::CUDA_ERROR_NOT_SUPPORTED),
            (2, CUresult::CUDA_ERROR_NOT_SUPPORTED),
        ] {
            let mut resource = MaybeUninit::<CUDA_RESOURCE_DESC>::uninit();
            assert_eq!(
                cuTexObjectGetResourceDesc(resource.as_mut_ptr(), object),
                result
            );
        }
    }
    assert_eq!(error_text(CUresult::CUDA_ERROR_NO_DEVICE), "no device");
    let lacking = CUresult::CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
    assert_eq!(error_text(lacking), "libcuda lacks the function");
    assert_eq!(
        error_text(CUresult::CUDA_ERROR_UNKNOWN),
        "the driver has no text for this error"
    );
}

//! The tables of HIP, HSA and HIPRTC against libraries made from their own lists of names, and
//! against the headers and the library of HIP 5.2, which Debian has.
//!
//! A program in C++, made by the test, prints signatures, sizes, offsets and constants of the
//! headers. Without these headers the test is shown as ignored.

mod shared;

use gdsync_sys::hip::consts::*;
use gdsync_sys::hip::types::*;
use gdsync_sys::hip::{Hip, HipResult, HipRtc, Hsa};
use gdsync_sys::{Library, LoadError};
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of libraries that the tests make.
fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// A library with a function for each name, which returns a code that no table lists.
fn library<'a>(name: &str, functions: impl IntoIterator<Item = &'a &'a str>) -> PathBuf {
    let source: String = functions
        .into_iter()
        .map(|name| format!("int {name}(void) {{ return 4711; }}\n"))
        .collect();
    shared::compile(folder(), name, &source)
}

#[test]
fn library_with_the_required_functions_only_is_accepted() {
    let path = library("hip-required.so", Hip::REQUIRED);
    // SAFETY: only hipInit is called, which ignores what it is given.
    let hip = unsafe { Hip::load_from([&path]) }.expect("all required functions are there");
    assert!(hip.hipGetDevicePropertiesR0600.is_none());
    // SAFETY: the function was made above and touches nothing.
    let code = unsafe { (hip.hipInit)(0) };
    assert_eq!(code, HipResult(4711));
    assert_eq!(code.to_string(), "HIP error 4711");
    assert!(!code.is_success() && !code.is_sticky() && code.name().is_none());
}

#[test]
fn old_runtime_is_refused_and_the_missing_function_is_named() {
    let names = Hip::REQUIRED
        .iter()
        .filter(|n| **n != "hipStreamWaitValue32");
    let path = library("hip-old.so", names);
    // SAFETY: nothing is called.
    let error = unsafe { Hip::load_from([&path]) }.expect_err("a function is missing");
    assert_eq!(
        error,
        LoadError::MissingSymbol {
            api: "HIP runtime",
            library: path,
            symbol: "hipStreamWaitValue32",
        }
    );
}

#[test]
fn codes_have_names_and_report_whether_the_device_is_lost() {
    assert_eq!(HipResult(0).to_string(), "hipSuccess (0)");
    assert_eq!(
        format!("{:?}", HipResult(712)),
        "hipErrorHostMemoryAlreadyRegistered (712)"
    );
    for lost in [4, 53, 214, 700, 702, 710, 719] {
        assert!(HipResult(lost).is_sticky(), "{lost}");
    }
    for fine in [
        0, 1, 2, 3, 100, 600, 701, 704, 709, 712, 720, 801, 901, 999, 1053, -1,
    ] {
        assert!(!HipResult(fine).is_sticky(), "{fine}");
    }
}

/// Functions that HIP 5.2 and the HSA runtime of that release do not have.
const NEWER_FUNCTIONS: [&str; 4] = [
    "hipGetDevicePropertiesR0600",
    "hipStreamGetDevice",
    "hipMemGetHandleForAddressRange",
    "hsa_amd_portable_export_dmabuf",
];

/// Functions of 5.2 whose structs have changed since; the tables have the newer layout.
const CHANGED: [&str; 2] = ["hipMemCreate", "hipMemGetAllocationGranularity"];

/// Functions that the headers overload with templates in C++, and the types of those in C.
const OVERLOADED: [(&str, &str); 2] = [
    ("hipMalloc", "(hipError_t (*)(void **, size_t))"),
    (
        "hipHostMalloc",
        "(hipError_t (*)(void **, size_t, unsigned))",
    ),
];

/// All declared functions: name, arguments, result.
fn signatures() -> impl Iterator<Item = (&'static str, &'static [&'static str], &'static str)> {
    let all = [Hip::SIGNATURES, Hsa::SIGNATURES, HipRtc::SIGNATURES];
    all.into_iter().flatten().copied()
}

/// What a type is in memory, in the notation of the program below: `p` and what it points to, `i`
/// for an integer, `e` for an enumeration, `f` for a float, `s` for a struct, with the size.
fn shape(declared: &str) -> String {
    let declared = declared.trim();
    let pointee = declared
        .strip_prefix("*mut ")
        .or(declared.strip_prefix("*const "));
    if let Some(pointee) = pointee {
        return format!("p{}", shape(pointee));
    }
    let fixed = match declared {
        "c_void" => "v",
        "c_char" | "u8" => "i1",
        "c_int" | "c_uint" | "u32" | "hipDevice_t" => "i4",
        "usize" | "u64" | "c_ulonglong" => "i8",
        "f32" => "f4",
        "hipDeviceptr_t" => "pv",
        "HipResult"
        | "hiprtcResult"
        | "hsa_status_t"
        | "hipDeviceAttribute_t"
        | "hipPointer_attribute"
        | "hipMemcpyKind"
        | "hipStreamCaptureStatus"
        | "hipStreamCaptureMode"
        | "hipMemAllocationHandleType"
        | "hipMemAllocationGranularity_flags" => "e4",
        "hipStream_t"
        | "hipEvent_t"
        | "hipModule_t"
        | "hipFunction_t"
        | "hipGraph_t"
        | "hipGraphNode_t"
        | "hipGraphExec_t"
        | "hipMemGenericAllocationHandle_t"
        | "hiprtcProgram" => "po",
        _ => "",
    };
    let sizes = [
        ("hipUUID", size_of::<hipUUID>()),
        ("hipIpcMemHandle_t", size_of::<hipIpcMemHandle_t>()),
        ("hipPointerAttribute_t", size_of::<hipPointerAttribute_t>()),
        ("hipMemAccessDesc", size_of::<hipMemAccessDesc>()),
    ];
    match sizes.iter().find(|(name, _)| *name == declared) {
        Some((_, size)) => format!("s{size}"),
        None if fixed.is_empty() => panic!("the test does not know the type {declared}"),
        None => fixed.to_owned(),
    }
}

/// Prints what the headers say: the counterpart of [`shape`].
const PROGRAM: &str = r#"
#define __HIP_PLATFORM_AMD__
#include <hip/hip_runtime_api.h>
#include <hip/hiprtc.h>
#include <hsa/hsa.h>
#include <cstddef>
#include <cstdio>
#include <string>
#include <type_traits>

template <typename T, typename = void> struct Complete : std::false_type {};
template <typename T> struct Complete<T, std::void_t<decltype(sizeof(T))>> : std::true_type {};

template <typename T> std::string shape() {
    if constexpr (std::is_pointer_v<T>)
        return "p" + shape<std::remove_cv_t<std::remove_pointer_t<T>>>();
    else if constexpr (std::is_void_v<T>) return "v";
    else if constexpr (!Complete<T>::value) return "o";
    else {
        const char *kind = std::is_enum_v<T>             ? "e"
                           : std::is_floating_point_v<T> ? "f"
                           : std::is_integral_v<T>       ? "i"
                                                         : "s";
        return kind + std::to_string(sizeof(T));
    }
}

template <typename F> struct Signature;
template <typename R, typename... A> struct Signature<R (*)(A...)> {
    static std::string text() {
        std::string all = "(";
        ((all += shape<A>() + ","), ...);
        return all + ")" + shape<R>();
    }
};

int main() {
"#;

/// The lines that [`PROGRAM`] must print, and the C++ that prints them.
fn expected() -> (Vec<String>, String) {
    let (mut lines, mut source) = (Vec::new(), PROGRAM.to_owned());
    let mut line = |text: String, cpp: String| {
        lines.push(text);
        writeln!(source, "    {cpp}").expect("text grows");
    };
    for (name, arguments, result) in signatures() {
        if NEWER_FUNCTIONS.contains(&name) || CHANGED.contains(&name) {
            continue;
        }
        let arguments: String = arguments.iter().map(|a| shape(a) + ",").collect();
        let cast = OVERLOADED
            .iter()
            .find(|(overloaded, _)| *overloaded == name);
        let cast = cast.map_or("", |(_, kind)| kind);
        line(
            format!("{name}({arguments}){}", shape(result)),
            format!(
                r#"printf("{name}%s\n", Signature<decltype({cast}(&{name}))>::text().c_str());"#
            ),
        );
    }
    let mut number = |cpp: &str, value: u64| {
        line(
            format!("{cpp} = {value}"),
            format!(r#"printf("%s = %llu\n", "{cpp}", (unsigned long long)({cpp}));"#),
        );
    };
    for (name, value) in OF_5_2 {
        number(name, u64::from(*value));
    }
    for (name, code) in HipResult::LISTED {
        number(name, code.0 as u64);
    }
    number("HIP_LAUNCH_PARAM_END", HIP_LAUNCH_PARAM_END.addr() as u64);
    macro_rules! fields {
        ($($kind:ident as $cpp:ident { $($field:ident as $name:ident),* $(,)? })*) => { $(
            number(
                concat!("sizeof(", stringify!($cpp), ")"),
                size_of::<$kind>() as u64,
            );
            $(number(
                concat!("offsetof(", stringify!($cpp), ", ", stringify!($name), ")"),
                offset_of!($kind, $field) as u64,
            );)*
        )* };
    }
    fields! {
        hipUUID as hipUUID { bytes as bytes }
        hipIpcMemHandle_t as hipIpcMemHandle_t { reserved as reserved }
        hipPointerAttribute_t as hipPointerAttribute_t {
            memory_type as memoryType, device as device, device_pointer as devicePointer,
            host_pointer as hostPointer, is_managed as isManaged,
            allocation_flags as allocationFlags,
        }
        hipMemLocation as hipMemLocation { kind as type, id as id }
        hipMemAccessDesc as hipMemAccessDesc { location as location, flags as flags }
    }
    source.push_str("}\n");
    (lines, source)
}

#[test]
fn headers_are_installed_where_they_are_required() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "hip_headers");
    assert!(cfg!(hip_headers) || !must, "no headers of HIP");
}

#[test]
#[cfg_attr(
    not(hip_headers),
    ignore = "needs the headers of HIP 5.2 (libamdhip64-dev)"
)]
fn signatures_layouts_and_numbers_are_those_of_the_headers() {
    let (lines, source) = expected();
    let program = folder().join(format!("hip-headers.{}", std::process::id()));
    let file = program.with_extension(format!("{}.cpp", std::process::id()));
    std::fs::write(&file, source).expect("the target folder can be written");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "g++".into());
    let done = Command::new(compiler)
        .args(["-std=c++17", "-O0", "-Wno-deprecated-declarations", "-o"])
        .args([&program, &file])
        .output()
        .expect("a C++ compiler is here");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{stderr}");
    let printed = Command::new(&program).output().expect("just made").stdout;
    for made in [&program, &file] {
        std::fs::remove_file(made).expect("just made");
    }
    let printed = String::from_utf8(printed).expect("the program prints ASCII");
    let wrong: Vec<_> = lines
        .iter()
        .zip(printed.lines())
        .filter(|(a, b)| a != b)
        .collect();
    assert!(wrong.is_empty(), "declared and in the headers: {wrong:#?}");
    assert_eq!(lines.len(), printed.lines().count());
    assert!(lines.len() > 150, "{}", lines.len());
}

#[test]
#[cfg_attr(
    not(hip_headers),
    ignore = "needs the library of HIP 5.2 (libamdhip64-5)"
)]
fn library_of_hip_5_2_has_the_functions_that_it_should_have() {
    // SAFETY: these libraries only look for devices when they are initialised, which is not done.
    let (hip, hsa) = unsafe {
        let hip = Library::open("HIP runtime", ["libamdhip64.so.5"]).expect("it is installed");
        let hsa = Library::open("HSA runtime", Hsa::SONAMES).expect("HIP depends on it");
        (hip, hsa)
    };
    for (name, ..) in signatures() {
        let library = if name.starts_with("hsa") { &hsa } else { &hip };
        let symbol = std::ffi::CString::new(name).expect("a name has no NUL");
        let symbol = Box::leak(symbol.into_boxed_c_str());
        // SAFETY: the function is not called.
        let found: Option<unsafe extern "C" fn()> = unsafe { library.optional(symbol, None) };
        assert_eq!(found.is_some(), !NEWER_FUNCTIONS.contains(&name), "{name}");
    }
}

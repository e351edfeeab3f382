//! The code of a kernel image for a device: a code object of the image, or one that HIPRTC compiles from
//! the image's source. A cache keeps what HIPRTC compiled.

use std::borrow::Cow;
use std::ffi::{CString, c_char};
use std::fs::{DirBuilder, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use gdsync_sys::hip::types::{hiprtcProgram, hiprtcResult};
use gdsync_sys::hip::{Hip, HipRtc};

use super::{calls, device};
use crate::error::{Error, Kind, Result};
use crate::gpu::KernelImage;
use crate::gpu::driver::{self, Context, elf};

const OPERATION: &str = "load kernels";

/// The folder of the cache, in place of `gdsync/hip` in the user's folder of caches.
const CACHE: &str = "GDS_HIP_CACHE";

/// The options of HIPRTC besides the target.
const OPTIONS: [&str; 2] = ["-std=c++17", "-O3"];

/// The code of `image` for the device of `context`.
///
/// # Errors
/// `Unsupported` if the image has no code for the device and HIPRTC is missing or refuses the source.
pub(super) fn of(hip: &Hip, context: &Context, image: &KernelImage) -> Result<Cow<'static, [u8]>> {
    let Some(target) = device::hip_architecture(hip, context.device) else {
        let what = format!("HIP does not name the architecture of {}", context.name());
        return Err(Error::new(OPERATION, Kind::Unsupported, what));
    };
    match image.code_object(&target) {
        Some(code) => Ok(Cow::Borrowed(code)),
        None => compiled(hip, image, &target).map(Cow::Owned),
    }
}

/// The code that HIPRTC makes, from the cache if it is there.
fn compiled(hip: &Hip, image: &KernelImage, target: &str) -> Result<Vec<u8>> {
    let has = image.code_targets().collect::<Vec<_>>().join(", ");
    let refused = |why: String| {
        let what = format!("{image:?} have code for {has}, not for {target}, and {why}");
        Error::new(OPERATION, Kind::Unsupported, what)
    };
    let rtc = HipRtc::get().map_err(|e| {
        let why = driver::chain(e);
        refused(format!("HIPRTC, which compiles them, is missing: {why}"))
            .with_source(e.to_string())
    })?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: stores two numbers.
    let _ = unsafe { (rtc.hiprtcVersion)(&mut major, &mut minor) };
    let mut name = blake3::Hasher::new();
    // Releases of HIP have the same version of HIPRTC.
    let version = format!("HIPRTC {major}.{minor}, HIP {}", calls::version(hip));
    for part in [image.hip_source(), target, &version]
        .into_iter()
        .chain(OPTIONS)
    {
        name.update(&(part.len() as u64).to_le_bytes());
        name.update(part.as_bytes());
    }
    let file = folder().map(|folder| folder.join(name.finalize().to_hex().as_str()));
    if let Some(code) = file.as_deref().and_then(cached) {
        return Ok(code);
    }
    let code = compile(rtc, image.hip_source(), target).map_err(refused)?;
    elf::check(OPERATION, &code)?;
    if let Some(file) = file
        && let Err(e) = keep(&file, &code)
    {
        tracing::debug!(target: "gdsync", "{}: {e}", file.display());
    }
    Ok(code)
}

/// The folder of the cache; `None`: there is none.
fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    match std::env::var_os(CACHE) {
        Some(folder) => (!folder.is_empty()).then(|| folder.into()),
        None => {
            let caches = set("XDG_CACHE_HOME").map(PathBuf::from);
            let caches = caches.or_else(|| Some(Path::new(&set("HOME")?).join(".cache")));
            caches.map(|caches| caches.join("gdsync/hip"))
        }
    }
}

/// The code in a file of the cache. The file begins with the hash of the code: a file that is not whole
/// counts as missing, and so does one that another user may have written.
fn cached(file: &Path) -> Option<Vec<u8>> {
    let folder = std::fs::metadata(file.parent()?).ok()?;
    let mut opened = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(file)
        .ok()?;
    if ![folder, opened.metadata().ok()?].iter().all(is_ours) {
        return None;
    }
    let mut bytes = Vec::new();
    opened.read_to_end(&mut bytes).ok()?;
    let (hash, code) = bytes.split_first_chunk::<32>()?;
    (blake3::hash(code).as_bytes() == hash).then(|| code.to_vec())
}

/// Whether this user alone may write it.
fn is_ours(file: &Metadata) -> bool {
    file.uid() == rustix::process::geteuid().as_raw() && file.mode() & 0o022 == 0
}

/// Writes a file of the cache: whole, or not at all.
fn keep(file: &Path, code: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    // Two threads may compile the same source.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let part = file.with_extension(format!("{}-{count}", std::process::id()));
    let bytes = [blake3::hash(code).as_bytes(), code].concat();
    // A process of the same number has left it. A new file is no link to another one.
    let _ = std::fs::remove_file(&part);
    let mut new = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&part)?;
    new.write_all(&bytes)?;
    std::fs::rename(&part, file)
}

/// A program of HIPRTC, which is destroyed with this value.
struct Program<'a>(&'a HipRtc, hiprtcProgram);

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: a live program.
        let _ = unsafe { (self.0.hiprtcDestroyProgram)(&mut self.1) };
    }
}

/// Compiles a source; the error is a clause.
fn compile(rtc: &HipRtc, source: &str, target: &str) -> Result<Vec<u8>, String> {
    let check = |result: hiprtcResult, call: &str| {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string, or null.
        let text = unsafe { driver::text((rtc.hiprtcGetErrorString)(result)) };
        let text = text.as_deref().unwrap_or("unknown error");
        Err(format!("{call} failed: {text} ({result})"))
    };
    let zero = |e: std::ffi::NulError| format!("the source cannot be passed to HIPRTC: {e}");
    let source = CString::new(source).map_err(zero)?;
    let target = format!("--offload-arch={target}");
    let options: Vec<CString> = [&*target]
        .into_iter()
        .chain(OPTIONS)
        .map(|option| CString::new(option).map_err(zero))
        .collect::<Result<_, _>>()?;
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program = Program(rtc, std::ptr::null_mut());
    let none = std::ptr::null();
    // SAFETY: C strings that live during the calls; results are stored in variables and in buffers of the
    // length that the compiler states.
    unsafe {
        let made = (rtc.hiprtcCreateProgram)(
            &mut program.1,
            source.as_ptr(),
            c"gdsync.hip".as_ptr(),
            0,
            none,
            none,
        );
        check(made, "hiprtcCreateProgram")?;
        let done = (rtc.hiprtcCompileProgram)(program.1, options.len() as i32, options.as_ptr());
        let mut len = 0;
        if let Err(why) = check(done, "hiprtcCompileProgram") {
            check(
                (rtc.hiprtcGetProgramLogSize)(program.1, &mut len),
                "hiprtcGetProgramLogSize",
            )?;
            let mut log = vec![0_u8; len];
            check(
                (rtc.hiprtcGetProgramLog)(program.1, log.as_mut_ptr().cast()),
                "hiprtcGetProgramLog",
            )?;
            let log = String::from_utf8_lossy(&log);
            return Err(format!("{why}: {}", log.trim_end_matches('\0').trim()));
        }
        check(
            (rtc.hiprtcGetCodeSize)(program.1, &mut len),
            "hiprtcGetCodeSize",
        )?;
        let mut code = vec![0_u8; len];
        check(
            (rtc.hiprtcGetCode)(program.1, code.as_mut_ptr().cast()),
            "hiprtcGetCode",
        )?;
        Ok(code)
    }
}

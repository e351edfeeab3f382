//! `generate-cust-raw [--check]`: generates `cust_raw/src/generated/{types,functions}.rs` from the
//! published cust_raw 0.11.3. With `--check` it reports whether these files are up to date.

mod emit;
mod items;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    let check = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => return Err("usage: generate-cust-raw [--check]".into()),
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = fs::read_to_string(published(here)?.join("src/cuda.rs"))?;
    let items = items::split(&source)?;
    let folder = here.join("../cust_raw/src/generated");
    fs::create_dir_all(&folder)?;
    for (name, text) in [
        ("types.rs", emit::types(&items)?),
        ("functions.rs", emit::functions(&items)?),
    ] {
        let path = folder.join(name);
        if !check {
            fs::write(&path, text)?;
        } else if fs::read_to_string(&path)? != text {
            return Err(
                format!("{name} differs from the generator's output; run the generator").into(),
            );
        }
    }
    Ok(())
}

/// The folder in which cargo keeps the published package.
fn published(here: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--locked",
            "--format-version=1",
            "--all-features",
        ])
        .current_dir(here)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    // The only path in the document with this ending, so no JSON parser is needed.
    let json = String::from_utf8(output.stdout)?;
    let end = json
        .find("cust_raw-0.11.3/Cargo.toml\"")
        .ok_or("cargo metadata names no cust_raw 0.11.3")?;
    let start = json[..end].rfind('"').ok_or("not a path")? + 1;
    Ok(Path::new(&json[start..end]).join("cust_raw-0.11.3"))
}

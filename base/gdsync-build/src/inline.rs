//! Makes one text of the sources of a module, with the headers in it, for a compiler at run time (HIPRTC).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The header of the software GPU, which HIP's branches do not include.
const SOFT: &str = "softgpu.hpp";

/// The text of the sources. Each header in quotes is inserted once, where it is first included: of the folder of
/// the file that includes it, or else of the first of `folders` that has it. Other headers stay included, and lines
/// that are comments are left out.
///
/// # Errors
/// A file, and the error of the system, if it cannot be read.
pub(crate) fn text(
    sources: &[PathBuf],
    folders: &[PathBuf],
) -> Result<String, (PathBuf, io::Error)> {
    let mut text = String::new();
    let mut seen = BTreeSet::new();
    for source in sources {
        insert(source, folders, &mut seen, &mut text)?;
    }
    Ok(text)
}

fn insert(
    path: &Path,
    folders: &[PathBuf],
    seen: &mut BTreeSet<PathBuf>,
    text: &mut String,
) -> Result<(), (PathBuf, io::Error)> {
    let failed = |e| (path.to_owned(), e);
    if !seen.insert(fs::canonicalize(path).map_err(failed)?) {
        return Ok(());
    }
    let mut continued = false;
    for line in fs::read_to_string(path).map_err(failed)?.lines() {
        let comment = line.trim_start().starts_with("//") && !line.contains("*/");
        let left_out = comment || line.trim().is_empty() || line.trim() == "#pragma once";
        let header = included(line).and_then(|name| {
            let own = path.parent().map(|folder| folder.join(name));
            let others = folders.iter().map(|folder| folder.join(name));
            own.into_iter().chain(others).find(|path| path.is_file())
        });
        match header {
            Some(header) => insert(&header, folders, seen, text)?,
            None if left_out && !continued => {}
            None => {
                text.push_str(line);
                text.push('\n');
            }
        }
        continued = line.ends_with('\\');
    }
    Ok(())
}

/// The name in an `#include "NAME"`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let name = rest
        .strip_prefix("include")?
        .trim_start()
        .strip_prefix('"')?;
    let name = name.split_once('"')?.0;
    (name != SOFT).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with these files.
    fn folder(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("gdsync-build-{}-{name}", std::process::id()));
        for (name, text) in files {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn header_is_inserted_once_and_comments_are_left_out() {
        let a = "// A comment.\n#include \"own.hpp\"\n#  include \"other.hpp\"\nint a; // stays\n";
        let own = "#pragma once\n#include \"other.hpp\"\n\nint own;\n#define M \\\n// stays\n";
        let other =
            "#include <system.h>\n#include \"softgpu.hpp\"\n#include \"absent.hpp\"\nint other;\n";
        let b = "#include \"own.hpp\"\nint b;\n";
        let files = [
            ("a.cu", a),
            ("b.cu", b),
            ("own.hpp", own),
            ("more/other.hpp", other),
        ];
        let folder = folder(
            "once",
            &[&files[..], &[("softgpu.hpp", "int soft;\n")]].concat(),
        );
        let sources = ["a.cu", "b.cu"].map(|name| folder.join(name));
        let text = text(&sources, &[folder.join("more")]).unwrap();
        fs::remove_dir_all(folder).unwrap();
        let expected = "#include <system.h>\n#include \"softgpu.hpp\"\n#include \"absent.hpp\"\nint other;\n\
                        int own;\n#define M \\\n// stays\nint a; // stays\nint b;\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn missing_source_is_named() {
        let path = PathBuf::from("/nonexistent/k.cu");
        assert_eq!(text(std::slice::from_ref(&path), &[]).unwrap_err().0, path);
    }
}

//! Dependent launches in PTX: the text of a kernel module is for an old target, and has the
//! instructions of newer GPUs as comments. On these GPUs the comments become instructions.

use std::borrow::Cow;

/// The mark in front of an instruction, and that behind it, as in `gds_device.hpp`.
const OPEN: &str = "/*sm_90 ";
const CLOSE: &str = ";*/";

/// The text for GPUs of compute capability 9.0 or later. PTX ISA, `griddepcontrol`: version 7.8,
/// target sm_90.
pub(super) fn for_sm_90(ptx: &str) -> Cow<'_, str> {
    if !ptx.contains(OPEN) {
        return Cow::Borrowed(ptx);
    }
    let line = |line: &str| match line.split_once(' ') {
        Some((".version", version)) if older(version, (7, 8)) => ".version 7.8".to_owned(),
        Some((".target", target)) if is_older_target(target) => ".target sm_90".to_owned(),
        _ if line.contains(OPEN) => line.replace(OPEN, "").replace(CLOSE, ";"),
        _ => line.to_owned(),
    };
    let lines: Vec<String> = ptx.lines().map(line).collect();
    Cow::Owned(lines.join("\n") + "\n")
}

fn older(version: &str, than: (u32, u32)) -> bool {
    let numbers = version.trim().split_once('.');
    let parsed = numbers.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    parsed.is_some_and(|version: (u32, u32)| version < than)
}

fn is_older_target(target: &str) -> bool {
    let number = target.trim().strip_prefix("sm_");
    number.is_some_and(|number| number.parse::<u32>().is_ok_and(|number| number < 90))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_newer_gpus_become_part_of_the_text() {
        let ptx =
            ".version 7.0\n.target sm_70\n.address_size 64\n\t/*sm_90 griddepcontrol.wait;*/\n";
        let text = ".version 7.8\n.target sm_90\n.address_size 64\n\tgriddepcontrol.wait;\n";
        assert_eq!(for_sm_90(ptx), text);
        // Text without marks, and text for newer GPUs, stay as they are.
        let plain = ptx.replace("/*sm_90 griddepcontrol.wait;*/", "ret;");
        assert_eq!(for_sm_90(&plain), plain);
        assert_eq!(for_sm_90(text), text);
        let newer = ptx.replace("7.0", "9.0").replace("sm_70", "sm_100");
        let expected = text.replace("7.8", "9.0").replace("sm_90", "sm_100");
        assert_eq!(for_sm_90(&newer), expected);
    }
}

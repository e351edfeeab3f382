//! GDRCopy: whether the CPU can map device memory.

use crate::library::State;
use crate::machine::{Access, Machine};
use gdrcopy_sys::Gdr;
use gdrcopy_sys::ffi::Gdrapi;
use serde::Serialize;

/// GDRCopy's library, and its kernel module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gdrcopy {
    /// libgdrapi.
    pub library: State,
    /// The library's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Whether the kernel module gdrdrv is loaded.
    pub module: bool,
    /// `/dev/gdrdrv`.
    pub device: Access,
    /// Whether the library can open the module, so that device memory can be mapped.
    pub works: bool,
    /// The reason why an installed library does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Examines GDRCopy.
pub(crate) fn look(machine: &Machine) -> Gdrcopy {
    let mut found = Gdrcopy {
        library: State::Absent { tried: Vec::new() },
        version: None,
        module: machine.module("gdrdrv"),
        device: machine.access("dev/gdrdrv"),
        works: false,
        trouble: None,
    };
    // SAFETY: the creator of the machine guarantees that its libraries are sound.
    let table = match unsafe { Gdrapi::load_from(&machine.libraries().gdrapi) } {
        // An open library keeps its table until the process ends.
        Ok(table) => &*Box::leak(Box::new(table)),
        Err(error) => {
            found.library = State::from(&error);
            return found;
        }
    };
    let lacks = [("gdr_pin_buffer_v2", table.gdr_pin_buffer_v2.is_none())];
    let lacks = lacks.iter().filter(|l| l.1).map(|l| l.0.to_owned());
    found.library = State::opened(table.path(), lacks.collect());
    match Gdr::open_with(table) {
        Ok(gdr) => {
            let (major, minor) = gdr.library_version();
            found.version = Some(format!("{major}.{minor}"));
            found.works = true;
        }
        Err(error) => found.trouble = Some(error.to_string()),
    }
    found
}

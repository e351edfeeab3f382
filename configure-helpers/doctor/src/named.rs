//! [`Named`]: the NIC that `GDS_NIC` names, in the forms that gdsync's `NicChoice` takes.

use crate::rdma::{Device, Guid};

/// What a NIC may be named by.
const FORMS: &str = "mlx5_0, mlx5_0:2, 0x0002c903002f1190:2";

/// By what a NIC is named.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name<'a> {
    /// The kernel's name of it.
    Kernel(&'a str),
    /// Its own, wherever it is plugged in.
    Guid(Guid),
}

/// A NIC and, if one was named, its port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Named<'a> {
    name: Name<'a>,
    /// From 1 on.
    pub port: Option<u8>,
}

impl<'a> Named<'a> {
    /// The first of those that the value of `GDS_NIC` names; the others are lanes.
    ///
    /// # Errors
    /// In words: it makes no sense, all of it.
    pub fn first(said: &'a str) -> Result<Named<'a>, String> {
        let all: Option<Vec<_>> = said.split(',').map(Named::parse).collect();
        // Splitting leaves one part at least.
        let first = all.and_then(|all| all.first().copied());
        first.ok_or_else(|| {
            format!(
                "GDS_NIC={said}: it is a NIC, a NIC and a port, or several with commas between \
                 them: {FORMS}"
            )
        })
    }

    fn parse(said: &'a str) -> Option<Named<'a>> {
        let (name, port) = match said.split_once(':') {
            None => (said, None),
            Some((name, port)) => (name, Some(port.parse().ok().filter(|port| *port > 0)?)),
        };
        let name = match name.strip_prefix("0x") {
            _ if name.is_empty() => return None,
            None => Name::Kernel(name),
            Some(digits) => Name::Guid(Guid::parse(digits)?),
        };
        Some(Named { name, port })
    }

    /// Whether it is this one.
    pub fn is(&self, device: &Device) -> bool {
        match self.name {
            Name::Kernel(name) => name == device.name,
            Name::Guid(guid) => device.guid == Some(guid),
        }
    }

    /// The NIC, as `GDS_NIC` has it.
    pub fn nic(&self) -> String {
        match self.name {
            Name::Kernel(name) => name.to_owned(),
            Name::Guid(guid) => guid.to_string(),
        }
    }
}

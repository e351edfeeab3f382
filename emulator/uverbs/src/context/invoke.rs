//! Commands by ioctl: the method that executes a command which older libraries write to the file. A
//! library probes for the method once. If the method exists, the library writes no commands any
//! more.
//!
//! The command is the same, in parts. Its number, the inputs and the answer buffers of the core and
//! of the driver are one attribute each. There is no header with lengths, and the address of the
//! answer in the input is ignored.

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::core::{IoctlAttr, IoctlHdr, command};
use crate::command::{Call, Done, Room};
use crate::context::Context;
use crate::context::request::Request;
use crate::user::User;

/// The object and the method of an ioctl.
pub(crate) const METHOD: (u16, u16) = (0, 0);

const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_CMD: u16 = 2;
const DRIVER_IN: u16 = 0x1000;
const DRIVER_OUT: u16 = 0x1001;
/// The maximal number of attributes that are read.
pub(crate) const MAX_ATTRS: usize = 16;

/// The number of the command that the ioctl at `arg` executes, if the ioctl is of this kind.
pub fn invoked(user: &dyn User, arg: u64) -> Option<u32> {
    let mut hdr = IoctlHdr::default();
    user.read(arg, hdr.as_mut_bytes()).ok()?;
    if (hdr.object_id, hdr.method_id) != METHOD {
        return None;
    }
    let mut attrs = vec![IoctlAttr::default(); usize::from(hdr.num_attrs).min(MAX_ATTRS)];
    let at = arg + size_of::<IoctlHdr>() as u64;
    user.read(at, attrs.as_mut_bytes()).ok()?;
    let command = attrs.iter().find(|a| a.attr_id == WRITE_CMD)?;
    Some(command.data as u32)
}

impl Context {
    /// Executes the command in the attributes of a call.
    pub(crate) fn invoke(&self, request: &Request<'_>) -> Done {
        request.only_if(|id| matches!(id, CORE_IN..=WRITE_CMD | DRIVER_IN..=DRIVER_OUT))?;
        let user = &*self.device.user;
        let find = |id| request.attrs.iter().find(|a| a.attr_id == id);
        let word = find(WRITE_CMD).ok_or(Errno::INVAL)?.data;
        let word = u32::try_from(word).map_err(|_| Errno::OPNOTSUPP)?;
        if word & !(command::EXTENDED | command::MASK) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let extended = word & command::EXTENDED != 0;
        let core = bytes(user, find(CORE_IN))?;
        let driver = bytes(user, find(DRIVER_IN))?;
        let room = |id| {
            find(id).map_or(Room::default(), |a| Room {
                addr: a.data,
                len: a.len.into(),
            })
        };
        let call = Call {
            user,
            core: &core,
            driver: &driver,
            core_out: room(CORE_OUT),
            driver_out: room(DRIVER_OUT),
        };
        self.carry_out(word & command::MASK, extended, |shape| {
            call.checked(extended, shape)
        })
    }
}

/// The bytes of an input; a short input is in the attribute itself.
fn bytes(user: &dyn User, attr: Option<&IoctlAttr>) -> Result<Vec<u8>, Errno> {
    let Some(attr) = attr else {
        return Ok(Vec::new());
    };
    let mut bytes = vec![0; attr.len.into()];
    let inline = attr.data.to_ne_bytes();
    match inline.get(..bytes.len()) {
        Some(inline) => bytes.copy_from_slice(inline),
        None => user.read(attr.data, &mut bytes)?,
    }
    Ok(bytes)
}

//! A parsed ioctl call: its attributes, and the answers into them.

use std::ops::RangeInclusive;

use rustix::io::Errno;

use super::Open;
use crate::abi::core::IoctlAttr;
use crate::command::Done;
use crate::device::Device;

/// The flag of an attribute that must not be ignored.
const MANDATORY: u16 = 1;

/// The function that executes a method.
pub(crate) type Method = fn(&mut Open, &Request<'_>) -> Done;

/// A call taken apart.
pub(crate) struct Request<'a> {
    pub(super) device: &'a Device,
    pub(super) at: u64,
    pub(super) attrs: Vec<IoctlAttr>,
}

impl Request<'_> {
    pub fn find(&self, id: u16) -> Result<(usize, &IoctlAttr), Errno> {
        let mut all = self.attrs.iter().enumerate();
        all.find(|(_, a)| a.attr_id == id).ok_or(Errno::INVAL)
    }

    /// Refuses mandatory attributes that are unknown.
    pub fn only(&self, known: RangeInclusive<u16>) -> Done {
        self.only_if(|id| known.contains(&id))
    }

    /// The same for mandatory attributes outside a range.
    pub fn only_if(&self, known: impl Fn(u16) -> bool) -> Done {
        let foreign = |a: &IoctlAttr| a.flags & MANDATORY != 0 && !known(a.attr_id);
        if self.attrs.iter().any(foreign) {
            return Err(Errno::PROTONOSUPPORT);
        }
        Ok(())
    }

    /// An input of at most eight bytes, which the attribute itself contains.
    pub fn small(&self, id: u16) -> Result<u64, Errno> {
        let (_, attr) = self.find(id)?;
        if attr.len > 8 {
            return Err(Errno::INVAL);
        }
        Ok(attr.data)
    }

    /// An optional input.
    pub fn optional(&self, id: u16) -> Result<Option<u64>, Errno> {
        match self.find(id) {
            Ok(_) => self.small(id).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// An input of at least `least` bytes, more than eight.
    pub fn bytes(&self, id: u16, least: usize) -> Result<Vec<u8>, Errno> {
        let (_, attr) = self.find(id)?;
        let len = usize::from(attr.len);
        if len < least.max(9) {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; len];
        self.device.user.read(attr.data, &mut bytes)?;
        Ok(bytes)
    }

    /// The buffer length for an answer, at least `least` bytes.
    pub fn room(&self, id: u16, least: usize) -> Result<usize, Errno> {
        let len = usize::from(self.find(id)?.1.len);
        if len < least {
            return Err(Errno::INVAL);
        }
        Ok(len)
    }

    /// Writes an answer into memory.
    pub fn answer(&self, id: u16, bytes: &[u8]) -> Done {
        let (_, attr) = self.find(id)?;
        if usize::from(attr.len) < bytes.len() {
            return Err(Errno::NOSPC);
        }
        self.device.user.write(attr.data, bytes)
    }

    /// A handle, which the attribute contains.
    pub fn handle(&self, id: u16) -> Result<u32, Errno> {
        Ok(self.find(id)?.1.data as u32)
    }

    /// Writes a new handle into the answer.
    pub fn answer_handle(&self, id: u16, handle: u32) -> Done {
        let (i, _) = self.find(id)?;
        let data = i * size_of::<IoctlAttr>() + std::mem::offset_of!(IoctlAttr, data);
        let at = self.at + data as u64;
        self.device.user.write(at, &u64::from(handle).to_ne_bytes())
    }
}

//! The ioctls of the device file: objects, methods, attributes. Of all of them only those that
//! have no command, and the one that carries out commands ([`crate::invoke`]), are carried out;
//! the others are answered so that libraries give the command instead. Doorbell pages are here;
//! [`devx`], [`dmabuf`] and [`queries`] have the others.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use crate::abi::core::{IoctlAttr, IoctlHdr};
use crate::abi::mlx5::ioctl::*;
use crate::context::{Context, Open};
use crate::device::Device;
use crate::devx;
use crate::dmabuf;
use crate::doorbells::{Doorbell, Doorbells};
use crate::handles::Object;
use crate::invoke::INVOKE_WRITE;
use crate::queries;

/// Most attributes of a call.
const MAX_ATTRS: usize = 64;
/// An attribute that must be understood.
const MANDATORY: u16 = 1;

/// How a method is carried out.
pub(crate) type Method = fn(&Device, &mut Open, &Request<'_>) -> Result<(), Errno>;

/// A call taken apart.
pub(crate) struct Request<'a> {
    device: &'a Device,
    at: u64,
    attrs: Vec<IoctlAttr>,
}

impl Context {
    /// Carries out the ioctl whose header lies at `arg` in the process.
    ///
    /// # Errors
    /// The error that `ioctl` gives.
    pub fn ioctl(&self, arg: u64) -> Result<(), Errno> {
        let user = &*self.device().user;
        let mut bytes = [0; size_of::<IoctlHdr>()];
        user.read(arg, &mut bytes)?;
        let hdr = IoctlHdr::read_from_bytes(&bytes).map_err(|_| Errno::INVAL)?;
        let count = usize::from(hdr.num_attrs);
        let length = size_of::<IoctlHdr>() + count * size_of::<IoctlAttr>();
        if hdr.reserved1 != 0 || hdr.reserved2 != 0 || usize::from(hdr.length) != length {
            return Err(Errno::INVAL);
        }
        let at = arg + size_of::<IoctlHdr>() as u64;
        let (object, method) = (hdr.object_id, hdr.method_id);
        let run: Method = match (object, method) {
            INVOKE_WRITE => return self.invoke(at, count),
            (OBJECT_UAR, UAR_OBJ_ALLOC) => alloc_uar,
            (OBJECT_UAR, UAR_OBJ_DESTROY) => destroy_uar,
            _ => [devx::method, dmabuf::method, queries::method]
                .into_iter()
                .find_map(|of| of(object, method))
                .ok_or(Errno::PROTONOSUPPORT)?,
        };
        if count > MAX_ATTRS {
            return Err(Errno::INVAL);
        }
        let mut attrs = vec![IoctlAttr::default(); count];
        user.read(at, attrs.as_mut_bytes())?;
        self.with(|device, open| run(device, open, &Request { device, at, attrs }))
    }
}

impl Request<'_> {
    pub fn find(&self, id: u16) -> Result<(usize, &IoctlAttr), Errno> {
        let mut all = self.attrs.iter().enumerate();
        all.find(|(_, a)| a.attr_id == id).ok_or(Errno::INVAL)
    }

    /// Refuses attributes that must be understood and are not.
    pub fn only(&self, known: &[u16]) -> Result<(), Errno> {
        let foreign = |a: &&IoctlAttr| a.flags & MANDATORY != 0 && !known.contains(&a.attr_id);
        match self.attrs.iter().find(foreign) {
            Some(_) => Err(Errno::PROTONOSUPPORT),
            None => Ok(()),
        }
    }

    /// An input of at most eight bytes, which stand in the attribute itself.
    pub fn small(&self, id: u16) -> Result<u64, Errno> {
        let (_, attr) = self.find(id)?;
        if attr.len > 8 {
            return Err(Errno::INVAL);
        }
        Ok(attr.data)
    }

    /// An input that may be missing.
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

    /// The bytes that there are for an answer: at least `least`.
    pub fn room(&self, id: u16, least: usize) -> Result<usize, Errno> {
        let len = usize::from(self.find(id)?.1.len);
        if len < least {
            return Err(Errno::INVAL);
        }
        Ok(len)
    }

    /// An answer into memory.
    pub fn answer(&self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let (_, attr) = self.find(id)?;
        if usize::from(attr.len) < bytes.len() {
            return Err(Errno::NOSPC);
        }
        self.device.user.write(attr.data, bytes)
    }

    /// A handle, which stands in the attribute.
    pub fn handle(&self, id: u16) -> Result<u32, Errno> {
        Ok(self.find(id)?.1.data as u32)
    }

    /// Answers with a new handle.
    pub fn answer_handle(&self, id: u16, handle: u32) -> Result<(), Errno> {
        let (i, _) = self.find(id)?;
        let data = i * size_of::<IoctlAttr>() + std::mem::offset_of!(IoctlAttr, data);
        let at = self.at + data as u64;
        self.device.user.write(at, &u64::from(handle).to_ne_bytes())
    }
}

/// A doorbell page of one's own. Both types, for BlueFlame and not, are the same memory here.
fn alloc_uar(_: &Device, open: &mut Open, ask: &Request<'_>) -> Result<(), Errno> {
    ask.only(&[
        UAR_HANDLE,
        UAR_TYPE,
        UAR_MMAP_OFFSET,
        UAR_MMAP_LENGTH,
        UAR_PAGE_ID,
    ])?;
    if ask.small(UAR_TYPE)? as u32 > 1 {
        return Err(Errno::INVAL);
    }
    let page = open.doorbells.allocate(ask.device)?;
    let index = page.index;
    let handle = open.objects.insert(Object::Uar(page));
    let answered = ask
        .answer(UAR_MMAP_OFFSET, &Doorbells::offset(index).to_ne_bytes())
        .and_then(|()| ask.answer(UAR_MMAP_LENGTH, &4096_u32.to_ne_bytes()))
        .and_then(|()| ask.answer(UAR_PAGE_ID, &index.to_ne_bytes()))
        .and_then(|()| ask.answer_handle(UAR_HANDLE, handle));
    if answered.is_err() {
        open.objects.remove(handle);
        // Nobody knows it, so nobody uses it.
        let _ = open.doorbells.free(ask.device, index);
    }
    answered
}

fn destroy_uar(_: &Device, open: &mut Open, ask: &Request<'_>) -> Result<(), Errno> {
    ask.only(&[UAR_HANDLE])?;
    let handle = ask.handle(UAR_HANDLE)?;
    let index = open.objects.doomed::<Doorbell>(handle)?.index;
    open.doorbells.free(ask.device, index)?;
    open.objects.remove(handle);
    Ok(())
}

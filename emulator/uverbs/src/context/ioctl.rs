//! The ioctls of the device file: objects, methods, attributes. Of all of them only those that
//! have no command, and the one that carries out commands ([`super::invoke`]), are carried out;
//! the others are answered so that libraries give the command instead. Doorbell pages are here;
//! [`devx`], [`dmabuf`] and [`queries`] have the others.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::invoke::INVOKE_WRITE;
use super::request::{Method, Request};
use super::{Context, Object, Open, devx, dmabuf, queries};
use crate::abi::core::{IoctlAttr, IoctlHdr};
use crate::abi::mlx5::ioctl::*;
use crate::device::Device;
use crate::doorbells::{Doorbell, Doorbells};

/// Most attributes of a call.
const MAX_ATTRS: usize = 64;
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

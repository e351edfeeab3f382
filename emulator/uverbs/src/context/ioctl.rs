//! The ioctls of the device file: objects, methods, attributes. This module executes only those
//! that have no command, and the one that executes commands ([`super::invoke`]). It answers the
//! others so that libraries use the command instead. Doorbell pages are in this module; [`devx`],
//! [`dmabuf`] and [`queries`] have the other methods.

use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::request::{Method, Request};
use super::{Context, Object, Open, devx, dmabuf, invoke, queries};
use crate::abi::core::{IoctlAttr, IoctlHdr};
use crate::abi::mlx5::ioctl::*;
use crate::command::Done;
use crate::doorbells::{Doorbell, Doorbells};

/// The maximal number of attributes of a call.
const MAX_ATTRS: usize = 64;

impl Context {
    /// Executes the ioctl whose header is at `arg` in the process.
    ///
    /// # Errors
    /// The errno that `ioctl` returns.
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
        let run: Option<Method> = match (object, method) {
            invoke::METHOD => None,
            (OBJECT_UAR, UAR_OBJ_ALLOC) => Some(alloc_uar),
            (OBJECT_UAR, UAR_OBJ_DESTROY) => Some(destroy_uar),
            _ => Some(
                [devx::method, dmabuf::method, queries::method]
                    .into_iter()
                    .find_map(|of| of(object, method))
                    .ok_or(Errno::PROTONOSUPPORT)?,
            ),
        };
        let most = run.map_or(invoke::MAX_ATTRS, |_| MAX_ATTRS);
        if count > most {
            return Err(Errno::INVAL);
        }
        let mut attrs = vec![IoctlAttr::default(); count];
        user.read(at, attrs.as_mut_bytes())?;
        let device = &self.device;
        let request = Request { device, at, attrs };
        match run {
            None => self.invoke(&request),
            Some(run) => self.with(|open| run(open, &request)),
        }
    }
}

/// A doorbell page for one program. Both types, with and without BlueFlame, are the same memory
/// here.
fn alloc_uar(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(UAR_HANDLE..=UAR_PAGE_ID)?;
    if request.small(UAR_TYPE)? as u32 > 1 {
        return Err(Errno::INVAL);
    }
    let page = open.doorbells.allocate(request.device)?;
    let index = page.index;
    open.keep(request.device, Object::Uar(page), |handle| {
        request.answer(UAR_MMAP_OFFSET, &Doorbells::offset(index).to_ne_bytes())?;
        request.answer(UAR_MMAP_LENGTH, &4096_u32.to_ne_bytes())?;
        request.answer(UAR_PAGE_ID, &index.to_ne_bytes())?;
        request.answer_handle(UAR_HANDLE, handle)
    })
}

fn destroy_uar(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(UAR_HANDLE..=UAR_HANDLE)?;
    let handle = request.handle(UAR_HANDLE)?;
    let index = open.objects.doomed::<Doorbell>(handle)?.index;
    open.doorbells.free(request.device, index)?;
    open.objects.remove(handle);
    Ok(())
}

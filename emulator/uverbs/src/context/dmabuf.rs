//! Regions on the memory behind a descriptor: a dma-buf, or any file that can be mapped.

use rustix::io::Errno;
use vmlx5::{Access, MrAttr, PdId};

use crate::abi::core::access;
use crate::abi::core::ioctl::*;
use crate::context::Open;
use crate::context::memory::rights;
use crate::context::request::{Method, Request};
use crate::context::{Object, Region};
use crate::device::Device;
use crate::error::errno;

const PAGE: u64 = 4096;

/// The method of an object, if it is one of these.
pub(crate) fn method(object: u16, method: u16) -> Option<Method> {
    match (object, method) {
        (OBJECT_MR, REG_DMABUF_MR) => Some(register),
        _ => None,
    }
}

/// Registers a part of the memory. The region keeps it when the descriptor is closed.
fn register(device: &Device, open: &mut Open, ask: &Request<'_>) -> Result<(), Errno> {
    ask.only(&[
        DMABUF_HANDLE,
        DMABUF_PD,
        DMABUF_OFFSET,
        DMABUF_LENGTH,
        DMABUF_IOVA,
        DMABUF_FD,
        DMABUF_ACCESS,
        DMABUF_LKEY,
        DMABUF_RKEY,
    ])?;
    let (offset, length) = (ask.small(DMABUF_OFFSET)?, ask.small(DMABUF_LENGTH)?);
    let iova = ask.small(DMABUF_IOVA)?;
    let flags = ask.small(DMABUF_ACCESS)? as u32;
    let fd = ask.small(DMABUF_FD)? as i32;
    let ends = offset.checked_add(length).is_some() && iova.checked_add(length).is_some();
    let known = access::RIGHTS | access::OPTIONAL;
    if offset % PAGE != iova % PAGE || length == 0 || !ends || flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    let access = rights(flags)?;
    let handle = ask.handle(DMABUF_PD)?;
    let pd = *open.objects.get::<PdId>(handle)?;
    let writable = access.contains(Access::LOCAL_WRITE);
    let attr = MrAttr {
        pd,
        va: iova,
        len: length,
        access,
        mem: device.user.dmabuf(fd, offset, length, writable)?,
        mem_offset: 0,
    };
    let keys = device.nic.with(|nic| nic.reg_mr(attr)).map_err(errno)?;
    let region = Region {
        keys,
        start: offset,
        length,
        hca_va: iova,
        pd: handle,
        access: flags,
        own: false,
    };
    let handle = open.objects.insert(Object::Mr(region));
    let answered = ask
        .answer(DMABUF_LKEY, &keys.lkey.to_ne_bytes())
        .and_then(|()| ask.answer(DMABUF_RKEY, &keys.rkey.to_ne_bytes()))
        .and_then(|()| ask.answer_handle(DMABUF_HANDLE, handle));
    if answered.is_err() {
        open.objects.remove(handle);
        // Nobody knows it, so nobody uses it.
        let _ = device.nic.with(|nic| nic.dereg_mr(keys.lkey));
    }
    answered
}

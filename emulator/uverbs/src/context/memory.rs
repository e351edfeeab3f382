//! Protection domains, memory regions, address handles.

use rustix::io::Errno;
use vmlx5::{Access, MrAttr, MrKeys, PdId};

use crate::abi::core::*;
use crate::abi::mlx5;
use crate::address::LinkLayer;
use crate::command::{Call, Done};
use crate::context::Open;
use crate::context::{AddressHandle, Object, Region, Registration};
use crate::device::Device;

/// The attributes of a change of an MR.
mod rereg {
    pub const TRANSLATION: u32 = 1 << 0;
    pub const PD: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 2;
}

const PAGE: u64 = 4096;

impl Open {
    pub fn alloc_pd(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let pd = device.with_nic(|nic| nic.alloc_pd())?;
        self.keep(device, Object::Pd(pd), |pd_handle| {
            call.driver_answer(&mlx5::AllocPdResp { pdn: pd.number() })?;
            call.answer(&AllocPdResp { pd_handle })
        })
    }

    pub fn dealloc_pd(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let handle = call.input::<Handle>()?.handle;
        let pd = *self.objects.doomed::<PdId>(handle)?;
        // The NIC does not implement these.
        let uses = |object: &Object| matches!(object, Object::Ah(ah) if ah.pd == pd);
        if self.objects.each().any(uses) {
            return Err(Errno::BUSY);
        }
        device.with_nic(|nic| nic.dealloc_pd(pd))?;
        self.objects.remove(handle);
        Ok(())
    }

    /// Registers a region.
    pub fn register(&self, device: &Device, of: Registration) -> Result<Region, Errno> {
        if of.start % PAGE != of.hca_va % PAGE {
            return Err(Errno::INVAL);
        }
        let access = rights(of.access)?;
        let ends = |start: u64| start.checked_add(of.length).is_some();
        if of.length == 0 || !ends(of.start) || !ends(of.hca_va) {
            return Err(Errno::INVAL);
        }
        let pd = *self.objects.get::<PdId>(of.pd)?;
        let writable = access.contains(Access::LOCAL_WRITE);
        let attr = MrAttr {
            pd,
            va: of.hca_va,
            len: of.length,
            access,
            mem: match of.file {
                Some(fd) => device.user.dmabuf(fd, of.start, of.length, writable)?,
                None => device.user.memory(of.start, of.length, writable)?,
            },
            mem_offset: 0,
        };
        let keys = device.with_nic(|nic| nic.reg_mr(attr))?;
        Ok(Region { keys, of })
    }

    pub fn reg_mr(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: RegMr = call.input()?;
        let of = Registration {
            start: cmd.start,
            length: cmd.length,
            hca_va: cmd.hca_va,
            pd: cmd.pd_handle,
            access: cmd.access_flags,
            file: None,
        };
        let region = self.register(device, of)?;
        let MrKeys { lkey, rkey } = region.keys;
        self.keep(device, Object::Mr(region), |mr_handle| {
            call.answer(&RegMrResp {
                mr_handle,
                lkey,
                rkey,
            })
        })
    }

    /// Registers an MR again, under new keys, and drops the old registration.
    pub fn rereg_mr(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: ReregMr = call.input()?;
        let all = rereg::TRANSLATION | rereg::PD | rereg::ACCESS;
        if cmd.flags == 0 || cmd.flags & !all != 0 {
            return Err(Errno::INVAL);
        }
        let has = |flag| cmd.flags & flag != 0;
        if has(rereg::TRANSLATION) && cmd.start % PAGE != cmd.hca_va % PAGE {
            return Err(Errno::INVAL);
        }
        let region = self.objects.get::<Region>(cmd.mr_handle)?;
        let mut of = region.of;
        if of.file.is_some() {
            return Err(Errno::OPNOTSUPP);
        }
        if has(rereg::TRANSLATION) {
            (of.start, of.length, of.hca_va) = (cmd.start, cmd.length, cmd.hca_va);
        }
        if has(rereg::PD) {
            of.pd = cmd.pd_handle;
        }
        if has(rereg::ACCESS) {
            of.access = cmd.access_flags;
        }
        let former = region.keys.lkey;
        let region = self.register(device, of)?;
        let MrKeys { lkey, rkey } = region.keys;
        // A command that cannot be answered changes nothing.
        let answered = call.answer(&ReregMrResp { lkey, rkey });
        let unused = match answered {
            Ok(()) => {
                *self.objects.get_mut::<Region>(cmd.mr_handle)? = region;
                former
            }
            Err(_) => lkey,
        };
        let _ = device.with_nic(|nic| nic.dereg_mr(unused));
        answered
    }

    pub fn dereg_mr(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let handle = call.input::<Handle>()?.handle;
        let lkey = self.objects.doomed::<Region>(handle)?.keys.lkey;
        device.with_nic(|nic| nic.dereg_mr(lkey))?;
        self.objects.remove(handle);
        Ok(())
    }

    /// An address handle of Ethernet. It contains the address of the next hop, which a kernel
    /// resolves. The library alone creates those of InfiniBand.
    pub fn create_ah(&mut self, device: &Device, call: &Call<'_>) -> Done {
        let cmd: CreateAh = call.input()?;
        let pd = *self.objects.get::<PdId>(cmd.pd_handle)?;
        let fabric = &device.config.fabric;
        let place = device.place(cmd.attr.port_num);
        if place.port == 0 || place.port > fabric.ports {
            return Err(Errno::INVAL);
        }
        let gids = fabric.gids(place).len();
        let global = cmd.attr.is_global != 0;
        if global && usize::from(cmd.attr.grh.sgid_index) >= gids {
            return Err(Errno::INVAL);
        }
        let mut resp = mlx5::CreateAhResp::default();
        if fabric.link == LinkLayer::Ethernet {
            if !global {
                return Err(Errno::INVAL);
            }
            // A datagram to an unused address is lost, like one to an address that does not answer.
            let to = fabric.by_gid(&cmd.attr.grh.dgid).unwrap_or(place);
            resp.dmac = fabric.mac(to);
        }
        resp.response_length = call.driver_room().min(size_of_val(&resp)) as u32;
        self.keep(device, Object::Ah(AddressHandle { pd }), |ah_handle| {
            call.driver_answer(&resp)?;
            call.answer(&CreateAhResp { ah_handle })
        })
    }

    pub fn destroy_ah(&mut self, _: &Device, call: &Call<'_>) -> Done {
        let handle = call.input::<Handle>()?.handle;
        self.objects.doomed::<AddressHandle>(handle)?;
        self.objects.remove(handle);
        Ok(())
    }
}

/// The rights among the access flags of an MR.
pub(crate) fn rights(flags: u32) -> Result<Access, Errno> {
    if flags & (access::ON_DEMAND | access::ZERO_BASED) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let known = access::RIGHTS | access::MW_BIND | access::HUGETLB | access::OPTIONAL;
    if flags & !known != 0 {
        return Err(Errno::INVAL);
    }
    Access::from_bits(flags & access::RIGHTS).map_err(|_| Errno::INVAL)
}

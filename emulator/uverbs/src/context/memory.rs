//! Protection domains, memory regions, address handles.

use rustix::io::Errno;
use vmlx5::{Access, MrAttr, MrKeys, PdId};

use crate::abi::core::*;
use crate::abi::mlx5;
use crate::address::{LinkLayer, Place};
use crate::command::Call;
use crate::context::Open;
use crate::context::{AddressHandle, Object, Region};
use crate::device::Device;
use crate::error::errno;

/// What a change of a region names.
mod rereg {
    pub const TRANSLATION: u32 = 1 << 0;
    pub const PD: u32 = 1 << 1;
    pub const ACCESS: u32 = 1 << 2;
}

const PAGE: u64 = 4096;

/// What is to be registered.
struct Wanted {
    start: u64,
    length: u64,
    hca_va: u64,
    pd: u32,
    access: u32,
}

impl Open {
    pub fn alloc_pd(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let pd = device.nic.with(|nic| nic.alloc_pd()).map_err(errno)?;
        let pd_handle = open.objects.insert(Object::Pd(pd));
        let pdn = pd.number();
        let answered = call
            .driver_answer(&mlx5::AllocPdResp { pdn })
            .and_then(|()| call.answer(&AllocPdResp { pd_handle }));
        if answered.is_err() {
            open.objects.remove(pd_handle);
            // Nobody knows it, so nobody uses it.
            let _ = device.nic.with(|nic| nic.dealloc_pd(pd));
        }
        answered
    }

    pub fn dealloc_pd(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let handle = call.input::<Handle>()?.handle;
        let pd = *open.objects.doomed::<PdId>(handle)?;
        // The NIC knows nothing of these.
        let uses = |object: &Object| matches!(object, Object::Ah(ah) if ah.pd == pd);
        if open.objects.each().any(uses) {
            return Err(Errno::BUSY);
        }
        device.nic.with(|nic| nic.dealloc_pd(pd)).map_err(errno)?;
        open.objects.remove(handle);
        Ok(())
    }

    fn register(&self, device: &Device, want: &Wanted) -> Result<MrKeys, Errno> {
        if want.start % PAGE != want.hca_va % PAGE {
            return Err(Errno::INVAL);
        }
        let rights = rights(want.access)?;
        let ends = want.start.checked_add(want.length);
        if want.length == 0 || ends.is_none() || want.hca_va.checked_add(want.length).is_none() {
            return Err(Errno::INVAL);
        }
        let pd = *self.objects.get::<PdId>(want.pd)?;
        let writable = rights.contains(Access::LOCAL_WRITE);
        let attr = MrAttr {
            pd,
            va: want.hca_va,
            len: want.length,
            access: rights,
            mem: device.user.memory(want.start, want.length, writable)?,
            mem_offset: 0,
        };
        device.nic.with(|nic| nic.reg_mr(attr)).map_err(errno)
    }

    pub fn reg_mr(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let ask: RegMr = call.input()?;
        let want = Wanted {
            start: ask.start,
            length: ask.length,
            hca_va: ask.hca_va,
            pd: ask.pd_handle,
            access: ask.access_flags,
        };
        let keys = open.register(device, &want)?;
        let mr_handle = open.objects.insert(Object::Mr(region(&want, keys)));
        let answered = call.answer(&RegMrResp {
            mr_handle,
            lkey: keys.lkey,
            rkey: keys.rkey,
        });
        if answered.is_err() {
            open.objects.remove(mr_handle);
            let _ = device.nic.with(|nic| nic.dereg_mr(keys.lkey));
        }
        answered
    }

    /// Registers a region anew, under new keys, and forgets the old registration.
    pub fn rereg_mr(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let ask: ReregMr = call.input()?;
        let all = rereg::TRANSLATION | rereg::PD | rereg::ACCESS;
        if ask.flags == 0 || ask.flags & !all != 0 {
            return Err(Errno::INVAL);
        }
        let moved = ask.flags & rereg::TRANSLATION != 0;
        if moved && ask.start % PAGE != ask.hca_va % PAGE {
            return Err(Errno::INVAL);
        }
        let old = open.objects.get::<Region>(ask.mr_handle)?;
        if !old.own {
            return Err(Errno::OPNOTSUPP);
        }
        let pick = |flag, new, old| if ask.flags & flag != 0 { new } else { old };
        let want = Wanted {
            start: if moved { ask.start } else { old.start },
            length: if moved { ask.length } else { old.length },
            hca_va: if moved { ask.hca_va } else { old.hca_va },
            pd: pick(rereg::PD, ask.pd_handle, old.pd),
            access: pick(rereg::ACCESS, ask.access_flags, old.access),
        };
        let former = old.keys.lkey;
        let keys = open.register(device, &want)?;
        *open.objects.get_mut::<Region>(ask.mr_handle)? = region(&want, keys);
        let _ = device.nic.with(|nic| nic.dereg_mr(former));
        call.answer(&ReregMrResp {
            lkey: keys.lkey,
            rkey: keys.rkey,
        })
    }

    pub fn dereg_mr(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let handle = call.input::<Handle>()?.handle;
        let lkey = open.objects.doomed::<Region>(handle)?.keys.lkey;
        device.nic.with(|nic| nic.dereg_mr(lkey)).map_err(errno)?;
        open.objects.remove(handle);
        Ok(())
    }

    /// An address handle of Ethernet: the address of the next hop belongs to it, which a kernel
    /// finds out. Those of InfiniBand are made by the library alone.
    pub fn create_ah(device: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let ask: CreateAh = call.input()?;
        let pd = *open.objects.get::<PdId>(ask.pd_handle)?;
        let fabric = &device.config.fabric;
        let port = ask.attr.port_num;
        if port == 0 || port > fabric.ports {
            return Err(Errno::INVAL);
        }
        let place = Place {
            device: device.config.index,
            port,
        };
        let gids = fabric.gids(place).len();
        let global = ask.attr.is_global != 0;
        if global && usize::from(ask.attr.grh.sgid_index) >= gids {
            return Err(Errno::INVAL);
        }
        let mut say = mlx5::CreateAhResp::default();
        if fabric.link == LinkLayer::Ethernet {
            if !global {
                return Err(Errno::INVAL);
            }
            // An address that nobody has leads nowhere, as one that does not answer would.
            let to = fabric.by_gid(&ask.attr.grh.dgid).unwrap_or(place);
            say.dmac = fabric.mac(to);
        }
        say.response_length = call.driver_room().min(size_of_val(&say)) as u32;
        let ah_handle = open.objects.insert(Object::Ah(AddressHandle { pd }));
        let answered = call
            .driver_answer(&say)
            .and_then(|()| call.answer(&CreateAhResp { ah_handle }));
        if answered.is_err() {
            open.objects.remove(ah_handle);
        }
        answered
    }

    pub fn destroy_ah(_: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let handle = call.input::<Handle>()?.handle;
        open.objects.doomed::<AddressHandle>(handle)?;
        open.objects.remove(handle);
        Ok(())
    }

    /// There are no multicast groups, and datagrams of other kinds than those may not join one.
    pub fn mcast(_: &Device, _: &mut Open, _: &Call<'_>) -> Result<(), Errno> {
        Err(Errno::INVAL)
    }
}

fn region(want: &Wanted, keys: MrKeys) -> Region {
    Region {
        keys,
        start: want.start,
        length: want.length,
        hca_va: want.hca_va,
        pd: want.pd,
        access: want.access,
        own: true,
    }
}

/// The rights among the access flags of a region.
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

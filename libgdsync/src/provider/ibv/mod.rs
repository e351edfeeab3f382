//! The common part of all NICs by libibverbs, for both providers of queue pairs: the library,
//! opened at run time, one port of an open NIC, protection domains and registrations.
//!
//! [`context`] has the libraries and open NICs, [`events`] their events, [`port`] the choice of
//! NIC, port and identifier, [`memory`] the registration of memory, [`path`] the state changes of a
//! queue pair, [`handle`] the routes of datagrams.

mod context;
mod events;
mod handle;
mod memory;
pub(super) mod path;
mod port;

use std::collections::BTreeMap;
use std::sync::Once;

use gds_step::{Mutex, Time};
use gdsync_sys::verbs::types::{ibv_mr, ibv_pd};

pub(super) use self::context::{Context, check, is_gone, missing, refusal, refused_last};
pub(crate) use self::handle::Handle;
use self::memory::Memory;
use self::port::Port;
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Region};
use crate::nic::{
    Access, AhAttr, MrKeys, NicChoice, PathConfig, PathSettings, PdId, PortAddress, Report,
};

pub(crate) use self::port::near;
#[cfg(feature = "internals")]
pub use self::port::nearest_first;

/// An object of the library. Any thread may use it.
#[derive(Clone, Copy, Debug)]
struct Object<T>(*mut T);

// SAFETY: libibverbs may be called from any thread with any of its objects.
unsafe impl<T> Send for Object<T> {}

#[derive(Default)]
struct Pds {
    by_id: BTreeMap<PdId, Object<ibv_pd>>,
    next: u32,
}

/// One port of an open NIC, and its live objects other than queue pairs.
pub(super) struct IbvPort {
    context: &'static Context,
    port: Port,
    name: String,
    pds: Mutex<Pds>,
    /// The registrations by local key.
    mrs: Mutex<BTreeMap<u32, Object<ibv_mr>>>,
    /// Whether it was logged that the GPU's memory is registered by another method than dma-bufs.
    logged: Once,
}

impl IbvPort {
    /// Opens the NIC that is named, or the one nearest to `gpu` that has an active port; if
    /// `direct`, a NIC for libmlx5.
    pub fn open(gpu: &Gpu, nic: Option<&NicChoice>, direct: bool) -> Result<IbvPort> {
        let (context, port) = port::choose(gpu, nic, direct)?;
        Ok(IbvPort {
            context,
            port,
            name: format!("{}:{}", context.name, port.number),
            pds: Mutex::default(),
            mrs: Mutex::default(),
            logged: Once::new(),
        })
    }

    pub fn context(&self) -> &'static Context {
        self.context
    }

    pub fn port(&self) -> &Port {
        &self.port
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of the port.
    pub fn address(&self) -> Option<PortAddress> {
        Some(self.port.address)
    }

    pub fn pd(&self, id: PdId, operation: &'static str) -> Result<*mut ibv_pd> {
        let gone = || {
            let what = format!("PD {} does not belong to {}", id.0, self.name);
            Error::new(operation, Kind::Foreign, what)
        };
        let pds = self.pds.lock();
        pds.by_id.get(&id).map(|pd| pd.0).ok_or_else(gone)
    }

    pub fn alloc_pd(&self) -> Result<PdId> {
        let verbs = self.context.verbs();
        // SAFETY: an open context.
        let pd = unsafe { (verbs.ibv_alloc_pd)(self.context.raw()) };
        if pd.is_null() {
            let call = format!("ibv_alloc_pd on {}", self.name);
            return Err(refused_last("allocate protection domain", &call));
        }
        let mut pds = self.pds.lock();
        let id = PdId(pds.next);
        pds.next += 1;
        pds.by_id.insert(id, Object(pd));
        Ok(id)
    }

    pub fn dealloc_pd(&self, id: PdId) {
        let Some(pd) = self.pds.lock().by_id.remove(&id) else {
            return;
        };
        // SAFETY: made by `alloc_pd`, and taken from the table by this call alone. Registrations
        // and queue pairs hold the domain, so it has no users left.
        let answer = unsafe { (self.context.verbs().ibv_dealloc_pd)(pd.0) };
        if answer != 0 {
            tracing::warn!(target: "gdsync", "deallocate pd of {}: {answer}", self.name);
        }
    }

    pub fn reg_mr(&self, pd: PdId, region: &Region, access: Access) -> Result<MrKeys> {
        const OPERATION: &str = "register memory";
        let pd = self.pd(pd, OPERATION)?;
        let memory = Memory {
            nic: &self.name,
            verbs: self.context.verbs(),
            pd,
            region,
            rights: path::rights(access) as i32,
        };
        let mr = memory.register(&self.logged)?;
        // SAFETY: a live registration.
        let keys = unsafe {
            MrKeys {
                lkey: (*mr).lkey,
                rkey: (*mr).rkey,
            }
        };
        self.mrs.lock().insert(keys.lkey, Object(mr));
        Ok(keys)
    }

    pub fn dereg_mr(&self, keys: MrKeys) {
        let Some(mr) = self.mrs.lock().remove(&keys.lkey) else {
            return;
        };
        // SAFETY: made by `reg_mr`, and taken from the table by this call alone.
        let answer = unsafe { (self.context.verbs().ibv_dereg_mr)(mr.0) };
        if answer != 0 {
            tracing::warn!(target: "gdsync", "deregister memory of {}: {answer}", self.name);
        }
    }

    /// The index of these settings' partition key in the port's table.
    pub fn pkey_index(&self, path: &PathSettings) -> Result<u16> {
        port::pkey_index(self.context, self.port.number, path.pkey)
    }

    /// An address handle for a port.
    pub fn handle(&self, pd: PdId, to: &AhAttr) -> Result<Handle> {
        let attr = path::ah_attr(&self.port, to, &PathConfig::default().resolve()?)?;
        let pd = self.pd(pd, "create destination")?;
        // SAFETY: a protection domain of this context, which destinations hold.
        unsafe { Handle::make(self.context, pd, attr) }
    }

    /// The state that was reported for a queue pair.
    pub fn report(&self, qpn: u32, now: Time) -> Report {
        self.context.events.of(qpn, now)
    }
}

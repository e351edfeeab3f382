//! A device for the processes that open it: its attributes and ports.

use std::sync::{Arc, Mutex};

use gds_step::Shared;
use rustix::io::Errno;
use vmlx5::{Nic, NicError};
use zerocopy::IntoBytes;

use crate::abi::core::{
    ExQueryDevice, ExQueryDeviceResp, QueryDeviceResp, QueryPort, QueryPortResp,
};
use crate::abi::mlx5;
use crate::address::{Fabric, LinkLayer, Place};
use crate::command::{Call, Done};
use crate::directory::Directory;
use crate::error::errno;
use crate::event::lock;
use crate::targets::{Read, Targets};
use crate::user::User;

/// The vendor ID.
pub const VENDOR: u32 = 0x15b3;
/// The part ID: a ConnectX-7.
pub const PART: u32 = 0x1021;
/// The firmware version, which other interfaces write as 28.39.1002.
pub const FIRMWARE: (u16, u16, u16) = (28, 39, 1002);
/// Completion vectors.
pub(crate) const COMP_VECTORS: u32 = 4;
/// The maximal number of basic blocks of a send queue, and of receives.
pub(crate) const MAX_WQE: u32 = 1 << 15;
pub(crate) const MAX_CQE: u32 = (1 << 22) - 1;
pub(crate) const MAX_SGE: u32 = 30;
/// The maximal number of SGEs of a shared receive, whose entry begins with an additional segment.
pub(crate) const MAX_SRQ_SGE: u32 = 31;
pub(crate) const MAX_INLINE: u32 = 1024;
pub(crate) const MAX_RD_ATOMIC: u32 = 16;

/// The allocation of doorbell pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UarMode {
    /// One by one, as current kernels do if the library can request pages.
    #[default]
    Dynamic,
    /// All at the start, as older kernels do.
    Static,
}

/// The configuration of a device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The devices of the fabric.
    pub fabric: Fabric,
    /// The index of this device.
    pub index: u32,
    /// The allocation of doorbell pages.
    pub uar: UarMode,
}

/// A device: one NIC, and the state of the processes that open it.
pub struct Device {
    pub(crate) config: DeviceConfig,
    pub(crate) nic: Shared<Nic>,
    pub(crate) user: Arc<dyn User>,
    /// The recipients of events. Locked before the NIC, never while the NIC is locked.
    pub(crate) targets: Mutex<Targets>,
}

impl Device {
    /// A device with the NIC `nic`, which is stepped separately. Its QP numbers must be those of
    /// its node's slot: see [`Fabric::qpns`].
    pub fn new(config: DeviceConfig, nic: Shared<Nic>, user: Arc<dyn User>) -> Arc<Device> {
        let directory = Directory::new(config.fabric.clone(), config.index);
        nic.with(|nic| nic.set_resolver(Arc::new(directory)));
        Arc::new(Device {
            config,
            nic,
            user,
            targets: Mutex::default(),
        })
    }

    /// Sends the pending events. Must be called after every step of the NIC.
    pub fn turn(&self) {
        let mut targets = lock(&self.targets);
        while let Some(event) = self.nic.with(Nic::next_event) {
            targets.deliver(event);
        }
        targets.push();
    }

    /// Removes a destroyed object and its unread events. Returns the number of its events that were
    /// read: the library waits until the program has acknowledged as many.
    pub(crate) fn untrack(&self, owner: u64) -> Read {
        lock(&self.targets).remove(owner)
    }

    /// Runs `f` on the NIC.
    ///
    /// # Errors
    /// The refusal of the NIC, as a kernel's errno.
    pub(crate) fn with_nic<R>(
        &self,
        f: impl FnOnce(&mut Nic) -> Result<R, NicError>,
    ) -> Result<R, Errno> {
        self.nic.with(f).map_err(errno)
    }

    /// A port of the device.
    pub(crate) fn place(&self, port: u8) -> Place {
        let device = self.config.index;
        Place { device, port }
    }

    /// Whether there are objects with possible events.
    pub fn has_targets(&self) -> bool {
        !lock(&self.targets).is_empty()
    }

    fn attributes(&self) -> QueryDeviceResp {
        let (major, minor, sub) = FIRMWARE;
        let guid = self.config.fabric.guid(self.config.index).to_be();
        QueryDeviceResp {
            fw_ver: u64::from(major) << 32 | u64::from(minor) << 16 | u64::from(sub),
            node_guid: guid,
            sys_image_guid: guid,
            max_mr_size: !0,
            page_size_cap: !0xfff,
            vendor_id: VENDOR,
            vendor_part_id: PART,
            hw_ver: 0,
            max_qp: 1 << crate::address::LOG_QPS,
            max_qp_wr: MAX_WQE,
            device_cap_flags: cap::CURR_QP_STATE_MOD
                | cap::SYS_IMAGE_GUID
                | cap::RC_RNR_NAK_GEN
                | cap::PORT_ACTIVE_EVENT,
            max_sge: MAX_SGE,
            max_sge_rd: MAX_SGE,
            max_cq: 1 << 12,
            max_cqe: MAX_CQE,
            max_mr: 1 << 16,
            max_pd: 1 << 8,
            max_qp_rd_atom: MAX_RD_ATOMIC,
            max_res_rd_atom: MAX_RD_ATOMIC << crate::address::LOG_QPS,
            max_qp_init_rd_atom: MAX_RD_ATOMIC,
            atomic_cap: 1,
            max_ah: !0 >> 1,
            max_srq: 1 << 10,
            max_srq_wr: MAX_WQE - 1,
            max_srq_sge: MAX_SRQ_SGE,
            max_pkeys: 1,
            local_ca_ack_delay: 16,
            phys_port_cnt: self.config.fabric.ports,
            ..QueryDeviceResp::default()
        }
    }

    pub(crate) fn query(&self, call: &Call<'_>) -> Done {
        call.answer(&self.attributes())
    }

    pub(crate) fn query_extended(&self, call: &Call<'_>) -> Done {
        let cmd: ExQueryDevice = call.input()?;
        if cmd.comp_mask != 0 || cmd.reserved != 0 {
            return Err(Errno::INVAL);
        }
        let mut resp = ExQueryDeviceResp {
            base: self.attributes(),
            // The timestamps of CQEs are in nanoseconds.
            timestamp_mask: !0,
            hca_core_clock: 1_000_000,
            ..ExQueryDeviceResp::default()
        };
        resp.device_cap_flags_ex = resp.base.device_cap_flags.into();
        resp.response_length = call.room().min(resp.as_bytes().len()) as u32;
        call.answer(&resp)?;
        // The driver's part: its length, and no offloads.
        let length = call.driver_room().min(mlx5::QUERY_DEVICE_RESP);
        call.driver_answer(&[0, length as u32])
    }

    pub(crate) fn query_port(&self, call: &Call<'_>) -> Done {
        let cmd: QueryPort = call.input()?;
        call.answer(&self.port(cmd.port_num)?)
    }

    /// The attributes of a port.
    ///
    /// # Errors
    /// `EINVAL`: there is no port with this number.
    pub(crate) fn port(&self, number: u8) -> Result<QueryPortResp, Errno> {
        let fabric = &self.config.fabric;
        let place = self.place(number);
        if place.port == 0 || place.port > fabric.ports {
            return Err(Errno::INVAL);
        }
        let up = self.with_nic(|nic| nic.port(place.port))?;
        let infiniband = fabric.link == LinkLayer::InfiniBand;
        Ok(QueryPortResp {
            // The port has a communication manager; on Ethernet its GIDs are made of IP addresses.
            port_cap_flags: 1 << 16 | u32::from(!infiniband) << 26,
            max_msg_sz: 1 << 30,
            gid_tbl_len: fabric.gids(place).len() as u32,
            pkey_tbl_len: 1,
            lid: fabric.lid(place),
            sm_lid: infiniband.into(),
            // Active or down; the physical state is link up, or polling.
            state: if up { 4 } else { 1 },
            max_mtu: 5,
            active_mtu: 5,
            max_vl_num: if infiniband { 4 } else { 0 },
            subnet_timeout: if infiniband { 18 } else { 0 },
            // Four lanes of 25 Gb/s each.
            active_width: 2,
            active_speed: 32,
            phys_state: if up { 5 } else { 2 },
            link_layer: if infiniband { 1 } else { 2 },
            flags: u8::from(!infiniband),
            ..QueryPortResp::default()
        })
    }
}

/// The capabilities of the device.
mod cap {
    pub const CURR_QP_STATE_MOD: u32 = 1 << 7;
    pub const PORT_ACTIVE_EVENT: u32 = 1 << 10;
    pub const SYS_IMAGE_GUID: u32 = 1 << 11;
    pub const RC_RNR_NAK_GEN: u32 = 1 << 12;
}

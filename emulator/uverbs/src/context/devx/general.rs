//! Commands without an object: the capabilities of the device, and the GID table of an Ethernet
//! port.

use super::mailbox::{Mailbox, Refusal};
use crate::abi::prm::{cap, input, output, roce_address};
use crate::address::{GidType, LOG_QPS, LinkLayer};
use crate::device::{Device, MAX_CQE, MAX_RD_ATOMIC, MAX_WQE};

/// Bytes of a BlueFlame register: two buffers of 256 bytes.
const BF_REGISTER: u32 = 512;
/// The UDP port of RoCE v2.
const ROCE_PORT: u64 = 4791;

/// Writes a structure of capabilities, cut to the length of the answer. Fields that this device
/// does not implement are zero, and so is all of a structure that it does not have.
pub(super) fn query_hca_cap(
    device: &Device,
    command: Mailbox<'_>,
    answer: &mut [u8],
) -> Result<(), Refusal> {
    command.lengths(input::HEADER, answer, output::HEADER)?;
    let caps = &mut answer[output::HEADER..];
    match command.get(input::OP_MOD) >> 1 {
        cap::GENERAL => general(device, caps),
        cap::ATOMIC => {
            use cap::atomic::*;
            REQ_8B_ENDIANNESS_MODE.set(caps, 1);
            SUPPORTED_REQ_8B_ENDIANNESS_MODE_1.set(caps, 1);
            OPERATIONS.set(caps, SWAP_AND_ADD);
            SIZE_QP.set(caps, BYTES_8);
        }
        cap::ROCE if device.config.fabric.link == LinkLayer::Ethernet => {
            use cap::roce::*;
            VERSION.set(caps, V1_AND_V2);
            DEST_UDP_PORT.set(caps, ROCE_PORT);
            MIN_SRC_UDP_PORT.set(caps, 0xc000);
            MAX_SRC_UDP_PORT.set(caps, 0xffff);
            let gids = device.config.fabric.gids(device.place(1)).len();
            ADDRESS_TABLE_SIZE.set(caps, gids as u64);
        }
        _ => {}
    }
    Ok(())
}

fn general(device: &Device, caps: &mut [u8]) {
    use cap::general::*;
    let fabric = &device.config.fabric;
    let ethernet = u64::from(fabric.link == LinkLayer::Ethernet);
    let log = |value: u32| u64::from(value.ilog2());
    LOG_MAX_QP_SZ.set(caps, log(MAX_WQE));
    LOG_MAX_QP.set(caps, LOG_QPS.into());
    LOG_MAX_CQ_SZ.set(caps, log(MAX_CQE) + 1);
    LOG_MAX_CQ.set(caps, 12);
    LOG_MAX_MKEY.set(caps, 16);
    LOG_MAX_RA_REQ_QP.set(caps, log(MAX_RD_ATOMIC));
    LOG_MAX_RA_RES_QP.set(caps, log(MAX_RD_ATOMIC));
    LOCAL_CA_ACK_DELAY.set(caps, 16);
    PORT_TYPE.set(caps, ethernet);
    NUM_PORTS.set(caps, fabric.ports.into());
    LOG_MAX_MSG.set(caps, 30);
    CQE_VERSION.set(caps, 1);
    cap::general::ROCE.set(caps, ethernet);
    cap::general::ATOMIC.set(caps, 1);
    CQ_OI.set(caps, 1);
    UC.set(caps, 1);
    RC.set(caps, 1);
    UAR_4K.set(caps, 1);
    LOG_PG_SZ.set(caps, 12);
    BF.set(caps, 1);
    LOG_BF_REG_SIZE.set(caps, log(BF_REGISTER));
    MAX_WQE_SZ_SQ.set(caps, 1024);
    MAX_WQE_SZ_RQ.set(caps, 512);
    LOG_MAX_PD.set(caps, 8);
    LOG_MAX_UCTX.set(caps, 16);
    LOG_MAX_UMEM.set(caps, 16);
    NUM_OF_UARS_PER_PAGE.set(caps, 1);
}

/// An entry of the GID table of an Ethernet port.
pub(super) fn query_roce_address(
    device: &Device,
    command: Mailbox<'_>,
    answer: &mut [u8],
) -> Result<(), Refusal> {
    use roce_address::{GID, MAC, OUT, input, output};
    command.lengths(crate::abi::prm::input::HEADER, answer, OUT)?;
    let fabric = &device.config.fabric;
    // Port number 0, an absent field, is the first port.
    let place = device.place(command.get8(input::VHCA_PORT_NUM).max(1));
    if place.port > fabric.ports || fabric.link != LinkLayer::Ethernet {
        return Err(command.wrong(input::VHCA_PORT_NUM));
    }
    let gids = fabric.gids(place);
    let index = command.get(input::INDEX) as usize;
    let &(gid, kind) = gids.get(index).ok_or(command.wrong(input::INDEX))?;
    answer[GID].copy_from_slice(&gid);
    answer[MAC].copy_from_slice(&fabric.mac(place));
    let mapped = gid.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
    output::L3_TYPE.set(answer, u64::from(!mapped));
    let version = if kind == GidType::RoceV2 { 2 } else { 0 };
    output::VERSION.set(answer, version);
    Ok(())
}

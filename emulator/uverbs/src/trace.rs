//! Names of commands, for traces.

use crate::abi::core::command::{EXTENDED, MASK};

/// The name of a written command, by its first word.
pub fn name_of(command: u32) -> &'static str {
    const NAMES: &str = "GET_CONTEXT QUERY_DEVICE QUERY_PORT ALLOC_PD DEALLOC_PD CREATE_AH \
        MODIFY_AH QUERY_AH DESTROY_AH REG_MR REG_SMR REREG_MR QUERY_MR DEREG_MR ALLOC_MW BIND_MW \
        DEALLOC_MW CREATE_COMP_CHANNEL CREATE_CQ RESIZE_CQ DESTROY_CQ POLL_CQ PEEK_CQ \
        REQ_NOTIFY_CQ CREATE_QP QUERY_QP MODIFY_QP DESTROY_QP POST_SEND POST_RECV ATTACH_MCAST \
        DETACH_MCAST CREATE_SRQ MODIFY_SRQ QUERY_SRQ DESTROY_SRQ POST_SRQ_RECV OPEN_XRCD \
        CLOSE_XRCD CREATE_XSRQ OPEN_QP";
    /// From number 50 on.
    const EXTENDED_NAMES: &str = "EX_CREATE_FLOW EX_DESTROY_FLOW EX_CREATE_WQ EX_MODIFY_WQ \
        EX_DESTROY_WQ EX_CREATE_RWQ_IND_TBL EX_DESTROY_RWQ_IND_TBL EX_MODIFY_CQ";
    let number = (command & MASK) as usize;
    let name = match number {
        _ if command & EXTENDED == 0 => NAMES.split(' ').nth(number),
        1 => Some("EX_QUERY_DEVICE"),
        18 => Some("EX_CREATE_CQ"),
        24 => Some("EX_CREATE_QP"),
        26 => Some("EX_MODIFY_QP"),
        50.. => EXTENDED_NAMES.split(' ').nth(number - 50),
        _ => None,
    };
    name.unwrap_or("unknown")
}

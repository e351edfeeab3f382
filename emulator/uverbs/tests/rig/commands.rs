//! The commands of the interface: the answer of each, and their bytes.

use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The input of a command with an answer.
pub trait Command: IntoBytes + Immutable {
    const NUMBER: u32;
    /// The answer of the core, and that of the driver.
    type Resp: FromBytes + IntoBytes + Default;
    type Own: FromBytes + IntoBytes + Default;
}

macro_rules! commands {
    ($($input:ident = $number:ident -> $result:ident, $own:ty;)*) => {$(
        impl Command for $input {
            const NUMBER: u32 = command::$number;
            type Resp = $result;
            type Own = $own;
        }
    )*};
}

commands! {
    GetContext = GET_CONTEXT -> GetContextResp, mlx5::AllocUcontextResp;
    QueryDevice = QUERY_DEVICE -> QueryDeviceResp, ();
    QueryPort = QUERY_PORT -> QueryPortResp, ();
    AllocPd = ALLOC_PD -> AllocPdResp, mlx5::AllocPdResp;
    CreateAh = CREATE_AH -> CreateAhResp, mlx5::CreateAhResp;
    RegMr = REG_MR -> RegMrResp, ();
    ReregMr = REREG_MR -> ReregMrResp, ();
    CreateCompChannel = CREATE_COMP_CHANNEL -> CreateCompChannelResp, ();
    CreateCq = CREATE_CQ -> CreateCqResp, mlx5::CreateCqResp;
    DestroyCq = DESTROY_CQ -> DestroyCqResp, ();
    CreateQp = CREATE_QP -> CreateQpResp, mlx5::CreateQpResp;
    QueryQp = QUERY_QP -> QueryQpResp, ();
    DestroyQp = DESTROY_QP -> DestroyQpResp, ();
    CreateSrq = CREATE_SRQ -> CreateSrqResp, mlx5::CreateSrqResp;
    QuerySrq = QUERY_SRQ -> QuerySrqResp, ();
    DestroySrq = DESTROY_SRQ -> DestroySrqResp, ();
}

/// The bytes of a command that is not extended.
pub fn plain(command: u32, body: &[u8], out: usize) -> Vec<u8> {
    let hdr = CmdHdr {
        command,
        in_words: ((body.len() + 8) / 4) as u16,
        out_words: (out / 4) as u16,
    };
    [hdr.as_bytes(), body].concat()
}

/// The bytes of an extended command.
pub fn extended(
    command: u32,
    response: u64,
    (body, driver): (&[u8], &[u8]),
    (out, driver_out): (usize, usize),
) -> Vec<u8> {
    let hdr = CmdHdr {
        command: command | command::EXTENDED,
        in_words: (body.len() / 8) as u16,
        out_words: (out / 8) as u16,
    };
    let ex = ExCmdHdr {
        response,
        provider_in_words: (driver.len() / 8) as u16,
        provider_out_words: (driver_out / 8) as u16,
        reserved: 0,
    };
    [hdr.as_bytes(), ex.as_bytes(), body, driver].concat()
}

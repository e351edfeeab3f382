//! Commands by ioctl: the same commands with the same answers as written commands.

mod rig;

use rig::{Changed, NOWHERE, Rig, first_driver};
use rustix::io::Errno;
use vmlx5_uverbs::abi::core::*;
use vmlx5_uverbs::abi::mlx5;
use vmlx5_uverbs::address::LinkLayer;
use vmlx5_uverbs::{UarMode, User, invoked};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const CORE_IN: u16 = 0;
const CORE_OUT: u16 = 1;
const WRITE_CMD: u16 = 2;
const DRIVER_IN: u16 = 0x1000;
const DRIVER_OUT: u16 = 0x1001;

fn attr(attr_id: u16, data: u64, len: usize) -> IoctlAttr {
    IoctlAttr {
        attr_id,
        len: len as u16,
        flags: 1,
        attr_data: 0,
        data,
    }
}

/// Puts bytes into the process; returns an attribute with them, which contains a short input
/// itself.
fn input(rig: &mut Rig, id: u16, bytes: &[u8]) -> IoctlAttr {
    let mut word = [0; 8];
    let data = if let Some(inline) = word.get_mut(..bytes.len()) {
        inline.copy_from_slice(bytes);
        u64::from_ne_bytes(word)
    } else {
        let at = rig.room(bytes.len());
        rig.process.write(at, bytes).unwrap();
        at
    };
    attr(id, data, bytes.len())
}

/// The address of an ioctl with these attributes.
fn call(rig: &mut Rig, attrs: &[IoctlAttr]) -> u64 {
    let hdr = IoctlHdr {
        length: (size_of::<IoctlHdr>() + size_of_val(attrs)) as u16,
        num_attrs: attrs.len() as u16,
        ..IoctlHdr::default()
    };
    let at = rig.room(4096);
    let bytes = [hdr.as_bytes(), attrs.as_bytes()].concat();
    rig.process.write(at, &bytes).unwrap();
    at
}

/// Invokes a command; the answers of the core and of the driver.
fn invoke<A, D>(
    rig: &mut Rig,
    command: u32,
    core: &(impl IntoBytes + Immutable),
    driver: &[u8],
) -> Result<(A, D), Errno>
where
    A: FromBytes + IntoBytes + Default,
    D: FromBytes + IntoBytes + Default,
{
    let (core_out, driver_out) = (rig.room(4096), rig.room(4096));
    let mut attrs = vec![attr(WRITE_CMD, command.into(), 8)];
    attrs.push(input(rig, CORE_IN, core.as_bytes()));
    if !driver.is_empty() {
        attrs.push(input(rig, DRIVER_IN, driver));
    }
    for (id, at, len) in [
        (CORE_OUT, core_out, size_of::<A>()),
        (DRIVER_OUT, driver_out, size_of::<D>()),
    ] {
        if len > 0 {
            attrs.push(attr(id, at, len));
        }
    }
    let at = call(rig, &attrs);
    rig.context.ioctl(at)?;
    Ok((rig.read(core_out), rig.read(driver_out)))
}

fn first(rig: &mut Rig) -> Result<(GetContextResp, mlx5::AllocUcontextResp), Errno> {
    let cmd = first_driver(0);
    let command = command::GET_CONTEXT;
    invoke(rig, command, &GetContext::default(), cmd.as_bytes())
}

fn open() -> Rig {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
    first(&mut rig).unwrap();
    rig.forget_room();
    rig
}

#[test]
fn invoked_commands_work_like_written_ones() {
    let mut rig = Rig::new(LinkLayer::InfiniBand, UarMode::Static);
    let (context, driver) = first(&mut rig).unwrap();
    assert_eq!((context.num_comp_vectors, driver.tot_bfregs), (4, 16));
    assert_eq!(first(&mut rig).unwrap_err(), Errno::INVAL, "once");
    rig.forget_room();

    let cmd = QueryPort::default().changed(|q| q.port_num = 1);
    let (by_ioctl, ()): (QueryPortResp, ()) =
        invoke(&mut rig, command::QUERY_PORT, &cmd, &[]).unwrap();
    let written = rig.call(&cmd, &[]).unwrap();
    assert_eq!(by_ioctl.as_bytes(), written.0.as_bytes());
    assert_eq!(by_ioctl.lid, 1);

    let (pd, own): (AllocPdResp, mlx5::AllocPdResp) =
        invoke(&mut rig, command::ALLOC_PD, &AllocPd::default(), &[]).unwrap();
    let at = rig.room(4096);
    let region = rig.mr(pd.pd_handle, at, 4096, 1).unwrap();
    // A written command created the object that uses it.
    let done = |rig: &mut Rig, command, handle| {
        let cmd = Handle { handle };
        invoke::<(), ()>(rig, command, &cmd, &[]).map(drop)
    };
    let dealloc = command::DEALLOC_PD;
    assert_eq!(done(&mut rig, dealloc, pd.pd_handle), Err(Errno::BUSY));
    done(&mut rig, command::DEREG_MR, region.mr_handle).unwrap();
    done(&mut rig, dealloc, pd.pd_handle).unwrap();
    assert_eq!(done(&mut rig, dealloc, pd.pd_handle), Err(Errno::NOENT));
    let _ = own.pdn;
}

#[test]
fn extended_commands_fill_the_answer_buffer() {
    let mut rig = open();
    let command = command::EXTENDED | command::QUERY_DEVICE;
    let cmd = ExQueryDevice::default();
    let (resp, driver): (ExQueryDeviceResp, [u8; 32]) =
        invoke(&mut rig, command, &cmd, &[]).unwrap();
    assert_eq!(
        resp.response_length as usize,
        size_of::<ExQueryDeviceResp>()
    );
    assert_eq!(u32::from_ne_bytes(driver[4..8].try_into().unwrap()), 32);
    let (short, ()): ([u8; 8], ()) = invoke(&mut rig, command, &cmd, &[]).unwrap();
    assert_eq!(short, resp.as_bytes()[..8]);
    // Unknown fields are accepted while they are zero.
    rig.forget_room();
    let mut longer = [0_u64; 4];
    invoke::<ExQueryDeviceResp, ()>(&mut rig, command, &longer, &[]).unwrap();
    longer[3] = 1;
    let refused = invoke::<ExQueryDeviceResp, ()>(&mut rig, command, &longer, &[]);
    assert_eq!(refused.unwrap_err(), Errno::OPNOTSUPP);
}

#[test]
fn invalid_attributes_are_refused() {
    let mut rig = open();
    let result = |rig: &mut Rig, attrs: &[IoctlAttr]| {
        let at = call(rig, attrs);
        let number = invoked(&*rig.process, at);
        rig.forget_room();
        (rig.context.ioctl(at), number)
    };
    let word = |command: u32| attr(WRITE_CMD, command.into(), 8);
    let query = word(command::QUERY_DEVICE);
    // Libraries probe for the method with this call.
    let number = Some(command::QUERY_DEVICE);
    assert_eq!(result(&mut rig, &[query]), (Err(Errno::NOSPC), number));
    assert_eq!(result(&mut rig, &[]), (Err(Errno::INVAL), None));
    for number in [19, 0x7f, command::EXTENDED | 60, 0x4000_0000] {
        let refused = (Err(Errno::OPNOTSUPP), Some(number));
        assert_eq!(result(&mut rig, &[word(number)]), refused, "{number:#x}");
    }
    let handle = attr(CORE_IN, 77, 4);
    let dealloc = word(command::DEALLOC_PD);
    let number = Some(command::DEALLOC_PD);
    let mut foreign = attr(0x1002, 0, 8);
    let refused = (Err(Errno::PROTONOSUPPORT), number);
    assert_eq!(result(&mut rig, &[dealloc, handle, foreign]), refused);
    foreign.flags = 0;
    let none = (Err(Errno::NOENT), number);
    assert_eq!(result(&mut rig, &[dealloc, handle, foreign]), none);
    let away = attr(CORE_IN, NOWHERE, 16);
    let fault = (Err(Errno::FAULT), number);
    assert_eq!(result(&mut rig, &[dealloc, away]), fault);
    assert_eq!(result(&mut rig, &[dealloc; 17]).0, Err(Errno::INVAL));
    // An unwritable answer creates nothing.
    let alloc = word(command::ALLOC_PD);
    let (input, out) = (attr(CORE_IN, 0, 8), attr(CORE_OUT, NOWHERE, 4));
    let fault = (Err(Errno::FAULT), Some(command::ALLOC_PD));
    assert_eq!(result(&mut rig, &[alloc, input, out]), fault);
    assert_eq!(invoked(&*rig.process, NOWHERE), None);
}

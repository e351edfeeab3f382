//! DEVX: objects that a program creates by device commands, which ioctls pass on. In this way a
//! program creates rings that a GPU's kernels drive: CQs and QPs on memory that the program
//! registered (UMEM), with doorbells on a separate UAR page.
//!
//! A command and its answer are mailboxes of big-endian fields: [`crate::abi::prm`]. If the device
//! refuses a command, the answer has a status and a syndrome, and the ioctl fails with `EREMOTEIO`.
//! If the kernel refuses a command before the device, the ioctl fails with `EINVAL`: the command is
//! shorter than a header, is of the wrong kind for the method, or is for another object than the
//! named one.

mod cq;
mod general;
mod mailbox;
mod qp;
mod umem;

use rustix::io::Errno;
use vmlx5::{Cqn, PdId, Srqn, UarId};

use crate::abi::mlx5::ioctl::*;
use crate::abi::prm::{Field, input, opcode, output};
use crate::command::Done;
use crate::context::Object;
use crate::context::Open;
use crate::context::request::{Method, Request};
use crate::device::{COMP_VECTORS, Device};
use cq::CompletionQueue;
use mailbox::{Mailbox, Refusal};
use qp::QueuePair;
pub(crate) use umem::{FIRST_ID, Umem};

/// An object that a DEVX command created.
pub(crate) enum Devx {
    Pd(PdId),
    Cq(CompletionQueue),
    Qp(QueuePair),
}

/// The number of the event queue of completion vector 0; those of the other vectors follow.
const FIRST_EQN: u32 = 4;

/// The method of an object, if it is one of DEVX.
pub(crate) fn method(object: u16, method: u16) -> Option<Method> {
    Some(match (object, method) {
        (OBJECT_DEVX, DEVX_OTHER) => other,
        (OBJECT_DEVX, DEVX_QUERY_UAR) => query_uar,
        (OBJECT_DEVX, DEVX_QUERY_EQN) => query_eqn,
        (OBJECT_DEVX_OBJ, DEVX_OBJ_CREATE) => create,
        (OBJECT_DEVX_OBJ, DEVX_OBJ_DESTROY) => destroy,
        (OBJECT_DEVX_OBJ, DEVX_OBJ_MODIFY) => modify,
        (OBJECT_DEVX_OBJ, DEVX_OBJ_QUERY) => query,
        (OBJECT_DEVX_UMEM, DEVX_UMEM_REG) => umem::register,
        (OBJECT_DEVX_UMEM, DEVX_UMEM_DEREG) => umem::deregister,
        _ => return None,
    })
}

impl Devx {
    /// The object's number in commands.
    fn number(&self) -> u32 {
        match self {
            Devx::Pd(pd) => pd.number(),
            Devx::Cq(cq) => cq.cqn.0,
            Devx::Qp(qp) => qp.qpn.0,
        }
    }

    /// The position of its kind in the order of destruction: see
    /// [`Handles::drain`](crate::context::Handles::drain).
    pub fn rank(&self) -> u32 {
        match self {
            Devx::Qp(_) => 0,
            Devx::Cq(_) => 1,
            Devx::Pd(_) => 3,
        }
    }

    /// Removes it from the NIC.
    pub fn remove(&self, device: &Device) -> Done {
        device.with_nic(|nic| match self {
            Devx::Pd(pd) => nic.dealloc_pd(*pd),
            Devx::Cq(cq) => nic.destroy_cq(cq.cqn),
            Devx::Qp(qp) => nic.destroy_qp(qp.qpn),
        })
    }
}

impl Open {
    /// The PD with a number, whichever interface created it.
    fn pd_numbered(&self, number: u32) -> Option<PdId> {
        self.objects.each().find_map(|object| match object {
            Object::Pd(pd) | Object::Devx(Devx::Pd(pd)) if pd.number() == number => Some(*pd),
            _ => None,
        })
    }

    /// The SRQ with a number.
    fn srq_numbered(&self, number: u32) -> Option<Srqn> {
        self.objects.each().find_map(|object| match object {
            Object::Srq(srq) if srq.srqn.0 == number => Some(srq.srqn),
            _ => None,
        })
    }

    /// The CQ with a number, whichever interface created it.
    fn cq_numbered(&self, number: u32) -> Option<Cqn> {
        self.objects.each().find_map(|object| match object {
            Object::Cq(cq) if cq.cqn.0 == number => Some(cq.cqn),
            Object::Devx(Devx::Cq(cq)) if cq.cqn.0 == number => Some(cq.cqn),
            _ => None,
        })
    }

    /// The doorbell page with the number in a field.
    fn page(&self, context: Mailbox<'_>, field: Field) -> Result<UarId, Refusal> {
        let page = self.doorbells.named(context.get32(field));
        page.map_err(|_| context.unknown(field))
    }
}

/// A command and the buffer for its answer.
fn mailboxes(
    open: &Open,
    request: &Request<'_>,
    ids: [u16; 2],
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    if !open.devx {
        return Err(Errno::INVAL);
    }
    let input = request.bytes(ids[0], input::HEADER)?;
    let room = request.room(ids[1], output::HEADER)?;
    Ok((input, vec![0; room]))
}

/// Answers a command: with its result, or with the refusal.
fn answer<T>(
    request: &Request<'_>,
    id: u16,
    answer: &mut [u8],
    done: Result<T, Refusal>,
) -> Result<T, Errno> {
    let done = done.map_err(|refusal| {
        refusal.write(answer);
        Errno::REMOTEIO
    });
    request.answer(id, answer)?;
    done
}

/// Executes a command without an object.
fn other(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(OTHER_CMD_IN..=OTHER_CMD_OUT)?;
    let (input, mut out) = mailboxes(open, request, [OTHER_CMD_IN, OTHER_CMD_OUT])?;
    let command = Mailbox::new(&input);
    let done = match command.opcode() {
        opcode::QUERY_HCA_CAP => general::query_hca_cap(request.device, command, &mut out),
        opcode::QUERY_ROCE_ADDRESS => {
            general::query_roce_address(request.device, command, &mut out)
        }
        _ => return Err(Errno::INVAL),
    };
    answer(request, OTHER_CMD_OUT, &mut out, done)
}

/// The device's number of a register's page: both numbers are the same here.
fn query_uar(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(QUERY_UAR_USER_IDX..=QUERY_UAR_DEV_IDX)?;
    let register = request.small(QUERY_UAR_USER_IDX)? as u32;
    let page = open.doorbells.page_of(register)?;
    request.answer(QUERY_UAR_DEV_IDX, &page.to_ne_bytes())
}

/// The event queue of a completion vector.
fn query_eqn(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(QUERY_EQN_USER_VEC..=QUERY_EQN_DEV_EQN)?;
    let vector = request.small(QUERY_EQN_USER_VEC)?;
    if !open.devx || vector >= COMP_VECTORS.into() {
        return Err(Errno::INVAL);
    }
    let number = FIRST_EQN + vector as u32;
    request.answer(QUERY_EQN_DEV_EQN, &number.to_ne_bytes())
}

fn create(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(DEVX_OBJ_HANDLE..=DEVX_OBJ_CMD_OUT)?;
    let (input, mut out) = mailboxes(open, request, [DEVX_OBJ_CMD_IN, DEVX_OBJ_CMD_OUT])?;
    request.find(DEVX_OBJ_HANDLE)?;
    let command = Mailbox::new(&input);
    let made = match command.opcode() {
        opcode::CREATE_CQ => cq::create(request.device, open, command).map(Devx::Cq),
        opcode::CREATE_QP => qp::create(request.device, open, command).map(Devx::Qp),
        opcode::ALLOC_PD => {
            let pd = request.device.nic.with(|nic| nic.alloc_pd());
            pd.map(Devx::Pd).map_err(Refusal::from)
        }
        _ => return Err(Errno::INVAL),
    };
    let made = match made {
        Ok(made) => made,
        Err(refusal) => return answer(request, DEVX_OBJ_CMD_OUT, &mut out, Err(refusal)),
    };
    output::NUMBER.set(&mut out, made.number().into());
    open.keep(request.device, Object::Devx(made), |handle| {
        answer(request, DEVX_OBJ_CMD_OUT, &mut out, Ok(()))?;
        request.answer_handle(DEVX_OBJ_HANDLE, handle)
    })
}

fn destroy(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(DEVX_OBJ_HANDLE..=DEVX_OBJ_HANDLE)?;
    let handle = request.handle(DEVX_OBJ_HANDLE)?;
    let object = open.objects.doomed::<Devx>(handle)?;
    object.remove(request.device)?;
    open.objects.remove(handle);
    Ok(())
}

/// Checks that a command is for the object of the handle in the call.
fn same(command: Mailbox<'_>, number: u32) -> Done {
    if command.get32(input::NUMBER) == number {
        Ok(())
    } else {
        Err(Errno::INVAL)
    }
}

fn modify(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(DEVX_OBJ_HANDLE..=DEVX_OBJ_CMD_OUT)?;
    let (input, mut out) = mailboxes(open, request, [DEVX_OBJ_CMD_IN, DEVX_OBJ_CMD_OUT])?;
    let command = Mailbox::new(&input);
    let object = open
        .objects
        .get_mut::<Devx>(request.handle(DEVX_OBJ_HANDLE)?)?;
    let Devx::Qp(qp) = object else {
        return Err(Errno::INVAL);
    };
    if !qp::modifies(command.opcode()) {
        return Err(Errno::INVAL);
    }
    same(command, qp.qpn.0)?;
    let done = qp.modify(request.device, command, &out);
    answer(request, DEVX_OBJ_CMD_OUT, &mut out, done)
}

fn query(open: &mut Open, request: &Request<'_>) -> Done {
    request.only(DEVX_OBJ_HANDLE..=DEVX_OBJ_CMD_OUT)?;
    let (input, mut out) = mailboxes(open, request, [DEVX_OBJ_CMD_IN, DEVX_OBJ_CMD_OUT])?;
    let command = Mailbox::new(&input);
    let object = open.objects.get::<Devx>(request.handle(DEVX_OBJ_HANDLE)?)?;
    let done = match (object, command.opcode()) {
        (Devx::Cq(cq), opcode::QUERY_CQ) => {
            same(command, cq.cqn.0)?;
            cq.query(request.device, command, &mut out)
        }
        (Devx::Qp(qp), opcode::QUERY_QP) => {
            same(command, qp.qpn.0)?;
            qp.query(request.device, command, &mut out)
        }
        _ => return Err(Errno::INVAL),
    };
    answer(request, DEVX_OBJ_CMD_OUT, &mut out, done)
}

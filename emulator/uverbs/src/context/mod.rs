//! An open device file: its commands, its objects, and the close.

mod devx;
mod dmabuf;
mod invoke;
mod ioctl;
mod memory;
mod modify;
mod queries;
mod queues;
mod request;
mod shared_receives;

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use devx::{Devx, Umem};
pub use invoke::invoked;
use queues::{CompletionQueue, QueuePair};
use shared_receives::SharedReceives;
use vmlx5::{MrKeys, PdId};

use crate::abi::core::*;
use crate::abi::mlx5;
use crate::command::{Call, Done, Shape, number};
use crate::device::{COMP_VECTORS, Device};
use crate::doorbells::{DYNAMIC_REGISTERS, Doorbell, Doorbells};
use crate::event::{EventFile, lock};
use crate::targets::Target;

/// An open device file. Dropping it closes the file and destroys its objects.
pub struct Context {
    pub(crate) device: Arc<Device>,
    /// The state that the first command created.
    open: Mutex<Option<Open>>,
}

/// A context after its first command.
pub(crate) struct Open {
    pub objects: Handles,
    pub doorbells: Doorbells,
    pub channels: Vec<Channel>,
    /// Whether the program may pass device commands on (DEVX).
    pub devx: bool,
    /// The number of the next memory registration.
    pub umem_ids: u32,
    /// The event file for asynchronous events.
    pub events: Arc<EventFile>,
}

/// A completion channel; the user identifies it by its descriptor.
pub(crate) struct Channel {
    pub fd: i32,
    pub file: Arc<EventFile>,
}

/// The function that executes a command.
type Run = fn(&mut Open, &Device, &Call<'_>) -> Done;

impl Device {
    /// Opens the device file.
    pub fn open(self: &Arc<Device>) -> Context {
        Context {
            device: Arc::clone(self),
            open: Mutex::default(),
        }
    }
}

impl Context {
    /// The device that was opened.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Executes the bytes written to the file; returns their number.
    ///
    /// # Errors
    /// The errno that `write` returns.
    pub fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let (command, extended) = number(bytes)?;
        let user = &*self.device.user;
        self.carry_out(command, extended, |shape| {
            if extended {
                Call::extended(user, bytes, shape)
            } else {
                Call::plain(user, bytes, shape)
            }
        })?;
        Ok(bytes.len())
    }

    /// Executes the command with a number, which `call` parses.
    pub(crate) fn carry_out<'a>(
        &self,
        command: u32,
        extended: bool,
        call: impl FnOnce(Shape) -> Result<Call<'a>, Errno>,
    ) -> Done {
        let Some((shape, run)) = find(command, extended) else {
            return Err(Errno::OPNOTSUPP);
        };
        let call = call(shape)?;
        if let Some(run) = run {
            return self.with(|open| run(open, &self.device, &call));
        }
        let mut open = lock(&self.open);
        if open.is_some() {
            return Err(Errno::INVAL);
        }
        *open = Some(Open::new(&self.device, &call)?);
        Ok(())
    }

    /// The memory file of the page at an `mmap` offset of the file; the caller maps all of it.
    ///
    /// # Errors
    /// The errno that `mmap` returns.
    pub fn map(&self, offset: u64, len: usize) -> Result<OwnedFd, Errno> {
        self.with(|open| {
            let file = open.doorbells.map(&self.device, offset, len)?;
            rustix::io::fcntl_dupfd_cloexec(file, 0)
        })
    }

    /// Runs `f` on the state that the first command created.
    pub(crate) fn with<R>(
        &self,
        f: impl FnOnce(&mut Open) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        f(lock(&self.open).as_mut().ok_or(Errno::INVAL)?)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(mut open) = lock(&self.open).take() {
            for object in open.objects.drain() {
                open.discard(&self.device, object);
            }
            open.doorbells.clear(&self.device);
            self.device.user.ring();
        }
    }
}

impl Open {
    /// The first command.
    fn new(device: &Device, call: &Call<'_>) -> Result<Open, Errno> {
        let least = size_of::<mlx5::AllocUcontextReq>();
        let cmd: mlx5::AllocUcontextReqV2 = call.driver_input(least)?;
        if cmd.comp_mask != 0 || cmd.reserved0 != 0 || cmd.reserved1 != 0 || cmd.reserved2 != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if cmd.flags & !mlx5::context_flag::DEVX != 0 {
            return Err(Errno::INVAL);
        }
        let doorbells = Doorbells::new(device.config.uar, &cmd)?;
        let (events, fd) = EventFile::new()?;
        let fixed = doorbells.registers > 0;
        let mut resp = mlx5::AllocUcontextResp {
            qp_tab_size: 1 << 18,
            bf_reg_size: 512,
            tot_bfregs: doorbells.registers,
            cache_line_size: 64,
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: crate::device::MAX_WQE,
            max_recv_wr: crate::device::MAX_WQE,
            max_srq_recv_wr: crate::device::MAX_WQE - 1,
            num_ports: device.config.fabric.ports.into(),
            cqe_version: cmd.max_cqe_version.min(1),
            cmds_supp_uhw: 3,
            eth_min_inline: 1,
            log_uar_size: 12,
            num_uars_per_page: 1,
            num_dyn_bfregs: if fixed { DYNAMIC_REGISTERS } else { 0 },
            ..mlx5::AllocUcontextResp::default()
        };
        resp.response_length = call.driver_room().min(resp.as_bytes().len()) as u32;
        call.driver_answer(&resp)?;
        call.answer(&GetContextResp {
            async_fd: fd.as_raw_fd() as u32,
            num_comp_vectors: COMP_VECTORS,
        })?;
        // The answer succeeded, so the user now owns it.
        let _ = fd.into_raw_fd();
        let events = Arc::new(events);
        lock(&device.targets).add_context(&events);
        Ok(Open {
            objects: Handles::default(),
            doorbells,
            channels: Vec::new(),
            devx: cmd.flags & mlx5::context_flag::DEVX != 0,
            umem_ids: devx::FIRST_ID,
            events,
        })
    }

    /// The owner field of an object's events. `channel` receives the completion events; the
    /// context's file receives all others, with the user's name of the object.
    pub fn track(&self, device: &Device, handle: u64, channel: Option<Arc<EventFile>>) -> u64 {
        lock(&device.targets).add(Target {
            handle,
            channel,
            file: Arc::clone(&self.events),
        })
    }

    /// The channel with a descriptor of the user.
    pub fn channel(&self, fd: i32) -> Result<Arc<EventFile>, Errno> {
        // The newest: the number of a closed descriptor may be reused.
        let channel = self.channels.iter().rev().find(|c| c.fd == fd);
        channel.map(|c| Arc::clone(&c.file)).ok_or(Errno::BADF)
    }

    fn create_channel(&mut self, _: &Device, call: &Call<'_>) -> Done {
        let (file, fd) = EventFile::new()?;
        let raw = fd.as_raw_fd();
        call.answer(&CreateCompChannelResp { fd: raw as u32 })?;
        let raw = fd.into_raw_fd();
        // Channels that the user has closed. Queues with events on them hold them.
        self.channels
            .retain(|c| c.fd != raw && c.file.is_known_by(c.fd));
        self.channels.push(Channel {
            fd: raw,
            file: Arc::new(file),
        });
        Ok(())
    }

    /// Assigns a handle to an object, and `answer` returns it to the user. If the answer fails, the
    /// object is destroyed.
    pub fn keep(
        &mut self,
        device: &Device,
        object: Object,
        answer: impl FnOnce(u32) -> Done,
    ) -> Done {
        let handle = self.objects.insert(object);
        let answered = answer(handle);
        if answered.is_err()
            && let Some(object) = self.objects.remove(handle)
        {
            self.discard(device, object);
        }
        answered
    }

    /// Destroys an object without users: they were destroyed before, or the user never received its
    /// handle. The NIC therefore has no reason to refuse.
    fn discard(&mut self, device: &Device, object: Object) {
        let _ = match object {
            Object::Pd(pd) => device.with_nic(|nic| nic.dealloc_pd(pd)),
            Object::Mr(mr) => device.with_nic(|nic| nic.dereg_mr(mr.keys.lkey)),
            Object::Cq(cq) => {
                device.untrack(cq.owner);
                device.with_nic(|nic| nic.destroy_cq(cq.cqn))
            }
            Object::Srq(srq) => {
                device.untrack(srq.owner);
                device.with_nic(|nic| nic.destroy_srq(srq.srqn))
            }
            Object::Qp(qp) => {
                self.drop_qp(device, &qp);
                Ok(())
            }
            Object::Uar(page) => self.doorbells.free(device, page.index),
            Object::Devx(made) => made.remove(device),
            Object::Ah(_) | Object::Umem(_) => Ok(()),
        };
    }
}

/// How a command is executed; without a function it is the first command.
fn find(number: u32, extended: bool) -> Option<(Shape, Option<Run>)> {
    use command::*;
    /// An input of type `I` and an answer of type `A`.
    const fn shape<I, A>(addressed: bool) -> Shape {
        Shape {
            input: size_of::<I>(),
            answer: size_of::<A>(),
            addressed,
        }
    }
    /// A command whose input contains the address of its answer.
    fn addressed<I, A>(run: Run) -> (Shape, Option<Run>) {
        (shape::<I, A>(true), Some(run))
    }
    /// An extended command, or one without an answer.
    fn unaddressed<I, A>(run: Run) -> (Shape, Option<Run>) {
        (shape::<I, A>(false), Some(run))
    }
    Some(match (number, extended) {
        (GET_CONTEXT, false) => (shape::<GetContext, GetContextResp>(true), None),
        (QUERY_DEVICE, false) => addressed::<QueryDevice, QueryDeviceResp>(|_, d, c| d.query(c)),
        (QUERY_DEVICE, true) => unaddressed::<ExQueryDevice, u64>(|_, d, c| d.query_extended(c)),
        (QUERY_PORT, false) => addressed::<QueryPort, QueryPortResp>(|_, d, c| d.query_port(c)),
        (ALLOC_PD, false) => addressed::<AllocPd, AllocPdResp>(Open::alloc_pd),
        (DEALLOC_PD, false) => unaddressed::<Handle, ()>(Open::dealloc_pd),
        (CREATE_AH, false) => addressed::<CreateAh, CreateAhResp>(Open::create_ah),
        (DESTROY_AH, false) => unaddressed::<Handle, ()>(Open::destroy_ah),
        (REG_MR, false) => addressed::<RegMr, RegMrResp>(Open::reg_mr),
        (REREG_MR, false) => addressed::<ReregMr, ReregMrResp>(Open::rereg_mr),
        (DEREG_MR, false) => unaddressed::<Handle, ()>(Open::dereg_mr),
        (CREATE_COMP_CHANNEL, false) => {
            addressed::<CreateCompChannel, CreateCompChannelResp>(Open::create_channel)
        }
        (CREATE_CQ, false) => addressed::<CreateCq, CreateCqResp>(Open::create_cq),
        (CREATE_CQ, true) => unaddressed::<ExCreateCq, ExCreateCqResp>(Open::create_cq_extended),
        (DESTROY_CQ, false) => addressed::<DestroyCq, DestroyCqResp>(Open::destroy_cq),
        (CREATE_QP, false) => addressed::<CreateQp, CreateQpResp>(Open::create_qp),
        (CREATE_QP, true) => unaddressed::<ExCreateQp, ExCreateQpResp>(Open::create_qp_extended),
        (QUERY_QP, false) => addressed::<QueryQp, QueryQpResp>(Open::query_qp),
        (MODIFY_QP, false) => unaddressed::<ModifyQp, ()>(Open::modify_qp),
        (MODIFY_QP, true) => unaddressed::<ModifyQp, ExModifyQpResp>(Open::modify_qp_extended),
        (DESTROY_QP, false) => addressed::<DestroyQp, DestroyQpResp>(Open::destroy_qp),
        (CREATE_SRQ, false) => addressed::<CreateSrq, CreateSrqResp>(Open::create_srq),
        (MODIFY_SRQ, false) => unaddressed::<ModifySrq, ()>(Open::modify_srq),
        (QUERY_SRQ, false) => addressed::<QuerySrq, QuerySrqResp>(Open::query_srq),
        (DESTROY_SRQ, false) => addressed::<DestroySrq, DestroySrqResp>(Open::destroy_srq),
        // There are no multicast groups, and connections cannot join one.
        (ATTACH_MCAST | DETACH_MCAST, false) => {
            unaddressed::<McastAttach, ()>(|_, _, _| Err(Errno::INVAL))
        }
        _ => return None,
    })
}

/// An object of a context.
pub(crate) enum Object {
    Pd(PdId),
    Mr(Region),
    Cq(CompletionQueue),
    Qp(Box<QueuePair>),
    Srq(SharedReceives),
    Ah(AddressHandle),
    Uar(Doorbell),
    Umem(Arc<Umem>),
    Devx(Devx),
}

/// An address handle, which is only counted: the library stores its content.
pub(crate) struct AddressHandle {
    pub pd: PdId,
}

/// A registered region.
pub(crate) struct Region {
    pub keys: MrKeys,
    /// As registered, for a change of parts of it.
    pub of: Registration,
}

/// What is registered.
#[derive(Clone, Copy)]
pub(crate) struct Registration {
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd: u32,
    pub access: u32,
    /// The descriptor of the file with its memory; `None`: it is memory of the process.
    pub file: Option<i32>,
}

/// The kinds of objects with a separate type here.
pub(crate) trait Kind: Sized {
    fn of(object: &Object) -> Option<&Self>;
    fn of_mut(object: &mut Object) -> Option<&mut Self>;
}

macro_rules! kinds {
    ($($type:ty = $variant:ident,)*) => {$(
        impl Kind for $type {
            fn of(object: &Object) -> Option<&Self> {
                match object { Object::$variant(it) => Some(it), _ => None }
            }
            fn of_mut(object: &mut Object) -> Option<&mut Self> {
                match object { Object::$variant(it) => Some(it), _ => None }
            }
        }
    )*};
}

kinds! {
    PdId = Pd,
    AddressHandle = Ah,
    Region = Mr,
    CompletionQueue = Cq,
    Box<QueuePair> = Qp,
    SharedReceives = Srq,
    Doorbell = Uar,
    Arc<Umem> = Umem,
    Devx = Devx,
}

#[derive(Default)]
pub(crate) struct Handles {
    objects: BTreeMap<u32, Object>,
    next: u32,
}

impl Handles {
    /// Assigns a handle to an object.
    pub fn insert(&mut self, object: Object) -> u32 {
        while self.objects.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1) & 0x7fff_ffff;
        }
        let handle = self.next;
        self.next = self.next.wrapping_add(1) & 0x7fff_ffff;
        self.objects.insert(handle, object);
        handle
    }

    /// The object that a command uses.
    ///
    /// # Errors
    /// `EINVAL`: there is no object of this kind.
    pub fn get<T: Kind>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::INVAL)?;
        T::of(object).ok_or(Errno::INVAL)
    }

    /// The object that a command changes.
    ///
    /// # Errors
    /// `EINVAL`: there is no object of this kind.
    pub fn get_mut<T: Kind>(&mut self, handle: u32) -> Result<&mut T, Errno> {
        let object = self.objects.get_mut(&handle).ok_or(Errno::INVAL)?;
        T::of_mut(object).ok_or(Errno::INVAL)
    }

    /// The object that a command destroys.
    ///
    /// # Errors
    /// `ENOENT`: there is no object with the handle. `EINVAL`: it is of another kind.
    pub fn doomed<T: Kind>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::NOENT)?;
        T::of(object).ok_or(Errno::INVAL)
    }

    /// All objects.
    pub fn each(&self) -> impl Iterator<Item = &Object> {
        self.objects.values()
    }

    pub fn remove(&mut self, handle: u32) -> Option<Object> {
        self.objects.remove(&handle)
    }

    /// All objects; an object comes before those that it uses.
    pub fn drain(&mut self) -> Vec<Object> {
        let mut all: Vec<Object> = std::mem::take(&mut self.objects).into_values().collect();
        all.sort_by_key(|object| match object {
            Object::Ah(_) | Object::Qp(_) => 0,
            Object::Cq(_) | Object::Srq(_) => 1,
            Object::Mr(_) => 2,
            Object::Pd(_) | Object::Uar(_) | Object::Umem(_) => 3,
            Object::Devx(made) => made.rank(),
        });
        all
    }
}

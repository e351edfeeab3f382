//! An open device file: its commands, its objects, its end.

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
use crate::command::{Call, Shape, number};
use crate::device::{COMP_VECTORS, Device};
use crate::doorbells::{DYNAMIC_REGISTERS, Doorbell, Doorbells};
use crate::event::{EventFile, lock};
use crate::targets::Target;

/// An open device file. Dropped, it is closed: its objects are gone.
pub struct Context {
    pub(crate) device: Arc<Device>,
    state: Mutex<State>,
}

/// A page to map: a memory file, and the bytes to map of it.
pub struct Mapping {
    /// A copy of the file's descriptor.
    pub file: OwnedFd,
    /// Where in the file the page lies.
    pub offset: u64,
}

/// What lies behind the file.
#[derive(Default)]
struct State {
    open: Option<Open>,
}

/// A context after its first command.
pub(crate) struct Open {
    pub objects: Handles,
    pub doorbells: Doorbells,
    pub channels: Vec<Channel>,
    /// The program may pass commands on to the device.
    pub devx: bool,
    /// The number of the memory that is registered next.
    pub umem_ids: u32,
    /// The file of asynchronous events.
    pub events: Arc<EventFile>,
}

/// A completion channel: the user knows it by its descriptor.
pub(crate) struct Channel {
    pub fd: i32,
    pub file: Arc<EventFile>,
}

/// How a command is carried out.
type Run = fn(&Device, &mut Open, &Call<'_>) -> Result<(), Errno>;

impl Device {
    /// Opens the device file.
    pub fn open(self: &Arc<Device>) -> Context {
        Context::new(Arc::clone(self))
    }
}

impl Context {
    pub(crate) fn new(device: Arc<Device>) -> Context {
        Context {
            device,
            state: Mutex::default(),
        }
    }

    /// The device that was opened.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Carries out what was written to the file; returns how many bytes that were.
    ///
    /// # Errors
    /// The error that `write` gives.
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

    /// Carries out the command of a number, which `call` takes apart.
    pub(crate) fn carry_out<'a>(
        &self,
        command: u32,
        extended: bool,
        call: impl FnOnce(Shape) -> Result<Call<'a>, Errno>,
    ) -> Result<(), Errno> {
        let Some((shape, run)) = find(command, extended) else {
            return Err(Errno::OPNOTSUPP);
        };
        let call = call(shape)?;
        let mut state = lock(&self.state);
        match run {
            None => state.open(&self.device, &call),
            Some(run) => {
                let open = state.open.as_mut().ok_or(Errno::INVAL)?;
                run(&self.device, open, &call)
            }
        }
    }

    /// The memory file behind an offset of `mmap` on the file.
    ///
    /// # Errors
    /// The error that `mmap` gives.
    pub fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let mut state = lock(&self.state);
        let open = state.open.as_mut().ok_or(Errno::INVAL)?;
        let file = open.doorbells.map(&self.device, offset, len)?;
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        Ok(Mapping { file, offset: 0 })
    }

    /// Runs `f` on what the first command made.
    pub(crate) fn with<R>(
        &self,
        f: impl FnOnce(&Device, &mut Open) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut state = lock(&self.state);
        f(&self.device, state.open.as_mut().ok_or(Errno::INVAL)?)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(mut open) = lock(&self.state).open.take() {
            for object in open.objects.drain() {
                open.discard(&self.device, object);
            }
            open.doorbells.clear(&self.device);
            self.device.user.ring();
        }
    }
}

impl State {
    /// The first command.
    fn open(&mut self, device: &Device, call: &Call<'_>) -> Result<(), Errno> {
        if self.open.is_some() {
            return Err(Errno::INVAL);
        }
        let least = size_of::<mlx5::AllocUcontextReq>();
        let ask: mlx5::AllocUcontextReqV2 = call.driver_input(least)?;
        if ask.comp_mask != 0 || ask.reserved0 != 0 || ask.reserved1 != 0 || ask.reserved2 != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if ask.flags & !mlx5::context_flag::DEVX != 0 {
            return Err(Errno::INVAL);
        }
        let doorbells = Doorbells::new(device.config.uar, &ask)?;
        let (events, fd) = EventFile::new()?;
        let fixed = doorbells.registers > 0;
        let mut say = mlx5::AllocUcontextResp {
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
            cqe_version: ask.max_cqe_version.min(1),
            cmds_supp_uhw: 3,
            eth_min_inline: 1,
            log_uar_size: 12,
            num_uars_per_page: 1,
            num_dyn_bfregs: if fixed { DYNAMIC_REGISTERS } else { 0 },
            ..mlx5::AllocUcontextResp::default()
        };
        say.response_length = call.driver_room().min(say.as_bytes().len()) as u32;
        call.driver_answer(&say)?;
        call.answer(&GetContextResp {
            async_fd: fd.as_raw_fd() as u32,
            num_comp_vectors: COMP_VECTORS,
        })?;
        // Now that the user knows of it, it is the user's.
        let _ = fd.into_raw_fd();
        let events = Arc::new(events);
        lock(&device.targets).add_context(&events);
        self.open = Some(Open {
            objects: Handles::default(),
            doorbells,
            channels: Vec::new(),
            devx: ask.flags & mlx5::context_flag::DEVX != 0,
            umem_ids: devx::FIRST_ID,
            events,
        });
        Ok(())
    }
}

impl Open {
    /// What the events of an object must carry as its owner: those of completions are told on
    /// `channel`, all others on the context's file, with the user's name of it.
    pub fn track(&self, device: &Device, handle: u64, channel: Option<Arc<EventFile>>) -> u64 {
        lock(&device.targets).add(Target {
            handle,
            channel,
            file: Arc::clone(&self.events),
        })
    }

    /// The channel with a descriptor of the user's.
    pub fn channel(&self, fd: i32) -> Result<Arc<EventFile>, Errno> {
        // The newest: a descriptor that was closed may have come again.
        let channel = self.channels.iter().rev().find(|c| c.fd == fd);
        channel.map(|c| Arc::clone(&c.file)).ok_or(Errno::BADF)
    }

    fn create_channel(_: &Device, open: &mut Open, call: &Call<'_>) -> Result<(), Errno> {
        let (file, fd) = EventFile::new()?;
        let raw = fd.as_raw_fd();
        call.answer(&CreateCompChannelResp { fd: raw as u32 })?;
        let raw = fd.into_raw_fd();
        // Those that the user has closed. Queues that tell events there hold them.
        open.channels
            .retain(|c| c.fd != raw && c.file.is_known_by(c.fd));
        open.channels.push(Channel {
            fd: raw,
            file: Arc::new(file),
        });
        Ok(())
    }

    /// Does away with an object when its file is closed.
    fn discard(&mut self, device: &Device, object: Object) {
        match &object {
            Object::Qp(qp) => {
                self.drop_qp(device, qp);
            }
            Object::Cq(cq) => {
                device.untrack(cq.owner);
            }
            Object::Srq(srq) => {
                device.untrack(srq.owner);
            }
            _ => {}
        }
        if let Object::Devx(made) = &object {
            let _ = made.remove(device);
        }
        // What used it was discarded before, so the NIC has no reason to refuse.
        let _ = device.nic.with(|nic| match object {
            Object::Pd(pd) => nic.dealloc_pd(pd),
            Object::Mr(mr) => nic.dereg_mr(mr.keys.lkey),
            Object::Cq(cq) => nic.destroy_cq(cq.cqn),
            Object::Srq(srq) => nic.destroy_srq(srq.srqn),
            Object::Qp(_) | Object::Ah(_) | Object::Uar(_) => Ok(()),
            Object::Umem(_) | Object::Devx(_) => Ok(()),
        });
    }
}

/// The shape of a command with input `I` and answer `A`; `true`: its input starts with the
/// address of the answer.
const fn shape<I, A>(addressed: bool) -> Shape {
    Shape {
        input: size_of::<I>(),
        answer: size_of::<A>(),
        addressed,
    }
}

/// How a command is carried out; without a function it is the first one.
fn find(number: u32, extended: bool) -> Option<(Shape, Option<Run>)> {
    use command::*;
    let (shape, run): (Shape, Run) = match (number, extended) {
        (GET_CONTEXT, false) => return Some((shape::<GetContext, GetContextResp>(true), None)),
        (QUERY_DEVICE, false) => (shape::<QueryDevice, QueryDeviceResp>(true), |d, _, c| {
            d.query(c)
        }),
        (QUERY_DEVICE, true) => (shape::<ExQueryDevice, u64>(false), |d, _, c| {
            d.query_extended(c)
        }),
        (QUERY_PORT, false) => (shape::<QueryPort, QueryPortResp>(true), |d, _, c| {
            d.query_port(c)
        }),
        (ALLOC_PD, false) => (shape::<AllocPd, AllocPdResp>(true), Open::alloc_pd),
        (DEALLOC_PD, false) => (shape::<Handle, ()>(false), Open::dealloc_pd),
        (CREATE_AH, false) => (shape::<CreateAh, CreateAhResp>(true), Open::create_ah),
        (DESTROY_AH, false) => (shape::<Handle, ()>(false), Open::destroy_ah),
        (REG_MR, false) => (shape::<RegMr, RegMrResp>(true), Open::reg_mr),
        (REREG_MR, false) => (shape::<ReregMr, ReregMrResp>(true), Open::rereg_mr),
        (DEREG_MR, false) => (shape::<Handle, ()>(false), Open::dereg_mr),
        (CREATE_COMP_CHANNEL, false) => (
            shape::<CreateCompChannel, CreateCompChannelResp>(true),
            Open::create_channel,
        ),
        (CREATE_CQ, false) => (shape::<CreateCq, CreateCqResp>(true), Open::create_cq),
        (CREATE_CQ, true) => (
            shape::<ExCreateCq, ExCreateCqResp>(false),
            Open::create_cq_extended,
        ),
        (DESTROY_CQ, false) => (shape::<DestroyCq, DestroyCqResp>(true), Open::destroy_cq),
        (CREATE_QP, false) => (shape::<CreateQp, CreateQpResp>(true), Open::create_qp),
        (CREATE_QP, true) => (
            shape::<ExCreateQp, ExCreateQpResp>(false),
            Open::create_qp_extended,
        ),
        (QUERY_QP, false) => (shape::<QueryQp, QueryQpResp>(true), Open::query_qp),
        (MODIFY_QP, false) => (shape::<ModifyQp, ()>(false), Open::modify_qp),
        (MODIFY_QP, true) => (
            shape::<ModifyQp, ExModifyQpResp>(false),
            Open::modify_qp_extended,
        ),
        (DESTROY_QP, false) => (shape::<DestroyQp, DestroyQpResp>(true), Open::destroy_qp),
        (CREATE_SRQ, false) => (shape::<CreateSrq, CreateSrqResp>(true), Open::create_srq),
        (MODIFY_SRQ, false) => (shape::<ModifySrq, ()>(false), Open::modify_srq),
        (QUERY_SRQ, false) => (shape::<QuerySrq, QuerySrqResp>(true), Open::query_srq),
        (DESTROY_SRQ, false) => (shape::<DestroySrq, DestroySrqResp>(true), Open::destroy_srq),
        (ATTACH_MCAST | DETACH_MCAST, false) => (shape::<McastAttach, ()>(false), Open::mcast),
        _ => return None,
    };
    Some((shape, Some(run)))
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

/// An address handle, which is only counted: the library keeps what it says.
pub(crate) struct AddressHandle {
    pub pd: PdId,
}

/// A registered region.
pub(crate) struct Region {
    pub keys: MrKeys,
    /// As registered, for a change of parts of it.
    pub start: u64,
    pub length: u64,
    pub hca_va: u64,
    pub pd: u32,
    pub access: u32,
    /// Its memory is the process's own, and not that of a file.
    pub own: bool,
}

/// The kinds of objects that have an own type here.
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
    /// Gives an object a handle.
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
    /// `EINVAL`: there is none of the kind.
    pub fn get<T: Kind>(&self, handle: u32) -> Result<&T, Errno> {
        let object = self.objects.get(&handle).ok_or(Errno::INVAL)?;
        T::of(object).ok_or(Errno::INVAL)
    }

    /// The object that a command changes.
    ///
    /// # Errors
    /// `EINVAL`: there is none of the kind.
    pub fn get_mut<T: Kind>(&mut self, handle: u32) -> Result<&mut T, Errno> {
        let object = self.objects.get_mut(&handle).ok_or(Errno::INVAL)?;
        T::of_mut(object).ok_or(Errno::INVAL)
    }

    /// The object that a command is to destroy.
    ///
    /// # Errors
    /// `ENOENT`: there is none. `EINVAL`: it is of another kind.
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

    /// All objects, those that use others first.
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

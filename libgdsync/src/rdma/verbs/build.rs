//! Creation of a queue pair: its memory, its objects on the NIC, its rings.

use std::sync::Arc;

use mlx5_prm::doorbell;
use mlx5_prm::wqe::{BASIC_BLOCK, SEGMENT};

use super::core::{Hold, QpAddrs, QpCore, QpState, RungBy, Side, SideAddrs, WAITER_WORDS};
use super::{Pd, QpConfig};
use crate::error::{Error, Kind, Result};
use crate::gpu::{Gpu, Mapped, MemoryKind, Region};
use crate::memop::DevicePtr;
use crate::memop::trace::Tracer;
use crate::nic::{Layout, QpObjects, QpRings, SharedAddr, Transport};
use crate::ring::cq::{ENTRY, WAITERS};
use crate::ring::{CompletionRing, ReceiveQueue, RingMemory, SendQueue};
use crate::status::Status;

/// The layout of the common region, which holds every piece without a separate region: the UAR
/// page, the words, then the queues.
struct Carver {
    region: Region,
    at: usize,
}

/// The alignment of each piece in the common region, in bytes.
const ALIGN: usize = 64;

impl Carver {
    fn take(&mut self, len: usize) -> Result<SharedAddr> {
        let at = self.take_at(len);
        shared_addr(&self.region, at, len)
    }

    fn take_at(&mut self, len: usize) -> usize {
        let at = self.at.next_multiple_of(ALIGN);
        self.at = at + len;
        at
    }

    /// Allocates memory for a queue: in the common region, aligned, or in a separate region.
    /// Returns the region and the offset in it.
    fn queue(
        &mut self,
        gpu: &Gpu,
        kind: MemoryKind,
        len: usize,
        align: usize,
    ) -> Result<(Region, usize)> {
        match kind {
            MemoryKind::Pinned => {
                let base = self.region.addr().0 as usize;
                self.at = (base + self.at).next_multiple_of(align) - base;
                Ok((self.region.clone(), self.take_at(len)))
            }
            MemoryKind::Device => Ok((shared(gpu, kind, len)?, 0)),
        }
    }
}

/// The location of a queue for which the configuration asks for memory of `kind`.
fn reachable(layout: Layout, kind: MemoryKind) -> MemoryKind {
    match layout.device_queues {
        true => kind,
        false => MemoryKind::Pinned,
    }
}

/// Bytes of the words of a queue pair, each piece rounded up.
fn words_len(config: &QpConfig) -> usize {
    let side = |requests: u32| {
        let statuses = (4 * requests as usize).next_multiple_of(ALIGN);
        2 * WAITER_WORDS.next_multiple_of(ALIGN) + statuses + 2 * ALIGN
    };
    // The two others are the doorbell record and the error word.
    2 * ALIGN + side(config.send_blocks) + side(config.recv_entries)
}

fn shared_addr(region: &Region, at: usize, len: usize) -> Result<SharedAddr> {
    let whole = SharedAddr {
        cpu: region.mapped()?,
        gpu: region.addr(),
    };
    Ok(whole.part(at, len))
}

/// A queue pair before it is shared.
pub(in crate::rdma) struct Built {
    pub core: QpCore,
    /// The region that contains the send queue, and the offset in it.
    pub ring: (Region, usize),
    /// The locations of work queues, completion queues and doorbell record.
    pub memory: [MemoryKind; 3],
}

struct Sizes {
    send_bytes: usize,
    recv_bytes: usize,
    stride: usize,
    send_log: u8,
    recv_log: u8,
}

fn sizes(config: &QpConfig) -> Result<Sizes> {
    let check = |queue: &str, n: u32, unit: &'static str| {
        if n.is_power_of_two() && (4..=32768).contains(&n) {
            return Ok(());
        }
        let what = format!(
            "the {queue} queue cannot have {n} {unit}: the number must be a power of two of at \
             least 4"
        );
        Err(Error::new("create queue pair", Kind::Invalid, what).with_limit(32768u32, unit))
    };
    check("send", config.send_blocks, "blocks")?;
    check("receive", config.recv_entries, "entries")?;
    if !(1..=16).contains(&config.recv_sges) {
        let what = format!(
            "a receive queue entry cannot have {} SGEs; it has at least 1",
            config.recv_sges
        );
        return Err(Error::new("create queue pair", Kind::Invalid, what).with_limit(16u32, "SGEs"));
    }
    let stride = SEGMENT * config.recv_sges.next_power_of_two() as usize;
    // Twice the number of requests: half of the entries are for positions, half are a reserve for a
    // failing queue.
    let log = |n: u32| (2 * n).trailing_zeros() as u8;
    Ok(Sizes {
        send_bytes: config.send_blocks as usize * BASIC_BLOCK,
        recv_bytes: config.recv_entries as usize * stride,
        stride,
        send_log: log(config.send_blocks),
        recv_log: log(config.recv_entries),
    })
}

pub(in crate::rdma) fn build(pd: &Pd, config: &QpConfig, kind: RungBy) -> Result<Built> {
    let gpu = pd.device().gpu();
    let nic = Arc::clone(pd.device().nic());
    let sizes = sizes(config)?;
    let layout = nic.layout();
    let (send_cq, recv_cq) = (ENTRY << sizes.send_log, ENTRY << sizes.recv_log);
    // Both completion queues begin at an alignment that the NIC accepts.
    let recv_cq_at = send_cq.next_multiple_of(layout.align);
    let cq_len = recv_cq_at + recv_cq.next_multiple_of(layout.align);
    let ring_len = sizes.recv_bytes + sizes.send_bytes;
    let grain = layout.grain(ring_len);
    let ring_len = ring_len.next_multiple_of(grain);
    let ring_memory = reachable(layout, config.ring_memory);
    let cq_memory = reachable(layout, config.cq_memory);
    // Includes the largest padding that the alignment can need.
    let here = |kind: MemoryKind, len: usize, align: usize| match kind {
        MemoryKind::Pinned => len.next_multiple_of(ALIGN) + align - ALIGN,
        MemoryKind::Device => 0,
    };
    let page = match layout.takes_uar {
        true => doorbell::PAGE,
        false => 0,
    };
    let queues = here(ring_memory, ring_len, grain) + here(cq_memory, cq_len, layout.align);
    let control = gpu.alloc(MemoryKind::Pinned, page + words_len(config) + queues)?;
    let mut carver = Carver {
        region: control.clone(),
        at: page,
    };
    let (ring, recv_at) = carver.queue(gpu, ring_memory, ring_len, grain)?;
    let send_at = recv_at + sizes.recv_bytes;
    let (cqs, cq_at) = carver.queue(gpu, cq_memory, cq_len, layout.align)?;
    let mut regions = vec![ring.clone(), cqs.clone()];
    let own_record = match reachable(layout, config.record_memory) {
        MemoryKind::Pinned => None,
        MemoryKind::Device => {
            Some(shared(gpu, MemoryKind::Device, 64)?).filter(|r| r.kind() == MemoryKind::Device)
        }
    };
    let (record, record_region, record_at) = match own_record {
        None => {
            let record = carver.take(8)?;
            (record, control.clone(), record.gpu.0 - control.addr().0)
        }
        Some(region) => {
            regions.push(region.clone());
            (shared_addr(&region, 0, 8)?, region, 0)
        }
    };
    let mut side = |ring: SharedAddr, cq: SharedAddr, requests: u32| -> Result<SideAddrs> {
        Ok(SideAddrs {
            ring,
            cq,
            passed: carver.take(WAITER_WORDS)?,
            arrived: carver.take(WAITER_WORDS)?,
            statuses: carver.take(4 * requests as usize)?,
            done: carver.take(8)?,
            trigger: carver.take(4)?,
        })
    };
    let send = side(
        shared_addr(&ring, send_at, sizes.send_bytes)?,
        shared_addr(&cqs, cq_at, send_cq)?,
        config.send_blocks,
    )?;
    let recv = side(
        shared_addr(&ring, recv_at, sizes.recv_bytes)?,
        shared_addr(&cqs, cq_at + recv_cq_at, recv_cq)?,
        config.recv_entries,
    )?;
    let error = carver.take(4)?;
    let memory = [ring.kind(), cqs.kind(), record_region.kind()];
    let made = nic.create_qp(
        pd.id(),
        &QpRings {
            #[cfg(feature = "emulated")]
            uar: (&control, 0),
            record: (&record_region, record_at),
            send_ring: (&ring, send_at as u64, config.send_blocks),
            recv_ring: (
                &ring,
                recv_at as u64,
                config.recv_entries,
                sizes.stride as u32,
            ),
            send_cq: (&cqs, cq_at as u64, sizes.send_log),
            recv_cq: (&cqs, (cq_at + recv_cq_at) as u64, sizes.recv_log),
            access: config.access,
            start: config.start,
            transport: config.transport,
            path: config.path.resolve()?,
        },
    )?;
    let objects = made.objects;
    let register = match made.doorbell {
        None => shared_addr(&control, doorbell::BF_OFFSET, 8)?,
        Some((region, register)) => {
            regions.push(region);
            register
        }
    };
    let addrs = QpAddrs {
        uar: DevicePtr(register.gpu.0 - doorbell::BF_OFFSET as u64),
        record,
        doorbell: register,
        reads_doorbell: layout.reads_doorbell,
        error,
        send,
        recv,
    };
    let next = u64::from(config.start);
    let (send, recv) = empty_queues(
        &addrs,
        objects.qpn,
        config.transport,
        config.start,
        (next, next),
    );
    name(gpu.tracer(), &objects, &addrs);
    Ok(Built {
        core: QpCore::new(
            Gpu::clone(gpu),
            nic,
            objects,
            addrs,
            kind,
            config.transport,
            config.timeout,
            config.error.clone(),
            control,
            regions,
            Arc::clone(pd.inner()),
            pd.device().flushes().clone(),
            send,
            recv,
        ),
        ring: (ring, send_at),
        memory,
    })
}

/// Allocates memory that the CPU writes too: pinned if the CPU cannot access device memory.
fn shared(gpu: &Gpu, kind: MemoryKind, len: usize) -> Result<Region> {
    let region = gpu.alloc(kind, len)?;
    match region.mapped() {
        Ok(_) => Ok(region),
        Err(e) => {
            tracing::info!(target: "gdsync", "queue memory is pinned, not in the GPU: {e}");
            gpu.alloc(MemoryKind::Pinned, len)
        }
    }
}

/// The empty queues of a queue pair, with its words in their initial state. The NIC writes its next
/// send and receive completions at the positions `next`.
fn empty_queues(
    addrs: &QpAddrs,
    qpn: u32,
    transport: Transport,
    start: u32,
    next: (u64, u64),
) -> (SendQueue<Mapped, Hold>, ReceiveQueue<Mapped, Hold>) {
    write_words(addrs, start);
    let cq = |side: &SideAddrs, next: u64| {
        let log = (side.cq.cpu.len() / ENTRY).trailing_zeros() as u8;
        side.done.cpu.store64(0, next);
        CompletionRing::new(side.cq.cpu, side.passed.cpu, log, next)
    };
    let (send, recv) = (&addrs.send, &addrs.recv);
    let requests = |side: &SideAddrs| (side.statuses.cpu.len() / 4) as u32;
    let (blocks, entries) = (requests(send), requests(recv));
    let stride = recv.ring.cpu.len() / entries as usize;
    let sends = SendQueue::new(send.ring.cpu, qpn, blocks, start, cq(send, next.0));
    let sends = match transport {
        Transport::Rc => sends,
        Transport::Ud { .. } => sends.of_datagrams(),
    };
    let receives = ReceiveQueue::new(recv.ring.cpu, entries, stride, start, cq(recv, next.1));
    (sends, receives)
}

/// Writes the initial state of the words of a queue pair.
fn write_words(addrs: &QpAddrs, start: u32) {
    let record = &addrs.record.cpu;
    record.store32(doorbell::SND, doorbell::record_value(start));
    record.store32(doorbell::RCV, doorbell::record_value(start));
    addrs.error.cpu.store32(0, 0);
    for side in [&addrs.send, &addrs.recv] {
        for waiter in 0..WAITERS {
            side.arrived.cpu.store32(4 * waiter, 0);
        }
        for status in 0..side.statuses.cpu.len() / 4 {
            side.statuses.cpu.store32(4 * status, 0);
        }
    }
    addrs.send.trigger.cpu.store32(0, 0);
    addrs.recv.trigger.cpu.store32(0, start);
}

fn name(tracer: &Tracer, objects: &QpObjects, addrs: &QpAddrs) {
    let qp = format!("qp{:#x}", objects.qpn);
    let give = |at: SharedAddr, what: &str| {
        tracer.name(at.gpu, at.cpu.len(), format!("{qp}.{what}"));
    };
    tracer.name(addrs.uar, doorbell::PAGE, format!("{qp}.uar"));
    give(addrs.record, "record");
    give(addrs.error, "error");
    for (side, which) in [(&addrs.send, "send"), (&addrs.recv, "recv")] {
        give(side.ring, &format!("{which}-ring"));
        give(side.cq, &format!("{which}-cq"));
        give(side.passed, &format!("{which}-passed"));
        give(side.arrived, &format!("{which}-arrived"));
        give(side.done, &format!("{which}-done"));
        give(side.trigger, &format!("{which}-trigger"));
    }
}

/// Returns an idle queue pair to the state in which [`build`] left it. The caller has set
/// `under_way`.
pub(in crate::rdma) fn reset(core: &QpCore) -> Result<()> {
    let nic = &core.nic;
    let done = nic
        .reset_qp(core.objects.qpn)
        .and_then(|()| nic.cq_indices(&core.objects));
    let mut state = core.lock();
    state.under_way = false;
    let (indices, refused) = match done {
        Ok(indices) => (indices, None),
        // The NIC has reset the queue pair, and the library resets its state too: only another
        // reset recovers it.
        Err(e) if e.kind() == Kind::Failed(Status::CLOSED) => (None, Some(e)),
        Err(e) => return Err(e),
    };
    let addrs = &core.addrs;
    // The completion queues continue at the NIC's positions: only work queues restart.
    let next = indices.unwrap_or_else(|| (state.send.cq.written(), state.recv.cq.written()));
    let start = core.objects.start;
    let (send, recv) = empty_queues(addrs, core.qpn(), core.transport, start, next);
    let epoch = state.epoch + 1;
    let mut new = QpState::new(send, recv);
    new.epoch = epoch;
    new.flush_faults = core.flushes.fault.count();
    // The queue pair keeps its number, so doorbells that are in flight still reach it.
    new.rung_by_streams = state.rung_by_streams;
    if refused.is_some() {
        new.cause = Some((Side::Receive, Status::CLOSED));
        addrs.error.cpu.store32(0, Status::CLOSED.0);
    }
    let old = std::mem::replace(&mut *state, new);
    drop(state);
    // The objects that its requests held are dropped without the lock.
    drop(old);
    refused.map_or(Ok(()), Err)
}

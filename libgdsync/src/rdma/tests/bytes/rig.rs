//! Two queue pairs in step: this library writes each request and its doorbell on one, libmlx5 on
//! the other; then both are compared and completed, in the NIC's place.

use std::collections::BTreeMap;
use std::time::Duration;

use gdsync_sys::verbs::types::{ibv_send_wr, ibv_sge};
use mlx5_prm::cqe::Success;
use mlx5_prm::doorbell::record_value;
use mlx5_prm::opcode::CqeOpcode;
use mlx5_prm::wqe::BASIC_BLOCK;

use super::datagrams;
use super::fields::{self, Field, Side};
use super::request::{Data, Kind, Request, as_verbs};
use crate::gpu::{Mapped, Stream};
use crate::nic::{Access, Transport};
use crate::provider::ibv::Handle;
use crate::provider::mlx5::tests::{Completions, Silence, VendorQp};
use crate::rdma::{Descriptor, Destination, Device, Doorbell, Lowering, Mr, Qp, QpConfig, Work};
use crate::ring::cq::ENTRY;
use crate::status::Status;
use crate::{Gpu, rdma::RemoteSpan};

const LIMIT: Duration = Duration::from_secs(60);

/// Bytes of the registered memory in most tests: registration takes time.
const SOME: u64 = 1 << 24;
/// Bytes of the registered memory for segments of every length.
const MUCH: u64 = 1 << 31;

/// The poster on our side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Cpu,
    Stream,
}

/// The data that both sides have written for some requests.
#[derive(Clone)]
pub(super) struct Written {
    /// Ours, then libmlx5's.
    pub rings: [Vec<u8>; 2],
    pub qpns: [u32; 2],
    pub fill: u8,
    /// The starts of the entries, and their fields.
    pub entries: Vec<(usize, Vec<Field>)>,
    pub records: [[u8; 8]; 2],
    /// Receives have no doorbell.
    pub doorbells: Option<[[u8; 8]; 2]>,
}

impl Written {
    /// # Errors
    /// The first difference that no rule allows.
    pub fn check(&self) -> Result<(), String> {
        let [ours, theirs] = [0, 1].map(|i| Side {
            ring: &self.rings[i],
            qpn: self.qpns[i],
        });
        fields::compare(&ours, &theirs, self.fill, &self.entries)?;
        let [ours, theirs] = self.records;
        if ours != theirs {
            return Err(format!(
                "doorbell record: {ours:02x?} by us, {theirs:02x?} by libmlx5"
            ));
        }
        if let Some(words) = self.doorbells {
            // The first eight bytes of the control segment, with the number at offset 4.
            let own = |i: usize| {
                let mut word = words[i];
                let mine = word[4..7] == self.qpns[i].to_be_bytes()[1..];
                word[4..7].fill(0);
                (word, mine)
            };
            let ((ours, mine), (theirs, its)) = (own(0), own(1));
            if ours != theirs || !mine || !its {
                let [ours, theirs] = words;
                return Err(format!(
                    "doorbell: {ours:02x?} by us, {theirs:02x?} by libmlx5"
                ));
            }
        }
        Ok(())
    }
}

/// The number of compared requests, and of those that wrapped around the ring, by kind and data.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<(String, &'static str), [u32; 2]>);

impl Tally {
    fn add(&mut self, what: String, data: &'static str, wrapped: bool) {
        let [all, over] = self.0.entry((what, data)).or_default();
        *all += 1;
        *over += u32::from(wrapped);
    }

    pub fn print(&self) {
        for ((what, data), [all, over]) in &self.0 {
            println!("{what}, {data}: {all} compared with libmlx5's, {over} over the ring's end");
        }
    }
}

/// The two queue pairs; see the module.
pub(super) struct Rig {
    memory: Mr,
    stream: Stream,
    /// Our doorbell. It is dropped before the queue pair, whose page it covers.
    doorbell: Silence,
    ours: Qp,
    /// Destinations of datagrams, with libmlx5's address handles.
    pub destinations: Vec<(Destination, Handle)>,
    /// Completions on our side: send, receive.
    completions: [Completions; 2],
    theirs: VendorQp,
    /// Entries in the send queues' rings.
    pub blocks: u32,
    /// Index of the next block, on both sides.
    pub next: u32,
    next_receive: u32,
    pub fill: u8,
    /// The bytes that libmlx5 writes for an empty SEND, by its flags.
    empty: BTreeMap<u8, Vec<u8>>,
    pub tally: Tally,
    /// The last comparison.
    pub last: Option<Written>,
}

/// Reserves addresses. The system backs them with memory on the first access, and no code accesses
/// them.
fn room(len: u64) -> *mut u8 {
    // SAFETY: a mapping at any address.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

fn read(mapped: &Mapped) -> Vec<u8> {
    let mut bytes = vec![0; mapped.len()];
    mapped.read(0, &mut bytes);
    bytes
}

fn word(mapped: &Mapped) -> [u8; 8] {
    let mut bytes = [0; 8];
    mapped.read(0, &mut bytes);
    bytes
}

impl Rig {
    pub fn new(blocks: u32, entries: u32, recv_sges: u32) -> Rig {
        Rig::with_memory(Transport::Rc, SOME, blocks, entries, recv_sges)
    }

    /// As [`Rig::new`], with enough memory for segments of every length.
    pub fn large(blocks: u32, entries: u32, recv_sges: u32) -> Rig {
        Rig::with_memory(Transport::Rc, MUCH, blocks, entries, recv_sges)
    }

    /// As [`Rig::new`], for datagrams.
    pub fn of_datagrams(blocks: u32) -> Rig {
        Rig::with_memory(Transport::Ud { qkey: 0x77 }, SOME, blocks, 4, 1)
    }

    fn with_memory(
        transport: Transport,
        len: u64,
        blocks: u32,
        entries: u32,
        recv_sges: u32,
    ) -> Rig {
        let gpu = Gpu::soft().unwrap();
        let device = Device::mlx5(&gpu).unwrap();
        let pd = device.alloc_pd().unwrap();
        // SAFETY: memory that stays mapped until the process ends.
        let region = unsafe { gpu.register_host(room(len), len as usize).unwrap() };
        let memory = pd.register(&region, Access::ALL).unwrap();
        let config = QpConfig::default()
            .transport(transport)
            .send_blocks(blocks)
            .recv_entries(entries)
            .recv_sges(recv_sges)
            .timeout(None)
            .lowering(Lowering::MemOps)
            .doorbell(Doorbell::Direct);
        let mut ours = pd.create_qp(&config).unwrap();
        // libmlx5's queue pair has sent a message, too.
        let nowhere = RemoteSpan::new(0, 0);
        let first = match transport {
            Transport::Rc => {
                ours.connect(&ours.address()).unwrap();
                ours.prepare(&Work::write(&[], nowhere).signaled())
            }
            Transport::Ud { .. } => {
                ours.activate().unwrap();
                let to = pd.destination(&ours.address()).unwrap();
                ours.prepare(&Work::send(&[]).to(&to).signaled())
            }
        };
        let first = first.unwrap();
        ours.post(first).unwrap();
        ours.wait(first, LIMIT).unwrap();
        let theirs = VendorQp::make(&gpu, transport, blocks, entries, recv_sges);
        let destinations = match transport {
            Transport::Rc => Vec::new(),
            Transport::Ud { .. } => datagrams::destinations(&gpu, &pd, &theirs),
        };
        let addrs = ours.core.addrs;
        let completions = |cq: Mapped, next| Completions {
            ring: cq,
            log: (cq.len() / ENTRY).trailing_zeros() as u8,
            next,
        };
        // SAFETY: the register of only this queue pair, which has nothing in flight.
        let doorbell = unsafe { Silence::new(addrs.doorbell.cpu.as_ptr()) };
        assert_eq!(addrs.recv.ring.cpu.len(), entries as usize * theirs.stride);
        Rig {
            stream: gpu.stream().unwrap(),
            completions: [
                completions(addrs.send.cq.cpu, 1),
                completions(addrs.recv.cq.cpu, 0),
            ],
            memory,
            ours,
            destinations,
            doorbell,
            theirs,
            blocks,
            next: 1,
            next_receive: 0,
            fill: 0xa5,
            empty: BTreeMap::new(),
            tally: Tally::default(),
            last: None,
        }
    }

    /// A message of this transport.
    fn plain(&self) -> Kind {
        match self.ours.transport() {
            Transport::Rc => Kind::Send,
            Transport::Ud { .. } => Kind::Datagram,
        }
    }

    /// Bytes of the registered memory.
    pub fn memory(&self) -> u64 {
        self.memory.region().len() as u64
    }

    pub fn stride(&self) -> usize {
        self.theirs.stride
    }

    fn fill_rings(&self) {
        let addrs = &self.ours.core.addrs;
        for ring in [
            &addrs.send.ring.cpu,
            &addrs.recv.ring.cpu,
            &self.theirs.send_ring,
            &self.theirs.recv_ring,
        ] {
            ring.write(0, &vec![self.fill; ring.len()]);
        }
        self.doorbell.register.store64(0, 0);
        assert_eq!(self.theirs.take_doorbell(), None, "rung for nothing");
    }

    /// Compares the bytes written into the rings.
    fn compare(&mut self, receive: bool, entries: Vec<(usize, Vec<Field>)>) -> Result<(), String> {
        let addrs = &self.ours.core.addrs;
        let rings = match receive {
            false => [&addrs.send.ring.cpu, &self.theirs.send_ring],
            true => [&addrs.recv.ring.cpu, &self.theirs.recv_ring],
        };
        let written = Written {
            rings: rings.map(read),
            qpns: [self.ours.core.qpn(), self.theirs.qpn()],
            fill: self.fill,
            entries,
            records: [word(&addrs.record.cpu), word(&self.theirs.record)],
            doorbells: (!receive).then(|| {
                let rung = self.theirs.take_doorbell().expect("libmlx5 has rung");
                [word(&self.doorbell.register), rung]
            }),
        };
        let expected = [self.next_receive, self.next].map(|next| record_value(next).to_ne_bytes());
        assert_eq!(
            written.records[1],
            expected.concat()[..],
            "libmlx5's record"
        );
        let result = written.check();
        self.last = Some(written);
        result
    }

    /// Prepares a request only on our side.
    pub fn prepare(&mut self, request: &Request) -> crate::Result<crate::rdma::SendRequest> {
        let (ours, memory) = (&mut self.ours, &self.memory);
        request.with_work(memory, &self.destinations, |work| ours.prepare(work))
    }

    /// Posts requests with one doorbell, as [`Rig::send`] posts one.
    ///
    /// # Errors
    /// The first difference.
    pub fn send_all(&mut self, requests: &[Request], by: By) -> Result<(), String> {
        for request in requests.iter().filter(|r| r.kind == Kind::Nop) {
            self.learn_empty(request)?;
        }
        self.fill_rings();
        let mut prepared = Vec::new();
        let mut entries = Vec::new();
        let mut wrs: Vec<(ibv_send_wr, Vec<ibv_sge>)> = Vec::new();
        let mut starts = Vec::new();
        for request in requests {
            let (ours, memory) = (&mut self.ours, &self.memory);
            let there = &self.destinations;
            let (ticket, wr) = request.with_work(memory, there, |work| {
                let mut sges = Vec::new();
                let wr = as_verbs(work, there, &mut sges);
                (ours.prepare(work), (wr, sges))
            });
            prepared.push(ticket.map_err(|e| e.to_string())?);
            wrs.push(wr);
            let start = self.next % self.blocks;
            let segments = request.segments();
            let blocks = segments.div_ceil(4) as u32;
            let wrapped = start + blocks > self.blocks;
            let name = format!("{:?}", request.kind);
            self.tally.add(name, request.data.name(), wrapped);
            entries.push((start as usize * BASIC_BLOCK, fields::of_send(request)));
            starts.push(self.next as u16);
            self.next += blocks;
        }
        match by {
            By::Cpu => prepared.iter().for_each(|p| self.ours.post(*p).unwrap()),
            By::Stream => {
                let list: Vec<_> = prepared.iter().map(|p| Descriptor::Send(*p)).collect();
                self.ours.post_on(&self.stream, &list).unwrap();
                assert!(
                    self.stream.synchronize(LIMIT).unwrap(),
                    "the stream is stuck"
                );
            }
        }
        if requests.iter().any(|r| r.kind == Kind::Nop) {
            // Each request has a separate doorbell, of which only the last one counts.
            for (request, (wr, _)) in requests.iter().zip(&wrs) {
                let _ = self.theirs.take_doorbell();
                match request.kind {
                    Kind::Nop => {
                        let mut entry = self.empty[&request.flags.to_byte()].clone();
                        entry[3] = Kind::Nop.opcode().0;
                        self.theirs.post_raw(&entry);
                    }
                    _ => self.theirs.post_send(&mut [*wr]),
                }
            }
        } else {
            let mut list: Vec<ibv_send_wr> = wrs.iter().map(|(wr, _)| *wr).collect();
            self.theirs.post_send(&mut list);
        }
        let result = self.compare(false, entries);
        for (request, start) in requests.iter().zip(starts) {
            if request.flags.signaled {
                self.complete_send(start);
            }
        }
        result.map_err(|e| format!("{e}\nof {requests:?}, by {by:?}"))?;
        if requests.last().is_some_and(|r| !r.flags.signaled) {
            let last = self.last.take();
            self.send(&Request::empty(self.plain()), by)?;
            self.last = last;
        }
        for ticket in prepared {
            assert_eq!(self.ours.poll(ticket).unwrap(), Some(Status::SUCCESS));
        }
        Ok(())
    }

    /// Posts a request on both sides and compares; a signaled request follows an unsignaled one.
    ///
    /// # Errors
    /// The first difference.
    pub fn send(&mut self, request: &Request, by: By) -> Result<(), String> {
        self.send_all(std::slice::from_ref(request), by)
    }

    fn complete_send(&mut self, start: u16) {
        self.completions[0].put(&Success {
            opcode: CqeOpcode::REQ,
            qpn: self.ours.core.qpn(),
            wqe_counter: start,
            ..Success::default()
        });
        self.theirs.complete_send(start);
    }

    /// Makes libmlx5 write an empty SEND with the flags of `request`, for a NOP.
    fn learn_empty(&mut self, request: &Request) -> Result<(), String> {
        let flags = request.flags.to_byte();
        if self.empty.contains_key(&flags) {
            return Ok(());
        }
        let start = (self.next % self.blocks) as usize * BASIC_BLOCK;
        let empty = Request {
            flags: request.flags,
            ..Request::empty(Kind::Send)
        };
        self.send(&empty, By::Cpu)?;
        let ring = self.last.as_ref().map(|last| last.rings[1].clone());
        let entry = ring.expect("it was just compared")[start..start + 16].to_vec();
        self.empty.insert(flags, entry);
        Ok(())
    }

    /// Prepares a request and another one, aborts the first, and posts. On libmlx5's side the first
    /// is the entry that it wrote for the request, changed into a NOP.
    ///
    /// # Errors
    /// The first difference.
    pub fn take_back(&mut self, request: &Request) -> Result<(), String> {
        if request.kind == Kind::Nop {
            self.learn_empty(request)?;
        }
        // The bytes that libmlx5 writes for it.
        let start = (self.next % self.blocks) as usize * BASIC_BLOCK;
        self.send(request, By::Cpu)?;
        let last = self.last.take().expect("it was just compared");
        let len = request.segments() * 16;
        let mut entry: Vec<u8> = last.rings[1]
            .iter()
            .cycle()
            .skip(start)
            .take(len)
            .copied()
            .collect();
        entry[3] = Kind::Nop.opcode().0;

        self.fill_rings();
        let behind = Request::empty(self.plain());
        let mut prepare = |request: &Request| self.prepare(request).map_err(|e| e.to_string());
        let (first, second) = (prepare(request)?, prepare(&behind)?);
        self.ours.abort(first).unwrap();
        self.ours.post(second).unwrap();
        self.theirs.post_raw(&entry);
        let _ = self.theirs.take_doorbell();
        let mut sges = Vec::new();
        let there = &self.destinations;
        let wr = behind.with_work(&self.memory, there, |work| as_verbs(work, there, &mut sges));
        self.theirs.post_send(&mut [wr]);

        let at = |index: u32| (index % self.blocks) as usize * BASIC_BLOCK;
        let after = self.next + request.segments().div_ceil(4) as u32;
        let entries = vec![
            (at(self.next), fields::of_send(request)),
            (at(after), fields::of_send(&behind)),
        ];
        let wrapped = at(after) < at(self.next) && at(after) != 0;
        let name = format!("{:?} taken back", request.kind);
        self.tally.add(name, request.data.name(), wrapped);
        let starts = [self.next as u16, after as u16];
        self.next = after + 1;
        let result = self.compare(false, entries);
        if request.flags.signaled {
            self.complete_send(starts[0]);
        }
        self.complete_send(starts[1]);
        result.map_err(|e| format!("{e}\nof {request:?}, taken back"))
    }

    /// Posts a receive on both sides and compares.
    ///
    /// # Errors
    /// The first difference.
    pub fn receive(&mut self, pieces: &[(u64, u32)], by: By) -> Result<(), String> {
        self.fill_rings();
        let sges: Vec<_> = pieces
            .iter()
            .map(|(at, n)| self.memory.sge(*at, *n))
            .collect();
        let request = self
            .ours
            .prepare_receive(&sges)
            .map_err(|e| e.to_string())?;
        match by {
            By::Cpu => self.ours.post_receive(request).unwrap(),
            By::Stream => {
                let list = [Descriptor::Receive(request)];
                self.ours.post_on(&self.stream, &list).unwrap();
                assert!(
                    self.stream.synchronize(LIMIT).unwrap(),
                    "the stream is stuck"
                );
            }
        }
        let base = self.memory.region().addr().0;
        let lkey = self.memory.lkey();
        let mut list: Vec<ibv_sge> = pieces
            .iter()
            .map(|(offset, length)| ibv_sge {
                addr: base + offset,
                length: *length,
                lkey,
            })
            .collect();
        self.theirs.post_recv(&mut list);
        let stride = self.stride();
        let ring = self.theirs.recv_ring.len();
        let start = self.next_receive as usize * stride % ring;
        self.next_receive += 1;
        let pointers = pieces.iter().filter(|(_, len)| *len != 0).count();
        let fields = fields::of_receive(pointers, stride);
        let name = format!("Receive, slots of {stride} bytes");
        self.tally.add(name, "pointers", start + stride == ring);
        let result = self.compare(true, vec![(start, fields)]);
        self.completions[1].put(&Success {
            opcode: CqeOpcode::RESP_SEND,
            qpn: self.ours.core.qpn(),
            ..Success::default()
        });
        self.theirs.complete_receive();
        assert_eq!(self.ours.poll(request).unwrap(), Some(Status::SUCCESS));
        result.map_err(|e| format!("{e}\nof a receive of {pieces:?}, by {by:?}"))
    }

    /// Advances both sides until the next entry begins at `block` of the ring.
    ///
    /// # Errors
    /// The first difference.
    pub fn go_to(&mut self, block: u32) -> Result<(), String> {
        loop {
            let left = (block.wrapping_sub(self.next)) % self.blocks;
            if left == 0 {
                return Ok(());
            }
            // Inline bytes for this many blocks.
            let bytes = match left.min(15) {
                1 => 0,
                // Four bytes less: the head of a datagram is a whole block.
                blocks => (blocks as usize - 1) * 64 - 4,
            };
            let filler = Request {
                data: Data::Inline(vec![vec![0x3c; bytes]]),
                ..Request::empty(self.plain())
            };
            self.send(&filler, By::Cpu)?;
        }
    }
}

//! The device file of the virtual ConnectX: any commands, in any order, with posted work in
//! between.
//!
//! A process is an arena; `call` runs commands and checks them, `command` creates them, and
//! `shadow` tracks the objects that must exist.

mod call;
mod command;
mod shadow;

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use gds_step::{Machine, Step, Time};
use vmlx5::{Dma, Population};
use vmlx5_uverbs::UarMode;
use vmlx5_uverbs::address::LinkLayer;

use crate::input::Input;
use crate::uverbs_rig::{ARENA, MAX_PAGES, NOWHERE, Rig};
use shadow::Shadow;

/// Most operations of one run.
const ACTS: usize = 96;
/// Pages of the arena that inputs can name; those above are doorbells.
const PAGES: u64 = ARENA as u64 / 4096 - MAX_PAGES;

struct Scene {
    rig: Rig,
    shadow: Shadow,
    /// The newest words of answers, which inputs use as names.
    words: Vec<u32>,
    /// Words of answers that may be descriptors.
    possible_descriptors: Vec<u32>,
    now: u64,
}

impl Scene {
    fn new(shape: u8) -> Scene {
        let link = match shape & 1 {
            0 => LinkLayer::InfiniBand,
            _ => LinkLayer::Ethernet,
        };
        let uar = match shape & 2 {
            0 => UarMode::Static,
            _ => UarMode::Dynamic,
        };
        Scene {
            rig: Rig::new(link, uar),
            shadow: Shadow::default(),
            words: Vec::new(),
            possible_descriptors: Vec::new(),
            now: 0,
        }
    }

    fn population(&self) -> Population {
        self.rig.nic.with(|nic| nic.population())
    }

    /// An address, mostly inside the arena.
    fn address(&self, input: &mut Input<'_>) -> u64 {
        let base = self.rig.process.memory.addr();
        let page = base + 4096 * (u64::from(input.byte()) % PAGES);
        match input.byte() {
            0..0xe0 => page,
            0xe0..0xe8 => page + 64,
            0xe8..0xf0 => page + u64::from(input.byte()),
            0xf0..0xf4 => base + ARENA as u64 - u64::from(input.byte()),
            0xf4..0xf8 => NOWHERE,
            0xf8..0xfc => base - u64::from(input.byte() & 31),
            _ => input.number(),
        }
    }

    /// A word of an earlier answer, or any number.
    fn word(&self, input: &mut Input<'_>) -> u32 {
        match input.byte() {
            n if !self.words.is_empty() && n & 1 == 0 => {
                self.words[usize::from(n >> 1) % self.words.len()]
            }
            n if n < 0x80 => (n >> 1).into(),
            _ => input.number() as u32,
        }
    }

    /// Steps until no machine has work.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.step() {
                return;
            }
        }
        panic!("the NIC does not become idle");
    }

    fn step(&mut self) -> bool {
        self.now += 1000;
        let step = self.rig.nic.step(Time::from_nanos(self.now));
        self.rig.device.turn();
        step == Step::Progress
    }

    /// Writes bytes into the process's memory.
    fn poke(&mut self, input: &mut Input<'_>) {
        let at = self.address(input);
        let len = usize::from(input.byte() & 63);
        let bytes = input.bytes(len);
        let offset = at.wrapping_sub(self.rig.process.memory.addr());
        let doorbells = ARENA as u64 - 4096 * MAX_PAGES;
        if offset < doorbells - 64 {
            self.rig
                .process
                .memory
                .write(offset, bytes)
                .expect("inside");
        }
    }

    /// Writes an entry into a queue of a queue pair, and its doorbell.
    fn work(&mut self, input: &mut Input<'_>) {
        let Some(qp) = self.shadow.queue(input) else {
            return;
        };
        let memory = &self.rig.process.memory;
        let offset = |addr: u64| addr.wrapping_sub(memory.addr());
        let index = qp.posted.get();
        let op = input.pick(&[0_u8, 8, 0xa, 0x10, 0x12, 8, 0xb, 0x11]);
        let key = self.shadow.key(input);
        let va = self.address(input).to_be_bytes();
        let mut bytes = Vec::new();
        bytes.extend((u32::from(index) << 8 | u32::from(op)).to_be_bytes());
        let ds = [1, 3, 2, 3, 4, 3, 2, 4][usize::from(op & 7)];
        bytes.extend((qp.qpn << 8 | ds).to_be_bytes());
        bytes.extend([0, 0, 0, 8, 0, 0, 0, 0]);
        if matches!(op, 8 | 0x10..) {
            bytes.extend(va);
            bytes.extend(key.to_be_bytes());
            bytes.extend([0; 4]);
        }
        if matches!(op, 0x11 | 0x12) {
            bytes.extend([1; 16]);
        }
        bytes.extend(8_u32.to_be_bytes());
        bytes.extend(key.to_be_bytes());
        bytes.extend(va);
        bytes.truncate(64);
        let place = u64::from(index) & (qp.sends - 1);
        // The ring and the records are mapped in most cases, because the command that named them
        // succeeded.
        let _ = memory.write(offset(qp.sq).wrapping_add(place * 64), &bytes);
        // A receive as well.
        let _ = memory.write(offset(qp.rq), &bytes[bytes.len() - 16..]);
        qp.posted.set(index.wrapping_add(1));
        let word = u32::from(qp.posted.get()).to_be();
        let _ = memory.store32(offset(qp.record), word);
        let _ = memory.store32(offset(qp.record).wrapping_add(4), word);
        self.rig.ring();
    }

    /// Closes the file, and opens it again: no object is left.
    fn reopen(&mut self) {
        self.rig.context = self.rig.device.open();
        assert_eq!(self.population(), Population::default());
        self.shadow = Shadow::default();
    }

    fn act(&mut self, input: &mut Input<'_>) {
        match input.byte() {
            act @ 0..0xb8 => {
                let command = self.command(act, input);
                self.carry_out(command, input);
            }
            0xb8..0xc4 => self.ioctl(input),
            0xc4..0xc8 => {
                let number = input.number();
                let page = number & 0xff | (number & 7) << 8;
                let offset = if number & 0x100 == 0 {
                    page * 4096
                } else {
                    number
                };
                // The descriptor of its event file is closed here.
                let _ = self.rig.context.map(offset, 4096);
            }
            0xc8..0xd0 => self.poke(input),
            0xd0..0xe0 => self.work(input),
            0xe0..0xf0 => drop(self.step()),
            0xf0..0xf6 => self.settle(),
            0xf6..0xf9 => {
                // Part of the process's memory is unmapped, or mapped again.
                let end = match input.byte() {
                    n @ 0..0x80 => 4096 * (u64::from(n) + 64),
                    _ => ARENA as u64,
                };
                self.rig.process.end.store(end, Ordering::Relaxed);
            }
            0xf9..0xfb => self.reopen(),
            _ => self.ring(input),
        }
    }

    fn ring(&mut self, input: &mut Input<'_>) {
        if input.byte() & 1 == 0 {
            self.rig.ring();
        }
        self.step();
    }

    /// The device serves the next opener.
    fn serve_another(&mut self) {
        self.reopen();
        let end = &self.rig.process.end;
        end.store(ARENA as u64, Ordering::Relaxed);
        self.rig.forget_room();
        let rig = &mut self.rig;
        let (context, _) = rig.get_context().expect("opened again");
        self.possible_descriptors.push(context.async_fd);
        let pd = rig.pd();
        let data = rig.room(4096);
        rig.mr(pd, data, 4096, 0xf).expect("a region");
        let cq = rig.cq(-1);
        if self.population().uars > 0 || context.num_comp_vectors > 0 {
            // With dynamic pages a QP needs a page that the library requested.
            let rig = &mut self.rig;
            if let Ok(qp) = rig.qp(pd, &cq) {
                rig.destroy_qp(qp.handle).expect("is there");
            }
        }
        self.rig.destroy_cq(cq.handle).expect("an unused CQ");
        self.reopen();
    }
}

/// Descriptors of this process.
fn descriptors() -> Vec<i32> {
    let list = std::fs::read_dir("/proc/self/fd").expect("proc");
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    list.filter_map(name)
        .filter_map(|n| n.parse().ok())
        .collect()
}

/// For any bytes written to the file: a refused command creates nothing, an object in use stays,
/// and at the end no object is left.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let before = descriptors();
    let shape = input.byte();
    let mut scene = Scene::new(shape);
    if shape & 0x80 == 0 {
        let (context, _) = scene.rig.get_context().expect("the first command");
        scene.possible_descriptors.push(context.async_fd);
    }
    for _ in 0..ACTS {
        if input.done() {
            break;
        }
        scene.act(&mut input);
    }
    scene.settle();
    scene.serve_another();
    let possible_descriptors = std::mem::take(&mut scene.possible_descriptors);
    drop(scene);
    for fd in descriptors() {
        // The descriptor with which the list was read is closed already.
        let there = rustix::fs::readlink(format!("/proc/self/fd/{fd}"), Vec::new()).is_ok();
        if !there || before.contains(&fd) {
            continue;
        }
        assert!(
            possible_descriptors.contains(&(fd as u32)),
            "descriptor {fd} is left"
        );
        // SAFETY: the descriptor was reported to the process, which makes the process its owner,
        // and its creator has released it.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
    }
}

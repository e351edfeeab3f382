//! The kernels of messages by mapped memory, run by the model checker loom: it tries the interleavings of
//! a few kernels, and the values that weak memory lets each load return.
//!
//! The build script compiles the shipped sources (`libmp/device`) with the device layer in `device`.
//! [`Memory`] has the words and the bytes that kernels access. A word that several parties access is an
//! atomic of loom. For plain accesses the compiler inserts the calls of its thread sanitizer, which this
//! file defines: loom stops at a race between two parties.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::rc::Rc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// A defect of the device layer, with which a model has to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// None.
    None,
    /// The fences of this kernel do nothing.
    NoFence(&'static str),
    /// Loads with acquire ordering have none.
    NoAcquire,
}

/// Words of the memory. The first half is for words of several parties, the second half for bytes.
const WORDS: usize = 192;
const SHARED: usize = WORDS / 2;

/// Aligned as the credits that a kernel reads at once.
#[repr(align(128))]
struct Arena([Cell<u64>; WORDS]);

/// The memory of one run.
pub struct Memory {
    /// Never moved. The bytes of the second half are here; the first half gives addresses only.
    arena: Box<Arena>,
    words: Vec<AtomicU64>,
    bytes: Vec<UnsafeCell<()>>,
    defect: Defect,
    /// By thread: the kernel that it runs.
    kernels: RefCell<BTreeMap<String, &'static str>>,
    /// By thread: the block that it runs, and the number of blocks of the launch; by default 0 of 1.
    blocks: RefCell<BTreeMap<String, (u32, u32)>>,
    /// By thread and word: the value of the last load.
    seen: RefCell<BTreeMap<(String, usize), u64>>,
}

thread_local! {
    /// The memory of the run. Loom executes all threads of a run on one thread of the system.
    static CURRENT: RefCell<Option<Rc<Memory>>> = const { RefCell::new(None) };
}

/// The name of the running thread of the model.
fn thread() -> String {
    format!("{:?}", loom::thread::current().id())
}

/// The memory of the run in progress.
fn current() -> Rc<Memory> {
    let memory = CURRENT.with_borrow(Option::clone);
    memory.expect("Memory::begin was called")
}

impl Memory {
    /// Begins a run with words that are 0.
    pub fn begin(defect: Defect) -> Rc<Memory> {
        let memory = Rc::new(Memory {
            arena: Box::new(Arena([const { Cell::new(0) }; WORDS])),
            words: (0..SHARED).map(|_| AtomicU64::new(0)).collect(),
            bytes: (0..SHARED).map(|_| UnsafeCell::new(())).collect(),
            defect,
            kernels: RefCell::default(),
            blocks: RefCell::default(),
            seen: RefCell::default(),
        });
        CURRENT.set(Some(Rc::clone(&memory)));
        memory
    }

    /// The address of a word, for kernels.
    pub fn addr(&self, word: usize) -> u64 {
        self.arena.0[word].as_ptr() as u64
    }

    /// The word at an address, if there is one.
    fn at(&self, addr: u64) -> Option<usize> {
        let offset = addr.checked_sub(self.addr(0))?;
        Some(offset as usize / 8).filter(|word| *word < WORDS)
    }

    /// Whether a shared word has reached a value, as a stream finds it.
    pub fn has_reached(&self, word: usize, value: u64) -> bool {
        self.load(word, true) >= value
    }

    /// Stores a shared word, before the threads of the model begin.
    pub fn store(&self, word: usize, value: u64) {
        self.words[word].store(value, Ordering::Relaxed);
    }

    fn load(&self, word: usize, acquires: bool) -> u64 {
        let order = match acquires && self.defect != Defect::NoAcquire {
            true => Ordering::Acquire,
            false => Ordering::Relaxed,
        };
        let value = self.words[word].load(order);
        let before = self.seen.borrow_mut().insert((thread(), word), value);
        // A loop that waits finds the same value again.
        if before == Some(value) {
            loom::thread::yield_now();
        }
        value
    }

    /// Notes a plain access of `len` bytes. Accesses outside the bytes are of the kernel's own memory.
    fn access(&self, addr: u64, len: usize, writes: bool) {
        let Some(first) = self.at(addr) else { return };
        let last = self.at(addr + len as u64 - 1).unwrap_or(WORDS - 1);
        for word in first..=last {
            let cell = word.checked_sub(SHARED).map(|at| &self.bytes[at]);
            let cell = cell.expect("a kernel accesses a shared word without order");
            match writes {
                true => cell.with_mut(|_| ()),
                false => cell.with(|_| ()),
            }
        }
    }

    /// Reads a word of the bytes.
    pub fn read(&self, word: usize) -> u64 {
        self.access(self.addr(word), 8, false);
        self.arena.0[word].get()
    }

    /// Writes a word of the bytes.
    pub fn write(&self, word: usize, value: u64) {
        self.access(self.addr(word), 8, true);
        self.arena.0[word].set(value);
    }
}

/// Stores the shared word at an address, behind all that the thread of the model has done and seen, as the
/// library does.
pub fn release(addr: u64, value: u64) {
    let memory = current();
    let word = shared(&memory, addr as *const c_void);
    memory.words[word].store(value, Ordering::Release);
}

/// The shared word at an address that a kernel uses.
fn shared(memory: &Memory, p: *const c_void) -> usize {
    let word = memory.at(p as u64).filter(|word| *word < SHARED);
    word.expect("the address of a shared word")
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_load(p: *const c_void, acquires: i32) -> u64 {
    let memory = current();
    memory.load(shared(&memory, p), acquires != 0)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_store(p: *mut c_void, value: u64) {
    let memory = current();
    memory.words[shared(&memory, p)].store(value, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_add(p: *mut c_void, value: u64) -> u64 {
    let memory = current();
    memory.words[shared(&memory, p)].fetch_add(value, Ordering::Relaxed)
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_fence() {
    let memory = current();
    let kernel = memory.kernels.borrow().get(&thread()).copied();
    if kernel.map(Defect::NoFence) != Some(memory.defect) {
        fence(Ordering::AcqRel);
    }
}

/// The block that the thread of the model runs, and the number of blocks of its launch.
fn block() -> (u32, u32) {
    let of_thread = current().blocks.borrow().get(&thread()).copied();
    of_thread.unwrap_or((0, 1))
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_block() -> u32 {
    block().0
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_blocks() -> u32 {
    block().1
}

#[unsafe(no_mangle)]
extern "C-unwind" fn model_unknown() -> ! {
    unreachable!("a kernel executes what no model has");
}

/// Defines the functions of the thread sanitizer for plain accesses.
macro_rules! accesses {
    ($($read:ident $write:ident $len:literal,)*) => {$(
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $read(p: *const c_void) {
            current().access(p as u64, $len, false);
        }
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $write(p: *const c_void) {
            current().access(p as u64, $len, true);
        }
    )*};
}

accesses! {
    __tsan_read1 __tsan_write1 1,
    __tsan_read2 __tsan_write2 2,
    __tsan_read4 __tsan_write4 4,
    __tsan_read8 __tsan_write8 8,
    __tsan_read16 __tsan_write16 16,
    __tsan_unaligned_read2 __tsan_unaligned_write2 2,
    __tsan_unaligned_read4 __tsan_unaligned_write4 4,
    __tsan_unaligned_read8 __tsan_unaligned_write8 8,
    __tsan_unaligned_read16 __tsan_unaligned_write16 16,
}

/// As the accesses above, of any length.
#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_read_range(p: *const c_void, len: usize) {
    current().access(p as u64, len.max(1), false);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_write_range(p: *const c_void, len: usize) {
    current().access(p as u64, len.max(1), true);
}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_init() {}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_func_entry(_: *const c_void) {}

#[unsafe(no_mangle)]
extern "C-unwind" fn __tsan_func_exit() {}

/// Defines kernels that take these fields, in the order of `libmp/src/kernels/params.rs`.
macro_rules! kernels {
    ($($(#[$doc:meta])* $name:ident $entry:ident { $($field:ident: $type:ty),* })*) => {
        unsafe extern "C-unwind" {
            $(fn $entry(params: *const $name);)*
        }
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default)]
            #[repr(C)]
            #[allow(missing_docs, reason = "libmp/src/kernels/params.rs describes the fields")]
            pub struct $name { $(pub $field: $type),* }

            impl $name {
                /// Runs a block of a launch of the kernel as a thread of the model.
                pub fn run_block(&self, block: u32, blocks: u32) {
                    current().blocks.borrow_mut().insert(thread(), (block, blocks));
                    self.run();
                    current().blocks.borrow_mut().remove(&thread());
                }

                /// Runs the kernel as a thread of the model.
                pub fn run(&self) {
                    let name = stringify!($name);
                    current().kernels.borrow_mut().insert(thread(), name);
                    // SAFETY: the structure has the layout of the kernel's parameters, whose size the
                    // kernel's source asserts, as `LAYOUT` does here. The addresses are of the memory of the
                    // run: words are accessed by the functions above alone, and bytes as plain memory by one
                    // thread at a time, which loom checks before the access.
                    unsafe { $entry(self) }
                }
            }
        )*
    };
}

/// What the kernel of a sender waits for before it uses a slot.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(
    missing_docs,
    reason = "libmp/src/kernels/params.rs describes the fields"
)]
pub struct Credit {
    pub credit: u64,
    pub known: u64,
    pub taken: u64,
    pub before: u64,
}

kernels! {
    /// Writes a message into a flagged room.
    Flag model_mp_flag {
        slot: Credit, report: u64, from: u64, room: u64, long_room: u64, len: u64, lines: u64,
        number: u64, shares: u64
    }
    /// Takes a message in.
    Take model_mp_take {
        word: u64, payload: u64, consumed: u64, result: u64, error: u64, capacity: u64,
        staging: u64, flagged: u64, long_room: u64, long_len: u64, credit: u64, ended: u64,
        value: u64, before: u64, count: u64, mark: u64, marked: u64, slot: u32, shares: u32, segments: u32, waits: u32, number: u64,
        segment: [u64; 2]
    }
    /// Writes a message into the memory of its receive.
    Direct model_mp_direct {
        slot: Credit, place: u64, found: u64, ready: u64, info: u64, lost: u64, from: u64,
        len: u64, room: u64, lines: u64, room_lines: u64, pair: u64, result: u64, error: u64,
        report: u64, number: u64, shares: u64
    }
    /// Names the memory of a receive.
    Name model_mp_name {
        place: u64, to: u64, len: u64, key: u64, lost: u64, number: u64, report: u64
    }
    /// Writes the message of a replay into the room of a circuit.
    ReplayWrite model_mp_replay_write {
        end: End, credit: u64, from: u64, len: u64, rooms: Rooms
    }
    /// Shows the memory of a captured receive.
    ReplayPlace model_mp_replay_place { end: End, place: u64, to: u64 }
    /// Writes the message of a replay into the memory of its receive.
    ReplayCopy model_mp_replay_copy {
        end: End, place: u64, from: u64, len: u64, rooms: Rooms
    }
    /// Takes the message of a replay in.
    ReplayTake model_mp_replay_take {
        end: End, rooms: Rooms, bytes: u64, to: u64, capacity: u64, credit: u64
    }
    /// Stores the ready words of a step.
    ReadyWords model_mp_ready { table: u64, step: u64, count: u32, reserved: u32 }
    /// Executes the data of a step.
    StepParts model_mp_step {
        table: u64, step: u64, awaited: u64, passed: u64, ended: u64, count: u32, shares: u32
    }
}

/// Defines entries of the tables of kernels.
macro_rules! entries {
    ($($name:ident { $($field:ident: $type:ty),* })*) => {$(
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        #[allow(missing_docs, reason = "libmp/src/kernels/params.rs describes the fields")]
        pub struct $name { $(pub $field: $type),* }
    )*};
}

entries! {
    ReadyWord { closed: u64, to: u64 }
    StepPart {
        word: u64, closed: u64, gate: u64, arrived: u64, left: u64, pieces: u64, count: u32,
        split: u32, shares: u32, reserved: u32
    }
    Pieces {
        first: u64, packed: u64, len: u64, block: u64, row: u64, plane: u64, arrival: u64,
        result: u64, rows: u32, scatters: u32
    }
}

const _: () = assert!(size_of::<ReadyWords>() == 24 && size_of::<StepParts>() == 48);
const _: () = assert!(size_of::<StepPart>() == 64 && size_of::<Pieces>() == 72);

/// The own end of a circuit.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(
    missing_docs,
    reason = "libmp/src/kernels/params.rs describes the fields"
)]
pub struct End {
    pub words: u64,
    pub alarm: u64,
    pub error: u64,
    pub limit: u64,
    pub shares: u64,
}

/// The rooms of a circuit.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
#[allow(
    missing_docs,
    reason = "libmp/src/kernels/params.rs describes the fields"
)]
pub struct Rooms {
    pub first: u64,
    pub stride: u64,
    pub slots: u64,
}

const _: () = assert!(size_of::<ReplayWrite>() == 88 && size_of::<ReplayPlace>() == 56);
const _: () = assert!(size_of::<ReplayCopy>() == 88 && size_of::<ReplayTake>() == 96);

const LAYOUT: [usize; 4] = [
    size_of::<Flag>(),
    size_of::<Take>(),
    size_of::<Direct>(),
    size_of::<Name>(),
];
const _: () = assert!(LAYOUT[0] == 96 && LAYOUT[1] == 176 && LAYOUT[2] == 160 && LAYOUT[3] == 56);

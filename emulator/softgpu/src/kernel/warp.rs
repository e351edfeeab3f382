//! Warp operations: the lanes that take part, and the result of each lane.

/// The most lanes of a warp.
pub(super) const MOST_LANES: u32 = 64;
/// The value that a shuffle reads from an absent lane; no kernel may rely on it.
const GARBAGE: u64 = 0xa5a5_a5a5_a5a5_a5a5;

/// A warp operation; the numbers are those of `softgpu_warp_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarpKind {
    Sync,
    Ballot,
    Shuffle,
    ShuffleUp,
    ShuffleDown,
    ShuffleXor,
}

impl WarpKind {
    /// The operation's name in kernel code.
    pub(super) const fn name(self) -> &'static str {
        match self {
            WarpKind::Sync => "__syncwarp",
            WarpKind::Ballot => "__ballot_sync, __any_sync or __all_sync",
            WarpKind::Shuffle => "__shfl_sync",
            WarpKind::ShuffleUp => "__shfl_up_sync",
            WarpKind::ShuffleDown => "__shfl_down_sync",
            WarpKind::ShuffleXor => "__shfl_xor_sync",
        }
    }
}

/// The arguments of one lane in a warp operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct WarpCall {
    pub(super) kind: WarpKind,
    /// The lanes that take part, including the caller.
    pub(super) mask: u64,
    /// The argument of the lane: a predicate, or the bits of a shuffled value.
    pub(super) value: u64,
    /// The source of a shuffle: a lane, a distance or a mask.
    pub(super) arg: u32,
    /// The lanes of a shuffle's segment: a power of two, at most those of a warp.
    pub(super) width: u32,
}

const NO_CALL: WarpCall = WarpCall {
    kind: WarpKind::Sync,
    mask: 0,
    value: 0,
    arg: 0,
    width: MOST_LANES,
};

/// The lanes of one warp: the live lanes, and the pending calls.
#[derive(Clone, Debug)]
pub(super) struct Warp {
    alive: u64,
    waiting: u64,
    calls: [WarpCall; MOST_LANES as usize],
}

impl Warp {
    /// A warp of `lanes` lanes that have not started.
    pub(super) fn new(lanes: u32) -> Warp {
        Warp {
            alive: mask_of(lanes),
            waiting: 0,
            calls: [NO_CALL; MOST_LANES as usize],
        }
    }

    /// Resets it to a new warp of `lanes` lanes.
    pub(super) fn reset(&mut self, lanes: u32) {
        self.alive = mask_of(lanes);
        self.waiting = 0;
    }

    /// Records the call of a lane. Returns the lanes that may continue, which are all that take
    /// part if the caller was the last, or none yet. Their results are then in
    /// [`result`](Warp::result).
    pub(super) fn call(&mut self, lane: u32, call: WarpCall) -> u64 {
        self.waiting |= 1 << lane;
        self.calls[lane as usize] = call;
        self.complete(call)
    }

    /// Records the end of a lane. Returns the lanes of one operation that waited only for it.
    pub(super) fn exit(&mut self, lane: u32) -> u64 {
        self.alive &= !(1 << lane);
        lanes(self.waiting)
            .map(|lane| self.complete(self.calls[lane as usize]))
            .find(|&released| released != 0)
            .unwrap_or(0)
    }

    /// The lanes of `call`, if all live ones have called; their waits are over.
    fn complete(&self, call: WarpCall) -> u64 {
        let need = call.mask & self.alive;
        let met = self.waiting & need == need
            && lanes(need).all(|lane| {
                let other = &self.calls[lane as usize];
                other.mask == call.mask && other.kind == call.kind
            });
        if met { need } else { 0 }
    }

    /// Ends the wait of lanes that [`call`](Warp::call) or [`exit`](Warp::exit) returned.
    pub(super) fn release(&mut self, lanes: u64) {
        self.waiting &= !lanes;
    }

    /// The result of a lane in an operation in which `present` take part.
    pub(super) fn result(&self, lane: u32, present: u64) -> u64 {
        let call = &self.calls[lane as usize];
        let segment = lane & !(call.width - 1);
        let last = segment + call.width - 1;
        let from = match call.kind {
            WarpKind::Sync => return 0,
            WarpKind::Ballot => {
                return lanes(present)
                    .filter(|&lane| self.calls[lane as usize].value != 0)
                    .fold(0, |votes, lane| votes | 1 << lane);
            }
            WarpKind::Shuffle => segment + (call.arg & (call.width - 1)),
            WarpKind::ShuffleUp => match lane.checked_sub(call.arg) {
                Some(from) if from >= segment => from,
                _ => lane,
            },
            WarpKind::ShuffleDown => match lane.checked_add(call.arg) {
                Some(from) if from <= last => from,
                _ => lane,
            },
            WarpKind::ShuffleXor => match lane ^ call.arg {
                from if from <= last => from,
                _ => lane,
            },
        };
        if present >> from & 1 == 1 {
            self.calls[from as usize].value
        } else {
            GARBAGE
        }
    }

    /// The pending calls, for messages.
    pub(super) fn waits(&self) -> impl Iterator<Item = &WarpCall> {
        lanes(self.waiting).map(|lane| &self.calls[lane as usize])
    }
}

/// The mask of the first `lanes` lanes, 1 to 64.
pub(super) const fn mask_of(lanes: u32) -> u64 {
    u64::MAX >> (MOST_LANES - lanes)
}

/// The lanes of a mask, lowest first.
pub(super) fn lanes(mask: u64) -> impl Iterator<Item = u32> {
    let mut left = mask;
    std::iter::from_fn(move || {
        (left != 0).then(|| {
            let lane = left.trailing_zeros();
            left &= left - 1;
            lane
        })
    })
}

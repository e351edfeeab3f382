//! Random programs of messages of every kind: those of the matrix of messages
//! (`mp::rank`), with settings that a seed draws, under a schedule that it draws too. Requests are
//! cancelled as well, and messages are too long for their receives (truncation). Sends are dropped
//! at once or waited for late. Receives from any rank are mixed with receives from a named rank,
//! and may be posted before all messages. A sender gets far ahead of its receivers, and machines of
//! the ranks pause.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use gds_sim::{SimError, SimReport};
use gdsync::rdma::{Doorbell, Lowering};

use super::job::{Job, Settings, Wire, process};
use crate::mp::memory::BufferKind;
use crate::mp::rank;
use crate::mp::setup::{Form, Poster, Reach, Setup, Size, Waiter};
use crate::rig::verdict::text;
use crate::sim::world::{Pause, play};

/// Draws the program of `seed` and runs it under the schedule of `seed`.
///
/// # Errors
/// The first deviation from the program, with the seed.
pub fn run(seed: u64, wire: Wire) -> Result<SimReport, SimError> {
    let mut rng = Rng::with_seed(seed);
    let settings = Settings::draw(&mut rng);
    let setup = Rc::new(draw(&mut rng, &settings));
    let settings = Settings {
        // Room for all channels at a time. If most of it is in use, unused channels are retired.
        channels: (setup.tags as usize + 2).max(4),
        ..settings
    };
    let pauses = Pause::draw_some(&mut rng, setup.ranks as usize);
    let together = rng.bool();
    // If only one rank sends, the receivers start late.
    let behind = Duration::from_nanos(match setup.one_way {
        true => rng.u64(0..1 << 22),
        false => 0,
    });
    let job = Job::new(seed, setup.ranks, settings).over(wire);
    play(seed, setup.ranks as usize, move |rank| {
        let member = job.join(&rank);
        rank.pauses(&pauses, &process(&rank, &member.devices));
        if rank.me > 0 {
            rank.pass(behind);
        }
        let truncated = match rank::play(&setup, &member.ctx) {
            Ok(truncated) => truncated,
            Err(failed) => panic!("{}: {setup:?}", text(&failed)),
        };
        if together {
            rank.barrier();
        }
        member.leave_truncated(truncated);
    })
}

/// The settings of messages; the messages are few, so that many seeds can run.
fn draw(rng: &mut Rng, settings: &Settings) -> Setup {
    let mut poster = || {
        [
            Poster::Cpu,
            Poster::Stream,
            Poster::CpuThread,
            Poster::Mixed,
            Poster::Mixed,
        ][rng.usize(0..5)]
    };
    let (sender, receiver) = (poster(), poster());
    let mut kind = || [BufferKind::Device, BufferKind::Pinned][rng.usize(0..2)];
    let (from, into) = (kind(), kind());
    let (ranks, tags, all) = (rng.u32(1..=4), rng.u32(1..=4), rng.bool());
    let one_way = rng.u8(0..3) == 0;
    let window = settings.depth as usize / 2;
    let from_each = (if all { tags * ranks } else { tags }) as usize;
    let channels = match (one_way, all) {
        (true, true) => tags * ranks,
        (true, false) => tags,
        (false, true) => tags * ranks * ranks,
        (false, false) => tags * ranks,
    };
    Setup {
        sender,
        receiver,
        waiter: [
            Waiter::Poster,
            Waiter::Other,
            Waiter::Another,
            Waiter::Mixed,
        ][rng.usize(0..4)],
        // The job draws the doorbell, the lowering and the time of connections.
        doorbell: Doorbell::Auto,
        lowering: Lowering::Auto,
        up_front: false,
        from,
        into,
        size: Size::Around(match one_way && rng.bool() {
            // At most eager messages, so that no send waits for its receive.
            true => settings.eager,
            false => [600, 3 * settings.eager + 1, 20_000][rng.usize(0..3)],
        }),
        ranks,
        form: [Form::Single, Form::Vectors, Form::Words][rng.usize(0..3)],
        wild: match rng.bool() {
            true => rng.u32(0..=tags),
            false => 0,
        },
        wild_ahead: rng.bool(),
        eager: settings.eager,
        depth: settings.depth,
        first: settings.start,
        tags,
        streams: rng.u32(1..=2),
        reach: match all {
            true => Reach::All,
            false => Reach::Next,
        },
        one_way,
        manual: false,
        prepared: rng.bool(),
        // At most as many rounds as twelve messages, at least one round.
        lag: rng.usize(0..=(12 / (window * from_each)).max(1)),
        messages: match rng.usize(10..=60) / channels as usize {
            // More messages than there are slots.
            few if one_way && !all => few.max(3 * settings.depth as usize),
            few => few.max(1),
        },
        hazards: true,
        seed: rng.u64(..),
        late: rng.bool(),
    }
}

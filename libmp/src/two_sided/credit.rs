//! Credits: telling senders which messages were taken, half the slots of a channel at a time, by
//! the stream that took them or by the library.

use gdsync::Stream;

use super::channel::{RecvChannel, Run};
use super::peer::Peer;
use crate::error::Result;
use crate::mutant::{Mutant, on};
use crate::path::{Batch, Lane, List};

/// Counts a message as taken by a poster. Answers a run that its sender is to be told now.
pub(super) fn count(
    channel: &mut RecvChannel,
    number: u64,
    lane: u8,
    stream: Option<u64>,
) -> Option<Run> {
    let new = Run {
        lane,
        stream,
        from: number,
        to: number + 1,
    };
    match &mut channel.run {
        Some(run) if run.lane == lane && run.stream == stream && run.to == number => run.to += 1,
        place => {
            if let Some(old) = place.replace(new) {
                channel.stale.push(old);
            }
        }
    }
    let full = |run: &Run| run.to - run.from >= u64::from(channel.shape.depth / 2);
    let run = channel.run.take_if(|run| full(run))?;
    (!(on(Mutant::LostCredit) && run.from % 3 == 0)).then_some(run)
}

/// Tells a sender what was taken, when the stream gets there.
pub(super) fn credit_on(
    stream: &Stream,
    lane: &mut Lane,
    channel: &RecvChannel,
    run: &Run,
) -> Result<()> {
    let mut batch = Batch::short(lane);
    credit(&mut batch, channel, run)?;
    let mut list = List::<2>::new();
    list.put(batch.all());
    if let Err(e) = list.post(stream, Some(batch.lane())) {
        batch.undo();
        return Err(e.into());
    }
    Ok(())
}

fn credit(batch: &mut Batch<'_, 3>, channel: &RecvChannel, run: &Run) -> Result<()> {
    for (piece, to) in channel.credit(run)?.into_iter().flatten() {
        batch.put([piece].into_iter(), to)?;
    }
    Ok(())
}

/// Tells a sender what was taken, or keeps it for the next round. `true`: it was told.
pub(super) fn credit_by_cpu(lane: Option<&mut Lane>, channel: &mut RecvChannel, run: Run) -> bool {
    let told = lane.is_some_and(|lane| {
        let mut batch = Batch::short(lane);
        credit(&mut batch, channel, &run).is_ok() && batch.post().is_ok()
    });
    if !told {
        channel.stale.push(run);
    }
    told
}

/// Tells senders what was taken and they were not told yet. `true`: something was told.
pub(super) fn tell_the_rest(peer: &mut Peer) -> bool {
    let Peer { recvs, link, .. } = peer;
    let Some(lane) = link.lane(0) else {
        return false;
    };
    let mut told = false;
    for channel in recvs.values_mut() {
        if channel.run.is_none() && channel.stale.is_empty() {
            continue;
        }
        for _ in 0..channel.stale.len() {
            let run = channel.stale.remove(0);
            match channel.is_taken(&run) {
                true => told |= credit_by_cpu(Some(&mut *lane), channel, run),
                false => channel.stale.push(run),
            }
        }
        if let Some(run) = channel.run
            && channel.is_taken(&run)
            && !on(Mutant::LostCredit)
        {
            channel.run = None;
            told |= credit_by_cpu(Some(&mut *lane), channel, run);
        }
    }
    told
}

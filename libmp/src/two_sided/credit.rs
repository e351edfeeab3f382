//! Credits: telling senders which messages were taken, half the slots of a channel at a time, by
//! the stream that took them or by the library.

use gdsync::Stream;
use gdsync::rdma::{Descriptor, Qp, SendRequest, Work};

use super::channel::{RecvChannel, Run};
use super::peer::Peer;
use super::post::List;
use super::send::Batch;
use crate::error::Result;
use crate::mutant::{Mutant, on};

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
    qp: &mut Qp,
    channel: &RecvChannel,
    run: &Run,
) -> Result<()> {
    let mut batch = Batch::words(qp);
    let requests = credit(&mut batch, channel, run)?;
    let mut list = List::<2>::new();
    for request in requests.iter().flatten() {
        list.push(Descriptor::Send(*request));
    }
    if let Err(e) = list.post(stream, Some(batch.qp())) {
        batch.undo();
        return Err(e.into());
    }
    Ok(())
}

fn credit(
    batch: &mut Batch<'_>,
    channel: &RecvChannel,
    run: &Run,
) -> Result<[Option<SendRequest>; 2]> {
    let mut requests = [None; 2];
    for (place, piece) in requests.iter_mut().zip(channel.credit(run)?) {
        if let Some(piece) = piece {
            let from = piece.outbox.sge(piece.at, piece.len);
            *place = Some(batch.add(&Work::write(&[from], piece.to))?);
        }
    }
    Ok(requests)
}

/// Tells a sender what was taken, or keeps it for the next round. `true`: it was told.
pub(super) fn credit_by_cpu(qp: Option<&mut Qp>, channel: &mut RecvChannel, run: Run) -> bool {
    let told = qp.is_some_and(|qp| {
        let mut batch = Batch::words(qp);
        credit(&mut batch, channel, &run).is_ok() && batch.post().is_ok()
    });
    if !told {
        channel.stale.push(run);
    }
    told
}

/// Tells senders what was taken and they were not told yet. `true`: something was told.
pub(super) fn tell_the_rest(peer: &mut Peer) -> bool {
    let Peer { recvs, lanes, .. } = peer;
    let Some(lane) = &mut lanes[0] else {
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
                true => told |= credit_by_cpu(Some(&mut lane.qp), channel, run),
                false => channel.stale.push(run),
            }
        }
        if let Some(run) = channel.run
            && channel.is_taken(&run)
            && !on(Mutant::LostCredit)
        {
            channel.run = None;
            told |= credit_by_cpu(Some(&mut lane.qp), channel, run);
        }
    }
    told
}

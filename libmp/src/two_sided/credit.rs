//! Credits: telling senders which messages were taken, half the slots of a channel at a time, by
//! the stream that took them or by the library.

use gdsync::Stream;

use super::channel::{RecvChannel, Run};
use super::peer::Peer;
use crate::error::Result;
use crate::path::{Batch, Lane, List};

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
        return Err(e);
    }
    Ok(())
}

fn credit(batch: &mut Batch<'_, 3>, channel: &RecvChannel, run: &Run) -> Result<()> {
    for (piece, to) in channel.credit(run)?.into_iter().flatten() {
        batch.put_words(piece, to)?;
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
        channel.side.credits.keep(run);
    }
    told
}

/// Tells senders what was taken and they were not told yet. `true`: something was told.
pub(super) fn tell_the_rest(peer: &mut Peer) -> bool {
    let Peer { channels, link, .. } = peer;
    let Some(lane) = link.lane(0) else {
        return false;
    };
    let mut told = false;
    for channel in channels.recvs.values_mut() {
        while let Some(run) = channel.credit_due()
            && credit_by_cpu(Some(&mut *lane), channel, run)
        {
            told = true;
        }
    }
    told
}

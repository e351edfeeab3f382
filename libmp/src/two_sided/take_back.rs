//! Takes back the puts of requests that a stream posts in one submission: those of requests that were
//! prepared earlier, before the call, and all of them if the call is refused.

use gdsync::Stream;

use super::bind::unbind;
use super::engine::Engine;
use super::post_all::{Member, Posts};
use super::state::{State, known};
use crate::error::Result;
use crate::plan::{LaneId, PeerLanes};
use crate::request::entry::{Entry, Operation};
use crate::request::table::RequestKey;

impl Engine {
    /// Makes the requests as they were before the call.
    #[cold]
    pub(super) fn restore(&self, state: &mut State, stream: &Stream, posts: &Posts) {
        for (at, put) in posts.made.iter().rev() {
            if let Some(lane) = state.peers.lane(*at) {
                // The plan has aborted it already, or it was prepared just now.
                let _ = lane.abort(*put);
            }
        }
        for member in &posts.members {
            self.restore_one(state, member, stream);
        }
    }

    #[cold]
    fn restore_one(&self, state: &mut State, member: &Member, stream: &Stream) {
        if member.bound && !member.taken {
            return;
        }
        forget_puts(state, member.key);
        unbind(state, member.key);
        if member.bound {
            // If there is no room for the puts that were taken back, it has no stream any more.
            let _ = self.bind_for(state, member.key, member.lane, stream, false);
        }
    }
}

/// Takes back the puts of the requests that were prepared for the stream, the newest first.
pub(super) fn take_back_all(state: &mut State, posts: &mut Posts) -> Result<()> {
    loop {
        let (mut any, mut refused) = (false, Ok(()));
        for member in posts.members.iter_mut().rev() {
            if !member.bound || member.taken {
                continue;
            }
            match take_back(state, member.key) {
                Ok(()) => (member.taken, any) = (true, true),
                Err(e) => refused = Err(e),
            }
        }
        // If a later request is prepared on the lane, the order of the puts cannot change.
        if !any || refused.is_ok() {
            return refused;
        }
    }
}

/// Aborts the puts of a request that was prepared for a stream.
fn take_back(state: &mut State, key: RequestKey) -> Result<()> {
    let entry = known(&mut state.requests, key)?;
    let (rank, lane) = (entry.peer, entry.poster.lane);
    if let Some(lane) = state.peers.lane(LaneId { rank, lane }) {
        entry.newest_puts().try_for_each(|put| lane.abort(put))?;
    }
    forget_puts(state, key);
    Ok(())
}

/// Removes puts that are aborted from their request.
pub(super) fn forget_puts(state: &mut State, key: RequestKey) {
    let Some(Entry { common, operation }) = state.requests.get_mut(key) else {
        return;
    };
    common.puts = [None; 3];
    let Operation::Send(send) = operation else {
        return;
    };
    if let Some(late) = &mut send.late {
        late.behind.clear();
    }
    // What remains is the words of its length.
    let late = send.late.take_if(|late| late.length.is_none());
    let peer = state.peers.get_mut(common.peer);
    let channel = peer.and_then(|peer| peer.channels.sends.get_mut(&common.tag));
    if let Some((late, channel)) = late.zip(channel) {
        channel.keep_late(late);
    }
}

//! Building a neighbourhood with the neighbours: each rank sends each neighbour a record (tags,
//! sizes, addresses and keys), as a control message.

use super::spec::{BUILD, Neighbour};
use crate::error::{Error, Kind, Result, time};
use crate::two_sided::engine::Engine;
use crate::two_sided::{State, join};
use crate::wire::control::{Control, Neighbour as NeighbourRecord};

impl Engine {
    /// Waits until the paths to the neighbours are chosen: this rank names its memory by them.
    ///
    /// # Errors
    /// `Missing`, naming ranks that do not answer.
    pub(super) fn await_neighbours(&self, neighbours: &[Neighbour]) -> Result<()> {
        let deadline = self.host().now() + self.config.timeout;
        let unknown = self.await_paths(neighbours.iter().map(|one| one.rank), deadline);
        let silent = neighbours.iter().filter(|one| unknown.contains(&one.rank));
        let silent: Vec<&Neighbour> = silent.collect();
        silent
            .first()
            .map_or(Ok(()), |first| Err(self.missing(first, &silent)))
    }

    /// Sends `mine`, this rank's records for the `neighbours` in their order, and waits for those
    /// of the neighbours. Returns them in the same order.
    ///
    /// # Errors
    /// `Missing`, `PeerFailed` or `BootstrapLost`; `Invalid` if sizes differ.
    pub(super) fn join_neighbours(
        &self,
        neighbours: &[Neighbour],
        mine: Vec<NeighbourRecord>,
    ) -> Result<Vec<NeighbourRecord>> {
        self.send_records(&mut self.lock(), neighbours, mine)?;
        let mut theirs: Vec<Option<NeighbourRecord>> = vec![None; neighbours.len()];
        let deadline = self.host().now() + self.config.timeout;
        let mut differs = None;
        let mut lost = None;
        let forget = |state: &mut State| {
            let peers = state.peers.iter_mut();
            peers.for_each(|peer| peer.liveness.joins = false);
        };
        self.wait(deadline, &mut || {
            self.progress();
            let state = &mut *self.lock();
            forget(state);
            for (one, record) in neighbours.iter().zip(&mut theirs) {
                if record.is_none() {
                    *record = take_record(state, one);
                    if let Some(e) = record.as_ref().and_then(|record| sizes(one, record).err()) {
                        differs.get_or_insert((one.rank, e));
                    }
                }
                if record.is_none()
                    && let Some(peer) = state.peers.get_mut(one.rank)
                {
                    peer.liveness.joins = true;
                    if !peer.is_here() {
                        lost = Some(peer.error(BUILD));
                    }
                }
            }
            differs.is_some() || lost.is_some() || theirs.iter().all(Option::is_some)
        });
        forget(&mut self.lock());
        let missing = neighbours
            .iter()
            .zip(&theirs)
            .filter(|(_, record)| record.is_none());
        let missing: Vec<&Neighbour> = missing.map(|(one, _)| one).collect();
        let failed = match (differs, lost, missing.first()) {
            (Some((rank, e)), ..) => (Some(rank), e),
            (None, Some(e), _) => (None, e),
            (None, None, Some(first)) => (None, self.missing(first, &missing)),
            (None, None, None) => {
                let theirs: Vec<NeighbourRecord> = theirs.into_iter().flatten().collect();
                match divided(neighbours, &theirs) {
                    Some(e) => (None, e),
                    None => return Ok(theirs),
                }
            }
        };
        // The rank whose sizes differ finds the same error.
        let others = neighbours.iter().filter(|one| Some(one.rank) != failed.0);
        for Neighbour {
            rank,
            send,
            receive,
            ..
        } in others
        {
            let (send, receive) = (*send, *receive);
            let withdrawn = Control::Withdrawn { send, receive };
            self.send_control(&mut self.lock(), *rank, vec![withdrawn]);
        }
        Err(failed.1)
    }

    fn missing(&self, first: &Neighbour, all: &[&Neighbour]) -> Error {
        let mut ranks: Vec<u32> = all.iter().map(|one| one.rank).collect();
        ranks.sort_unstable();
        ranks.dedup();
        let others = match ranks.len() {
            1 => String::new(),
            _ => format!(" (missing are ranks {})", join(&ranks)),
        };
        let what = format!(
            "{} did not build a neighbourhood with this rank and the same tags within {} \
             (Builder::timeout){others}; name this rank there with the two tags in exchanged places",
            first.name(),
            time(self.config.timeout),
        );
        first.error(Kind::Missing, what)
    }

    /// Sends this rank's records to the neighbours.
    fn send_records(
        &self,
        state: &mut State,
        neighbours: &[Neighbour],
        mine: Vec<NeighbourRecord>,
    ) -> Result<()> {
        for one in neighbours {
            let peer = state.peers.make(one.rank);
            if let Some(peer) = peer.filter(|peer| !peer.is_here()) {
                return Err(peer.error(BUILD));
            }
        }
        if let Some(why) = state.outbox.lost().filter(|_| !neighbours.is_empty()) {
            let what = format!("the bootstrap no longer reaches the other ranks ({why})");
            return Err(Error::new(BUILD, Kind::BootstrapLost, what));
        }
        for (one, record) in neighbours.iter().zip(mine) {
            self.send_control(state, one.rank, vec![Control::Neighbour(Box::new(record))]);
        }
        Ok(())
    }
}

/// The record of a neighbour, if it has arrived.
fn take_record(state: &mut State, one: &Neighbour) -> Option<NeighbourRecord> {
    let records = &mut state.peers.get_mut(one.rank)?.neighbours;
    let first = records.iter().position(|record| matches(one, record))?;
    Some(records.remove(first))
}

/// The error if neighbours that are one rank, and share its words, are of several neighbourhoods
/// there.
fn divided(neighbours: &[Neighbour], theirs: &[NeighbourRecord]) -> Option<Error> {
    let words = |record: &NeighbourRecord| (record.words, record.words_block.clone());
    let mut pairs = neighbours.windows(2).zip(theirs.windows(2));
    let (ones, _) = pairs.find(|(ones, records)| {
        ones[0].rank == ones[1].rank && words(&records[0]) != words(&records[1])
    })?;
    let what = format!(
        "{} and {} are of two neighbourhoods there, and of one here; build one with both on both \
         ranks",
        ones[0].name(),
        ones[1].name()
    );
    Some(ones[0].error(Kind::Invalid, what))
}

fn matches(one: &Neighbour, record: &NeighbourRecord) -> bool {
    (record.send, record.receive) == (one.receive, one.send)
}

/// Compares the bytes of both ends.
///
/// # Errors
/// `Invalid`, naming the neighbour and both sizes.
pub(super) fn sizes(one: &Neighbour, record: &NeighbourRecord) -> Result<()> {
    let Neighbour { rank, .. } = one;
    let what = match (one.sends(), one.receives()) {
        (sends, _) if sends != record.receives => format!(
            "this rank sends {sends} bytes to {}, and rank {rank} receives {} bytes",
            one.name(),
            record.receives
        ),
        (_, receives) if receives != record.sends => format!(
            "this rank receives {receives} bytes from {}, and rank {rank} sends {} bytes",
            one.name(),
            record.sends
        ),
        _ => return Ok(()),
    };
    let what = what + " in a step; use pieces of the same size";
    Err(one.error(Kind::Invalid, what))
}

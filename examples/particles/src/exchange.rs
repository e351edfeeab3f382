//! The messages of a step: three phases, along x, y and z, each with a message to both neighbours. A
//! phase also forwards particles that arrived in the phases before it, so edges and corners need no
//! messages of their own.
//!
//! The kernel that packs a message counts its bytes in a word, the send takes its length from the
//! word, and the kernel that unpacks it reads the length that arrived from the result word of the
//! receive. The CPU reads no length.

use mp::gdsync::Stream;
use mp::gdsync::gpu::{MemoryKind, Word64};
use mp::{Context, Memory, Request, Result, SendOp, SizeSource, Slice};

use crate::Grid;
use crate::kernels::{CAPACITY, Cells, Kernels, Pack, Space, Unpack};
use crate::physics::Particle;

/// The directions in which messages travel: down and up each axis. The number is the tag.
const DIRECTIONS: u32 = 6;
/// Layers of cells in a message: of particles that leave, and of the neighbour's halo.
const LAYERS: usize = 2;

/// The message of one direction.
#[derive(Debug)]
struct Link {
    to: u32,
    from: u32,
    out: Slice,
    into: Slice,
    /// Word with the bytes of the message to send.
    len: Word64,
}

/// The messages of one rank.
#[derive(Debug)]
pub struct Exchange {
    space: Space,
    links: Vec<Link>,
    /// The words with the lengths of all messages to send.
    pub lengths: Memory,
}

impl Exchange {
    /// The messages of a rank with cells as `space` describes.
    ///
    /// # Errors
    /// Those of allocations.
    pub fn new(ctx: &Context, ranks: Grid, space: Space) -> Result<Exchange> {
        let lengths = ctx.alloc(MemoryKind::Device, DIRECTIONS as usize * 8)?;
        let link = |way: u32| {
            let axis = way as usize / 2;
            let neighbour = |by: i32| {
                let mut offset = [0; 3];
                offset[axis] = [-by, by][way as usize % 2];
                ranks.neighbour(ctx.rank(), offset)
            };
            let face: usize = space.own.map(|n| n as usize + 2).iter().product::<usize>()
                / (space.own[axis] as usize + 2);
            let buffer = || {
                let len = LAYERS * face * CAPACITY * size_of::<Particle>();
                ctx.alloc(MemoryKind::Device, len)
                    .map(|memory| memory.all())
            };
            Ok(Link {
                to: neighbour(1),
                from: neighbour(-1),
                out: buffer()?,
                into: buffer()?,
                len: lengths.region().word64(way as usize * 8)?,
            })
        };
        Ok(Exchange {
            space,
            links: (0..DIRECTIONS).map(link).collect::<Result<_>>()?,
            lengths,
        })
    }

    /// All memory, for a caller that must keep it.
    pub fn memory(&self) -> Vec<Memory> {
        let buffers = self.links.iter().flat_map(|link| [&link.out, &link.into]);
        let buffers = buffers.map(|slice| slice.memory().clone());
        buffers.chain([self.lengths.clone()]).collect()
    }

    /// Enqueues the exchange of the particles in the outer cells. The kernels behind it find all
    /// particles of this rank in its cells, and those of its neighbours in its halo.
    /// `requests` gets the receives and the sends; their handles must stay until the stream has
    /// executed the exchange, because a kernel reads the result words of receives.
    ///
    /// # Errors
    /// Those of messages and launches.
    pub fn enqueue(
        &self,
        ctx: &Context,
        stream: &Stream,
        kernels: &Kernels,
        cells: Cells,
        requests: &mut Vec<Request>,
    ) -> Result<()> {
        let Space { own, .. } = self.space;
        let slots = own.map(|n| u64::from(n) + 2).iter().product::<u64>() * CAPACITY as u64;
        let mut receives = Vec::with_capacity(2 * DIRECTIONS as usize);
        // The receives of all phases come first: a long message waits for its receive.
        for (tag, link) in (0..).zip(&self.links) {
            receives.push(ctx.irecv_on(stream, link.from, tag, &link.into)?);
        }
        let (mut stride, earlier) = (1, requests.len());
        for (axis, links) in self.links.chunks(2).enumerate() {
            let tag = 2 * axis as u32;
            let arrived = &receives[2 * axis..][..2];
            let pack = Pack {
                space: self.space,
                cells,
                out: [address(&links[0].out), address(&links[1].out)],
                lengths: links[0].len.addr().0,
                own: own[axis],
                stride,
            };
            // SAFETY: all addresses are of this run's memory, which `Run` keeps until the stream is
            // done. The sends of the last exchange have released the buffers.
            unsafe { kernels.launch(stream, &pack, slots)? };
            for (tag, link) in (tag..).zip(links) {
                let size = SizeSource::Word {
                    len: &link.len,
                    offset: None,
                };
                let data = std::slice::from_ref(&link.out);
                let send = SendOp::new(link.to, tag, data).size(size).on(stream);
                requests.push(ctx.post_send(&send)?);
            }
            ctx.wait_all_on(stream, arrived)?;
            let unpack = Unpack {
                space: self.space,
                cells,
                into: [address(&links[0].into), address(&links[1].into)],
                results: [arrived[0].result_word().0, arrived[1].result_word().0],
            };
            // SAFETY: as above; the messages have arrived, or their status says that they have not.
            unsafe { kernels.launch(stream, &unpack, slots)? };
            stride *= own[axis] + 2;
        }
        // The next exchange writes the buffers of the sends.
        ctx.wait_all_on(stream, &requests[earlier..])?;
        requests.append(&mut receives);
        Ok(())
    }
}

/// The address of a whole buffer.
fn address(buffer: &Slice) -> u64 {
    buffer.memory().region().addr().0
}

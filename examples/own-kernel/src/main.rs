//! A kernel of the application between a receive and a send: numbers pass from rank to rank, and
//! each rank doubles them on its GPU. The CPU enqueues all operations at once.

use std::time::Duration;

use mp::gdsync::gpu::{KernelImage, MemoryKind};
use mp::{Context, Result};
use zerocopy::{Immutable, IntoBytes};

static KERNELS: KernelImage = mp::gdsync::kernel_image!("own_kernel");

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Scale {
    numbers: u64,
    count: u64,
    factor: f32,
    unused: u32,
}

const COUNT: usize = 1000;
const LIMIT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let ctx = Context::builder().build()?;
    let stream = ctx.gpu().stream()?;
    let scale = ctx.gpu().load(&KERNELS)?.kernel("scale")?; // before any stream waits
    let memory = ctx.alloc(MemoryKind::Device, COUNT * 4)?;
    let (rank, size) = (ctx.rank(), ctx.size());

    if rank == 0 {
        memory.write(0, [1_f32; COUNT].as_bytes())?;
    } else {
        ctx.irecv_on(&stream, rank - 1, 7, &memory.all())?
            .wait_on(&stream)?;
    }
    let params = Scale {
        numbers: memory.region().addr().0,
        count: COUNT as u64,
        factor: 2.0,
        unused: 0,
    };
    let dims = ctx.gpu().dims_for(params.count);
    // SAFETY: `scale` takes a `Scale`; its numbers are in `memory`, which the context keeps alive.
    unsafe { stream.launch(&scale, dims, &params)? };
    if rank + 1 < size {
        drop(ctx.isend_on(&stream, rank + 1, 7, &memory.all())?); // detached: it completes by itself
    }

    assert!(stream.synchronize(LIMIT)?);
    let mut numbers = [0_f32; COUNT];
    memory.read(0, numbers.as_mut_bytes())?;
    let expected = 2_f32.powi(rank as i32 + 1);
    assert!(numbers.iter().all(|n| *n == expected));
    println!("own-kernel: rank {rank}: {COUNT} numbers are {expected}: ok");
    ctx.close(LIMIT)
}

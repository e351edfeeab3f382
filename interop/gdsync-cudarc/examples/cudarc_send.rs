//! A program that uses `cudarc` sends a message on its own stream: the GPU fills the buffer, posts
//! the send, and waits for the received message, in the order in which the program enqueued the
//! operations.
//!
//! The program needs a GPU. Without one it says so and succeeds, unless `GDS_REQUIRE` lists `cuda`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use gdsync::rdma::{Access, Descriptor, Device, QpConfig, Work};

const LEN: usize = 4096;
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    // CudaContext::new would panic without a libcuda.
    let context = match gdsync_cudarc::open(0) {
        Ok(context) => context,
        Err(why) => return not_run(&format!("no CUDA: {why}")),
    };
    let gpu = gdsync_cudarc::gpu(&context)?;

    // The application's own objects. They are passed as shared references, so they live as long as
    // operations in flight use them.
    let stream = context.new_stream()?;
    let pattern: Vec<u8> = (0..LEN).map(|i| (i * 7) as u8).collect();
    let from = Arc::new(stream.clone_htod(&pattern)?);
    let to = Arc::new(stream.alloc_zeros::<u8>(LEN)?);

    // A virtual NIC, and two connected queue pairs.
    let pd = Device::emulated(&gpu)?.alloc_pd()?;
    let (mut a, mut b) = (
        pd.create_qp(&QpConfig::default())?,
        pd.create_qp(&QpConfig::default())?,
    );
    a.connect(&b.address())?;
    b.connect(&a.address())?;
    let source = pd.register(&gdsync_cudarc::region(&gpu, &from)?, Access::ALL)?;
    let target = pd.register(&gdsync_cudarc::region(&gpu, &to)?, Access::ALL)?;

    // After the copy: send, wait for its completion, wait for the message at the other end.
    let on = gdsync_cudarc::stream(&gpu, &stream)?;
    let receive = b.prepare_receive(&[target.sge(0, LEN as u32)])?;
    b.post_receive(receive)?;
    let send = a.prepare(&Work::send(&[source.sge(0, LEN as u32)]).signaled())?;
    a.post_on(&on, &[Descriptor::Send(send), Descriptor::wait(send)])?;
    b.post_on(&on, &[Descriptor::wait_flushed(receive)])?;

    ensure!(on.synchronize(LIMIT)?, "the stream did not finish in time");
    ensure!(b.received(receive)?.len == LEN as u32, "a short message");
    let bytes = stream.clone_dtoh(&*to)?;
    stream.synchronize()?;
    ensure!(bytes == pattern, "other data arrived");
    println!(
        "{LEN} bytes sent and received on a stream of cudarc, on {}",
        gpu.name()
    );
    Ok(())
}

/// Without a GPU the program shows nothing; this is a failure only if a GPU is required.
fn not_run(why: &str) -> Result<()> {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    if required.split(',').any(|what| what.trim() == "cuda") {
        bail!("GDS_REQUIRE lists cuda: {why}");
    }
    println!("not run: {why}");
    Ok(())
}

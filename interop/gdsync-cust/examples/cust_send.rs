//! A program that uses `cust` sends a message on its own stream: the GPU fills the buffer, posts
//! the send, and waits for the received message, in the order in which the program enqueued the
//! operations.
//!
//! The program needs a GPU. Without one it says so and succeeds, unless `GDS_REQUIRE` lists `cuda`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cust::prelude::*;
use gdsync::rdma::{Access, Descriptor, Device, QpConfig, Work};

const LEN: usize = 4096;
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let context = match cust::quick_init() {
        Ok(context) => context,
        Err(why) => return not_run(&format!("no CUDA: {why}")),
    };
    let gpu = match gdsync_cust::gpu(&context) {
        Err(gdsync_cust::Error::Gdsync(e)) if e.kind() == gdsync::Kind::Absent => {
            return not_run(&e.to_string());
        }
        gpu => gpu?,
    };

    // The application's own objects. They are passed as shared references, so they live as long as
    // operations in flight use them.
    let stream = Arc::new(Stream::new(StreamFlags::NON_BLOCKING, None)?);
    let mut from = DeviceBuffer::<u8>::zeroed(LEN)?;
    let to = Arc::new(DeviceBuffer::<u8>::zeroed(LEN)?);
    // SAFETY: the buffer lives, and only this stream accesses it until the stream has executed
    // this.
    unsafe { from.set_8_async(0x5a, &stream) }?;
    let from = Arc::new(from);

    // A virtual NIC, and two connected queue pairs.
    let pd = Device::emulated(&gpu)?.alloc_pd()?;
    let (mut a, mut b) = (
        pd.create_qp(&QpConfig::default())?,
        pd.create_qp(&QpConfig::default())?,
    );
    a.connect(&b.address())?;
    b.connect(&a.address())?;
    let source = pd.register(&gdsync_cust::region(&gpu, from)?, Access::ALL)?;
    let target = pd.register(&gdsync_cust::region(&gpu, to.clone())?, Access::ALL)?;

    // After the fill: send, wait for its completion, wait for the message at the other end.
    let on = gdsync_cust::stream(&gpu, stream.clone())?;
    let receive = b.prepare_receive(&[target.sge(0, LEN as u32)])?;
    b.post_receive(receive)?;
    let send = a.prepare(&Work::send(&[source.sge(0, LEN as u32)]).signaled())?;
    a.post_on(&on, &[Descriptor::Send(send), Descriptor::wait(send)])?;
    b.post_on(&on, &[Descriptor::wait_flushed(receive)])?;

    ensure!(on.synchronize(LIMIT)?, "the stream did not finish in time");
    ensure!(b.received(receive)?.len == LEN as u32, "a short message");
    let mut bytes = [0; LEN];
    to.copy_to(&mut bytes)?;
    ensure!(bytes.iter().all(|b| *b == 0x5a), "other data arrived");
    println!(
        "{LEN} bytes sent and received on a stream of cust, on {}",
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

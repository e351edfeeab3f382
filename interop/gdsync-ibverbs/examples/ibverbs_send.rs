//! A program that uses `ibverbs` selects a NIC and sends through it. A GPU's stream waits for the
//! message, by gdsync on the same NIC, and answers into memory that `ibverbs` registered.
//!
//! The argument is the name of a NIC; the default is the first one. Without a NIC the program says
//! so and succeeds, unless `GDS_REQUIRE` lists `rdma`. Without a GPU the stream is that of a
//! software GPU.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Access, Descriptor, QpConfig, Work};
use gdsync::{Gpu, Kind};
use ibverbs::{CompletionQueue, ibv_qp_type, ibv_wc};

const LEN: usize = 4096;
const LIMIT: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    let nics = match ibverbs::devices() {
        Ok(nics) => nics,
        Err(why) => return not_run(&format!("no RDMA: {why}")),
    };
    let wanted = std::env::args().nth(1);
    let named = |nic: &ibverbs::Device<'_>| match (&wanted, nic.name()) {
        (Some(wanted), Some(name)) => name.to_bytes() == wanted.as_bytes(),
        (wanted, _) => wanted.is_none(),
    };
    let Some(nic) = nics.iter().find(named) else {
        return not_run("no RDMA: the NIC does not exist");
    };

    // The application's own objects.
    let context = nic.open()?;
    let (queue, domain) = (context.create_cq(16, 0)?, context.alloc_pd()?);
    let mut memory = domain.allocate::<u8>(2 * LEN)?;
    memory[..LEN].fill(0x5a);

    // The same NIC, opened for streams.
    let gpu = Gpu::from_env()?;
    let device = match gdsync_ibverbs::open(&gpu, &nic) {
        Err(gdsync_ibverbs::Error::Gdsync(e)) if e.kind() == Kind::Absent => {
            return not_run(&e.to_string());
        }
        device => device?,
    };
    let pd = device.alloc_pd()?;
    let region = gpu.alloc(MemoryKind::Pinned, LEN)?;
    let landing = pd.register(&region, Access::ALL)?;

    // A queue pair of each library, connected to each other.
    let mut ours = pd.create_qp(&QpConfig::default())?;
    let mut builder = domain.create_qp(&queue, &queue, ibv_qp_type::IBV_QPT_RC);
    builder.allow_remote_rw();
    gdsync_ibverbs::set_peer(&mut builder, &context, &ours.address())?;
    let prepared = builder.build()?;
    let here = prepared.endpoint();
    ours.connect(&gdsync_ibverbs::address(&here, &ours.address())?)?;
    let mut theirs = prepared.handshake(gdsync_ibverbs::endpoint(&ours.address(), &here)?)?;

    // The stream receives a message and writes it back, at any later time.
    let stream = gpu.stream()?;
    let receive = ours.prepare_receive(&[landing.sge(0, LEN as u32)])?;
    let list = [landing.sge(0, LEN as u32)];
    let back = gdsync_ibverbs::memory(&memory).span(LEN as u64, LEN as u64)?;
    let answer = ours.prepare(&Work::write(&list, back).signaled())?;
    ours.post_on(
        &stream,
        &[
            Descriptor::Receive(receive),
            Descriptor::wait_flushed(receive),
            Descriptor::Send(answer),
            Descriptor::wait(answer),
        ],
    )?;
    // SAFETY: the memory lives, and its first half is not accessed until the send has completed.
    unsafe { theirs.post_send(&mut memory, ..LEN, 1) }?;
    ensure!(completion(&queue)?.is_valid(), "the send failed");
    ensure!(
        stream.synchronize(LIMIT)?,
        "the stream did not finish in time"
    );
    ensure!(ours.received(receive)?.len == LEN as u32, "a short message");
    ensure!(memory.iter().all(|b| *b == 0x5a), "other data arrived");
    println!(
        "{LEN} bytes sent by ibverbs, received and sent back by a stream: {}, {}",
        device.name(),
        gpu.name()
    );
    Ok(())
}

/// Polls for the next completion of a queue.
fn completion(queue: &CompletionQueue<'_>) -> Result<ibv_wc> {
    let mut room = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let [done] = queue.poll(&mut room)? {
            return Ok(*done);
        }
    }
    None.context("no completion")
}

/// Without a NIC the program shows nothing; this is a failure only if a NIC is required.
fn not_run(why: &str) -> Result<()> {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    if required.split(',').any(|what| what.trim() == "rdma") {
        bail!("GDS_REQUIRE lists rdma: {why}");
    }
    println!("not run: {why}");
    Ok(())
}

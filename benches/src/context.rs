//! Contexts of mp for the benchmarks: over the same GPU, NIC and queues as the measurements of
//! gdsync.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use mp::bootstrap::{Bootstrap, Local};
use mp::{Builder, Context, NicOptions};

use crate::endpoint::Endpoint;
use crate::options::{Provider, Setup};

/// Blocks of each send queue: more than the benchmarks enqueue ahead of a closed gate.
pub const QUEUE: u32 = 1024;
/// The benchmark posts no receives on these QPs: mp posts its own.
const RECEIVES: u32 = 4;

/// Whether contexts open TCP devices of their own, which have the key of the job.
fn by_tcp(setup: &Setup) -> bool {
    let is_tcp = |name| std::env::var(name).is_ok_and(|value| value == "tcp");
    setup.provider == Provider::Auto && (is_tcp("MP_PATH") || is_tcp("GDS_PROVIDER"))
}

/// The builder of a context over `endpoint`.
pub fn builder(
    endpoint: &Endpoint,
    setup: &Setup,
    bootstrap: Arc<dyn Bootstrap>,
    queue: u32,
    limit: Duration,
) -> Result<Builder> {
    let queues = setup.queues(queue).recv_entries(RECEIVES);
    let builder = Context::builder()
        .bootstrap(bootstrap)
        .gpu(&endpoint.gpu)
        .doorbell(queues.doorbell)
        .nic(NicOptions::default().queues(queues))
        .timeout(limit);
    Ok(match by_tcp(setup) {
        true => builder,
        false => builder.device(endpoint.pd()?.device()),
    })
}

/// Two ranks of this process that share an endpoint, with `queue` blocks of each send queue and
/// `depth` slots for messages of each tag.
pub fn pair(
    endpoint: &Endpoint,
    setup: &Setup,
    (queue, depth): (u32, u32),
    limit: Duration,
) -> Result<[Context; 2]> {
    let make = |rank: &Arc<dyn Bootstrap>| {
        let builder = builder(endpoint, setup, Arc::clone(rank), queue, limit)?;
        builder.depth(depth).build().context("building a context")
    };
    let ranks = Local::ranks(2);
    Ok([make(&ranks[0])?, make(&ranks[1])?])
}

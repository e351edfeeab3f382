//! Programs of `ibverbs`, built with the patch, and gdsync on one or two virtual NICs.

#[path = "../../../libgdsync/tests/virtual_nic/mod.rs"]
mod virtual_nic;

use std::process::Command;
use std::time::{Duration, Instant};

use gdsync::gpu::MemoryKind;
use gdsync::rdma::{Access, Descriptor, Mr, Provider, Qp, QpConfig, Work};
use gdsync::{Gpu, Kind, Status};
use ibverbs::{CompletionQueue, Context, ProtectionDomain, QueuePair, ibv_qp_type, ibv_wc};
use virtual_nic::{inside, outside};

/// The time limit after which the test reports a hang.
const LIMIT: Duration = Duration::from_secs(60);

fn name(device: &ibverbs::Device<'_>) -> String {
    let name = device.name().expect("it has a name");
    name.to_str().expect("of letters").to_owned()
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn gdsync_opens_the_nic_that_ibverbs_selected() {
    inside!(&[("VMLX5_DEVICES", "2"), ("GDS_NIC", "mlx5_7")]);
    let gpu = Gpu::soft().unwrap();
    let nics = ibverbs::devices().unwrap();
    let mut names: Vec<_> = nics.iter().map(|nic| name(&nic)).collect();
    for nic in &nics {
        let device = gdsync_ibverbs::open(&gpu, &nic).unwrap();
        assert_eq!(device.name(), format!("mlx5 {}:1", name(&nic)));
        let qp = device.alloc_pd().unwrap().create_qp(&QpConfig::default());
        let guid = gdsync_ibverbs::guid(nic.guid().unwrap());
        assert_eq!(qp.unwrap().address().node, guid);
    }
    names.sort();
    assert_eq!(names, ["mlx5_0", "mlx5_1"]);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn messages_on_infiniband() {
    inside!(&[("VMLX5_DEVICES", "2")]);
    exchange_over(Provider::Mlx5);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn messages_on_ethernet() {
    inside!(&[("VMLX5_DEVICES", "2"), ("VMLX5_LINK", "roce")]);
    exchange_over(Provider::Mlx5);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn messages_with_doorbells_by_a_cpu_thread() {
    inside!(&[("VMLX5_DEVICES", "2"), ("GDS_PROVIDER", "verbs")]);
    exchange_over(Provider::Verbs);
}

/// Longer than a packet, and than the inline data of a completion entry.
const LEN: usize = 10_000;

fn pattern(round: usize) -> Vec<u8> {
    (0..LEN)
        .map(|i| (i * 7 + round * 31 + i / 256) as u8)
        .collect()
}

/// A program of `ibverbs` and streams of gdsync, on its NIC and on the other one, send messages to
/// each other. The streams write and read the program's memory.
fn exchange_over(provider: Provider) {
    let gpu = Gpu::soft().unwrap();
    let nics = ibverbs::devices().unwrap();
    let context = nics.get(0).unwrap().open().unwrap();
    let (queue, domain) = (
        context.create_cq(16, 0).unwrap(),
        context.alloc_pd().unwrap(),
    );
    for nic in &nics {
        let device = gdsync_ibverbs::open(&gpu, &nic).unwrap();
        assert_eq!(device.provider(), provider);
        let pd = device.alloc_pd().unwrap();
        let region = gpu.alloc(MemoryKind::Pinned, 2 * LEN).unwrap();
        let memory = pd.register(&region, Access::ALL).unwrap();
        let mut ours = pd.create_qp(&QpConfig::default()).unwrap();
        let mut theirs = connect(&mut ours, &context, &domain, &queue);
        for round in 0..5 {
            exchange(
                round,
                &gpu,
                (&mut ours, &memory),
                (&mut theirs, &domain, &queue),
            );
        }
    }
}

/// A queue pair of `ibverbs`, connected to `ours`.
fn connect<'a>(
    ours: &mut Qp,
    context: &'a Context,
    domain: &'a ProtectionDomain<'a>,
    queue: &'a CompletionQueue<'a>,
) -> QueuePair<'a> {
    let mut builder = domain.create_qp(queue, queue, ibv_qp_type::IBV_QPT_RC);
    builder.allow_remote_rw();
    gdsync_ibverbs::set_peer(&mut builder, context, &ours.address()).unwrap();
    let prepared = builder.build().unwrap();
    let here = prepared.endpoint();
    let there = gdsync_ibverbs::address(&here, &ours.address()).unwrap();
    ours.connect(&there).unwrap();
    let there = gdsync_ibverbs::endpoint(&ours.address(), &here).unwrap();
    prepared.handshake(there).unwrap()
}

fn exchange(
    round: usize,
    gpu: &Gpu,
    (ours, memory): (&mut Qp, &Mr),
    (theirs, domain, queue): (
        &mut QueuePair<'_>,
        &ProtectionDomain<'_>,
        &CompletionQueue<'_>,
    ),
) {
    const LONG: u32 = LEN as u32;
    let bytes = pattern(round);
    // Four parts: memory to send, to receive into, to be written, and to be read.
    let mut theirs_memory = domain.allocate::<u8>(4 * LEN).unwrap();
    theirs_memory[..LEN].copy_from_slice(&bytes);
    theirs_memory[3 * LEN..].copy_from_slice(&bytes);
    let remote = gdsync_ibverbs::memory(&theirs_memory);
    assert_eq!(remote.len, 4 * LEN as u64);
    let span = |piece: u64| remote.span(piece * LEN as u64, LEN as u64).unwrap();

    // The stream receives a message, sends it back, writes it, and reads its source.
    let receive = ours.prepare_receive(&[memory.sge(0, LONG)]).unwrap();
    let first = [memory.sge(0, LONG)];
    let send = ours.prepare(&Work::send(&first)).unwrap();
    let write = ours.prepare(&Work::write(&first, span(2))).unwrap();
    let second = [memory.sge(LEN as u64, LONG)];
    let read = ours
        .prepare(&Work::read(&second, span(3)).signaled())
        .unwrap();
    let stream = gpu.stream().unwrap();
    let list = [
        Descriptor::Receive(receive),
        Descriptor::wait_flushed(receive),
        Descriptor::Send(send),
        Descriptor::Send(write),
        Descriptor::Send(read),
        Descriptor::wait_flushed(read),
    ];
    ours.post_on(&stream, &list).unwrap();

    // SAFETY: the memory lives until both completions have arrived; until then the parts that are
    // sent and received into are not accessed.
    unsafe {
        theirs
            .post_receive(&mut theirs_memory, LEN..2 * LEN, 2)
            .unwrap();
        theirs.post_send(&mut theirs_memory, ..LEN, 1).unwrap();
    }
    let mut done = [completion(queue), completion(queue)];
    done.sort_by_key(ibv_wc::wr_id);
    for (i, done) in done.iter().enumerate() {
        assert_eq!((done.wr_id(), done.error()), (i as u64 + 1, None));
    }
    assert_eq!(done[1].len(), LEN);
    assert!(
        stream.synchronize(LIMIT).unwrap(),
        "the stream did not finish"
    );
    assert_eq!(ours.poll(read).unwrap(), Some(Status::SUCCESS));
    assert_eq!(ours.received(receive).unwrap().len, LONG);
    for piece in 0..4 {
        assert!(
            theirs_memory[piece * LEN..][..LEN] == bytes,
            "piece {piece}"
        );
    }
    let mut got = vec![0; 2 * LEN];
    memory.region().read(0, &mut got).unwrap();
    assert!(got[..LEN] == bytes && got[LEN..] == bytes);
}

/// Polls for the next completion.
fn completion(queue: &CompletionQueue<'_>) -> ibv_wc {
    let mut room = [ibv_wc::default()];
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        if let [done] = queue.poll(&mut room).unwrap() {
            return *done;
        }
        std::thread::yield_now();
    }
    panic!("no completion");
}

/// Runs the example on each NIC.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn ibverbs_example_runs_on_each_nic() {
    inside!(&[("VMLX5_DEVICES", "2")]);
    for nic in ["mlx5_1", "mlx5_0"] {
        let program = interop_tests::example("ibverbs_send");
        let output = Command::new(program).arg(nic).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{stdout}{stderr}");
        let begin = "4096 bytes sent by ibverbs, received and sent back by a stream: mlx5";
        assert!(
            stdout.starts_with(&format!("{begin} {nic}:1, ")),
            "{stdout}"
        );
    }
}

/// The sender's completion has the peer's failure and the manufacturer's syndrome, which shows that
/// `ibverbs` uses the patch's `ibv_wc`.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn failure_is_reported_to_both_sides() {
    inside!(&[]);
    let gpu = Gpu::soft().unwrap();
    let nics = ibverbs::devices().unwrap();
    let context = nics.get(0).unwrap().open().unwrap();
    let (queue, domain) = (
        context.create_cq(16, 0).unwrap(),
        context.alloc_pd().unwrap(),
    );
    let device = gdsync_ibverbs::open(&gpu, &nics.get(0).unwrap()).unwrap();
    let pd = device.alloc_pd().unwrap();
    let memory = pd.register(&gpu.alloc(MemoryKind::Pinned, 64).unwrap(), Access::ALL);
    let memory = memory.unwrap();
    let mut ours = pd.create_qp(&QpConfig::default()).unwrap();
    let mut theirs = connect(&mut ours, &context, &domain, &queue);
    // A message longer than the receive.
    let receive = ours.prepare_receive(&[memory.sge(0, 8)]).unwrap();
    ours.post_receive(receive).unwrap();
    let mut bytes = domain.allocate::<u8>(64).unwrap();
    // SAFETY: as above.
    unsafe { theirs.post_send(&mut bytes, .., 5) }.unwrap();
    let done = completion(&queue);
    let (status, vendor) = done.error().expect("it fails");
    assert_eq!(status, ibverbs::ibv_wc_status::IBV_WC_REM_INV_REQ_ERR);
    assert_ne!(vendor, 0);
    let e = ours.wait(receive, LIMIT).unwrap_err();
    assert_eq!(e.kind(), Kind::Failed(Status::LOCAL_LENGTH));
}

/// Checks that there is no usable library, for a reason that contains `names`.
#[track_caller]
fn is_absent(names: &str) {
    let Err(e) = ibverbs::devices() else {
        panic!("there are devices");
    };
    assert_eq!(e.raw_os_error(), Some(libc::ELIBACC));
    let why = ibverbs_sys::absent().expect("it is absent").to_string();
    assert!(why.contains(names), "{why}");
}

#[test]
fn missing_libibverbs_is_an_error() {
    outside!(&[("GDS_IBVERBS_LIB", "/nowhere/libibverbs.so.1")]);
    is_absent("/nowhere/libibverbs.so.1");
}

#[test]
fn other_library_instead_of_libibverbs_is_an_error() {
    outside!(&[("GDS_IBVERBS_LIB", "libc.so.6")]);
    is_absent("ibv_get_device_list");
}

/// The library of the machine, whose kernel may have no RDMA, or RDMA without a NIC: the crate
/// reports either case by itself.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn installed_libibverbs_is_found() {
    outside!(&[]);
    if let Err(e) = ibverbs::devices() {
        assert_ne!(e.raw_os_error(), Some(libc::ELIBACC), "{e}");
    }
    assert_eq!(ibverbs_sys::absent(), None);
}

#[test]
fn required_rdma_core_is_installed() {
    let required = std::env::var("GDS_REQUIRE").unwrap_or_default();
    let must = required.split(',').any(|what| what == "virt");
    assert!(cfg!(rdma_core) || !must, "rdma-core is not installed");
}

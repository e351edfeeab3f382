//! NICs with behaviour that no virtual NIC has: they cannot be opened, cannot be reached by this
//! library's protocols, report false attributes, or vanish. A stand-in of libibverbs provides them.

mod common;
#[path = "common/shim.rs"]
mod shim;
mod verbs_device;
mod virtual_nic;

use std::path::Path;
use std::time::{Duration, Instant};

use common::*;
use gdsync::rdma::{DeviceOptions, NicChoice, Provider};
use virtual_nic::outside;

/// Continues in a separate process with these NICs.
macro_rules! with_nics {
    ($nics:expr $(, $var:expr)*) => {
        outside!(&[
            ("GDS_IBVERBS_LIB", shim::verbs("odd_nics", &[]).to_str().unwrap()),
            ("GDS_MLX5_LIB", "/nowhere/libmlx5.so.1"),
            ("GDS_VERBS_THREAD", "own"),
            ("ODD_NICS", $nics),
            $($var),*
        ]);
    };
}

/// The first usable NIC, with its own GPU.
fn open() -> gdsync::Result<Device> {
    Device::verbs(&Gpu::soft().unwrap())
}

#[test]
fn nic_that_cannot_be_opened_is_reported() {
    with_nics!("closed0");
    let names = &["closed0", "Permission denied"];
    refused(open(), Kind::System, None, names);
    let device = Device::from_env(&Gpu::soft().unwrap()).unwrap();
    assert_eq!(device.provider(), Provider::Emulated);
    let why = &device.passed_over()[1];
    assert!(
        why.contains("ibv_open_device for closed0 failed: Permission denied"),
        "{why}"
    );
}

/// The stand-in refuses to open a device before `ibv_fork_init`, which must come first.
#[test]
fn forks_are_allowed_before_a_nic_is_opened() {
    with_nics!("forks0");
    open().unwrap();
}

#[test]
fn nic_whose_port_queries_fail_is_reported() {
    with_nics!("mute0");
    refused(open(), Kind::System, None, &["mute0"]);
}

/// If no NIC is named, an unusable one does not prevent the use of another.
#[test]
fn a_nic_without_an_identifier_is_passed_over() {
    with_nics!("closed_0,iwarp__0,roce___0");
    let gpu = Gpu::soft().unwrap();
    let device = Device::verbs(&gpu).unwrap();
    assert_eq!(device.name(), "verbs roce___0:1");
    let named = DeviceOptions::default()
        .provider(Provider::Verbs)
        .nic("iwarp__0".parse::<NicChoice>().unwrap());
    let named = Device::open_with(&gpu, &named);
    assert_eq!(kind(named), Some(Kind::Unsupported));
}

#[test]
fn nics_without_an_identifier_alone_are_unsupported() {
    with_nics!("iwarp0,iwarp1");
    let names = &["iwarp0:1", "iwarp1:1"];
    refused(open(), Kind::Unsupported, None, names);
}

/// Some drivers report 1 there, which has no meaning.
#[test]
fn a_port_on_ethernet_has_no_local_identifier() {
    with_nics!("roce0");
    let device = open().unwrap();
    let pair = Pair::over(&device, &QpConfig::default());
    let port = pair.a.address().port.unwrap();
    assert_eq!((port.lid, port.gid), (0, [7; 16]));
}

/// Its queue pairs have no more requests at the device than may complete; the stand-in checks that.
#[test]
fn a_completion_queue_has_room_for_both_sides() {
    with_nics!("short0");
    let device = open().unwrap();
    Pair::over(&device, &QpConfig::default());
}

/// A receive of `b`, posted by a stream that waits for it.
fn wait_for_a_receive(p: &mut Pair, memory: &Mr, stream: &Stream) -> ReceiveRequest {
    let receive = p.b.prepare_receive(&[memory.sge(32, 9)]).unwrap();
    let wait = Descriptor::wait_flushed(receive);
    p.b.post_on(stream, &[Descriptor::Receive(receive), wait])
        .unwrap();
    receive
}

/// Streams that wait for it pass, and all posted requests have failed.
#[test]
fn vanished_nic_releases_all_streams() {
    with_nics!("gone0");
    let device = open().unwrap();
    let mut p = Pair::over(&device, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let stream = p.gpu.stream().unwrap();
    let receive = wait_for_a_receive(&mut p, &memory, &stream);
    let list = [memory.sge(0, 9)];
    let sends = [(); 2].map(|()| p.a.signaled(&Work::send(&list)));
    let other = p.gpu.stream().unwrap();
    let post = sends.map(Descriptor::Send);
    p.a.post_on(&other, &post).unwrap();
    let waits = sends.map(Descriptor::wait);
    p.a.post_on(&other, &waits).unwrap();
    passes(&other);
    passes(&stream);
    let ends = sends.map(|send| p.a.poll(send).unwrap());
    assert_eq!(ends, [Status::UNKNOWN_SYNDROME, Status::FLUSHED].map(Some));
    assert_eq!(p.b.poll(receive).unwrap(), Some(Status::UNKNOWN_SYNDROME));
    // A reset is impossible, which is an error and not a wait.
    assert_eq!(p.a.reset().unwrap_err().kind(), Kind::System);
    drop((p, memory));
    device.close(LIMIT).unwrap();
}

/// Returns how a wait of a queue pair, and a stream behind it, end. The queue pair has no time
/// limit and receives only, on a NIC that reports `event`. A second queue pair is not affected,
/// unless the event concerns the whole device.
fn receives_end_with(event: Status, whole_device: bool) {
    let device = open().unwrap();
    let config = limited(&QpConfig::default(), None);
    let mut p = Pair::over(&device, &config);
    let memory = p.memory(MemoryKind::Pinned, 64);
    let stream = p.gpu.stream().unwrap();
    let receive = wait_for_a_receive(&mut p, &memory, &stream);
    passes(&stream);
    assert_eq!(p.b.poll(receive).unwrap(), Some(event));
    assert_eq!(p.b.error(), Some(event));
    let other = whole_device.then_some(event);
    let deadline = Instant::now() + LIMIT;
    while p.a.error() != other && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(p.a.error(), other);
    if !whole_device {
        // The second queue pair continues.
        p.a.prepare(&Work::send(&[memory.sge(0, 9)])).unwrap();
    }
    drop((p, memory));
    device.close(LIMIT).unwrap();
}

/// The NIC is opened again, and works as before: the stand-in reports again.
#[test]
fn a_fatal_error_of_the_nic_ends_waits_for_receives_each_time_that_it_is_opened() {
    with_nics!("fatal0");
    for _ in 0..2 {
        receives_end_with(Status::DEVICE_FATAL, true);
    }
}

plain_cases! {
    a_fatal_error_of_a_queue_pair_ends_its_waits_alone =>
        { with_nics!("qperr0"); receives_end_with(Status::QP_FATAL, false); };
    an_error_of_a_completion_queue_ends_the_waits_of_its_queue_pair_alone =>
        { with_nics!("cqerr0"); receives_end_with(Status::CQ_FATAL, false); };
    a_lost_path_ends_the_waits_of_its_queue_pair_alone =>
        { with_nics!("path0"); receives_end_with(Status::PATH_LOST, false); };
    /// For longer than the NIC retries.
    a_port_that_stays_down_ends_waits_for_receives =>
        { with_nics!("port0"); receives_end_with(Status::PORT_DOWN, true); };
}

#[test]
fn short_port_failure_ends_no_wait() {
    with_nics!("flap0");
    let device = open().unwrap();
    let mut p = Pair::over(&device, &QpConfig::default());
    let memory = p.memory(MemoryKind::Pinned, 64);
    let receive = p.b.receive(&[memory.sge(32, 9)]);
    // Longer than a port may be down.
    let waited = p.b.wait(receive, Duration::from_secs(6));
    assert_eq!(kind(waited), Some(Kind::Timeout));
    assert_eq!(p.b.error(), None);
}

/// The watcher of the first NIC is blocked in a call of its driver; work of the second NIC still
/// ends at its time limit.
fn a_stuck_nic_delays_no_other(doorbell: Doorbell) {
    let gpu = Gpu::soft().unwrap();
    let named = |name: &str| {
        let options = DeviceOptions::default()
            .provider(Provider::Verbs)
            .nic(name.parse::<NicChoice>().unwrap());
        Device::open_with(&gpu, &options).unwrap()
    };
    let config = QpConfig::default()
        .timeout(Duration::from_millis(20))
        .doorbell(doorbell);
    let [stuck, sound] = ["hang0", "roce1"].map(|name| {
        let device = named(name);
        let pair = Pair::over(&device, &config);
        let memory = pair.memory(MemoryKind::Pinned, 64);
        (device, pair, memory)
    });
    let [mut stuck, mut sound] = [stuck, sound];
    let stream = gpu.stream().unwrap();
    let send = |(_, pair, memory): &mut (Device, Pair, Mr)| {
        let send = pair.a.signaled(&Work::send(&[memory.sge(0, 9)]));
        pair.a.post_on(&stream, &send_and_wait(send)).unwrap();
        send
    };
    send(&mut stuck);
    // Its time limit passes, and the change to the error state begins.
    std::thread::sleep(Duration::from_millis(500));
    let stream = gpu.stream().unwrap();
    let (_, pair, memory) = &mut sound;
    let send = pair.a.signaled(&Work::send(&[memory.sge(0, 9)]));
    pair.a.post_on(&stream, &[Descriptor::Send(send)]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while pair.a.error().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pair.a.error(), Some(Status::TIMEOUT));
    // No work of the first NIC can be ended.
    std::mem::forget((stuck, sound));
}

plain_cases! {
    a_driver_call_that_never_returns_delays_no_other_nic =>
        { with_nics!("hang0,roce1"); a_stuck_nic_delays_no_other(Doorbell::Direct); };
    a_driver_call_that_never_returns_delays_no_other_nic_with_proxies =>
        { with_nics!("hang0,roce1"); a_stuck_nic_delays_no_other(Doorbell::CpuThread); };
}

/// The changes of both queue pairs up to ready to send, from a file that the stand-in writes.
#[track_caller]
fn steps(config: &QpConfig) -> Vec<String> {
    let log = std::env::var("ODD_LOG").unwrap();
    let device = open().unwrap();
    Pair::over(&device, config);
    let steps = std::fs::read_to_string(&log).unwrap();
    let _ = std::fs::remove_file(&log);
    steps.lines().take(3).map(str::to_owned).collect()
}

fn log(test: &str) -> String {
    let file = format!("odd_nics-{test}-{}.log", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(file);
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_driver_is_handed_the_settings_of_the_path() {
    let log = log("code");
    with_nics!("roce0", ("ODD_LOG", log.as_str()));
    let default = [
        "to 1: pkey_index 0",
        "to 2: sl 0 tc 0 flow 0 hops 64 rnr_timer 12",
        "to 3: timeout 15 retry 6 rnr_retry 7",
    ];
    assert_eq!(steps(&QpConfig::default()), default);
    let config = QpConfig::default()
        .pkey(0x0012)
        .service_level(3)
        .traffic_class(106)
        .flow_label(0xf_fff0)
        .hop_limit(255)
        .ack_timeout(20)
        .retry_count(7)
        .rnr_retry(2)
        .rnr_timer(14);
    let set = [
        "to 1: pkey_index 2",
        "to 2: sl 3 tc 106 flow 1048560 hops 255 rnr_timer 14",
        "to 3: timeout 20 retry 7 rnr_retry 2",
    ];
    assert_eq!(steps(&config), set);
}

#[test]
fn the_driver_is_handed_the_settings_of_the_environment() {
    let log = log("env");
    with_nics!(
        "roce0",
        ("ODD_LOG", log.as_str()),
        ("GDS_PKEY", "0x8012"),
        ("GDS_SL", "4"),
        ("GDS_TRAFFIC_CLASS", "0x60"),
        ("GDS_FLOW_LABEL", "7"),
        ("GDS_HOP_LIMIT", "2"),
        ("GDS_ACK_TIMEOUT", "18"),
        ("GDS_RETRY_COUNT", "5"),
        ("GDS_RNR_RETRY", "3"),
        ("GDS_RNR_TIMER", "1")
    );
    let set = [
        "to 1: pkey_index 2",
        "to 2: sl 4 tc 96 flow 7 hops 2 rnr_timer 1",
        "to 3: timeout 18 retry 5 rnr_retry 3",
    ];
    assert_eq!(steps(&QpConfig::default()), set);
    // A setting in code takes precedence over the variable.
    let config = QpConfig::default().retry_count(1);
    assert_eq!(steps(&config)[2], "to 3: timeout 18 retry 1 rnr_retry 3");
}

#[test]
fn a_partition_that_the_port_is_not_in_is_refused() {
    with_nics!("roce0", ("GDS_PKEY", "0x8013"));
    let pd = open().unwrap().alloc_pd().unwrap();
    let qp = pd.create_qp(&QpConfig::default());
    refused(qp, Kind::Invalid, None, &["0x8013"]);
}

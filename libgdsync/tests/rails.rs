//! Several NICs and ports of one GPU at once: the list of rails, the keys that each request takes,
//! and the failure of one rail, which does not affect the others.

mod common;
mod verbs_device;
mod virtual_nic;

use common::*;
use gdsync::rdma::{
    DeviceOptions, NicChoice, Provider, QpAddress, RAILS, Rails, RailsMr, RemoteMemory,
};
use verbs_device::pattern;
use virtual_nic::{cases, inside};

/// Two NICs with two ports each.
const FOUR: [(&str, &str); 2] = [("VMLX5_DEVICES", "2"), ("VMLX5_PORTS", "2")];

fn names(rails: &Rails) -> Vec<String> {
    rails.devices().iter().map(Device::name).collect()
}

/// Memory that has a different key on every rail.
fn memory(rails: &Rails, len: usize) -> RailsMr {
    let gpu = rails.gpu();
    // Without this, the virtual NICs would all number their keys alike.
    for (rail, pd) in rails.pds().iter().enumerate() {
        for _ in 0..rail {
            let other = gpu.alloc(MemoryKind::Pinned, 64).unwrap();
            std::mem::forget(pd.register(&other, Access::ALL).unwrap());
        }
    }
    let region = gpu.alloc(MemoryKind::Pinned, len).unwrap();
    let memory = rails.register(&region, Access::ALL).unwrap();
    let mut keys: Vec<_> = memory.remote().rkeys.into_iter().flatten().collect();
    assert_eq!(keys.len(), rails.count());
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), rails.count(), "rails with equal keys");
    memory
}

/// A connected pair of these two rails.
fn pair(rails: &Rails, a: usize, b: usize) -> (Qp, Qp) {
    let config = sized(&QpConfig::default(), 16, 16);
    let (mut a, mut b) = (
        rails.create_qp(a, &config).unwrap(),
        rails.create_qp(b, &config).unwrap(),
    );
    connect(&mut a, &mut b);
    (a, b)
}

fn rails() -> gdsync::Result<Rails> {
    Rails::from_env(&Gpu::soft().unwrap())
}

cases! {
    the_rails_are_the_active_ports in &FOUR => {
        let all = ["mlx5_0:1", "mlx5_0:2", "mlx5_1:1", "mlx5_1:2"];
        assert_eq!(names(&rails().unwrap()), all.map(|name| format!("mlx5 {name}")));
    };
    no_more_rails_than_records_have_room_for
        in &[("VMLX5_DEVICES", "3"), ("VMLX5_PORTS", "2")] => {
        let names = names(&rails().unwrap());
        assert_eq!((names.len(), &*names[3]), (RAILS, "mlx5 mlx5_1:2"));
    };
    a_port_that_is_down_is_no_rail
        in &[FOUR[0], FOUR[1], ("VMLX5_FAULTS", "down=2:0s..1000s")] =>
        assert_eq!(names(&rails().unwrap()), ["mlx5 mlx5_0:1", "mlx5 mlx5_1:1"]);
    five_rails_are_too_many
        in &[FOUR[0], FOUR[1], ("GDS_NIC", "mlx5_0,mlx5_0,mlx5_0,mlx5_0,mlx5_0")] =>
        refused(rails(), Kind::Invalid, Some(4), &[]);
    empty_rail_name_is_refused in &[FOUR[0], FOUR[1], ("GDS_NIC", "mlx5_0,,mlx5_1")] =>
        refused(rails(), Kind::Invalid, None, &["GDS_NIC=mlx5_0,,mlx5_1"]);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn the_environment_names_rails_and_their_order() {
    inside!(&[FOUR[0], FOUR[1], ("GDS_NIC", "mlx5_1:2,mlx5_0")]);
    let gpu = Gpu::soft().unwrap();
    let rails = Rails::from_env(&gpu).unwrap();
    assert_eq!(names(&rails), ["mlx5 mlx5_1:2", "mlx5 mlx5_0:1"]);
    // A program that opens one device gets the first rail.
    let device = Device::from_env(&gpu).unwrap();
    assert_eq!(device.name(), "mlx5 mlx5_1:2");
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_nic_is_found_by_its_guid() {
    inside!(&FOUR);
    let gpu = Gpu::soft().unwrap();
    let open = |nic| Device::open_with(&gpu, &DeviceOptions::default().nic(nic));
    let mut guids = Vec::new();
    for name in ["mlx5_0", "mlx5_1"] {
        let device = open(NicChoice::kernel(name)).unwrap();
        let qp = device.alloc_pd().unwrap().create_qp(&QpConfig::default());
        guids.push(qp.unwrap().address().node);
    }
    assert_ne!(guids[0], guids[1]);
    for (i, guid) in guids.iter().enumerate() {
        let device = open(NicChoice::guid(*guid).port(2)).unwrap();
        assert_eq!(device.name(), format!("mlx5 mlx5_{i}:2"));
    }
    let nobody = guids[0] ^ guids[1] ^ 1;
    let found = open(NicChoice::guid(nobody));
    refused(found, Kind::Absent, None, &[&format!("{nobody:#018x}")]);
}

cases! {
    all_rails_at_once_from_one_stream in &FOUR => all_at_once();
    all_rails_at_once_by_proxy in &[FOUR[0], FOUR[1], ("GDS_PROVIDER", "verbs")] => all_at_once();
    all_rails_at_once_on_ethernet in &[FOUR[0], FOUR[1], ("VMLX5_LINK", "roce")] => all_at_once();
}

/// A stripe of a message on each pair of rails, straight and crosswise, in both directions, for a
/// few laps of their rings.
fn all_at_once() {
    const STRIPE: usize = 3000;
    let gpu = Gpu::soft().unwrap();
    let rails = Rails::from_env(&gpu).unwrap();
    assert_eq!(rails.count(), 4);
    let ways: Vec<(usize, usize)> = (0..4).flat_map(|a| [(a, a), (a, (a + 1) % 4)]).collect();
    let len = STRIPE * ways.len();
    let (near, far) = (memory(&rails, len), memory(&rails, 2 * len));
    // As the peer gets it over the wire.
    let there = RemoteMemory::from_bytes(&far.remote().to_bytes()).unwrap();
    let mut pairs: Vec<_> = ways.iter().map(|(a, b)| pair(&rails, *a, *b)).collect();
    for ((a, b), (here, other)) in pairs.iter().zip(&ways) {
        let record = QpAddress::from_bytes(&b.address().to_bytes()).unwrap();
        assert_eq!((a.address().rail, record.rail), (*here as u8, *other as u8));
    }
    let stream = gpu.stream().unwrap();
    for round in 0..50 {
        near.region().write(0, &pattern(round, len)).unwrap();
        let mut list = Vec::new();
        let mut waits = Vec::new();
        for (i, (a, b)) in pairs.iter_mut().enumerate() {
            let at = (STRIPE * i) as u64;
            // A message into the far memory, then a WRITE behind it, then a READ of the written
            // bytes.
            let receive = far.sge(b, at, STRIPE as u32).unwrap();
            let receive = b.receive(&[receive]);
            let from = [near.sge(a, at, STRIPE as u32).unwrap()];
            let send = a.prepare(&Work::send(&from)).unwrap();
            let span = there.span(len as u64 + at, STRIPE as u64).unwrap();
            let write = a.signaled(&Work::write(&from, span));
            list.extend([Descriptor::Send(send), Descriptor::Send(write)]);
            waits.push(Descriptor::wait(write));
            waits.push(Descriptor::wait_flushed(receive));
        }
        list.extend(waits);
        let mut queues: Vec<&mut Qp> = pairs.iter_mut().flat_map(|(a, b)| [a, b]).collect();
        post_on(&stream, &mut queues, &list).unwrap();
        passes(&stream);
        let got = far.region().vec(0, 2 * len);
        assert!(got[..len] == pattern(round, len), "round {round}: messages");
        assert!(got[len..] == pattern(round, len), "round {round}: writes");
    }
    drop(pairs);
    rails.close(LIMIT).unwrap();
}

cases! {
    one_rail_fails_and_the_others_go_on in &FOUR => one_fails();
    one_rail_fails_and_the_others_go_on_by_proxy
        in &[FOUR[0], FOUR[1], ("GDS_PROVIDER", "verbs")] =>
        one_fails();
}

/// The peer of one rail is gone, and does not answer; the peer of another refuses.
fn one_fails() {
    let gpu = Gpu::soft().unwrap();
    let rails = Rails::from_env(&gpu).unwrap();
    let (near, far) = (memory(&rails, 64), memory(&rails, 64));
    let mut near_ends = Vec::new();
    let mut far_ends = Vec::new();
    for rail in 0..rails.count() {
        let (a, b) = pair(&rails, rail, rail);
        near_ends.push(a);
        far_ends.push(Some(b));
    }
    far_ends[1] = None;
    rails.devices()[1].close(LIMIT).unwrap();
    let stream = gpu.stream().unwrap();
    let mut there = far.remote();
    there.rkeys[2] = there.rkeys[2].map(|key| key ^ 0x5500);
    near.region().write(0, &[7; 64]).unwrap();
    let mut list = Vec::new();
    let mut writes = Vec::new();
    for (rail, a) in near_ends.iter_mut().enumerate() {
        let from = [near.sge(a, 0, 8).unwrap()];
        let span = there.span(8 * rail as u64, 8).unwrap();
        let write = a.signaled(&Work::write(&from, span));
        writes.push(write);
        list.push(Descriptor::Send(write));
    }
    list.extend(writes.iter().map(|write| Descriptor::wait(*write)));
    let mut queues: Vec<&mut Qp> = near_ends.iter_mut().collect();
    post_on(&stream, &mut queues, &list).unwrap();
    passes(&stream);
    let ends: Vec<_> = writes
        .iter()
        .zip(&mut near_ends)
        .map(|(write, a)| a.poll(*write).unwrap())
        .collect();
    let good = Status::SUCCESS;
    let (silent, refused) = (Status::TRANSPORT_RETRY, Status::REMOTE_ACCESS);
    assert_eq!(ends, [good, silent, refused, good].map(Some));
    let mut got = far.region().bytes::<32>(0);
    assert_eq!(got[..8], [7; 8]);
    assert_eq!(got[8..24], [0; 16]);
    assert_eq!(got[24..], [7; 8]);
    // The other rails continue as before, by the same stream.
    for round in 0..40 {
        for rail in [0, 3] {
            near.region().write(32, &[round; 8]).unwrap();
            let a = &mut near_ends[rail];
            let from = [near.sge(a, 32, 8).unwrap()];
            let span = there.span(8 * rail as u64, 8).unwrap();
            let write = a.start_on(&stream, &Work::write(&from, span));
            passes(&stream);
            assert_eq!(a.poll(write).unwrap(), Some(good), "rail {rail}");
            far.region().read(8 * rail, &mut got[..8]).unwrap();
            assert_eq!(got[..8], [round; 8]);
        }
    }
    // The failed rails can be reset.
    for rail in [1, 2] {
        let a = &mut near_ends[rail];
        a.reset().unwrap();
        let mut b = rails.create_qp(rail, &QpConfig::default()).unwrap();
        connect(a, &mut b);
        let from = [near.sge(a, 0, 8).unwrap()];
        let span = far.remote().span(8 * rail as u64, 8).unwrap();
        a.complete(&Work::write(&from, span));
    }
    far.region().read(0, &mut got).unwrap();
    assert_eq!(got[8..24], [7; 16]);
}

/// A ConnectX whose doorbells streams write, one with a CPU thread, and a virtual one, with one
/// record of memory.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn nics_of_different_kinds() {
    inside!(&FOUR);
    let gpu = Gpu::soft().unwrap();
    let each = [
        (Provider::Mlx5, Some("mlx5_1:1")),
        (Provider::Emulated, None),
        (Provider::Verbs, Some("mlx5_0:2")),
    ];
    let each = each.map(|(provider, nic)| {
        DeviceOptions::default()
            .provider(provider)
            .nic(nic.map(|nic| nic.parse().unwrap()))
    });
    let rails = Rails::open(&gpu, &each).unwrap();
    let names = names(&rails);
    assert_eq!(
        (&*names[0], &*names[2]),
        ("mlx5 mlx5_1:1", "verbs mlx5_0:2")
    );
    assert!(names[1].starts_with("emulated "), "{names:?}");
    let memory = memory(&rails, 4096);
    let there = memory.remote();
    assert_eq!(there.rkeys[3], None);
    let stream = gpu.stream().unwrap();
    memory.region().write(0, &pattern(1, 1000)).unwrap();
    let mut ends: Vec<_> = [(0, 0), (1, 1), (2, 2), (0, 2), (2, 0)]
        .map(|(a, b)| pair(&rails, a, b))
        .into();
    for (i, (a, _)) in ends.iter_mut().enumerate() {
        let at = 1000 + 600 * i;
        let from = [memory.sge(a, 300, 600).unwrap()];
        let span = there.span(at as u64, 600).unwrap();
        let write = a.start_on(&stream, &Work::write(&from, span));
        passes(&stream);
        assert_eq!(a.poll(write).unwrap(), Some(Status::SUCCESS));
        let got = memory.region().vec(at, 600);
        assert_eq!(got[..], pattern(1, 1000)[300..900]);
    }
}

#[test]
fn invalid_rails_and_foreign_memory_are_refused() {
    let gpu = Gpu::soft().unwrap();
    let device = Device::emulated(&gpu).unwrap();
    for many in [0, RAILS + 1] {
        let rails = Rails::of(vec![device.clone(); many]);
        refused(rails, Kind::Invalid, Some(4), &[]);
    }
    let foreign = Device::emulated(&Gpu::soft().unwrap()).unwrap();
    let rails = Rails::of(vec![device.clone(), foreign]);
    assert_eq!(kind(rails), Some(Kind::Foreign));

    let rails = Rails::of(vec![device.clone(), Device::emulated(&gpu).unwrap()]).unwrap();
    let qp = rails.create_qp(2, &QpConfig::default());
    refused(qp, Kind::Invalid, Some(1), &[]);
    let foreign = Gpu::soft().unwrap().alloc(MemoryKind::Pinned, 64).unwrap();
    let registered = rails.register(&foreign, Access::ALL);
    assert_eq!(kind(registered), Some(Kind::Foreign));

    // Memory of another protection domain, even if rail and device are the same.
    let memory = memory(&rails, 64);
    let (mut a, _b) = pair(&rails, 0, 1);
    let (other, _) = pair(&Rails::of(rails.devices().to_vec()).unwrap(), 0, 0);
    let alone = device.alloc_pd().unwrap();
    let alone = alone.create_qp(&QpConfig::default()).unwrap();
    for foreign in [other, alone] {
        assert_eq!(kind(memory.sge(&foreign, 0, 8)), Some(Kind::Foreign));
    }

    // Memory of a peer that has no key on rail 1.
    let there = memory
        .remote()
        .rkeys([memory.remote().rkeys[0], None, Some(1), Some(1)]);
    let from = [memory.sge(&a, 0, 8).unwrap()];
    let span = there.span(0, 8).unwrap();
    let write = a.prepare(&Work::write(&from, span).signaled());
    refused(write, Kind::NotRegistered, None, &["rail 1"]);
    // It can be reached on its rail 0.
    let (mut a, _b) = pair(&rails, 1, 0);
    let from = [memory.sge(&a, 0, 8).unwrap()];
    a.complete(&Work::write(&from, span));
}

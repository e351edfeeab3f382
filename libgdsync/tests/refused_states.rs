//! Queue pairs whose connect the kernel refuses once: receives posted before are neither lost nor
//! posted twice. While a connect hangs in the kernel, the device makes other queue pairs. Over the
//! installed libmlx5 and a virtual ConnectX, with a libibverbs in front that refuses or holds one
//! change of state.

mod common;
#[path = "common/shim.rs"]
mod shim;
mod verbs_device;
mod virtual_nic;

use std::path::Path;

use common::*;
use gdsync::rdma::Transport;
use virtual_nic::inside;

/// Numbers of states.
const RTR: &str = "2:1";
const RTS: &str = "3:1";
/// Of two queue pairs, made one after the other, the first reset after that.
const INIT_OF_RESET: &str = "1:1:2";

/// The library that refuses the change.
fn library() -> &'static Path {
    let behind = ["-Wl,--no-as-needed", "-l:libibverbs.so.1", "-ldl"];
    shim::verbs("refused_states", &behind)
}

/// Runs the test in a separate process in which this state is refused, or held if `$var` selects
/// that.
macro_rules! refusing {
    ($state:expr $(, $var:expr)*) => {
        inside!(&[
            ("GDS_IBVERBS_LIB", library().to_str().unwrap()),
            ("REFUSE_STATE", $state),
            $($var),*
        ]);
    };
}

struct Rig {
    pair: Pair,
    memory: Mr,
}

impl Rig {
    fn new(transport: Transport) -> Rig {
        let gpu = Gpu::soft().unwrap();
        let pd = Device::mlx5(&gpu).unwrap().alloc_pd().unwrap();
        let config = QpConfig::default().transport(transport);
        let pair = Pair::of_domain(&pd, &config);
        Rig {
            memory: pair.memory(MemoryKind::Pinned, 4096),
            pair,
        }
    }

    /// Posts two receives of `b`: by the CPU, then by a stream, which has finished.
    fn receives(&mut self) -> [ReceiveRequest; 2] {
        let list = [0, 1].map(|i| {
            let piece = [self.memory.sge(1024 + 64 * i, 64)];
            self.pair.b.prepare_receive(&piece).unwrap()
        });
        self.pair.b.post_receive(list[0]).unwrap();
        let stream = self.pair.gpu.stream().unwrap();
        let post = [Descriptor::Receive(list[1])];
        self.pair.b.post_on(&stream, &post).unwrap();
        passes(&stream);
        list
    }

    /// Sends two messages, which these receives match in order.
    fn messages(&mut self, receives: [ReceiveRequest; 2]) {
        let there = self.pair.b.address();
        let to =
            (self.pair.b.transport().is_ud()).then(|| self.pair.pd_a.destination(&there).unwrap());
        let header = if to.is_some() { 40 } else { 0 };
        for (i, receive) in (0u8..).zip(receives) {
            self.memory.region().write(0, &[i + 1; 8]).unwrap();
            let list = [self.memory.sge(0, 8)];
            let work = Work::send(&list);
            let work = to.iter().fold(work, |work, to| work.to(to));
            self.pair.a.complete(&work);
            self.pair.b.wait(receive, LIMIT).unwrap();
            let at = 1024 + 64 * usize::from(i) + header;
            assert_eq!(self.memory.region().bytes(at), [i + 1; 8], "message {i}");
        }
    }
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn receives_posted_before_a_refused_connect_take_messages_after_the_next() {
    refusing!(RTR);
    let mut rig = Rig::new(Transport::Rc);
    let receives = rig.receives();
    let refused = rig.pair.b.connect(&rig.pair.a.address()).unwrap_err();
    assert_eq!(refused.kind(), Kind::System, "{refused}");
    rig.pair.connect();
    rig.messages(receives);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn receives_posted_before_a_refused_activation_take_messages_after_the_next() {
    refusing!(RTR);
    let mut rig = Rig::new(Transport::Ud { qkey: 7 });
    let receives = rig.receives();
    let refused = rig.pair.b.activate().unwrap_err();
    assert_eq!(refused.kind(), Kind::System, "{refused}");
    rig.pair.a.activate().unwrap();
    rig.pair.b.activate().unwrap();
    rig.messages(receives);
}

/// After ready to receive, the queue pair cannot return: messages may have arrived.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_queue_pair_that_the_kernel_refuses_to_let_send_fails_with_its_receives() {
    refusing!(RTS);
    let mut rig = Rig::new(Transport::Rc);
    let receives = rig.receives();
    let refused = rig.pair.b.connect(&rig.pair.a.address()).unwrap_err();
    assert_eq!(refused.kind(), Kind::Failed(Status::CLOSED), "{refused}");
    for receive in receives {
        let failed = rig.pair.b.wait(receive, LIMIT).unwrap_err();
        assert!(matches!(failed.kind(), Kind::Failed(_)), "{failed}");
    }
    rig.pair.b.quiet(LIMIT).unwrap();
    rig.pair.b.reset().unwrap();
    let receives = rig.receives();
    rig.pair.connect();
    rig.messages(receives);
}

/// The first half of the reset has happened: the NIC has dropped the connection.
#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_queue_pair_whose_reset_the_kernel_refuses_half_way_fails_until_the_next_reset() {
    refusing!(INIT_OF_RESET);
    let mut rig = Rig::new(Transport::Rc);
    let receives = rig.receives();
    rig.pair.connect();
    rig.messages(receives);
    rig.pair.b.quiet(LIMIT).unwrap();
    let refused = rig.pair.b.reset().unwrap_err();
    assert_eq!(refused.kind(), Kind::Failed(Status::CLOSED), "{refused}");
    let list = [rig.memory.sge(0, 8)];
    let lost = rig.pair.b.prepare(&Work::send(&list).signaled());
    assert_eq!(kind(lost), Some(Kind::Failed(Status::CLOSED)));
    rig.pair.a.quiet(LIMIT).unwrap();
    rig.pair.a.reset().unwrap();
    rig.pair.b.reset().unwrap();
    let receives = rig.receives();
    rig.pair.connect();
    rig.messages(receives);
}

#[test]
#[cfg_attr(not(rdma_core), ignore = "needs rdma-core")]
fn a_device_makes_queue_pairs_while_a_connect_hangs_in_the_kernel() {
    let until = Path::new(env!("CARGO_TARGET_TMPDIR")).join("the_connect_goes_on");
    let _ = std::fs::remove_file(&until);
    refusing!(RTR, ("HOLD_UNTIL", until.to_str().unwrap()));
    let Pair {
        gpu,
        pd_a,
        mut a,
        b,
        ..
    } = Rig::new(Transport::Rc).pair;
    std::thread::scope(|s| {
        let connects = s.spawn(|| a.connect(&b.address()));
        let (sender, done) = std::sync::mpsc::channel();
        s.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let region = gpu.alloc(MemoryKind::Pinned, 4096).unwrap();
            drop(pd_a.register(&region, Access::ALL).unwrap());
            drop(pd_a.create_qp(&QpConfig::default()).unwrap());
            sender.send(()).unwrap();
        });
        let returned = done.recv_timeout(Duration::from_secs(10));
        assert!(!connects.is_finished(), "the connect did not hang");
        std::fs::write(&until, "").unwrap();
        assert!(returned.is_ok(), "the device waits for the connect");
        connects.join().unwrap().unwrap();
    });
}

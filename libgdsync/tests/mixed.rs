//! CPU and streams post on the two queues of one queue pair, and one list posts on queue pairs of
//! several kinds: each poster's counters stay correct.

mod common;

use common::*;

#[test]
fn a_post_by_the_cpu_leaves_the_other_queue_to_its_stream() {
    for (path, config) in paths() {
        for receive_by_stream in [true, false] {
            let what = format!("{path}, receive by stream {receive_by_stream}");
            let gpu = Gpu::soft().unwrap();
            let mut p = Pair::new(&gpu, Net::One, &config);
            p.check(&what);
            let [near, far] = p.memories(MemoryKind::Pinned, 64);
            let stream = gpu.stream().unwrap();
            for round in 0..12u64 {
                let ok = |r: gdsync::Result<()>| {
                    r.unwrap_or_else(|e| panic!("{what}, round {round}: {e:?}"));
                };
                let gate = Gate::new(&gpu);
                let at = round % 2 * 16;
                let send = p.b.signaled(&Work::nop());
                let recv = p.b.prepare_receive(&[sge(&far, at, 8)]).unwrap();
                p.b.post_on(&stream, &[gate.wait()]).unwrap();
                // The stream posts one, which it cannot reach yet, the CPU the other.
                if receive_by_stream {
                    p.b.post_on(&stream, &[Descriptor::Receive(recv)]).unwrap();
                    p.b.post(send).unwrap();
                } else {
                    p.b.post_on(&stream, &[Descriptor::Send(send)]).unwrap();
                    p.b.post_receive(recv).unwrap();
                }
                gate.open();
                finish(&stream, &what);
                // Two messages for one receive: the second waits for its own.
                for i in 0..2 {
                    let value = 2 * round + i;
                    near.region()
                        .write(8 * i as usize, &value.to_le_bytes())
                        .unwrap();
                    p.a.start(&Work::send(&[sge(&near, 8 * i, 8)]));
                }
                ok(p.b.wait(send, LIMIT));
                ok(p.b.wait(recv, LIMIT));
                std::thread::sleep(std::time::Duration::from_millis(1));
                let second = p.b.receive(&[sge(&far, at + 8, 8)]);
                ok(p.b.wait(second, LIMIT));
                for i in 0..2 {
                    let got = far.region().bytes((at + 8 * i) as usize);
                    assert_eq!(u64::from_le_bytes(got), 2 * round + i, "{what}");
                }
                ok(p.a.quiet(LIMIT));
            }
            p.check(&what);
        }
    }
}

#[test]
fn one_list_serves_queue_pairs_of_every_kind() {
    let gpu = Gpu::soft().unwrap();
    let mut pairs: Vec<Pair> = paths()
        .into_iter()
        .map(|(_, config)| {
            let config = sized(&config, 8, config.recv_entries);
            Pair::new(&gpu, Net::One, &config)
        })
        .collect();
    let stream = gpu.stream().unwrap();
    let far: Vec<_> = pairs
        .iter()
        .map(|p| p.mem_b(MemoryKind::Pinned, 64))
        .collect();
    let near: Vec<_> = pairs
        .iter()
        .map(|p| p.mem_a(MemoryKind::Pinned, 64))
        .collect();
    for round in 0..40u64 {
        // Each queue pair has posted on its own, by CPU or stream, before the list.
        for p in &mut pairs {
            let nop = p.a.signaled(&Work::nop());
            match round % 3 {
                0 => p.a.post(nop).unwrap(),
                _ => {
                    p.a.post_on(&stream, &send_and_wait(nop)).unwrap();
                    finish(&stream, "alone");
                }
            }
            p.a.wait(nop, LIMIT).unwrap();
        }
        let sends: Vec<SendRequest> = pairs
            .iter_mut()
            .zip(near.iter().zip(&far))
            .map(|(p, (near, far))| {
                near.region().write(0, &round.to_le_bytes()).unwrap();
                let to = far.remote().span(0, 8).unwrap();
                let list = [sge(near, 0, 8)];
                p.a.signaled(&Work::write(&list, to))
            })
            .collect();
        let posts = sends.iter().map(|send| Descriptor::Send(*send));
        let waits = sends.iter().map(|send| Descriptor::wait(*send));
        let list: Vec<_> = match round % 2 {
            0 => posts.chain(waits).collect(),
            _ => posts.zip(waits).flat_map(|(p, w)| [p, w]).collect(),
        };
        let mut queues: Vec<&mut Qp> = pairs.iter_mut().map(|p| &mut p.a).collect();
        // The order of queues does not matter.
        let len = queues.len();
        queues.rotate_left(round as usize % len);
        post_on(&stream, &mut queues, &list).unwrap();
        finish(&stream, &format!("round {round}"));
        for (i, (p, send)) in pairs.iter_mut().zip(&sends).enumerate() {
            // The stream waited: the CPU need not wait.
            assert_eq!(p.a.poll(*send).unwrap(), Some(Status::SUCCESS), "queue {i}");
            let got = far[i].region().bytes::<8>(0);
            assert_eq!(u64::from_le_bytes(got), round, "queue {i}");
        }
    }
    for (p, (path, _)) in pairs.iter_mut().zip(paths()) {
        p.check(path);
    }
}

//! Barriers, votes and warp operations, and threads that do not reach them.

use super::*;

#[test]
fn block_reduction() {
    in_orders(|config| {
        let mut input: Vec<u32> = (0..10 * 256).map(|i| i * i % 1013).collect();
        let mut sums = [0_u64; 10];
        let args = args(&[&input.as_mut_ptr(), &sums.as_mut_ptr()]);
        launch(&REDUCE, linear(10, 256), &args, config).done();
        for (sum, input) in sums.iter().zip(input.chunks(256)) {
            assert_eq!(*sum, input.iter().map(|&v| u64::from(v)).sum::<u64>());
        }
    });
}

#[test]
fn votes_of_a_block() {
    in_orders(|config| {
        for threads in [5_u32, 8, 100] {
            let mut out = vec![u32::MAX; 3 * threads as usize];
            let args = args(&[&out.as_mut_ptr()]);
            launch(&VOTES, linear(1, threads), &args, config).done();
            let seven = u32::from(threads > 7);
            for votes in out.chunks(3) {
                assert_eq!(votes, [seven, 1 - seven, threads.div_ceil(3)]);
            }
        }
    });
}

#[test]
fn warp_operations_against_a_reference() {
    /// The results of lane `lane` of a warp, row by row.
    fn reference(warp: u64, row: usize, lane: u64) -> u64 {
        let v = |lane: u64| 1000 + lane;
        let up = |d: u64, width: u64| if lane % width >= d { lane - d } else { lane };
        let down = |d: u64, width: u64| {
            if lane % width + d < width {
                lane + d
            } else {
                lane
            }
        };
        match row {
            0 => v(5),
            1 => v(lane / 8 * 8 + (lane + 3) % 8),
            2 => v(up(4, warp)),
            3 => v(up(3, 16)),
            4 => v(down(4, warp)),
            5 => v(down(3, 16)),
            6 => v(lane ^ 9),
            // A read from a later segment is not permitted; a read from an earlier one is.
            7 => v(if lane ^ 9 <= lane / 8 * 8 + 7 {
                lane ^ 9
            } else {
                lane
            }),
            8 => (0..warp).filter(|l| l % 5 == 1).map(|l| 1 << l).sum(),
            9 => 1,
            10 => 0,
            11 => (0..8).filter(|l| l % 2 == lane % 2).map(|l| 1 << l).sum(),
            12 => u64::from((-((lane ^ 2) as i64)) as u8),
            13 => 1,
            14 => 1,
            _ => unreachable!(),
        }
    }
    in_orders(|config| {
        let warp = config.warp;
        let mut out = vec![u64::MAX; 15 * warp as usize];
        let args = args(&[&out.as_mut_ptr()]);
        launch(&WARP_OPS, linear(1, warp), &args, config).done();
        for (row, lanes) in out.chunks(warp as usize).enumerate() {
            for (lane, got) in lanes.iter().enumerate() {
                let expected = reference(warp.into(), row, lane as u64);
                assert_eq!(*got, expected, "row {row}, lane {lane} of {warp}");
            }
        }
    });
}

#[test]
fn warp_operation_joins_only_lanes_of_one_mask() {
    in_orders(|config| {
        let mut out = [u32::MAX; 6];
        let args = args(&[&out.as_mut_ptr()]);
        launch(&MASKS, linear(1, 3), &args, config).done();
        assert_eq!(out, [0b100, u32::MAX, 0b100, 0b11, 0b11, u32::MAX]);
    });
}

#[test]
fn ended_threads_do_not_block_the_others() {
    in_orders(|config| {
        for (threads, gone) in [(64, 40), (64, 32), (64, 1), (50, 49), (1024, 700)] {
            let mut out = vec![0_u32; threads as usize];
            let args = args(&[&out.as_mut_ptr(), &gone, &0_u32]);
            launch(&EARLY_EXIT, linear(1, threads), &args, config).done();
            for (t, &got) in (0..).zip(&out) {
                let lanes = (gone - t / config.warp * config.warp).min(config.warp);
                let expected = if t < gone { lanes + 1000 * gone } else { 0 };
                // Lanes beyond the last whole warp of the remaining threads.
                assert_eq!(got, expected, "thread {t} of {threads}, gone from {gone}");
                if t >= gone {
                    break;
                }
            }
        }
    });
}

fn fault(kind: u32) -> Fault {
    let dims = Dims::new([1, 3, 1], [16, 2, 1], 0).unwrap();
    let mut grid = launch(&DIVERGE, dims, &args(&[&kind]), &seeded(None));
    let GridState::Faulted(fault) = grid.finish() else {
        panic!("kind {kind} must fault")
    };
    assert_eq!(
        grid.run(100),
        GridState::Faulted(fault.clone()),
        "a fault stays"
    );
    fault
}

#[test]
fn divergence_is_a_fault_that_names_the_barriers() {
    assert_eq!(
        fault(0).to_string(),
        "kernel softgpu_test_diverge, block [0, 0, 0]: threads diverged, no barrier can \
         complete: 16 of 32 live threads at __syncthreads(); \
         16 of 32 live threads at __syncwarp of warp 0, mask 0xffffffff"
    );
    assert!(matches!(
        fault(0),
        Fault::Divergence {
            block: [0, 0, 0],
            ..
        }
    ));
}

#[test]
fn misuse_is_a_fault_that_names_the_thread() {
    let expect = |kind, thread: [u32; 3], words: &str| {
        let fault = fault(kind);
        assert!(
            matches!(&fault, Fault::Thread { thread: t, what, .. }
                if *t == thread && what.contains(words)),
            "{fault}"
        );
    };
    expect(1, [0, 1, 0], "__syncthreads_or() after __syncthreads()");
    expect(
        2,
        [0, 0, 0],
        "mask 0xfffffffe, which leaves out the calling lane",
    );
    expect(
        3,
        [0, 0, 0],
        "16 bytes of shared memory do not fit beside 49152 bytes in use; the limit is 49152",
    );
    expect(4, [0, 0, 0], "__trap()");
}

#[test]
fn divergence_is_found_with_a_seed_too() {
    for seed in 0..20 {
        let args = args(&[&0_u32]);
        let mut grid = launch(&DIVERGE, linear(4, 32), &args, &seeded(Some(seed)));
        let state = grid.finish();
        assert!(
            matches!(state, GridState::Faulted(Fault::Divergence { .. })),
            "{state:?}"
        );
    }
}

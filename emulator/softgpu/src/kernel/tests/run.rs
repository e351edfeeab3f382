//! Launches: dimensions, parameters, many blocks, order, stores and atomics.

use super::*;

#[test]
fn vector_add_over_many_blocks() {
    let n = 5000_u32;
    let mut a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let mut b: Vec<f32> = (0..n).map(|i| 0.25 * i as f32).collect();
    let mut sum = vec![f32::NAN; n as usize + 1];
    let args = args(&[&a.as_mut_ptr(), &b.as_mut_ptr(), &sum.as_mut_ptr(), &n]);
    launch(
        &ADD,
        linear(n.div_ceil(256), 256),
        &args,
        &GridConfig::default(),
    )
    .done();
    assert!((0..n as usize).all(|i| sum[i] == 1.25 * i as f32));
    assert!(sum[n as usize].is_nan(), "nothing is written past the end");
}

#[test]
fn every_thread_of_three_dimensions_runs_once_with_its_index() {
    in_orders(|config| {
        let mut count = vec![0_u32; 5 * 3 * 2 * 7 * 3 * 5];
        let dims = Dims::new([5, 3, 2], [7, 3, 5], 0).unwrap();
        let args = args(&[&count.as_mut_ptr()]);
        launch(&WHERE, dims, &args, config).done();
        assert!(count.iter().all(|&n| n == 1));
    });
}

#[test]
fn ten_thousand_blocks_and_blocks_of_1024() {
    let mut count = vec![0_u32; 10_000];
    launch(
        &WHERE,
        linear(10_000, 1),
        &args(&[&count.as_mut_ptr()]),
        &GridConfig::default(),
    )
    .done();
    assert!(count.iter().all(|&n| n == 1));

    let mut input: Vec<u32> = (0..3 * 1024).collect();
    let mut sums = [0_u64; 3];
    let args = args(&[&input.as_mut_ptr(), &sums.as_mut_ptr()]);
    launch(&REDUCE, linear(3, 1024), &args, &GridConfig::default()).done();
    let expected: Vec<u64> = (0..3)
        .map(|b| (b * 1024..(b + 1) * 1024).sum::<u64>())
        .collect();
    assert_eq!(sums[..], expected);
}

#[test]
fn budget_bounds_one_run() {
    let mut count = vec![0_u32; 256];
    let args = args(&[&count.as_mut_ptr()]);
    let mut grid = launch(&WHERE, linear(1, 256), &args, &seeded(None));
    assert_eq!(grid.run(10), GridState::Progress);
    assert_eq!(count.iter().sum::<u32>(), 10);
    assert_eq!(grid.run(0), GridState::Progress, "at least one thread runs");
    assert_eq!(count.iter().sum::<u32>(), 11);
    assert_eq!(grid.run(1000), GridState::Done);
    assert!(count.iter().all(|&n| n == 1));
}

#[test]
fn shared_memory_is_private_to_its_block() {
    in_orders(|config| {
        let mut input: Vec<u32> = (0..20 * 64).map(|i| i * 3).collect();
        let mut out = vec![0_u32; input.len()];
        let dims = Dims::new([20, 1, 1], [64, 1, 1], 64 * 4).unwrap();
        let args = args(&[&input.as_mut_ptr(), &out.as_mut_ptr()]);
        launch(&REVERSE, dims, &args, config).done();
        for (block, (input, out)) in input.chunks(64).zip(out.chunks(64)).enumerate() {
            let expected: Vec<u32> = input.iter().rev().map(|v| v + block as u32).collect();
            assert_eq!(out, expected);
        }
    });
}

#[test]
fn block_does_not_observe_shared_memory_of_an_earlier_block() {
    let mut out = [0_u32; 100];
    let args = args(&[&out.as_mut_ptr()]);
    launch(&FRESH, linear(100, 1), &args, &seeded(None)).done();
    assert_eq!(out, [0xa5a5_a5a5; 100]);
}

/// The order of 4 blocks of 10 threads that never wait, and whether one stack sufficed.
fn looks(seed: Option<u64>) -> (Vec<u32>, bool) {
    let (mut next, mut order, mut seen) = (0_u32, vec![u32::MAX; 40], vec![0_u64; 40]);
    let args = args(&[&(&raw mut next), &order.as_mut_ptr(), &seen.as_mut_ptr()]);
    let mut grid = launch(&LOOK, linear(4, 10), &args, &seeded(seed));
    grid.hook.set_now(77);
    assert_eq!(grid.finish(), GridState::Done);
    assert_eq!(seen, [77; 40]);
    (order, grid.grid.stacks() == 1)
}

#[test]
fn threads_that_never_wait_share_a_stack_in_any_order() {
    assert_eq!(looks(None), ((0..40).collect(), true));
    let orders: Vec<Vec<u32>> = (0..10)
        .map(|seed| {
            let (order, one_stack) = looks(Some(seed));
            assert!(one_stack, "one look at the clock does not suspend");
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..40).collect::<Vec<u32>>());
            order
        })
        .collect();
    // Within a block and among blocks.
    let first_block = |o: &[u32]| -> Vec<u32> { o.iter().filter(|&&t| t < 10).copied().collect() };
    assert!(orders.iter().any(|o| !first_block(o).is_sorted()));
    let changes = |o: &Vec<u32>| o.windows(2).filter(|w| w[0] / 10 != w[1] / 10).count();
    assert!(orders.iter().any(|o| changes(o) > 3));
}

/// The order in which 3 blocks of 40 threads reached each place.
fn trace(seed: Option<u64>) -> Vec<u32> {
    let mut order = vec![u32::MAX; 3 * 40 * 3];
    let mut next = 0_u32;
    let args = args(&[&(&raw mut next), &order.as_mut_ptr()]);
    launch(&TRACE, linear(3, 40), &args, &seeded(seed)).done();
    assert_eq!(next, 360);
    order
}

#[test]
fn seed_selects_an_order_and_no_seed_the_natural_order() {
    let natural = trace(None);
    assert_eq!(natural[..40], (0..40).collect::<Vec<u32>>());
    assert_eq!(natural, trace(None));
    let orders: Vec<Vec<u32>> = (0..20).map(|seed| trace(Some(seed))).collect();
    for (seed, order) in (0..).zip(&orders) {
        assert_eq!(*order, trace(Some(seed)), "seed {seed} replays");
        assert_ne!(*order, natural);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(
            (0..360).all(|i| sorted[i] == i as u32 / 3),
            "each thread three times"
        );
        // The barrier holds in any order: a thread's second place follows all firsts.
        for block in 0..3 {
            let places: Vec<u32> = order
                .iter()
                .filter(|&&t| t / 40 == block)
                .copied()
                .collect();
            let mut firsts = places[..40].to_vec();
            firsts.sort_unstable();
            firsts.dedup();
            assert_eq!(firsts.len(), 40);
        }
    }
    assert!(orders.iter().any(|o| *o != orders[0]));
    // Threads of different blocks interleave.
    assert!(
        orders
            .iter()
            .any(|o| o[..40].iter().any(|t| t / 40 != o[0] / 40))
    );
}

#[test]
fn stores_and_fences_go_through_the_hook_in_program_order() {
    let (mut a, mut b, mut read_back) = (0_u32, 0_u64, 0_u32);
    let (pa, pb) = (&raw mut a, &raw mut b);
    let args = args(&[&pa, &pb, &(&raw mut read_back)]);
    let hook = launch(&STORES, linear(1, 1), &args, &seeded(None)).done();
    let (pa, pb) = (pa as usize, pb as usize);
    assert_eq!(
        *hook.calls.lock().unwrap(),
        [
            HookCall::Store(pa, 1, false),
            HookCall::Store(pb, 2, true),
            HookCall::Fence,
            HookCall::Store(pa, 3, false),
            HookCall::Fence,
            HookCall::Store(pb, 4, true),
            HookCall::Settle(pb, 8),
            HookCall::Fence,
        ]
    );
    assert_eq!((a, b, read_back), (3, 9, 3));
}

#[test]
fn atomics_of_many_threads() {
    in_orders(|config| {
        let mut w = [0, 0, u32::MAX, 0, u32::MAX, 0, 1000, 0];
        let mut d = [0_u64; 2];
        let mut f = 0_f32;
        let args = args(&[&w.as_mut_ptr(), &d.as_mut_ptr(), &(&raw mut f)]);
        launch(&ATOMICS, linear(1, 64), &args, config).done();
        assert_eq!(w[..5], [2016, 63, 0, u32::MAX, 0]);
        // Every exchanged value was returned, except the last one, which is still in memory.
        assert_eq!(w[5] + w[6], 1000 + 2016);
        assert!(
            w[7] >= 1 && w[7] <= 64,
            "thread 0 arrived when the word was 0: {}",
            w[7]
        );
        assert_eq!(d, [2016 << 32, 63 << 40]);
        assert_eq!(f, 32.0);
    });
}

#[test]
fn invalid_launches_are_refused() {
    let zero = Dims::new([1, 0, 1], [1, 1, 1], 0);
    assert!(matches!(zero, Err(LaunchError::ZeroDimension { .. })));
    for block in [[1025, 1, 1], [32, 33, 1], [u32::MAX; 3]] {
        let large = Dims::new([1, 1, 1], block, 0);
        assert_eq!(large, Err(LaunchError::BlockTooLarge { block }));
    }
    let grid = [u32::MAX; 3];
    assert_eq!(
        Dims::new(grid, [1, 1, 1], 0),
        Err(LaunchError::GridTooLarge { grid })
    );
    let shared = MAX_DYNAMIC_SHARED + 1;
    let refused = Dims::new([1, 1, 1], [1, 1, 1], shared);
    assert_eq!(refused, Err(LaunchError::SharedTooLarge { shared }));
}

#[test]
fn successive_grids_reuse_stacks() {
    let config = GridConfig::default();
    let mut input = vec![1_u32; 2 * 128];
    let mut sums = [0_u64; 2];
    let args = args(&[&input.as_mut_ptr(), &sums.as_mut_ptr()]);
    for round in 0..50 {
        sums = [0; 2];
        let mut grid = launch(&REDUCE, linear(2, 128), &args, &config);
        assert_eq!(grid.grid.stacks(), if round == 0 { 0 } else { 128 });
        assert_eq!(grid.finish(), GridState::Done);
        assert_eq!(sums, [128; 2]);
        assert_eq!(
            grid.grid.stacks(),
            128,
            "the second block used the first one's stacks"
        );
    }
    // A thread that never suspends leaves its stack to the next thread.
    let mut count = vec![0_u32; 10 * 256];
    let count_args = super::args(&[&count.as_mut_ptr()]);
    let mut grid = launch(&WHERE, linear(10, 256), &count_args, &seeded(None));
    assert_eq!(grid.finish(), GridState::Done);
    assert_eq!(grid.grid.stacks(), 1);
}

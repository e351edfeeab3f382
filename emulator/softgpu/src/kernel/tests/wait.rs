//! Threads that wait: for the host, for another grid, for other blocks, for time.

use super::*;

/// A word that host and kernel share.
fn word(value: u32) -> Box<AtomicU32> {
    Box::new(AtomicU32::new(value))
}

#[test]
fn spin_ends_after_a_store_of_the_host() {
    in_orders(|config| {
        let (flag, out) = (word(0), word(0));
        let args = args(&[&flag.as_ptr(), &out.as_ptr(), &0_u64]);
        let mut grid = launch(&SPIN, linear(3, 33), &args, config);
        for _ in 0..3 {
            assert_eq!(grid.finish(), GridState::Spinning);
            assert_eq!(
                grid.grid.deadline(),
                None,
                "no timeout, nothing to wake for"
            );
            assert_eq!(out.load(Ordering::Relaxed), 0);
        }
        flag.store(1, Ordering::Release);
        assert_eq!(grid.finish(), GridState::Done);
        assert_eq!(out.load(Ordering::Relaxed), 99);
    });
}

#[test]
fn spin_ends_at_its_timeout() {
    let (flag, out) = (word(0), word(0));
    let args = args(&[&flag.as_ptr(), &out.as_ptr(), &2000_u64]);
    let mut grid = launch(&SPIN, linear(1, 2), &args, &seeded(None));
    grid.hook.set_now(500);
    assert_eq!(grid.finish(), GridState::Spinning);
    assert_eq!(grid.grid.deadline(), Some(2500));
    grid.hook.set_now(2499);
    assert_eq!(grid.finish(), GridState::Spinning);
    grid.hook.set_now(2500);
    assert_eq!(grid.finish(), GridState::Done);
    assert_eq!(out.load(Ordering::Relaxed), 2000);
}

#[test]
fn condition_that_holds_at_the_timeout_counts() {
    let (flag, out) = (word(0), word(0));
    let args = args(&[&flag.as_ptr(), &out.as_ptr(), &10_u64]);
    let mut grid = launch(&SPIN, linear(1, 1), &args, &seeded(None));
    assert_eq!(grid.finish(), GridState::Spinning);
    grid.hook.set_now(1000);
    flag.store(1, Ordering::Release);
    assert_eq!(grid.finish(), GridState::Done);
    assert_eq!(out.load(Ordering::Relaxed), 1);
}

#[test]
fn two_grids_pass_numbers() {
    in_orders(|config| {
        let n = 100_u32;
        let (full, empty) = (word(0), word(0));
        let (boxed, out) = (AtomicU64::new(0), AtomicU64::new(0));
        let args = args(&[
            &full.as_ptr(),
            &empty.as_ptr(),
            &boxed.as_ptr(),
            &out.as_ptr(),
            &n,
        ]);
        let start = |kernel| launch(kernel, linear(1, 1), &args, config);
        let (mut producer, mut consumer) = (start(&PRODUCE), start(&CONSUME));
        let mut turns = 0;
        loop {
            let states = (producer.finish(), consumer.finish());
            if states == (GridState::Done, GridState::Done) {
                break;
            }
            turns += 1;
            assert!(turns < 1000, "stuck: {states:?}");
        }
        assert!(turns >= 99, "each number takes a turn of both");
        assert_eq!(out.load(Ordering::Relaxed), 7 * 5050);
    });
}

#[test]
fn resident_blocks_may_wait_for_each_other() {
    in_orders(|config| {
        let count = word(0);
        let args = args(&[&count.as_ptr(), &64_u32, &0_u32]);
        launch(&GATHER, linear(64, 4), &args, config).done();
        assert_eq!(count.load(Ordering::Relaxed), 64);
    });
}

#[test]
fn wait_for_a_block_that_is_not_resident_does_not_end() {
    let count = word(0);
    let args = args(&[&count.as_ptr(), &65_u32, &0_u32]);
    let mut grid = launch(&GATHER, linear(65, 4), &args, &seeded(None));
    assert_eq!(grid.finish(), GridState::Spinning);
    assert_eq!(count.load(Ordering::Relaxed), 64, "bounded by residency");
    // The host acts in place of the block that is not resident.
    count.fetch_add(1, Ordering::Release);
    assert_eq!(grid.finish(), GridState::Done);
    assert_eq!(count.load(Ordering::Relaxed), 66);

    // The limit of threads holds as well.
    let count = word(0);
    let args = super::args(&[&count.as_ptr(), &9_u32, &0_u32]);
    let config = GridConfig {
        resident_threads: 256,
        ..GridConfig::default()
    };
    let mut grid = launch(&GATHER, linear(9, 32), &args, &config);
    assert_eq!(grid.finish(), GridState::Spinning);
    assert_eq!(count.load(Ordering::Relaxed), 8);
}

#[test]
fn busy_block_does_not_starve_a_spinning_block() {
    in_orders(|config| {
        let (flag, ping) = (word(0), word(0));
        let args = args(&[&flag.as_ptr(), &ping.as_ptr()]);
        let mut grid = launch(&BUSY, linear(2, 32), &args, config);
        for _ in 0..100 {
            assert_eq!(grid.run(100), GridState::Progress, "block 0 never rests");
        }
        ping.store(1, Ordering::Release);
        assert_eq!(grid.finish(), GridState::Done);
    });
}

#[test]
fn sleeping_and_clock_polling_threads_need_only_time() {
    let (woke, watched) = (AtomicU64::new(0), AtomicU64::new(0));
    let ns = 1000_u64;
    let args = args(&[&woke.as_ptr(), &watched.as_ptr(), &ns]);
    let mut grid = launch(&CLOCK, linear(1, 1), &args, &seeded(None));
    let mut steps = 0;
    // The clock advances only when the grid waits, and only to its deadline.
    loop {
        match grid.finish() {
            GridState::Done => break,
            GridState::Spinning => {
                let deadline = grid.grid.deadline().expect("it waits for time");
                assert!(deadline > grid.hook.now_ns());
                grid.hook.set_now(deadline);
            }
            other => panic!("{other:?}"),
        }
        steps += 1;
        assert!(steps < 100);
    }
    assert_eq!(woke.load(Ordering::Relaxed), 1000);
    let watched = watched.load(Ordering::Relaxed);
    assert!((2000..2200).contains(&watched), "{watched}");
}

#[test]
fn sleeping_thread_is_not_continued_early() {
    let (woke, watched) = (AtomicU64::new(0), AtomicU64::new(0));
    let args = args(&[&woke.as_ptr(), &watched.as_ptr(), &1000_u64]);
    let mut grid = launch(&CLOCK, linear(1, 1), &args, &seeded(None));
    for now in [0, 1, 999] {
        grid.hook.set_now(now);
        assert_eq!(grid.finish(), GridState::Spinning);
        assert_eq!(grid.grid.deadline(), Some(1000));
        assert_eq!(woke.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn stacks_of_dropped_unfinished_grids_are_reused() {
    let config = GridConfig::default();
    for round in 0..20_u32 {
        let (flag, out) = (word(0), word(0));
        let args = args(&[&flag.as_ptr(), &out.as_ptr(), &0_u64]);
        let mut grid = launch(&SPIN, linear(4, 64), &args, &config);
        // Dropped at many points, before the first thread and with all threads suspended.
        for _ in 0..round {
            grid.run(17);
        }
        drop(grid);
        assert_eq!(out.load(Ordering::Relaxed), 0);
    }
    let mut input = vec![2_u32; 128];
    let mut sum = 0_u64;
    let args = args(&[&input.as_mut_ptr(), &(&raw mut sum)]);
    launch(&REDUCE, linear(1, 128), &args, &config).done();
    assert_eq!(sum, 256);
}

#[test]
fn grid_moves_between_threads() {
    let (flag, out) = (word(0), word(0));
    let args = args(&[&flag.as_ptr(), &out.as_ptr(), &0_u64]);
    let mut grid = launch(&SPIN, linear(2, 40), &args, &seeded(None));
    for _ in 0..5 {
        grid = std::thread::spawn(move || {
            assert_eq!(grid.finish(), GridState::Spinning);
            grid
        })
        .join()
        .unwrap();
    }
    flag.store(1, Ordering::Release);
    let grid = std::thread::spawn(move || {
        assert_eq!(grid.finish(), GridState::Done);
        grid
    });
    drop(grid.join().unwrap());
    assert_eq!(out.load(Ordering::Relaxed), 80);
}

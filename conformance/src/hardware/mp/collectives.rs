//! Collective calls: in each round some ranks call by the CPU and the others by a stream, and each
//! compares the results with its own computation in the order of the ranks.

use gdsync::gpu::MemoryKind;
use mp::{Context, Op};

use crate::rig::limits::time_limit;
use crate::rig::verdict::Verdict;

const ROUNDS: u32 = 40;
/// Numbers of elements of a contribution, one after the other.
const LENGTHS: [usize; 4] = [1, 0, 7, 100];

/// The contribution of a rank. Sums of these numbers depend on their order.
fn values(rank: u32, round: u32, len: usize) -> Vec<f64> {
    let one = |i: usize| {
        let n = (i as u32 * 31 + rank * 7 + round * 13) % 97;
        (f64::from(n) - 40.0) * 0.1 * [1e-9, 1.0, 1e12][(n % 3) as usize]
    };
    (0..len).map(one).collect()
}

/// Runs one rank, whose stream uses memory of this kind.
pub fn rounds(ctx: &Context, kind: MemoryKind) -> Verdict {
    let (limit, me, size) = (time_limit(), ctx.rank(), ctx.size());
    let most = 8 * LENGTHS.iter().max().copied().unwrap_or(0);
    let mut all = ctx.collectives(most)?;
    let stream = ctx.gpu().stream()?;
    let memory = ctx.alloc(kind, most * (1 + size as usize))?;
    for round in 0..ROUNDS {
        let len = LENGTHS[round as usize % LENGTHS.len()];
        let mine = values(me, round, len);
        let fold = |both: fn(f64, f64) -> f64| {
            let mut result = values(0, round, len);
            for rank in 1..size {
                let theirs = values(rank, round, len);
                let pairs = result.iter_mut().zip(theirs);
                pairs.for_each(|(a, b)| *a = both(*a, b));
            }
            result
        };
        let op = [Op::Sum, Op::Product, Op::Min, Op::Max][round as usize / 4 % 4];
        let due = match op {
            Op::Sum => fold(|a, b| a + b),
            Op::Product => fold(|a, b| a * b),
            Op::Min => fold(|a, b| if b < a { b } else { a }),
            _ => fold(|a, b| if b > a { b } else { a }),
        };
        let everything: Vec<f64> = (0..size)
            .flat_map(|rank| values(rank, round, len))
            .collect();
        let root = round % size;
        let mut gathered = vec![0.0; everything.len()];
        let (mut reduced, mut sent) = (mine.clone(), mine.clone());
        if (round + me).is_multiple_of(2) {
            all.all_reduce(&mut reduced, op, limit)?;
            all.all_gather(&mine, &mut gathered, limit)?;
            all.broadcast(root, &mut sent, limit)?;
            all.barrier(limit)?;
        } else {
            memory.write_slice(0, &mine)?;
            let data = memory.slice_of::<f64>(0, len)?;
            let into = memory.slice_of::<f64>(most / 8, everything.len())?;
            all.all_reduce_on::<f64>(&stream, &data, op)?;
            ctx.synchronize(&stream, limit)?;
            memory.read_slice(0, &mut reduced)?;
            memory.write_slice(0, &mine)?;
            all.all_gather_on(&stream, &data, &into)?;
            all.broadcast_on(&stream, root, &data)?;
            all.barrier_on(&stream)?;
            ctx.synchronize(&stream, limit)?;
            memory.read_slice(0, &mut sent)?;
            memory.read_slice(most / 8, &mut gathered)?;
        }
        same(&reduced, &due, op, round)?;
        same(&gathered, &everything, "all-gather", round)?;
        same(&sent, &values(root, round, len), "broadcast", round)?;
    }
    ctx.close(limit)?;
    Ok(())
}

fn same(got: &[f64], due: &[f64], what: impl std::fmt::Debug, round: u32) -> Verdict {
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    match bits(got) == bits(due) {
        true => Ok(()),
        false => Err(format!("{what:?} in round {round}: {got:?} in place of {due:?}").into()),
    }
}

//! The timer core beside its peers: insert, cancel, put off, fire, with 1 k, 100 k and 1 M timers pending.
//!
//! `cargo bench --bench wheel` (`-- --quick` for a look, `-- put_off/1000` for a part). All peers run in the
//! one process; figures are times for one timer. Each peer keeps the handles it needs, and each fire is
//! checked against its deadline: nothing may come early or twice.

// A bench that cannot go on has nothing better to do.
#![allow(clippy::unwrap_used)]

mod ours;
mod peers;

use std::time::{Duration, Instant};

use criterion::{
    BenchmarkGroup, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
    measurement::WallTime,
};
use ours::{Ours, Wheel};
use peers::{Delays, Heap, Nexus, Quad, Queue, Sorted};

/// Pending timers.
const SIZES: [u32; 3] = [1_000, 100_000, 1_000_000];
/// Operations between two looks at the clock.
const CHUNK: u32 = 1_000;
/// Deadlines of what stays pending lie in the second minute, in milliseconds.
const MINUTE: u64 = 60_000;

/// A cheap sequence of numbers that look random.
fn scatter(i: u32) -> u64 {
    (u64::from(i) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 24
}

fn due(i: u32) -> u64 {
    MINUTE + scatter(i) % MINUTE
}

fn filled<Q: Queue>(size: u32) -> Q {
    let mut queue = Q::new(size + CHUNK);
    for id in 0..size {
        queue.insert(id, due(id));
    }
    queue
}

/// Runs `step` on chunks until `iters` operations are done; it returns the time of its timed part.
fn chunks(iters: u64, mut step: impl FnMut(u32) -> Duration) -> Duration {
    let mut total = Duration::ZERO;
    let mut left = iters;
    while left > 0 {
        let count = left.min(u64::from(CHUNK)) as u32;
        total += step(count);
        left -= u64::from(count);
    }
    total
}

fn time(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn insert<Q: Queue>(group: &mut BenchmarkGroup<'_, WallTime>, size: u32) {
    let mut queue: Option<Q> = None;
    let mut round = 0;
    group.bench_function(Q::NAME, |b| {
        let queue = queue.get_or_insert_with(|| filled(size));
        b.iter_custom(|iters| {
            chunks(iters, |count| {
                round += 1;
                let took = time(|| {
                    for id in size..size + count {
                        queue.insert(id, due(id ^ round));
                    }
                });
                (size..size + count).for_each(|id| queue.cancel(id));
                took
            })
        });
    });
}

fn cancel<Q: Queue>(group: &mut BenchmarkGroup<'_, WallTime>, size: u32) {
    let mut queue: Option<Q> = None;
    let mut round = 0;
    group.bench_function(Q::NAME, |b| {
        let queue = queue.get_or_insert_with(|| filled(size));
        b.iter_custom(|iters| {
            chunks(iters, |count| {
                round += 1;
                let ids = some_of(size, count, round);
                let took = time(|| ids.iter().for_each(|&id| queue.cancel(id)));
                ids.iter().for_each(|&id| queue.insert(id, due(id ^ round)));
                took
            })
        });
    });
}

/// Different ones of `0..size`, far from each other.
fn some_of(size: u32, count: u32, round: u32) -> Vec<u32> {
    let start = (scatter(round) % u64::from(size)) as u32;
    // Odd and no multiple of five: walks through all of a power of ten.
    (0..count.min(size))
        .map(|i| ((u64::from(start) + u64::from(i) * 618_033) % u64::from(size)) as u32)
        .collect()
}

fn put_off<Q: Queue>(group: &mut BenchmarkGroup<'_, WallTime>, size: u32) {
    let mut queue: Option<Q> = None;
    let mut round = 0;
    group.bench_function(Q::NAME, |b| {
        let queue = queue.get_or_insert_with(|| filled(size));
        b.iter_custom(|iters| {
            chunks(iters, |count| {
                round += 1;
                let ids = some_of(size, count, round);
                queue.before_put_off(&ids);
                time(|| queue.put_off(&ids, 2 * MINUTE + scatter(round) % MINUTE))
            })
        });
    });
}

/// An iteration is all of them, in a hundred steps; the throughput tells what one costs.
fn fire<Q: Queue>(group: &mut BenchmarkGroup<'_, WallTime>, size: u32) {
    group.sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(u64::from(size)));
    group.bench_function(Q::NAME, |b| {
        b.iter_custom(|iters| (0..iters).map(|_| fire_all::<Q>(size)).sum());
    });
}

fn fire_all<Q: Queue>(size: u32) -> Duration {
    let mut queue: Q = filled(size);
    let (mut fired, mut seen) = (Vec::with_capacity(size as usize), 0);
    let mut total = Duration::ZERO;
    for step in 1..=100 {
        let now = MINUTE + MINUTE * step / 100;
        fired.clear();
        total += queue.fire(now, &mut fired);
        seen += fired.len();
        let early = fired.iter().find(|&&id| due(id) > now);
        assert_eq!(early, None, "{} fired early", Q::NAME);
    }
    assert_eq!(seen, size as usize, "{} lost some, or fired twice", Q::NAME);
    total
}

macro_rules! peers {
    ($($name:ident),*) => {
        fn all(c: &mut Criterion) {
            $(for size in SIZES {
                let mut group = c.benchmark_group(format!("{}/{size}", stringify!($name)));
                group.sample_size(10);
                $name::<Ours>(&mut group, size);
                $name::<Wheel>(&mut group, size);
                $name::<Delays>(&mut group, size);
                $name::<Quad>(&mut group, size);
                $name::<Nexus>(&mut group, size);
                $name::<Sorted>(&mut group, size);
                $name::<Heap>(&mut group, size);
                group.finish();
            })*
        }
    };
}

peers!(insert, cancel, put_off, fire);
criterion_group!(benches, all);
criterion_main!(benches);

//! What a touch costs: a store, beside a plain store and a reading of the clock.
//!
//! `cargo bench --bench touch`.

// A bench that cannot go on has nothing better to do.
#![allow(clippy::unwrap_used)]

use std::{
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering},
};

use criterion::{Criterion, criterion_group, criterion_main};
use stallwatch::core::{
    clock::{Clock, monotonic},
    shard::{Shard, Waker},
    timer::Timer,
};

#[derive(Debug)]
struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

fn touch(c: &mut Criterion) {
    let shard = Shard::new(Clock::Real, None, Box::new(Silent));
    let timer = Timer::new(&shard, 0);
    timer.arm(monotonic() + 90_000_000_000, 0).unwrap();
    let word = AtomicU64::new(0);
    let mut due = monotonic() + 90_000_000_000;
    let mut group = c.benchmark_group("touch");
    group.bench_function("a relaxed store", |b| {
        b.iter(|| {
            due += 1;
            black_box(&word).store(due, Ordering::Relaxed);
        });
    });
    group.bench_function("Timer::touch", |b| {
        b.iter(|| {
            due += 1;
            black_box(&timer).touch(due);
        });
    });
    group.bench_function("Timer::touch for a relative window", |b| {
        b.iter(|| {
            let timer = black_box(&timer);
            timer.touch(timer.shard().clock().now() + 90_000_000_000);
        });
    });
    group.bench_function("a reading of the clock", |b| b.iter(monotonic));
    group.bench_function("std's Instant::now", |b| b.iter(std::time::Instant::now));
    group.bench_function("Timer::pause and resume_at", |b| {
        b.iter(|| {
            let timer = black_box(&timer);
            due += 1;
            timer.pause(1_000);
            timer.resume_at(due);
        });
    });
    group.bench_function("Timer::has_fired", |b| {
        b.iter(|| black_box(&timer).has_fired())
    });
    group.finish();
}

criterion_group!(benches, touch);
criterion_main!(benches);

//! Models of the races that `state` and `driver` name, run by loom through every interleaving. `make loom`
//! runs them.
//!
//! That they can fail was tried by hand, one change at a time, and these do (beside others):
//! - `visit` does not read `due` again after it has stored `PARKED`: `loom_resume_against_park`;
//! - `claim` does not: `loom_resume_against_a_claim_that_parks`;
//! - `resume_at` reads `state` before it stores `due`: both of these;
//! - `claim` trusts the `due` that was found: `loom_touch_against_fire`;
//! - `claim` does not look at the state: `loom_cancel_against_fire`, `loom_drop_against_fire`;
//! - `claim` does not compare arm numbers: `loom_drop_and_reuse_against_fire`;
//! - `prepare_sleep` does not look at the shards again: `loom_arm_against_sleep`;
//! - `file` pokes before it has stored `next_wake`: the same;
//! - without [`see_each_other`](super::sync::see_each_other): all that resume or sleep;
//! - a pass that does not take the gate: `loom_hold_against_pass`.

// clippy.toml allows this in tests, but does not see that this is one.
#![allow(clippy::unwrap_used)]

use loom::{model as check, thread};

use super::{
    clock::{Clock, ManualTime},
    driver::Driver,
    shard::{Claim, Overseer, Shard, Waker},
    sync::Arc,
    timer::Timer,
};

#[derive(Debug)]
struct Silent;

impl Waker for Silent {
    fn wake(&self) {}
}

/// A shard whose clock stands at `now`, without a driver.
fn shard_at(now: u64) -> Arc<Shard> {
    let time = Arc::new(ManualTime::new(now));
    Shard::new(Clock::Manual(time), None, Box::new(Silent))
}

fn armed(shard: &Arc<Shard>, payload: usize, due: u64) -> Arc<Timer> {
    let timer = Timer::new(shard, payload);
    timer.arm(due, 0).unwrap();
    Arc::new(timer)
}

/// Delivers what is queued; the payloads that ran.
fn deliver(shard: &Shard, now: u64) -> Vec<usize> {
    let claim = |fired| match shard.claim(fired, now, |_| ()) {
        Claim::Run { payload, .. } => Some(payload),
        Claim::Void => None,
    };
    shard.take().iter().filter_map(claim).collect()
}

/// Ends a model: what was to fire at `due` does, woken by the shard's own wish, and once.
fn fires_at(shard: &Shard, due: u64) {
    assert!(shard.next_wake() <= due, "nobody will come");
    shard.process(due - 1, 0);
    assert_eq!(deliver(shard, due - 1), []);
    shard.process(due, 0);
    assert_eq!(deliver(shard, due), [1]);
    let stats = shard.stats();
    assert_eq!((stats.armed, stats.fired), (0, 1));
}

#[test]
fn loom_touch_against_fire() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        timer.touch(9);
        assert_eq!(deliver(&shard, 5), [], "the touch came first");
        driver.join().unwrap();
        assert_eq!(deliver(&shard, 5), []);
        fires_at(&shard, 9);
    });
}

#[test]
fn loom_cancel_against_fire() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        let canceller = thread::spawn({
            let timer = timer.clone();
            move || timer.cancel().is_some()
        });
        let mut ran = deliver(&shard, 5);
        driver.join().unwrap();
        let cancelled = canceller.join().unwrap();
        ran.extend(deliver(&shard, 5));
        assert!(
            cancelled ^ (ran == [1]),
            "cancelled {cancelled}, ran {ran:?}"
        );
        assert_eq!(shard.stats().armed, 0);
    });
}

#[test]
fn loom_resume_against_park() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        timer.pause(2);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        timer.resume_at(7);
        driver.join().unwrap();
        fires_at(&shard, 7);
    });
}

#[test]
fn loom_pause_and_resume_against_park() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
                shard.process(6, 0);
            }
        });
        timer.pause(2);
        timer.resume_at(7);
        driver.join().unwrap();
        assert_eq!(deliver(&shard, 6), []);
        fires_at(&shard, 7);
    });
}

#[test]
fn loom_resume_against_a_claim_that_parks() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        shard.process(5, 0);
        timer.pause(2);
        let owner = thread::spawn({
            let timer = timer.clone();
            move || timer.resume_at(7)
        });
        assert_eq!(deliver(&shard, 5), []);
        owner.join().unwrap();
        fires_at(&shard, 7);
    });
}

#[test]
fn loom_drop_and_reuse_against_fire() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 7, 5);
        shard.process(5, 0);
        let stale = shard.take();
        // The next timer gets the slot of the one that went.
        drop(timer);
        let timer = armed(&shard, 1, 5);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        assert_eq!(shard.claim(&stale[0], 5, |_| ()), Claim::Void);
        driver.join().unwrap();
        assert_eq!(shard.claim(&stale[0], 5, |_| ()), Claim::Void);
        assert_eq!(deliver(&shard, 5), [1]);
        drop(timer);
    });
}

#[test]
fn loom_drop_against_fire() {
    check(|| {
        let shard = shard_at(5);
        let timer = armed(&shard, 1, 5);
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        drop(timer);
        assert_eq!(deliver(&shard, 5), []);
        driver.join().unwrap();
        assert_eq!(deliver(&shard, 5), []);
        assert_eq!(shard.stats().armed, 0);
    });
}

#[test]
fn loom_close_against_fire() {
    check(|| {
        let shard = shard_at(5);
        let _timers = [armed(&shard, 1, 5), armed(&shard, 2, 9)];
        let driver = thread::spawn({
            let shard = shard.clone();
            move || {
                shard.process(5, 0);
            }
        });
        assert_eq!(shard.close(), []);
        assert_eq!(deliver(&shard, 9), []);
        driver.join().unwrap();
        assert_eq!(deliver(&shard, 9), []);
        assert_eq!(shard.next_wake(), u64::MAX);
        let stats = shard.stats();
        assert_eq!((stats.armed, stats.dropped), (0, 2));
    });
}

/// The driver's turns, until it has found a fire. It sleeps without a limit whenever nothing is
/// due, so a wake-up that got lost is a deadlock, which loom reports.
fn drive(driver: &Driver, shard: &Shard, now: u64) {
    loop {
        let next = driver.pass(now, 0);
        if shard.stats().decided.count() > 0 {
            return;
        }
        if next > now && driver.prepare_sleep(next) {
            driver.sleep(None);
        }
    }
}

fn arm_against_sleep(others: &'static [u64]) {
    check(move || {
        let driver = Driver::default();
        let overseer: Box<dyn Overseer> = Box::new(driver.clone());
        let time = Arc::new(ManualTime::new(5));
        let shard = Shard::new(Clock::Manual(time), Some(overseer), Box::new(Silent));
        driver.adopt(&shard);
        let _others: Vec<_> = others.iter().map(|&due| armed(&shard, 0, due)).collect();
        let thread = thread::spawn({
            let (driver, shard) = (driver.clone(), shard.clone());
            move || drive(&driver, &shard, 5)
        });
        let timer = armed(&shard, 1, 5);
        thread.join().unwrap();
        assert_eq!(deliver(&shard, 5), [1]);
        drop(timer);
        // Driver and shard know each other.
        shard.close();
    });
}

#[test]
fn loom_arm_against_sleep() {
    arm_against_sleep(&[]);
}

#[test]
fn loom_earlier_arm_against_a_long_sleep() {
    arm_against_sleep(&[1_000]);
}

#[test]
fn loom_resume_against_sleep() {
    check(|| {
        let driver = Driver::default();
        let overseer: Box<dyn Overseer> = Box::new(driver.clone());
        let time = Arc::new(ManualTime::new(5));
        let shard = Shard::new(Clock::Manual(time), Some(overseer), Box::new(Silent));
        driver.adopt(&shard);
        let timer = armed(&shard, 1, 5);
        timer.pause(0);
        let thread = thread::spawn({
            let (driver, shard) = (driver.clone(), shard.clone());
            move || drive(&driver, &shard, 5)
        });
        timer.resume_at(5);
        thread.join().unwrap();
        assert_eq!(deliver(&shard, 5), [1]);
        drop(timer);
        shard.close();
    });
}

#[test]
fn loom_hold_against_pass() {
    check(|| {
        let driver = Driver::default();
        let overseer: Box<dyn Overseer> = Box::new(driver.clone());
        let time = Arc::new(ManualTime::new(5));
        let shard = Shard::new(Clock::Manual(time), Some(overseer), Box::new(Silent));
        driver.adopt(&shard);
        let timer = armed(&shard, 1, 5);
        let thread = thread::spawn({
            let driver = driver.clone();
            move || driver.pass(5, 0)
        });
        driver.hold();
        let before = shard.stats();
        thread::yield_now();
        assert_eq!(shard.stats(), before, "a pass went on");
        driver.let_go();
        thread.join().unwrap();
        assert_eq!(deliver(&shard, 5), [1]);
        drop(timer);
        shard.close();
    });
}

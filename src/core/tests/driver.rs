//! The driver thread in real time. Headroom everywhere: 0.3 s or more.

use super::*;
use crate::core::{
    clock::{FAR, monotonic},
    driver::Driver,
    error::Error,
    shard::Overseer,
};
use std::{
    sync::{Condvar, Mutex, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

const MS: u64 = 1_000_000;
/// Nothing takes this long unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A waker that a test can wait for.
#[derive(Debug, Default, Clone)]
struct Door(Arc<(Mutex<u64>, Condvar)>);

impl Waker for Door {
    fn wake(&self) {
        *self.0.0.lock().unwrap() += 1;
        self.0.1.notify_all();
    }
}

impl Door {
    fn wait(&self) -> bool {
        let rung = self.0.0.lock().unwrap();
        let (mut rung, timeout) = self
            .0
            .1
            .wait_timeout_while(rung, PATIENCE, |rung| *rung == 0)
            .unwrap();
        *rung = 0;
        !timeout.timed_out()
    }
}

fn shard_of(driver: &Driver, waker: impl Waker + 'static) -> Arc<Shard> {
    let shard = Shard::new(Clock::Real, Some(Box::new(driver.clone())), Box::new(waker));
    driver.adopt(&shard);
    shard
}

fn start() -> (Driver, Arc<Shard>, Door) {
    let (driver, door) = (Driver::default(), Door::default());
    let shard = shard_of(&driver, door.clone());
    (driver, shard, door)
}

/// Claims what is queued at the real time; payloads that are to run, and how late by the deadline.
fn deliver(shard: &Shard) -> Vec<usize> {
    let fires = shard.take();
    let claim = |fired| match shard.claim(fired, monotonic(), |_| ()) {
        Claim::Run { payload, .. } => Some(payload),
        Claim::Void => None,
    };
    fires.iter().filter_map(claim).collect()
}

fn eventually(mut what: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !what() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

fn asleep(driver: &Driver) {
    // No way to see it sleep; its passes have stopped.
    let mut passes = u64::MAX;
    eventually(|| {
        let before = std::mem::replace(&mut passes, driver.health().passes);
        thread::sleep(Duration::from_millis(5));
        before == driver.health().passes
    });
}

#[test]
fn timers_fire_on_time_and_never_early() {
    let (driver, shard, door) = start();
    let begin = monotonic();
    let dues: Vec<u64> = (0..200)
        .map(|i| begin + i * 1_234_567 % (200 * MS))
        .collect();
    let _timers: Vec<_> = dues
        .iter()
        .enumerate()
        .map(|(i, &due)| {
            let timer = Timer::new(&shard, i);
            timer.arm(due, 0).unwrap();
            timer
        })
        .collect();
    let mut fired = 0;
    while fired < dues.len() {
        assert!(door.wait(), "{fired} of {} fired", dues.len());
        for found in shard.take() {
            assert!(found.decided >= found.due && found.decided <= monotonic());
            if let Claim::Run { payload, .. } = shard.claim(&found, monotonic(), |_| ()) {
                assert!(dues[payload] <= found.decided, "early");
                fired += 1;
            }
        }
    }
    let stats = driver.stats();
    assert_eq!((stats.armed, stats.fired, stats.rescued), (0, 200, 0));
    assert!(stats.decided.max < 500 * MS, "late: {:?}", stats.decided);
    driver.stop();
    shard.close();
}

#[test]
fn an_earlier_arm_wakes_a_sleeping_driver() {
    let (driver, shard, door) = start();
    let (far, near) = (Timer::new(&shard, 1), Timer::new(&shard, 2));
    far.arm(monotonic() + 60_000 * MS, 0).unwrap();
    asleep(&driver);
    near.arm(monotonic() + 5 * MS, 0).unwrap();
    assert!(door.wait());
    assert_eq!(deliver(&shard), [2]);
    driver.stop();
    shard.close();
}

#[test]
fn an_arm_wakes_a_driver_that_sleeps_for_ever() {
    let (driver, shard, door) = start();
    let timer = Timer::new(&shard, 1);
    for _ in 0..3 {
        timer.arm(monotonic(), 0).unwrap();
        assert!(door.wait());
        assert_eq!(deliver(&shard), [1]);
        asleep(&driver);
    }
    driver.stop();
    shard.close();
}

#[test]
fn a_driver_with_nothing_due_never_ticks() {
    let (driver, shard, _door) = start();
    let timer = Timer::new(&shard, 1);
    // The first slot of the wheel that begins on the way lies a whole turn of level 3 ahead.
    timer.arm(FAR, 0).unwrap();
    asleep(&driver);
    let before = driver.health().passes;
    for _ in 0..300 {
        timer.touch(FAR);
        thread::sleep(Duration::from_millis(1));
    }
    let grown = driver.health().passes - before;
    assert!(grown <= 1, "{grown} passes in 0.3 s");
    driver.stop();
    shard.close();
}

/// Panics at the first wake-up, then behaves.
#[derive(Debug)]
struct Faulty(AtomicBool, Door);

impl Waker for Faulty {
    fn wake(&self) {
        assert!(self.0.swap(true, Ordering::SeqCst), "a panic on purpose");
        self.1.wake();
    }
}

#[test]
fn a_panic_in_a_pass_is_counted_and_ends_nothing() {
    let driver = Driver::default();
    let (first, second) = (Door::default(), Door::default());
    let faulty = shard_of(&driver, Faulty(AtomicBool::new(false), first.clone()));
    let sound = shard_of(&driver, second.clone());
    let now = monotonic();
    let timers = [
        Timer::new(&faulty, 1),
        Timer::new(&sound, 2),
        Timer::new(&faulty, 3),
    ];
    driver.hold();
    for timer in &timers[..2] {
        timer.arm(now, 0).unwrap();
    }
    driver.let_go();
    assert!(second.wait(), "the other shard does not notice");
    assert_eq!(deliver(&sound), [2]);
    timers[2].arm(monotonic() + 20 * MS, 0).unwrap();
    assert!(first.wait(), "the wake-up that failed is made up for");
    assert!(eventually(|| faulty.stats().decided.count() == 2));
    assert_eq!(deliver(&faulty), [1, 3]);
    let health = driver.health();
    assert!(health.running);
    assert_eq!(health.panics, 1);
    driver.stop();
    faulty.close();
    sound.close();
}

#[test]
fn stop_joins_wherever_the_driver_is_and_arms_are_harmless_afterwards() {
    for round in 0..50 {
        let (driver, shard, _door) = start();
        let timer = Timer::new(&shard, 1);
        timer
            .arm(
                monotonic() + if round % 2 == 0 { 0 } else { 60_000 * MS },
                0,
            )
            .unwrap();
        if round % 5 == 0 {
            asleep(&driver);
        }
        assert!(driver.health().running);
        driver.stop();
        assert!(!driver.health().running);
        let passes = driver.health().passes;
        timer.arm(monotonic(), 0).unwrap();
        driver.stop();
        assert_eq!(driver.health().passes, passes, "its thread has ended");
        assert_eq!(shard.close(), NONE);
    }
}

#[test]
fn stop_before_the_first_timer_is_final_too() {
    let (driver, shard, _door) = start();
    driver.stop();
    let timer = Timer::new(&shard, 1);
    timer.arm(monotonic(), 0).unwrap();
    assert_eq!(driver.health().passes, 0);
    shard.close();
}

/// An overseer whose thread cannot be started, until it can.
#[derive(Debug)]
struct Refusing(Arc<AtomicBool>);

impl Overseer for Refusing {
    fn ensure_running(&self) -> Result<(), Error> {
        if self.0.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(Error::NoThread("no room".to_owned()))
        }
    }
    fn poke(&self, _when: u64) {}
    fn forget(&self, _shard: &Shard) {}
}

#[test]
fn an_arm_without_a_driver_is_refused_and_leaves_nothing_half_done() {
    let room = Arc::new(AtomicBool::new(false));
    let overseer: Box<dyn Overseer> = Box::new(Refusing(room.clone()));
    let time = Arc::new(ManualTime::new(0));
    let shard = Shard::new(
        Clock::Manual(time.clone()),
        Some(overseer),
        Box::new(Bell::default()),
    );
    let timer = Timer::new(&shard, 1);
    assert_eq!(timer.arm(10, 0), Err(Error::NoThread("no room".to_owned())));
    assert!(!timer.is_active());
    assert_eq!(shard.stats(), Default::default());
    assert_eq!(shard.next_wake(), u64::MAX);
    room.store(true, Ordering::SeqCst);
    assert_eq!(timer.arm(10, 0), Ok(()));
    room.store(false, Ordering::SeqCst);
    assert!(timer.arm(5, 0).is_err());
    assert_eq!(timer.due(), 10, "the old arm stands");
    assert_eq!(shard.stats().armed, 1);
}

#[test]
fn held_the_driver_makes_no_pass_until_it_is_let_go() {
    let (driver, shard, door) = start();
    let timer = Timer::new(&shard, 1);
    timer.arm(monotonic() + 10 * MS, 0).unwrap();
    driver.hold();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(shard.stats().decided.count(), 0);
    driver.let_go();
    assert!(door.wait());
    assert_eq!(deliver(&shard), [1]);
    driver.stop();
    shard.close();
}

#[test]
fn abandoned_every_shard_is_inherited_and_the_driver_refuses() {
    let (driver, shard, _door) = start();
    let timer = Timer::new(&shard, 1);
    timer.arm(monotonic() + 60_000 * MS, 0).unwrap();
    driver.hold();
    driver.abandon();
    driver.let_go();
    assert!(shard.is_inherited() && !timer.is_active());
    assert_eq!(timer.arm(monotonic(), 0), Err(Error::Inherited));
    driver.stop();
}

#[test]
fn counters_of_closed_shards_stay_in_the_sum() {
    let (driver, shard, door) = start();
    let other = shard_of(&driver, Door::default());
    let (timer, rest) = (Timer::new(&shard, 1), Timer::new(&other, 2));
    timer.arm(monotonic(), 0).unwrap();
    rest.arm(monotonic() + 60_000 * MS, 0).unwrap();
    assert!(door.wait());
    assert_eq!(deliver(&shard), [1]);
    shard.close();
    shard.close();
    other.close();
    let stats = driver.stats();
    assert_eq!(
        (stats.armed, stats.started, stats.fired, stats.dropped),
        (0, 2, 1, 1)
    );
    driver.stop();
    assert_eq!(Arc::strong_count(&shard), 2, "ours, and the timer's");
}

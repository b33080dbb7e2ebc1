//! One shape for all peers. Times are milliseconds from the queue's beginning.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use hierarchical_hash_wheel_timer::wheels::{
    Skip,
    cancellable::{CancellableTimerEntry, QuadWheelWithOverflow},
};
use tokio_util::time::{DelayQueue, delay_queue};

/// A queue of timers with the numbers `0..capacity`.
pub(crate) trait Queue {
    const NAME: &str;
    fn new(capacity: u32) -> Self;
    fn insert(&mut self, id: u32, due: u64);
    fn cancel(&mut self, id: u32);
    /// What has to be so before `put_off`; not timed.
    fn before_put_off(&mut self, _ids: &[u32]) {}
    /// Moves deadlines later.
    fn put_off(&mut self, ids: &[u32], due: u64);
    /// Hands out all that is due by `now`; how long that took.
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration;
}

pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn none<T>(capacity: u32) -> Vec<Option<T>> {
    (0..capacity).map(|_| None).collect()
}

/// tokio-util's `DelayQueue`, under a paused tokio clock.
pub(crate) struct Delays {
    queue: DelayQueue<u32>,
    keys: Vec<Option<delay_queue::Key>>,
    start: tokio::time::Instant,
    runtime: tokio::runtime::Runtime,
}

impl Queue for Delays {
    const NAME: &str = "tokio DelayQueue";
    fn new(capacity: u32) -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let guard = runtime.enter();
        let (queue, start) = (DelayQueue::new(), tokio::time::Instant::now());
        drop(guard);
        Self {
            queue,
            keys: none(capacity),
            start,
            runtime,
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        let _guard = self.runtime.enter();
        let key = self
            .queue
            .insert_at(id, self.start + Duration::from_millis(due));
        self.keys[id as usize] = Some(key);
    }
    fn cancel(&mut self, id: u32) {
        let key = self.keys[id as usize].take().unwrap();
        self.queue.remove(&key);
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        let _guard = self.runtime.enter();
        let due = self.start + Duration::from_millis(due);
        for &id in ids {
            self.queue
                .reset_at(self.keys[id as usize].as_ref().unwrap(), due);
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        self.runtime.block_on(async {
            let ahead = self.start + Duration::from_millis(now) - tokio::time::Instant::now();
            tokio::time::advance(ahead).await;
        });
        let _guard = self.runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        timed(|| {
            while let Poll::Ready(Some(expired)) = self.queue.poll_expired(&mut context) {
                fired.push(expired.into_inner());
            }
        })
    }
}

/// hierarchical_hash_wheel_timer's cancellable wheel.
pub(crate) struct Quad {
    wheel: QuadWheelWithOverflow<Numbered>,
    now: u64,
}

#[derive(Debug)]
struct Numbered(u32);

impl CancellableTimerEntry for Numbered {
    type Id = u32;
    fn id(&self) -> &u32 {
        &self.0
    }
}

impl Queue for Quad {
    const NAME: &str = "hierarchical_hash_wheel_timer";
    fn new(_capacity: u32) -> Self {
        Self {
            wheel: QuadWheelWithOverflow::new(),
            now: 0,
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        let delay = Duration::from_millis(due - self.now);
        self.wheel
            .insert_ref_with_delay(Rc::new(Numbered(id)), delay)
            .unwrap();
    }
    fn cancel(&mut self, id: u32) {
        self.wheel.cancel(&id).unwrap();
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        for &id in ids {
            self.cancel(id);
            self.insert(id, due);
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        timed(|| {
            while self.now < now {
                let left = (now - self.now) as u32;
                match self.wheel.can_skip() {
                    Skip::None => {
                        fired.extend(self.wheel.tick().iter().map(|entry| entry.0));
                        self.now += 1;
                    }
                    Skip::Millis(ms) => {
                        self.wheel.skip(ms.min(left));
                        self.now += u64::from(ms.min(left));
                    }
                    Skip::Empty => {
                        self.wheel.skip(left);
                        self.now = now;
                    }
                }
            }
        })
    }
}

/// nexus-timer's wheel.
pub(crate) struct Nexus {
    wheel: nexus_timer::Wheel<u32>,
    handles: Vec<Option<nexus_timer::TimerHandle<u32>>>,
    start: Instant,
}

impl Queue for Nexus {
    const NAME: &str = "nexus-timer";
    fn new(capacity: u32) -> Self {
        let start = Instant::now();
        Self {
            wheel: nexus_timer::Wheel::unbounded(1_024, start),
            handles: none(capacity),
            start,
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        let handle = self
            .wheel
            .schedule(self.start + Duration::from_millis(due), id);
        self.handles[id as usize] = Some(handle);
    }
    fn cancel(&mut self, id: u32) {
        self.wheel.cancel(self.handles[id as usize].take().unwrap());
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        let due = self.start + Duration::from_millis(due);
        for &id in ids {
            let handle = self.handles[id as usize].take().unwrap();
            self.handles[id as usize] = Some(self.wheel.reschedule(handle, due));
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        let now = self.start + Duration::from_millis(now);
        timed(|| {
            self.wheel.poll_and_rebalance(now, fired);
        })
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        for handle in self.handles.drain(..).flatten() {
            self.wheel.cancel(handle);
        }
    }
}

/// std's `BTreeMap` by deadline and number.
pub(crate) struct Sorted {
    map: BTreeMap<(u64, u32), ()>,
    due: Vec<u64>,
}

impl Queue for Sorted {
    const NAME: &str = "BTreeMap";
    fn new(capacity: u32) -> Self {
        Self {
            map: BTreeMap::new(),
            due: vec![0; capacity as usize],
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        self.due[id as usize] = due;
        self.map.insert((due, id), ());
    }
    fn cancel(&mut self, id: u32) {
        self.map.remove(&(self.due[id as usize], id));
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        for &id in ids {
            self.cancel(id);
            self.insert(id, due);
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        timed(|| {
            while let Some(first) = self.map.first_entry().filter(|first| first.key().0 <= now) {
                fired.push(first.remove_entry().0.1);
            }
        })
    }
}

/// std's `BinaryHeap` with tombstones, swept when half of it is dead, as asyncio does it.
pub(crate) struct Heap {
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// The generation of each number's live entry; odd while there is one.
    live: Vec<u32>,
    dead: usize,
}

impl Queue for Heap {
    const NAME: &str = "BinaryHeap with tombstones";
    fn new(capacity: u32) -> Self {
        Self {
            heap: BinaryHeap::new(),
            live: vec![0; capacity as usize],
            dead: 0,
        }
    }
    fn insert(&mut self, id: u32, due: u64) {
        self.live[id as usize] += 1;
        self.heap.push(Reverse((due, id, self.live[id as usize])));
    }
    fn cancel(&mut self, id: u32) {
        self.live[id as usize] += 1;
        self.dead += 1;
        if self.dead > 100 && self.dead > self.heap.len() / 2 {
            let live = &self.live;
            self.heap
                .retain(|Reverse((_, id, generation))| live[*id as usize] == *generation);
            self.dead = 0;
        }
    }
    fn put_off(&mut self, ids: &[u32], due: u64) {
        for &id in ids {
            self.cancel(id);
            self.insert(id, due);
        }
    }
    fn fire(&mut self, now: u64, fired: &mut Vec<u32>) -> Duration {
        timed(|| {
            while let Some(Reverse((due, id, generation))) = self.heap.peek().copied() {
                if due > now {
                    break;
                }
                self.heap.pop();
                if self.live[id as usize] == generation {
                    self.live[id as usize] += 1;
                    fired.push(id);
                } else {
                    self.dead -= 1;
                }
            }
        })
    }
}

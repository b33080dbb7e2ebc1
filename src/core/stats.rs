//! Counters of one shard, and their sum.

/// Buckets of a lateness histogram: bucket `i` counts values below `2^i` µs, the last one all others.
pub const BUCKETS: usize = 24;

/// How late something happened, in powers of two of a microsecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts by bucket.
    pub buckets: [u64; BUCKETS],
    /// The largest value, in nanoseconds.
    pub max: u64,
}

impl Histogram {
    /// Counts one value in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        let bits = (u64::BITS - (ns / 1_000).leading_zeros()) as usize;
        self.buckets[bits.min(BUCKETS - 1)] += 1;
        self.max = self.max.max(ns);
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(other.buckets) {
            *mine += theirs;
        }
        self.max = self.max.max(other.max);
    }

    /// How many values it has counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// What a shard has done so far. `armed` is a level, everything else only grows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Timers whose clock runs or is paused now.
    pub armed: u64,
    /// Timers ever armed.
    pub started: u64,
    /// Fires that reached their callback.
    pub fired: u64,
    /// Lazy re-filings: the wheel came by and the timer had been touched.
    pub rearmed: u64,
    /// Fires taken back on delivery, as the timer had been touched meanwhile.
    pub rescued: u64,
    /// Timers cancelled before they fired.
    pub cancelled: u64,
    /// Timers and fires dropped with their closed loop.
    pub dropped: u64,
    /// Deadline to decision on the timer thread.
    pub decided: Histogram,
    /// Deadline to the start of the callback.
    pub delivered: Histogram,
}

impl Stats {
    /// Adds another shard's numbers.
    pub fn add(&mut self, other: &Self) {
        self.armed += other.armed;
        self.started += other.started;
        self.fired += other.fired;
        self.rearmed += other.rearmed;
        self.rescued += other.rescued;
        self.cancelled += other.cancelled;
        self.dropped += other.dropped;
        self.decided.add(&other.decided);
        self.delivered.add(&other.delivered);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_lands_below_its_power_of_two() {
        let mut histogram = Histogram::default();
        for us in [0, 1, 2, 3, 1_000, u64::MAX / 1_000] {
            histogram.record(us * 1_000);
        }
        assert_eq!(histogram.buckets[0], 1);
        assert_eq!(histogram.buckets[1], 1);
        assert_eq!(histogram.buckets[2], 2);
        assert_eq!(histogram.buckets[10], 1);
        assert_eq!(histogram.buckets[BUCKETS - 1], 1);
        assert_eq!(histogram.count(), 6);
    }
}

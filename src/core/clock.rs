//! Time: one `u64` of nanoseconds on the monotonic clock (the one behind Python's `time.monotonic()`),
//! real or set by hand, and the only conversions from it and to it.
//!
//! Rounding: seconds to nanoseconds and nanoseconds to ticks round up (a deadline never comes early);
//! the current time rounds down to a tick, so a tick has come only when all of it has.

use super::sync::{Arc, AtomicU64, Ordering};

/// A tick is `1 << TICK_SHIFT` nanoseconds (262 µs): a shift instead of a division, and the contract's
/// 1 ms leaves room for the wake-up.
pub const TICK_SHIFT: u32 = 18;

/// The farthest moment there is (146 years); everything above saturates here. Bit 63 stays free for
/// the timer's paused mark.
pub const FAR: u64 = 1 << 62;

/// How a clock's nanoseconds map to ticks of a wheel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticks(u32);

impl Ticks {
    /// Ticks of `1 << shift` nanoseconds.
    #[must_use]
    pub const fn new(shift: u32) -> Self {
        Self(shift)
    }

    /// Nanoseconds to ticks, rounded up.
    #[must_use]
    pub const fn ceil(self, ns: u64) -> u64 {
        (ns >> self.0) + ((ns & ((1 << self.0) - 1) != 0) as u64)
    }

    /// Nanoseconds to ticks, rounded down.
    #[must_use]
    pub const fn floor(self, ns: u64) -> u64 {
        ns >> self.0
    }

    /// The first nanosecond of a tick; saturates at [`FAR`].
    #[must_use]
    pub const fn start(self, tick: u64) -> u64 {
        if tick >= FAR >> self.0 {
            FAR
        } else {
            tick << self.0
        }
    }
}

/// Seconds to nanoseconds, rounded up; negative is 0, huge is [`FAR`]. NaN must not get here; it is 0.
///
/// A value that is a whole number of nanoseconds but for the error of its floating point form is that
/// number: 1.1 s are 1 100 000 000 ns, and not one more because 1.1 has no exact form.
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss
)]
pub fn ns_from_secs(secs: f64) -> u64 {
    let exact = secs * 1e9;
    // A cast saturates, and makes 0 of NaN. `ceil` and `round` would be calls on the baseline processor.
    let whole = exact as u64;
    let more = exact - whole as f64 > exact * (2.0 * f64::EPSILON);
    whole.saturating_add(u64::from(more)).min(FAR)
}

/// Nanoseconds to seconds.
#[must_use]
#[allow(clippy::cast_precision_loss)]
pub fn secs(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(target_os = "macos")]
const MONOTONIC: libc::clockid_t = libc::CLOCK_UPTIME_RAW;
#[cfg(not(target_os = "macos"))]
const MONOTONIC: libc::clockid_t = libc::CLOCK_MONOTONIC;

fn read(id: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid timespec to write to; the call has no other effect.
    unsafe { libc::clock_gettime(id, &raw mut ts) };
    // Neither field of a clock reading is negative.
    ts.tv_sec.unsigned_abs() * 1_000_000_000 + ts.tv_nsec.unsigned_abs()
}

/// Now, on the real monotonic clock.
#[must_use]
pub fn monotonic() -> u64 {
    read(MONOTONIC)
}

/// Now, or up to a few milliseconds ago, for a quarter of the price of [`monotonic`]. Never ahead of it.
#[must_use]
pub fn recently() -> u64 {
    #[cfg(target_os = "linux")]
    return read(libc::CLOCK_MONOTONIC_COARSE);
    #[cfg(not(target_os = "linux"))]
    return monotonic();
}

/// Nanoseconds since boot with sleep included. Beside [`monotonic`] it tells how long the host slept.
#[must_use]
pub fn boottime() -> u64 {
    #[cfg(target_os = "linux")]
    return read(libc::CLOCK_BOOTTIME);
    #[cfg(not(target_os = "linux"))]
    return monotonic();
}

/// Where a shard's time comes from.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    /// The system's monotonic clock.
    #[default]
    Real,
    /// A clock that tests set.
    Manual(Arc<ManualTime>),
}

impl Clock {
    /// Its ticks. A manual clock has one a nanosecond: a test that advances to a deadline has reached it.
    #[must_use]
    pub const fn ticks(&self) -> Ticks {
        match self {
            Self::Real => Ticks::new(TICK_SHIFT),
            Self::Manual(_) => Ticks::new(0),
        }
    }

    /// Now, in nanoseconds.
    #[must_use]
    pub fn now(&self) -> u64 {
        match self {
            Self::Real => monotonic(),
            Self::Manual(time) => time.now(),
        }
    }

    /// A moment not ahead of [`Clock::now`] and not far behind it.
    #[must_use]
    pub fn recently(&self) -> u64 {
        match self {
            Self::Real => recently(),
            Self::Manual(time) => time.now(),
        }
    }
}

/// A moment that only moves when told, and never back.
#[derive(Debug)]
pub struct ManualTime(AtomicU64);

impl ManualTime {
    /// Starts at `ns`.
    #[must_use]
    pub fn new(ns: u64) -> Self {
        Self(AtomicU64::new(ns))
    }

    /// The moment it stands at.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Moves on to `ns`; an earlier moment changes nothing.
    pub fn move_to(&self, ns: u64) {
        self.0.fetch_max(ns, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn conversions_round_away_from_early() {
        let ticks = Clock::Real.ticks();
        assert_eq!(ticks.ceil(0), 0);
        assert_eq!(ticks.ceil(1), 1);
        assert_eq!(ticks.ceil(1 << TICK_SHIFT), 1);
        assert_eq!(ticks.ceil((1 << TICK_SHIFT) + 1), 2);
        assert_eq!(ticks.floor((2 << TICK_SHIFT) - 1), 1);
        assert_eq!(Ticks::new(0).ceil(7), 7);
        assert_eq!(ns_from_secs(1e-9), 1);
        assert_eq!(ns_from_secs(0.3), 300_000_000);
        assert_eq!(ns_from_secs(1.1), 1_100_000_000);
        assert_eq!(ns_from_secs(1_000_000.3), 1_000_000_300_000_000);
        assert_eq!(ns_from_secs(1.000_000_000_1), 1_000_000_001);
    }

    #[test]
    fn nonsense_saturates() {
        assert_eq!(ns_from_secs(-1.0), 0);
        assert_eq!(ns_from_secs(f64::NAN), 0);
        assert_eq!(ns_from_secs(f64::INFINITY), FAR);
        assert_eq!(ns_from_secs(1e308), FAR);
        assert_eq!(Clock::Real.ticks().start(u64::MAX), FAR);
    }

    #[test]
    fn manual_time_never_goes_back() {
        let time = ManualTime::new(10);
        time.move_to(5);
        assert_eq!(time.now(), 10);
        time.move_to(11);
        assert_eq!(time.now(), 11);
    }
}

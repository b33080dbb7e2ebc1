//! The silences of one stream, counted by length.

/// Values below this share buckets of one width.
const UNIT: u32 = 17;
/// Buckets in each power of two: a bucket is an eighth as wide as where it begins.
const BITS: u32 = 3;
const PER: usize = 1 << BITS;
/// Powers of two above the first eight units; the last bucket begins at two hours.
const POWERS: usize = 24;
/// Number of buckets.
pub const BUCKETS: usize = PER * POWERS;

/// A histogram of silences, and the longest waits that are none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gaps {
    /// Counts by bucket; [`edge`] says where each ends.
    pub buckets: [u32; BUCKETS],
    /// The longest silence counted, in nanoseconds.
    pub max: u64,
    /// The time waited for the first progress.
    pub first: u64,
    /// The longest time waited between two chunks that count as progress, or after the last.
    pub progress: u64,
}

impl Default for Gaps {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            max: 0,
            first: 0,
            progress: 0,
        }
    }
}

const fn bucket(ns: u64) -> usize {
    let units = ns >> UNIT;
    if units < PER as u64 {
        #[allow(clippy::cast_possible_truncation)]
        return units as usize;
    }
    let power = u64::BITS - 1 - units.leading_zeros();
    #[allow(clippy::cast_possible_truncation)]
    let place = (units >> (power - BITS)) as usize - PER;
    let found = (power - BITS + 1) as usize * PER + place;
    if found < BUCKETS { found } else { BUCKETS - 1 }
}

/// Where a bucket ends, in nanoseconds: above every value in it. The last one has no end.
#[must_use]
pub const fn edge(bucket: usize) -> u64 {
    let (power, place) = (bucket / PER, (bucket % PER) as u64 + 1);
    match power {
        0 => place << UNIT,
        _ => (PER as u64 + place) << (UNIT as usize + power - 1),
    }
}

impl Gaps {
    /// Counts a silence that has ended, in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        let count = &mut self.buckets[bucket(ns)];
        *count = count.saturating_add(1);
        self.max = self.max.max(ns);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_lies_below_the_edge_of_its_bucket_and_not_below_the_one_before() {
        for power in 0..43 {
            for more in [0, 1, 3, 7, 11] {
                let ns = (1_u64 << power) + ((more << power) / 12);
                let found = bucket(ns);
                assert!(ns < edge(found), "{ns} in {found}");
                assert!(found == 0 || ns >= edge(found - 1), "{ns} in {found}");
            }
        }
    }

    #[test]
    fn an_edge_is_at_most_an_eighth_above_the_values_of_its_bucket() {
        for found in PER..BUCKETS {
            let (low, high) = (edge(found - 1), edge(found));
            assert!((high - low) * 8 <= low);
        }
    }

    #[test]
    fn the_last_bucket_takes_all_that_is_longer() {
        let mut gaps = Gaps::default();
        for ns in [0, 7_200_000_000_000, u64::MAX] {
            gaps.record(ns);
        }
        assert_eq!((gaps.buckets[0], gaps.buckets[BUCKETS - 1]), (1, 1));
        assert_eq!(gaps.buckets.iter().sum::<u32>(), 3);
        assert_eq!(gaps.max, u64::MAX);
    }
}

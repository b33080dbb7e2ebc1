//! What a guard counts for its statistics: silences and waits, once they have ended.

use pyo3::prelude::*;

use super::{Next, PROGRESS, PullBase, TERMINAL, Woken};
use crate::core::{
    clock::secs,
    gaps::{self, Gaps},
};

impl PullBase {
    fn gaps(&self, act: impl FnOnce(&mut Gaps)) {
        // SAFETY: the GIL is held, and no Python code runs while the reference is out.
        act(unsafe { &mut *self.gaps.get() }.get_or_insert_default());
    }

    /// A silence is over. Those before the first progress are the first wait, and those after the
    /// terminal chunk nobody's business.
    #[inline]
    pub(super) fn saw_gap(&self, gap: u64, woken: Woken) {
        if self.progress.get() == 0
            || self.clocks.get().is_terminal()
            || self.next.get() == Next::Ended
        {
            return;
        }
        self.largest_gap.set(self.largest_gap.get().max(gap));
        if woken != Woken::Cut && gap > 0 {
            self.gaps(|gaps| gaps.record(gap));
        }
        let waited = self.clocks.get().waited();
        if woken == Woken::End && waited > 0 {
            self.gaps(|gaps| gaps.progress = gaps.progress.max(waited));
        }
    }

    /// A chunk with these flags came after so much waiting for progress.
    #[inline]
    pub(super) fn saw_wait(&self, waited: u64, flags: u32) {
        if waited == 0 || flags & (PROGRESS | TERMINAL) == 0 || self.clocks.get().is_terminal() {
            return;
        }
        match (self.progress.get(), flags & PROGRESS != 0) {
            (0, _) => {}
            (1, true) => self.gaps(|gaps| gaps.first = waited),
            _ => self.gaps(|gaps| gaps.progress = gaps.progress.max(waited)),
        }
    }

    pub(super) fn seen(&self) -> (f64, f64, f64, Vec<u32>) {
        // SAFETY: the GIL is held, and no Python code runs while the reference is out.
        let Some(gaps) = (unsafe { &*self.gaps.get() }) else {
            return (0.0, 0.0, 0.0, Vec::new());
        };
        let used = gaps.buckets.iter().rposition(|&count| count > 0);
        (
            secs(gaps.first),
            secs(gaps.progress),
            secs(gaps.max),
            gaps.buckets[..used.map_or(0, |last| last + 1)].to_vec(),
        )
    }
}

/// Where each bucket of gaps ends, in seconds; the last one has no end.
#[pyfunction]
pub(crate) fn gap_edges() -> Vec<f64> {
    (0..gaps::BUCKETS)
        .map(|bucket| secs(gaps::edge(bucket)))
        .collect()
}
